"""The ``gpu`` part of ``ninfer bench``: whole decoders of published shapes with random weights.

The one thing a reader would get wrong: ``SHAPES`` and ``RECIPES`` repeat names that ``ninfer/bench`` knows,
because help must not import NumPy; a test holds the two equal.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ninfer.commands.serve import KV_DTYPES
from ninfer.faults import StartupError

SHAPES = ("qwen3.6-27b", "qwen3.6-35b-a3b", "tiny", "tiny-moe")
RECIPES = ("bf16", "fp8", "groupwise", "nvfp4", "q8")


def configure(kinds: Any) -> None:
    """Declare ``bench gpu``."""
    gpu = kinds.add_parser("gpu", help="a GPU, with random weights of a published shape")
    add = gpu.add_argument
    add("--shape", choices=SHAPES, default=SHAPES[0], help=f"which decoder (default {SHAPES[0]})")
    add("--recipe", choices=RECIPES, default="groupwise", help="how weights are stored (default groupwise)")
    add("--batch", type=positive, nargs="+", default=[1], metavar="N", help="sequences a step (default 1)")
    add(
        "--context",
        type=positive,
        nargs="+",
        default=[512],
        metavar="N",
        help="tokens before (default 512)",
    )
    add("--prefill", type=positive, nargs="*", default=[8192], metavar="N", help="prompt (default 8192)")
    add("--kv-dtype", choices=KV_DTYPES, default="bf16", help="cache format (default bf16)")
    add(
        "--reuse",
        type=positive,
        nargs="*",
        default=[],
        metavar="N",
        help="going on from a retained prefix of N tokens: first token, host memory and back",
    )
    add("--layers", type=natural, default=0, metavar="N", help="only the first N layers (default all)")
    add(
        "--draft-tokens",
        type=int,
        choices=range(6),
        default=0,
        metavar="N",
        help="also time rounds of 1 to N drafts with an MTP layer (default 0: none)",
    )
    add(
        "--proposal-rows",
        type=natural,
        default=131_072,
        metavar="N",
        help="rows of the head that drafts are chosen by (default 131072; 0: the whole head)",
    )
    add(
        "--vision",
        type=positive,
        nargs="+",
        metavar="N",
        help="instead, time the vision tower on square pictures of so many pixels a side",
    )
    add(
        "--upload",
        type=positive,
        metavar="GIB",
        help="instead, time how fast a file of that size gets onto the card",
    )
    add("--folder", type=Path, metavar="DIR", help="where --upload writes its file (default: temporary)")
    add("--kernels", type=Path, metavar="DIR", help="a pack made by `ninfer kernels build`")
    add("--json", action="store_true", help="print one JSON object")


def positive(text: str) -> int:
    """Read a count of at least 1 from a flag."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def natural(text: str) -> int:
    """Read a count, or 0 for what the flag's help says."""
    return 0 if text == "0" else positive(text)


def run(args: argparse.Namespace) -> int:
    """Measure and print.  Raises ``StartupError``."""
    if args.folder is not None and not args.upload:
        raise StartupError("--folder needs --upload; say how large a file to time there")
    if args.vision:
        return _vision(args)
    if args.upload:
        return _upload(args)
    from ninfer.bench.gpu import Asked, measure

    asked = Asked(
        args.shape,
        args.recipe,
        tuple(args.batch),
        tuple(max(64, n) for n in args.context),
        tuple(args.prefill),
        args.kv_dtype,
        args.layers,
        tuple(max(64, n) for n in args.reuse),
        args.draft_tokens,
        args.proposal_rows,
        args.kernels,
    )
    found = measure(asked, lambda text: print(text, file=sys.stderr))
    print(json.dumps(found) if args.json else as_text(found))
    return 0


