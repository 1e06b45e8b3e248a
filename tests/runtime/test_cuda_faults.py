"""A CUDA program that breaks in the middle of decode, under the real engine and thread: no card is needed.

Kernels do nothing here and results are zeros, so every sequence says token 0 for ever; what is tested is
who is told when a launch is refused or a wait finds the context lost.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from ninfer.artifact.reader import open_artifact
from ninfer.engine.job import Committed, Failed, Job, Sampling
from ninfer.engine.loop import Engine
from ninfer.faults import Refused
from ninfer.kernels_cu.driver import DriverError
from ninfer.model.weights import load_decoder
from ninfer.prompt.prepared import Prepared
from ninfer.runtime.cuda_build import Machine, NoTransfers, assemble
from ninfer.runtime.cuda_open import sizes_of
from ninfer.runtime.cuda_program import CudaProgram
from ninfer.runtime.cuda_weights import StoredWeights, objects_of, upload
from ninfer.runtime.device import ThreadDevice
from ninfer.settings import EngineOptions
from tests.runtime.test_cuda_weights import Host, take
from tests.runtime.test_engine import Silent

MODEL = Path(__file__).resolve().parents[2] / "fixtures" / "tiny-qwen3_5.ninfer"
OPTIONS = EngineOptions(max_context=512, max_concurrency=2, prefill_chunk=256)
SOON = 20  # rounds before the fault


@attrs.define
class Launches:
    """A library whose launches do nothing, and are refused once armed."""

    arch: str = "sm_90"
    refusing: bool = False

    def supports(self, file: str) -> bool:
        """No special code."""
        return False

    def get(self, file: str, name: str, **defines: int) -> Launches:
        """Any kernel."""
        return self

    def launch(self, *arguments: Any, **options: Any) -> None:
        """Do nothing, or refuse."""
        if self.refusing:
            raise DriverError("cuLaunchKernelEx", 1)


@attrs.define
class Marks:
    """A point in a stream; waiting finds out that the context is lost."""

    lost: bool = False

    def wait(self) -> None:
        """Wait."""
        if self.lost:
            raise DriverError("cuEventSynchronize", 700)


@attrs.define
class Transfers:
    """Transfers that count the results that were asked for and break after some."""

    library: Launches
    fault: str
    left: int = SOON
    rest: NoTransfers = attrs.field(factory=NoTransfers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rest, name)

    def fetch(self, source: Any) -> Any:
        """Results are zero."""
        self.left -= 1
        if self.left == 0 and self.fault == "refused":
            self.library.refusing = True
        return self.rest.fetch(source)

    def mark(self) -> Any:
        """Mark the stream."""
        return Marks(self.left <= 0 and self.fault == "lost")


def program(fault: str) -> CudaProgram:
    """Build a program on nothing."""
    library = Launches()
    machine: Any = Machine(library, 132, 227 << 10, lambda *a, **b: None, Transfers(library, fault))
    with open_artifact(MODEL) as artifact:
        names = list(artifact.inventory("text").names())
        placed = upload(artifact, objects_of(artifact, names), take, Host(), lambda text: None)
        config = artifact.text_config
        decoder = load_decoder(StoredWeights(artifact, placed, take, Host()), config)
    return assemble(machine, config, decoder, None, sizes_of(OPTIONS, config, 1000, False), take, take)


@pytest.mark.parametrize(
    "fault, cause", [("refused", "cuLaunchKernelEx: CUDA error 1"), ("lost", "700 (the context is lost)")]
)
async def test_everybody_is_told_and_nothing_runs_after(fault: str, cause: str) -> None:
    ends: list[Any] = []
    tokens: list[int] = []

    async def ask(engine: Engine, ids: tuple[int, ...]) -> None:
        job = Job("r", Prepared(ids, False), Sampling(), 400, Silent(), float("inf"))
        with engine.seat(), engine.submit(job) as events:
            found = [event async for event in events]
        tokens.extend(token for event in found if isinstance(event, Committed) for token in event.tokens)
        ends.append(found[-1])

    async with ThreadDevice.start(lambda: program(fault)) as device:
        engine = Engine(device, OPTIONS)
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(engine.run)
                for lane in range(4):  # two run, two wait
                    nursery.start_soon(ask, engine, (5, 6, 7 + lane))
        assert [type(end) for end in ends] == [Failed] * 4
        assert {end.fault.code for end in ends} == {"engine_failed"}
        assert cause in str(engine.failure.__cause__) and len(tokens) >= SOON
        with pytest.raises(Refused), engine.seat():
            raise AssertionError("a seat of a lost engine")
