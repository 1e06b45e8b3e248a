"""``ninfer convert``: a Hugging Face checkpoint directory to a .ninfer artifact.

The one thing a reader would get wrong: a recipe is a wish.  A matrix that a format cannot hold is stored
in another, and only the printed report says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

HELP = "Convert a Hugging Face qwen3_5 or qwen3_5_moe checkpoint to a .ninfer file."
RECIPES = ("bf16", "q8", "groupwise", "nvfp4", "fp8")
EPILOG = """recipes:
  bf16       everything as trained
  q8         every matrix in 8.5 bits a weight; the drafting head in 4.25
  groupwise  4 and 5 bits in groups of 64; 8 bits for embedding, head and drafting layers
  nvfp4      4-bit floats with block scales; 8 bits for embedding, head and drafting layers
  fp8        8-bit floats with one scale a row
Norms, biases, convolutions, routers and gates stay in bf16 in every recipe.  A matrix whose shape a
format can't hold is stored in 8.5 bits, and the report says so.

Without --proposal-ids the drafting head takes the tokenizer's added tokens and then the lowest ids."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("source", type=Path, metavar="HF_DIR", help="checkpoint directory with safetensors")
    parser.add_argument("target", type=Path, metavar="OUT.ninfer", help="file to write")
    parser.add_argument("--recipe", choices=RECIPES, required=True, help="numeric formats, see below")
    parser.add_argument("--name", help="public model id (default: the directory's name)")
    parser.add_argument("--proposal-head", type=int, metavar="N", help="add a drafting head of N rows")
    parser.add_argument("--proposal-ids", type=Path, metavar="FILE", help="its N token ids, as text")
    parser.add_argument("--dflash", type=Path, metavar="HF_DIR", help="add a DFlash drafter's checkpoint")
    parser.add_argument(
        "--max-file-bytes", type=int, metavar="N", help="split into files of at most N bytes"
    )


def run(args: argparse.Namespace) -> int:
    """Convert, then say what was written."""
    from ninfer.artifact.convert.run import Options, convert
    from ninfer.artifact.write import MAX_FILE_BYTES
    from ninfer.faults import StartupError

    if args.proposal_ids is not None and args.proposal_head is None:
        raise StartupError("--proposal-ids needs --proposal-head N, the number of ids in the file")
    limit = MAX_FILE_BYTES if args.max_file_bytes is None else args.max_file_bytes
    options = Options(
        source=args.source,
        target=args.target,
        recipe=args.recipe,
        name=args.name,
        proposal_rows=args.proposal_head,
        proposal_ids=args.proposal_ids,
        dflash=args.dflash,
        max_file_bytes=limit,
    )
    begin = time.monotonic()
    report = convert(options, progress_bar() if sys.stderr.isatty() else None)
    seconds = time.monotonic() - begin
    print(f"{args.target}: {report.name}, {report.payload_bytes:,} bytes in {seconds:.1f} s")
    print(f"components: {', '.join(report.components)}")
    for form, (count, size) in report.tensors.items():
        print(f"  {form:20} {count:6} tensors {size:16,} bytes")
    for name, reason in report.fallbacks.items():
        print(f"stored in 8 bits: {name}: {reason}")
    return 0


def progress_bar() -> Callable[[int, int], None]:
    """Draw progress on stderr, at most once a percent."""
    shown = -1

    def draw(done: int, total: int) -> None:
        nonlocal shown
        percent = done * 100 // max(total, 1)
        if percent != shown:
            shown = percent
            end = "\n" if done == total else ""
            print(f"\r[{'#' * (percent // 4):25}] {percent:3}%", end=end, file=sys.stderr, flush=True)

    return draw
