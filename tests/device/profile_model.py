"""Device time by kernel of a whole decoder, with random weights: where a round or a prompt goes.

    python -m tests.device.profile_model qwen3.6-27b groupwise --batch 1 --context 512 --prefill 1024

With ``--timeline N`` a round is replayed from its graph and its first N kernels are listed by how far each
moves the end of the chain.

Needs torch, whose profiler reads the card's own clock.  The one thing a reader would get wrong: without a
timeline rounds run eagerly, and a dependent launch's time includes its wait for the one before, so times
overstate the work; rates are what ``ninfer bench gpu`` prints.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ninfer.bench.gpu import Asked, Stage, open_stage
from ninfer.engine.device import Bind, Decode, Prefill, Row, Unit
from ninfer.engine.job import Sampling
from tests.device.card import kernel_pack

SHOWN = 22  # kernels a table has
ROUNDS = 5


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape")
    parser.add_argument("recipe")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prefill", type=int, default=1024)
    parser.add_argument("--kv", default="bf16")
    parser.add_argument("--draft", type=int, default=0)
    parser.add_argument("--timeline", type=int, default=0)
    args = parser.parse_args()
    asked = Asked(
        args.shape,
        args.recipe,
        (args.batch,),
        (args.context,),
        (args.prefill,),
        args.kv,
        args.layers,
        drafts=args.draft,
        proposal_rows=131_072,
        pack=kernel_pack(),
    )
    stage = open_stage(asked, print)
    if not args.timeline:
        stage.program.capture = None
    for lane in range(args.batch):
        stage.program.run(Bind(lane, Sampling()))
    rows = tuple(Row(lane, lane, args.context - 1, stage.pages(lane), 5) for lane in range(args.batch))
    ids = np.random.default_rng(1).integers(0, stage.config.vocab - 1000, args.prefill).tolist()
    rounds = {"decode": Decode(rows)}
    if args.draft:
        drafted = tuple(attrs.evolve(row, draft=args.draft) for row in rows)
        stage.program.run(Decode(drafted))
        rounds[f"round of width {args.draft}"] = Decode(tuple(attrs.evolve(row, keep=1) for row in drafted))
    for name, unit in rounds.items():
        if args.timeline:
            timeline(stage, name, unit, args.timeline)
        else:
            report(stage, name, unit, ROUNDS)
    if not args.timeline:
        prompt = Prefill(0, 0, 0, tuple(ids), stage.pages(0), sample=True)
        report(stage, "prefill", prompt, 1)


def timeline(stage: Stage, name: str, unit: Unit, shown: int) -> None:
    """Print the first kernels of a replayed unit, and the sums of all: microseconds added to the chain."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(3):
        stage.program.run(unit)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        stage.program.run(unit)
    with tempfile.TemporaryDirectory() as room:
        trace = Path(room, "trace.json")
        seen.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    kernels = sorted((e["ts"] + e["dur"], e["name"][:24]) for e in events if e.get("cat") == "kernel")
    added = [(kernels[0][1], 0.0)]
    added += [(this[1], this[0] - last[0]) for last, this in itertools.pairwise(kernels)]
    print(f"{name}: {len(kernels)} kernels, {sum(us for _, us in added) / 1e3:.3f} ms")
    print("  " + " ".join(f"{kernel}:{us:.1f}" for kernel, us in added[:shown]))
    sums: dict[str, list[float]] = {}
    for kernel, us in added:
        sums.setdefault(kernel, []).append(us)
    for kernel, all_us in sorted(sums.items(), key=lambda item: -sum(item[1])):
        print(f"  {kernel:24} {len(all_us):4} {sum(all_us) / len(all_us):8.2f} {sum(all_us) / 1e3:8.3f}")


def report(stage: Stage, name: str, unit: Unit, times: int) -> None:
    """Run a unit some times under the profiler and print its kernels, the longest first."""
    print(f"{name}: kernel, launches, microseconds each, milliseconds a unit")
    for event in sorted(profiled(stage, unit, times), key=lambda e: -e.device_time_total)[:SHOWN]:
        total, count = event.device_time_total, event.count
        print(f"  {event.key[:60]:60} {count // times:6} {total / count:9.2f} {total / times / 1e3:9.3f}")


def profiled(stage: Stage, unit: Unit, times: int) -> Any:
    """Average the events of a unit that has run once before."""
    from torch.profiler import ProfilerActivity, profile

    stage.program.run(unit)
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(times):
            stage.program.run(unit)
    return seen.key_averages()


if __name__ == "__main__":
    main()
