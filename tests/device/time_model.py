"""Times a whole decoder of published shape with random weights, and single kernels at its shapes.

python -m tests.device.time_model qwen3.6-27b groupwise --batch 1 8 --context 512 --prefill 1024
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import attrs
import numpy as np

from ninfer.artifact import inventory
from ninfer.bench.random_weights import RandomWeights
from ninfer.bench.shapes import SHAPES, recipe
from ninfer.engine.device import Bind, Decode, Prefill, Row
from ninfer.engine.job import Sampling
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.model.weights import load_decoder
from ninfer.ops.cuda_experts import bank_of
from ninfer.ops.gemm import WORKSPACE_BYTES, CublasLt
from ninfer.ops.verbs import Weight
from ninfer.runtime.arena import RawBlock, Region, Scratch
from ninfer.runtime.cuda_build import Machine, Sizes, assemble, rehearse, warm
from ninfer.runtime.cuda_card import open_card
from ninfer.runtime.cuda_transfers import CupyTransfers
from ninfer.runtime.graphs import capture
from tests.device.card import kernel_pack


@attrs.define(eq=False)
class RandomLoader:
    """Implements ``model.weights.Loader`` with random weights of a recipe."""

    made: RandomWeights
    shapes: Any
    form: Any
    nbytes: int = 0

    def has(self, name: str) -> bool:
        return name == "text/output_head"

    def _together(self, names: tuple[str, ...]) -> list[Any]:
        shapes, forms = [self.shapes.shape(name) for name in names], [self.form(name) for name in names]
        if len(set(forms)) == 1 and len({shape[1] for shape in shapes}) == 1:
            rows = [shape[0] for shape in shapes]
            whole = self.made.matrix(forms[0], -(-sum(rows) // 128) * 128, shapes[0][1])
            ends = np.cumsum(rows).tolist()
            return [whole.take(end - n, end) for n, end in zip(rows, ends, strict=True)]
        return [self.made.matrix(form, *shape) for form, shape in zip(forms, shapes, strict=True)]

    def weights(self, *names: str) -> tuple[Weight, ...]:
        found = self._together(names)
        self.nbytes += sum(m.nbytes for m in found)
        return tuple(Weight(m.rows, m.columns, m.format, m) for m in found)

    def table(self, name: str) -> Weight:
        before = self.nbytes
        (weight,) = self.weights(name)
        self.nbytes = before
        return weight

    def stack(self, names: tuple[str, ...]) -> Weight:
        bank = bank_of(self._together(names))
        return Weight(bank.rows.rows, bank.rows.columns, bank.rows.format, bank)

    def vector(self, name: str) -> DeviceArray:
        shape = self.shapes.shape(name)
        kind = "f32" if name.endswith(("a_log", "dt_bias")) else "bf16"
        return self.made.values(shape, kind, 0.02)

    def indices(self, name: str) -> DeviceArray:
        raise NotImplementedError


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape")
    parser.add_argument("recipe")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--context", type=int, nargs="+", default=[512])
    parser.add_argument("--prefill", type=int, nargs="+", default=[1024])
    parser.add_argument("--kv", default="bf16")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    began = time.perf_counter()
    card = open_card(pack=kernel_pack())
    config = SHAPES[args.shape]()
    if args.layers:
        config = attrs.evolve(config, layer_kinds=config.layer_kinds[: args.layers])
    block = RawBlock.allocate(118 << 30, "everything")
    region = Region(block.ptr, block.nbytes)
    gemm = CublasLt(region.take((WORKSPACE_BYTES,), "u8"), card.stream.ptr)
    machine = Machine(
        card.library, card.multiprocessors, card.shared_bytes, gemm, CupyTransfers(card.stream),
        lambda body: capture(card.library, card.stream, body),
    )  # fmt: skip
    loader = RandomLoader(
        RandomWeights(card.library, region.take), inventory.text(config), recipe(args.recipe, config)
    )
    decoder = load_decoder(loader, config)
    lanes, longest = max(args.batch), max(*args.context, *args.prefill) + 64
    width = -(-longest // 64)
    sizes = Sizes(lanes, lanes + 1, lanes * width, longest, max(args.prefill), 0, config.vocab, args.kv)
    kept, lent = rehearse(machine, config, decoder, None, sizes)
    scratch_base = region.take((lent,), "u8").ptr
    program = assemble(machine, config, decoder, None, sizes, region.take, Scratch(scratch_base, lent).take)
    card.wait()
    print(f"weights {loader.nbytes / 1e9:.2f} GB, kept {kept / 1e9:.2f} GB, scratch {lent / 1e9:.2f} GB")
    print(f"built in {time.perf_counter() - began:.1f} s", flush=True)
    began = time.perf_counter()
    warm(program)
    print(f"warmed in {time.perf_counter() - began:.1f} s", flush=True)
    for lane in range(lanes):
        program.run(Bind(lane, Sampling()))
    tables = [tuple(range(lane * width, (lane + 1) * width)) for lane in range(lanes)]
    for count in args.prefill:
        ids = tuple(np.random.default_rng(1).integers(0, 200_000, count).tolist())
        took = [program.run(Prefill(0, 0, 0, ids, tables[0], sample=True)).seconds for _ in range(3)]
        print(f"prefill {count}: {count / min(took):.0f} tok/s ({min(took) * 1e3:.1f} ms)", flush=True)
    for context in args.context:
        for batch in args.batch:
            report(program, tables, context, batch)
    if args.profile:
        profile(program, tables, args)


def report(program: Any, tables: Any, context: int, batch: int) -> None:
    """Run ahead by one, as the engine does, and time rounds by the clock and by the device."""
    device, host, last = [], [], None
    began = time.perf_counter()
    for i in range(40):
        rows = tuple(
            Row(lane, lane, context - 41 + i, tables[lane], None if i else 5) for lane in range(batch)
        )
        t = time.perf_counter()
        done = program.start(Decode(rows))
        host.append(time.perf_counter() - t)
        if last is not None:
            device.append(last().seconds)
        last = done
        if i == 9:
            began = time.perf_counter()
    assert last is not None
    last()
    wall = (time.perf_counter() - began) / 31
    print(
        f"decode ctx {context} batch {batch}: device {statistics.median(device) * 1e3:.3f} ms, "
        f"wall {wall * 1e3:.3f} ms, {batch / wall:.1f} tok/s, host {statistics.median(host) * 1e3:.3f} ms",
        flush=True,
    )


def profile(program: Any, tables: Any, args: Any) -> None:
    """Print device time by kernel of eager rounds and of one prompt piece."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    program.capture = None
    rows = tuple(Row(lane, lane, args.context[0] - 1, tables[lane], 5) for lane in range(args.batch[0]))
    ids = tuple(np.random.default_rng(1).integers(0, 200_000, args.prefill[-1]).tolist())
    units = [("decode", Decode(rows), 5), ("prefill", Prefill(0, 0, 0, ids, tables[0], sample=True), 1)]
    for name, unit, times in units:
        program.run(unit)
        with watch(activities=[ProfilerActivity.CUDA]) as seen:
            for _ in range(times):
                program.run(unit)
        print(f"{name}: kernel, launches, microseconds each, milliseconds a unit")
        found = sorted(seen.key_averages(), key=lambda e: -e.device_time_total)
        for event in found[:22]:
            total, count = event.device_time_total, event.count
            print(
                f"  {event.key[:60]:60} {count // times:6} {total / count:9.2f} {total / times / 1e3:9.3f}"
            )


if __name__ == "__main__":
    main()
