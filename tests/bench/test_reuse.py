"""What going on from a retained prefix costs: the bundled model, with kernels in host memory."""

from __future__ import annotations

import itertools

import attrs
import pytest

from ninfer.bench import reuse
from ninfer.commands.bench_gpu import as_text
from ninfer.engine.device import Bind, CopyImage, CopyPage, HostDrop, HostLoad, HostSave, Prefill, Result
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.cuda_state import PagePool
from ninfer.runtime.cuda_build import NoTransfers


class Clocked(NoTransfers):
    """Transfers that take a second for each copy, however large."""

    def seconds(self, begin, end):
        return 1.0


class Noted:
    """A program's door that notes what was submitted; a unit takes a second."""

    def __init__(self):
        from tests.sim.fake_device import small

        self.geometry = small(pages=16, vocab=2000, page_bytes=4 * 64)
        self.pages = PagePool(DeviceArray(256, (16, 4 * 64), "u8"), "bf16", 1, 1)
        self.images = self
        self.transfers = Clocked()
        self.seen = []

    def image(self, slot):
        return DeviceArray(0, (1,), "u8")

    def start(self, unit):
        self.seen.append(unit)
        return lambda: Result((), 1.0)

    def run(self, unit):
        return self.start(unit)()


def test_what_is_timed_is_what_an_engine_submits(monkeypatch):
    clock = itertools.count()
    monkeypatch.setattr(reuse.time, "perf_counter", lambda: float(next(clock)))
    program = Noted()
    row = reuse.measure(program, tuple(range(16)), 100)
    units = [unit for unit in program.seen if not isinstance(unit, HostDrop)]
    at = next(i for i, unit in enumerate(units) if isinstance(unit, Prefill) and unit.sample)
    assert [type(unit) for unit in units[at - 2 : at + 1]] == [Bind, CopyImage, Prefill]
    assert units[at].ids == () and units[at].start == 100
    one, *_, tail = (unit for unit in units if isinstance(unit, Prefill) and unit.sample and unit.ids)
    assert (one.start, len(one.ids), one.tail, tail) == (95, 5, False, attrs.evolve(one, tail=True))
    assert sorted(one.pages) == list(range(16)) and one.pages != tuple(range(16))
    kept = one.pages[:13]
    assert all(unit.target not in kept for unit in units if isinstance(unit, CopyPage))
    moves = [unit for unit in units if isinstance(unit, HostSave | HostLoad)]
    assert {unit.pages for unit in moves} == {kept}
    assert row["full_hit_milliseconds"] == row["tail_milliseconds"] == row["few_milliseconds"] == 1000.0
    size = 1000 + 13 * 256
    assert row["load_gb_per_second"] == row["save_gb_per_second"] == pytest.approx(size / 1e9)
    assert row["load_fraction"] == pytest.approx(size / (13 * 256))


def test_the_figures_read_as_sentences():
    row = {
        "tokens": 8192, "step_milliseconds": 6.0, "image_copy_milliseconds": 0.2,
        "full_hit_milliseconds": 1.4, "full_hit_steps": 0.2, "tail_milliseconds": 7.7,
        "tail_steps": 1.25, "few_milliseconds": 70.0, "few_steps": 11.6,
        "host_megabytes": 687.0, "save_gb_per_second": 50.0,
        "save_fraction": 0.95, "load_gb_per_second": 51.0, "load_fraction": 0.96,
        "h2d_gb_per_second": 53.0, "d2h_gb_per_second": 52.0,
    }  # fmt: skip
    found = {
        "card": "Card", "shape": "s", "recipe": "fp8", "layers": 64, "kv_dtype": "bf16",
        "read_gb_per_second": 4400.0, "gemm_tflops": 750.0, "gemm_sustained_tflops": 690.0,
        "ready_seconds": 3.0,
        "weight_gb_per_step": 27.0, "prefill": [], "decode": [], "reuse": [row],
    }  # fmt: skip
    text = as_text(found)
    assert (
        "with a tail of 5 tokens 7.700 ms (1.25), with any 5 70.000 ms" in text
        and "0.960 of one copy" in text
    )
