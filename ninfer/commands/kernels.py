"""``ninfer kernels``: compile the CUDA kernels ahead of time, for hosts without a compiler.

The one thing a reader would get wrong: a pack is for one architecture; a host that has cards of several
needs a pack for each.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

HELP = "Compile the CUDA kernels ahead of time."
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare ``kernels build``."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="write a pack of machine code; needs no GPU")
    add = build.add_argument
    add("--arch", choices=ARCHITECTURES, required=True, help="which cards: sm_90 is Hopper, sm_120 RTX 50")
    add("--out", type=Path, required=True, metavar="DIR", help="where to write the pack")
    add("--jobs", type=int, default=0, metavar="N", help="compilers at a time (default: all cores)")


def run(args: argparse.Namespace) -> int:
    """Build a pack and say what is in it."""
    import os

    from ninfer.kernels_cu.pack import write_pack

    begun = time.monotonic()
    entries = write_pack(args.out, args.arch, jobs=args.jobs or os.cpu_count() or 1)
    size = sum((args.out / name).stat().st_size for name in entries)
    seconds = time.monotonic() - begun
    print(f"{args.out}: {len(entries)} modules for {args.arch}, {size / 1e6:.1f} MB, in {seconds:.0f} s")
    return 0