def _vision(args: argparse.Namespace) -> int:
    from ninfer.bench import vision

    found = vision.measure(
        tuple(max(32, side // 32 * 32) for side in args.vision), args.recipe, args.kernels
    )
    print(json.dumps(found) if args.json else vision.as_text(found))
    return 0


def _upload(args: argparse.Namespace) -> int:
    from ninfer.bench import upload

    found = upload.measure(
        args.upload, args.folder, args.kernels, lambda text: print(text, file=sys.stderr)
    )
    print(json.dumps(found) if args.json else upload.as_text(found))
    return 0


def as_text(found: dict[str, Any]) -> str:
    """A few lines for people."""
    lines = [
        f"{found['card']}: {found['shape']} {found['recipe']}, {found['layers']} layers, "
        f"{found['kv_dtype']} cache",
        f"  ceilings: {found['read_gb_per_second']:.0f} GB/s read, {found['gemm_tflops']:.0f} TFLOP/s bf16 "
        f"({found['gemm_sustained_tflops']:.0f} sustained for a second)",
        f"  ready in {found['ready_seconds']:.1f} s; weights {found['weight_gb_per_step']:.2f} GB a step",
    ]
    lines += [_prefill(row) for row in found["prefill"]]
    for row in found["decode"]:
        lines.append(
            f"  decode batch {row['batch']:2} context {row['context']:6}: "
            f"{row['tokens_per_second']:7.1f} tok/s, {row['milliseconds']:.3f} ms, "
            f"{row['gb_per_step']:.2f} GB, {row['bandwidth_fraction']:.3f} of the read rate, "
            f"{row['graph_kernels']} kernels, host {row['host_milliseconds']:.3f} ms"
        )
    for table in found.get("drafting", ()):
        lines.append(
            f"  drafting batch {table['batch']:2} context {table['context']:6}, "
            f"plain step {table['plain_milliseconds']:.3f} ms"
        )
        lines += [_round(row) for row in table["rounds"]]
    lines += [_reuse(row) for row in found.get("reuse", ())]
    return "\n".join(lines)


def _prefill(row: dict[str, Any]) -> str:
    """What a prompt takes: by the operations of all rows in all layers, and by those that are done."""
    done, rest, sustained = (
        row[name] for name in ("operations_done", "gemm_fraction", "gemm_sustained_fraction")
    )
    return (
        f"  prefill {row['tokens']:6}: {row['tokens_per_second']:8.0f} tok/s, "
        f"{rest:.3f} of the product rate, {sustained:.3f} of the sustained one; "
        f"{done:.3f} of the operations are done, which is {rest * done:.3f} and {sustained * done:.3f}"
    )


def _reuse(row: dict[str, Any]) -> str:
    """Two lines for people."""
    return (
        f"  reuse {row['tokens']:6}: first token {row['full_hit_milliseconds']:.3f} ms "
        f"({row['full_hit_steps']:.2f} steps + image copy), with a tail of 5 tokens "
        f"{row['tail_milliseconds']:.3f} ms ({row['tail_steps']:.2f}), with any 5 "
        f"{row['few_milliseconds']:.3f} ms ({row['few_steps']:.2f}); step "
        f"{row['step_milliseconds']:.3f} ms, image copy {row['image_copy_milliseconds']:.3f} ms\n"
        f"  host  {row['tokens']:6}: {row['host_megabytes']:.0f} MB, "
        f"back at {row['load_gb_per_second']:.1f} GB/s ({row['load_fraction']:.3f} of one copy), "
        f"saved at {row['save_gb_per_second']:.1f} GB/s ({row['save_fraction']:.3f})"
    )


def _round(row: dict[str, Any]) -> str:
    """A round of some width; what it costs beyond a step is what accepted drafts have to bring."""
    name = f"width {row['width']}" if row["width"] else "followed"
    return (
        f"    {name:8}: {row['ratio']:.3f} of a plain step, {row['milliseconds']:.3f} ms "
        f"({row['device_milliseconds']:.3f} on the device), "
        f"pays from {row['ratio'] - 1:.3f} accepted a round, "
        f"{row['graph_kernels']} kernels, host {row['host_milliseconds']:.3f} ms"
    )
