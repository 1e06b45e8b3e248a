"""``ninfer serve``: options and their meaning; the server itself is ``ninfer/app.py``.

Owns the option table.  Every option here works; one that does not exist yet is absent.  The one thing
a reader would get wrong: parser defaults are None, so that a value from ``--config`` can stand
between the flag and the built-in default (flags win).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

HELP = "Serve a model over HTTP (OpenAI and Anthropic dialects)."

KV_DTYPES = ("bf16", "int8", "fp8", "nvfp4", "k8v4")
LOG_LEVELS = ("trace", "debug", "info", "warning", "error", "critical", "off")


def number(low: float, high: float | None = None, *, kind: type = int) -> Callable[[str], float]:
    """Build an argparse type for a number in [low, high]."""

    def parse(text: str) -> float:
        try:
            value: float = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not low <= value <= (float("inf") if high is None else high):
            top = "" if high is None else f" and at most {high:g}"
            raise argparse.ArgumentTypeError(f"{text} must be at least {low:g}{top}")
        return value

    return parse


def drafts(text: str) -> float | str:
    """Parse a number of drafts or ``auto``."""
    return text if text == "auto" else number(1, 5)(text)


DESCRIPTION = """\
Serve one .ninfer model over HTTP: OpenAI Chat Completions and Responses, Anthropic Messages,
/health, /metrics, /stats.  The port opens when the model has answered a first time."""
EPILOG = """\
SIGTERM or SIGINT lets open answers finish (--drain-seconds); a second one cuts them.
Exit codes: 0 stopped, 2 could not start (one sentence says why), 3 the engine failed, 130 interrupted
while starting.  docs/operations.md and docs/limits.md tell the rest."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the options, in groups."""
    parser.usage = "ninfer serve ARTIFACT [options]"
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.formatter_class = partial(argparse.RawDescriptionHelpFormatter, max_help_position=33, width=108)
    parser.add_argument("artifact", nargs="?", help="the .ninfer file to serve")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file whose `server:` section holds these options by name; flags win",
    )
    _network(parser.add_argument_group("network"))
    _model(parser.add_argument_group("model"))
    _memory(parser.add_argument_group("size"))
    _speculation(parser.add_argument_group("speculation"))
    _contexts(parser.add_argument_group("retained contexts"))
    _requests(parser.add_argument_group("requests"))
    _media(parser.add_argument_group("images and video"))
    _sampling(parser.add_argument_group("sampling defaults"))
    _operation(parser.add_argument_group("operation"))


