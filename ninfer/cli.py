"""Command line entry: builds the parser from ``ninfer/commands`` and turns faults into exit codes.

Exit codes: 0 done, 1 the command ran and found or hit a problem, 2 it could not start (bad options,
unreadable artifact, no device), 3 the engine failed while serving, 130 interrupted, 141 whoever read
our output stopped reading (``ninfer inspect FILE | head``).
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from ninfer import __version__
from ninfer.commands import NAMES
from ninfer.faults import StartupError
from ninfer.runtime.threads import leave


def build_parser() -> argparse.ArgumentParser:
    """Describe every command and option."""
    parser = argparse.ArgumentParser(
        prog="ninfer",
        description="Serve a .ninfer model over HTTP, or work with model files.",
        epilog="`ninfer COMMAND --help` explains one command.",
    )
    parser.add_argument("--version", action="version", version=f"ninfer {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in NAMES:
        module = importlib.import_module(f"ninfer.commands.{name}")
        sub = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.configure(sub)
        sub.set_defaults(run=module.run)
    return parser


_NO_OPTIONS = {"command", "run", "artifact", "file", "action"}


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse, and name the nearest option where one is unknown."""
    parser = build_parser()
    args, strange = parser.parse_known_args(argv)
    if strange:
        known = [name.replace("_", "-") for name in vars(args) if name not in _NO_OPTIONS]
        near = difflib.get_close_matches(strange[0].lstrip("-").partition("=")[0], known, 1)
        hint = f"; did you mean --{near[0]}?" if near else f"; see `ninfer {args.command} --help`"
        parser.exit(2, f"ninfer {args.command}: unknown argument {strange[0]}{hint}\n")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code.  Does not return while a device hangs."""
    return leave(_run(_parse(argv)))


def _run(args: argparse.Namespace) -> int:
    try:
        code = int(args.run(args))
        if sys.stdout is not None:  # started with it closed
            sys.stdout.flush()
        return code
    except StartupError as problem:
        print(f"ninfer: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except (BrokenPipeError, ExceptionGroup) as problem:
        if isinstance(problem, ExceptionGroup) and problem.split(BrokenPipeError)[1]:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 141


def serve_main() -> int:
    """Run ``ninfer serve`` under its own name."""
    return main(["serve", *sys.argv[1:]])
