"""Device time by kernel of a whole decoder, with random weights: where a round or a prompt goes.

    python -m tests.device.profile_model qwen3.6-27b groupwise --batch 1 --context 512 --prefill 1024

Needs torch, whose profiler reads the card's own clock.  The one thing a reader would get wrong: rounds run
eagerly here, and a dependent launch's time includes its wait for the one before, so times overstate the
work; rates are what ``ninfer bench gpu`` prints.
"""

from __future__ import annotations

import argparse
from typing import Any

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
    args = parser.parse_args()
    asked = Asked(
        args.shape,
        args.recipe,
        (args.batch,),
        (args.context,),
        (args.prefill,),
        args.kv,
        args.layers,
        kernel_pack(),
    )
    stage = open_stage(asked, print)
    stage.program.capture = None
    for lane in range(args.batch):
        stage.program.run(Bind(lane, Sampling()))
    rows = tuple(Row(lane, lane, args.context - 1, stage.pages(lane), 5) for lane in range(args.batch))
    ids = np.random.default_rng(1).integers(0, stage.config.vocab - 1000, args.prefill).tolist()
    report(stage, "decode", Decode(rows), ROUNDS)
    report(stage, "prefill", Prefill(0, 0, 0, tuple(ids), stage.pages(0), sample=True), 1)


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