def _network(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", metavar="H", help="listen address (default 127.0.0.1)")
    add("--port", metavar="N", type=number(0, 65535), help="listen port; 0 picks a free one (default 8080)")
    add(
        "--api-key",
        metavar="KEY",
        help="required bearer or x-api-key value; seen in the process list (default none)",
    )
    add("--api-key-file", metavar="FILE", help="read the key from a file; or set NINFER_API_KEY")
    add(
        "--dialect",
        metavar="NAME",
        choices=("ninfer", "astrai"),
        help="ninfer or astrai: habits of the wire where the two differ (default ninfer)",
    )
    add("--cors", action="store_true", default=None, help="send permissive browser CORS headers")
    add(
        "--max-request-mib",
        metavar="N",
        type=number(1),
        help="largest request body in MiB; above it 413 before parsing (default 384)",
    )
    add(
        "--max-connections",
        metavar="N",
        type=number(1),
        help="open connections; 16 are kept for /health and /metrics (default 1024)",
    )
    add(
        "--drain-seconds",
        metavar="F",
        type=number(0, kind=float),
        help="how long open answers may go on after SIGTERM (default 30)",
    )


def _model(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model-id", metavar="ID", help="public model name (default: the artifact's own name)")
    add("--chat-template", metavar="FILE", help="Jinja template to use (default: the artifact's own)")
    add_backend(group)


def add_backend(to: argparse._ActionsContainer) -> None:
    """Declare where to compute."""
    to.add_argument(
        "--backend",
        metavar="NAME",
        choices=("auto", "numpy", "cuda"),
        help="auto, numpy or cuda; also NINFER_BACKEND (default auto)",
    )


def _capacity(text: str) -> float | str:
    """Parse a number of tokens or ``auto``."""
    return text if text == "auto" else number(1)(text)


def _memory(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--max-context",
        metavar="N",
        type=number(1),
        help="most tokens of one sequence, prompt and answer (default 8192)",
    )
    add(
        "--kv-capacity",
        metavar="N",
        type=_capacity,
        help="tokens of the KV pool that all sequences share, or auto: all that the GPU has room for "
        "(default: --max-context)",
    )
    add(
        "--no-cuda-graph",
        action="store_true",
        default=None,
        help="launch every kernel of a decode round instead of replaying a graph (default: replay)",
    )
    add("--kernels", metavar="DIR", help="a pack of `ninfer kernels build` (default: compile)")
    add(
        "--max-concurrency",
        metavar="N",
        type=number(1, 8),
        help="requests that run at one time, 1..8 (default 1)",
    )
    add(
        "--prefill-chunk",
        metavar="N",
        type=number(1),
        help="most prompt tokens computed between two decode rounds (default 1024)",
    )
    add(
        "--kv-dtype",
        metavar="TYPE",
        choices=KV_DTYPES,
        help="bf16, int8, fp8, nvfp4 or k8v4: storage of the KV cache (default bf16)",
    )


def _speculation(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--spec",
        metavar="NAME",
        choices=("mtp",),
        help="mtp: draft with the artifact's proposal layer (default off)",
    )
    add(
        "--draft-tokens",
        metavar="N",
        type=drafts,
        help="tokens drafted a round, 1..5, or auto: what pays best; needed with --spec",
    )
    add(
        "--lm-head-draft",
        action="store_true",
        default=None,
        help="draft with the artifact's reduced output head; with --spec",
    )


def _contexts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--no-prefix-reuse",
        action="store_true",
        default=None,
        help="compute every prompt afresh; pausing still works",
    )
    add(
        "--device-state-slots",
        metavar="N",
        type=number(0),
        help="state images on the device beyond one a lane (default: --max-concurrency)",
    )
    add(
        "--host-context-mib",
        metavar="N",
        type=number(0),
        help="host memory for contexts, retained or paused, MiB; 0: none (default 8192 and 8 images)",
    )
    add(
        "--context-dir",
        metavar="DIR",
        help="folder in which retained contexts outlive a restart (default: none)",
    )
    add(
        "--context-disk-mib",
        metavar="N",
        type=number(1),
        help="disk that they may take, MiB; with --context-dir (default 16384)",
    )
    add(
        "--context-cost-presets",
        metavar="FILE",
        help="JSON: measured costs of copying and recomputing (default: generic ones)",
    )


def _requests(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--max-pending-requests",
        metavar="N",
        type=number(0),
        help="requests that may wait beside those that run; above it 429 (default 16)",
    )
    add(
        "--pending-timeout-ms",
        metavar="N",
        type=number(1),
        help="longest wait for a lane, preparation included; then 503 (default 30000)",
    )
    add(
        "--default-max-tokens",
        metavar="N",
        type=number(1),
        help="output tokens of a request that sets no limit (default 8192)",
    )
    add(
        "--default-thinking-budget",
        metavar="N",
        type=number(1),
        help="thinking tokens of a request that sets no cap (default: no cap)",
    )
    add(
        "--response-store-max-records",
        metavar="N",
        type=number(1),
        help="Responses kept for retrieval and continuation (default 1024)",
    )
    add(
        "--response-store-max-mib",
        metavar="N",
        type=number(1),
        help="memory that they may take together, MiB (default 256)",
    )
    add(
        "--no-thinking", action="store_true", default=None, help="do not think unless a request asks for it"
    )
    add(
        "--preserve-thinking",
        action="store_true",
        default=None,
        help="keep the reasoning of earlier turns unless a request declines",
    )


def _media(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--vision", action="store_true", default=None, help="accept images and video (default off)")
    add(
        "--media-url-policy",
        metavar="WHERE",
        choices=("public", "any", "off"),
        help="public, any or off: addresses that media may come from (default public)",
    )
    add(
        "--media-cache-mib",
        metavar="N",
        type=number(0),
        help="prepared media kept for later requests, MiB; 0 keeps none (default 1024)",
    )
    add(
        "--media-live-mib",
        metavar="N",
        type=number(1),
        help="all prepared media, kept or in use, MiB (default 2048)",
    )
    add(
        "--media-preprocess-threads",
        metavar="N",
        type=number(0, 64),
        help="workers; 0 means as many as cores, at most 16 (default 0)",
    )


def _sampling(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--temperature", metavar="F", type=number(0, 2, kind=float), help="override the model's default")
    add("--top-p", metavar="F", type=number(0, 1, kind=float), help="override the model's default")
    add("--top-k", metavar="N", type=number(0, 20), help="override the model's default, 0..20; 0 means 20")
    add("--min-p", metavar="F", type=number(0, 1, kind=float), help="override the model's default")
    add(
        "--presence-penalty",
        metavar="F",
        type=number(-2, 2, kind=float),
        help="override the model's default",
    )
    add(
        "--frequency-penalty",
        metavar="F",
        type=number(-2, 2, kind=float),
        help="override the model's default",
    )
    add(
        "--seed",
        metavar="N",
        type=number(-(2**63), 2**63 - 1),
        help="seed of a request that gives none (default: a random one each)",
    )
    add(
        "--greedy",
        action="store_true",
        default=None,
        help="exact argmax for every request, whatever it asks for",
    )


def _operation(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--log-level",
        metavar="LEVEL",
        choices=LOG_LEVELS,
        help="trace, debug, info, warning, error, critical or off (default info)",
    )
    add(
        "--log-stats-interval-ms",
        metavar="N",
        type=number(0),
        help="interval of throughput records; 0 is off (default 5000)",
    )
    add(
        "--request-log-jsonl",
        metavar="FILE",
        help="append one JSON object a line for every event (default: none)",
    )
    add(
        "--device-patience-seconds",
        metavar="F",
        type=number(1, kind=float),
        help="longest work on one unit, then the device counts as lost; NumPy: 14400 (default 600)",
    )
    add(
        "--exit-on-engine-failure",
        action="store_true",
        default=None,
        help="end with code 3 when the device is lost, instead of answering 503",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until stopped; see ``ninfer/app.py``."""
    from ninfer.runtime.threads import settle_blas_threads, shorten_turns

    settle_blas_threads()  # before NumPy is loaded
    shorten_turns()
    from ninfer.lifecycle import serve
    from ninfer.startup import read_options

    return serve(read_options(args))
