"""``ninfer bench``: how fast this machine runs a model.

The one thing a reader would get wrong: ``cpu`` measures a file's own weights, ``gpu`` random ones of a
published shape; neither has a server, a queue or a tokenizer in it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ninfer.commands import bench_gpu
from ninfer.commands.bench_gpu import positive

HELP = "Measure prefill and decode rates on this machine."
BUNDLED = Path("fixtures/tiny-qwen3_5.ninfer")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare what can be measured."""
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="WHAT")
    cpu = kinds.add_parser("cpu", help="the NumPy backend, one request at a time")
    add = cpu.add_argument
    add("artifact", nargs="?", type=Path, metavar="FILE", help=f"a .ninfer file (default {BUNDLED})")
    add("--prompt-tokens", type=positive, default=512, metavar="N", help="prompt length (default 512)")
    add("--decode-tokens", type=positive, default=64, metavar="N", help="tokens generated (default 64)")
    add("--repeats", type=positive, default=3, metavar="N", help="measured runs (default 3)")
    add("--threads", type=positive, metavar="N", help="BLAS threads (default: all cores but one)")
    add("--kv-dtype", default="bf16", metavar="NAME", help="cache format (default bf16)")
    add("--draft-tokens", type=int, default=0, metavar="N", help="MTP drafts a round (default 0: none)")
    add("--json", action="store_true", help="print one JSON object")
    bench_gpu.configure(kinds)


def run(args: argparse.Namespace) -> int:
    """Load, measure, print."""
    if args.kind == "gpu":
        return bench_gpu.run(args)
    from ninfer.runtime.threads import settle_blas_threads

    threads = settle_blas_threads(args.threads)
    path = args.artifact or BUNDLED
    rates = _measure(path, args)
    found = {
        "file": str(path),
        "prompt_tokens": args.prompt_tokens,
        "decode_tokens": args.decode_tokens,
        "draft_tokens": args.draft_tokens,
        "kv_dtype": args.kv_dtype,
        "threads": threads,
        **{name: round(value, 2) for name, value in rates.items()},
    }
    print(json.dumps(found) if args.json else _as_text(found))
    return 0


def _measure(path: Path, args: argparse.Namespace) -> dict[str, float]:
    import attrs

    from ninfer.artifact import open_artifact
    from ninfer.bench.cpu import Load, measure
    from ninfer.runtime.build import build_numpy
    from ninfer.settings import EngineOptions

    draft = args.draft_tokens
    tokens = args.prompt_tokens + args.decode_tokens + 2 * draft + 2
    options = EngineOptions(
        max_context=tokens,
        kv_dtype=args.kv_dtype,
        spec="mtp" if draft else None,
        draft_tokens=draft,
    )
    with open_artifact(path) as artifact:
        program = build_numpy(artifact, options, lambda text: print(text, file=sys.stderr))
    rates = measure(program, Load(args.prompt_tokens, args.decode_tokens, draft, args.repeats))
    return attrs.asdict(rates)


def _as_text(found: dict[str, object]) -> str:
    width = max(map(len, found))
    return "\n".join(f"{name:<{width}}  {value}" for name, value in found.items())
