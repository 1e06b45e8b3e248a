"""``ninfer serve``: options and their meaning; the server itself is ``ninfer/app.py``.

Owns the option table.  Every option here works; one that does not exist yet is absent.  The one thing
a reader would get wrong: parser defaults are None, so that a value from ``--config`` can stand
between the flag and the built-in default (flags win).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

HELP = "serve a model over HTTP (OpenAI and Anthropic dialects)"

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


def configure(parser: argparse.ArgumentParser) -> None:
    """Describe the options, in groups."""
    parser.add_argument("artifact", nargs="?", help="the .ninfer file to serve")
    parser.add_argument(
        "--config", metavar="FILE", help="YAML file whose `server:` section mirrors the flags"
    )
    _network(parser.add_argument_group("network"))
    _model(parser.add_argument_group("model and memory"))
    _requests(parser.add_argument_group("requests"))
    _media(parser.add_argument_group("images and video"))
    _sampling(parser.add_argument_group("sampling defaults"))
    _operation(parser.add_argument_group("operation"))


def _network(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", metavar="H", help="listen address (default 127.0.0.1)")
    add("--port", metavar="N", type=number(0, 65535), help="listen port; 0 picks a free one (default 8080)")
    add("--api-key", metavar="KEY", help="required bearer or x-api-key value (default: none)")
    add("--api-key-file", metavar="FILE", help="read the key from a file (or set NINFER_API_KEY)")
    add("--dialect", choices=("ninfer", "astrai"), help="wire habits of the answers (default ninfer)")
    add("--cors", action="store_true", default=None, help="send permissive browser CORS headers")
    add("--max-request-mib", metavar="N", type=number(1), help="body size limit (default 384)")
    add("--max-connections", metavar="N", type=number(1), help="open connections (default 1024)")
    add("--drain-seconds", metavar="F", type=number(0, kind=float), help="shutdown grace (default 30)")


def _model(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model-id", metavar="ID", help="public model name (default: the artifact's own)")
    add("--chat-template", metavar="FILE", help="Jinja template to use instead of the artifact's")
    add("--backend", choices=("auto", "numpy", "cuda"), help="where to compute (default auto)")
    add("--max-context", metavar="N", type=number(1), help="tokens of one sequence (default 8192)")
    add(
        "--kv-capacity",
        metavar="N",
        type=number(1),
        help="tokens of the shared KV pool (default: --max-context)",
    )
    add("--max-concurrency", metavar="N", type=number(1, 8), help="execution lanes, 1..8 (default 1)")
    add("--prefill-chunk", metavar="N", type=number(1), help="tokens of one prefill unit (default 1024)")
    add("--kv-dtype", choices=KV_DTYPES, help="storage of the KV cache (default bf16)")
    add("--spec", choices=("mtp",), help="speculate with the artifact's proposal layer (default off)")
    add("--draft-tokens", metavar="N", type=number(1, 5), help="tokens drafted a round, 1..5, with --spec")
    add("--lm-head-draft", action="store_true", default=None, help="draft with the artifact's small head")
    add("--no-prefix-reuse", action="store_true", default=None, help="keep no prefixes between requests")
    add(
        "--device-state-slots",
        metavar="N",
        type=number(0),
        help="StateImages beyond the lanes (default: as many)",
    )
    add(
        "--host-context-mib",
        metavar="N",
        type=number(0),
        help="host memory for contexts (default 8192 + 8 images)",
    )
    add(
        "--context-cost-presets", metavar="FILE", help="JSON with measured costs of copying and recomputing"
    )


def _requests(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--max-pending-requests", metavar="N", type=number(0), help="requests that may wait (default 16)")
    add(
        "--pending-timeout-ms",
        metavar="N",
        type=number(1),
        help="longest wait for admission (default 30000)",
    )
    add(
        "--default-max-tokens", metavar="N", type=number(1), help="output limit when omitted (default 8192)"
    )
    add(
        "--default-thinking-budget",
        metavar="N",
        type=number(1),
        help="thinking cap when omitted (default: none)",
    )
    add(
        "--response-store-max-records",
        metavar="N",
        type=number(1),
        help="stored Responses (default 1024)",
    )
    add(
        "--response-store-max-mib",
        metavar="N",
        type=number(1),
        help="memory of stored Responses (default 256)",
    )
    add("--no-thinking", action="store_true", default=None, help="disable thinking by default")
    add(
        "--preserve-thinking",
        action="store_true",
        default=None,
        help="keep reasoning of closed turns by default",
    )


def _media(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--vision", action="store_true", default=None, help="accept images and video (default off)")
    add(
        "--media-url-policy",
        choices=("public", "any", "off"),
        help="where remote media may be (default public)",
    )
    add(
        "--media-cache-mib",
        metavar="N",
        type=number(0),
        help="prepared media kept for later (default 1024)",
    )
    add("--media-live-mib", metavar="N", type=number(1), help="all prepared media (default 2048)")
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
    add("--top-k", metavar="N", type=number(0, 20), help="override the model's default; 0 means 20")
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
    add("--seed", metavar="N", type=int, help="seed when a request gives none (default: random)")
    add("--greedy", action="store_true", default=None, help="exact argmax for every request")


def _operation(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--log-level", choices=LOG_LEVELS, help="stderr verbosity (default info)")
    add(
        "--log-stats-interval-ms",
        metavar="N",
        type=number(0),
        help="throughput report; 0 is off (default 5000)",
    )
    add("--request-log-jsonl", metavar="FILE", help="append machine-readable records (default: none)")
    add("--exit-on-engine-failure", action="store_true", default=None, help="exit with status 3 at once")


def run(args: argparse.Namespace) -> int:
    """Serve until stopped; see ``ninfer/app.py``."""
    from ninfer.runtime.threads import settle_blas_threads

    settle_blas_threads()  # before NumPy is loaded
    from ninfer.lifecycle import serve
    from ninfer.startup import read_options

    return serve(read_options(args))
