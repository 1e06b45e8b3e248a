"""``ninfer serve`` on a card that breaks in the middle of decode: for tests of faults alone.

The environment says how (``FAULT``), after how many rounds (``FAIL_AFTER``) of at least how many sequences
(``FAIL_ROWS``):

    refused  from now on the driver refuses every launch, because it has more threads than a block may have
    poison   a kernel writes where nothing is; everything that the card is asked afterwards fails

The one thing a reader would get wrong: a replayed round launches nothing through the driver, so ``refused``
needs ``--no-cuda-graph``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs

from ninfer.cli import build_parser
from ninfer.engine.device import Decode, Geometry, Result, Unit
from ninfer.kernels_cu.pack import Library
from ninfer.lifecycle import serve
from ninfer.runtime.build import build_on_card
from ninfer.runtime.cuda_program import CudaProgram
from ninfer.runtime.device import ThreadDevice
from ninfer.runtime.inventory import Inventory
from ninfer.settings import EngineOptions
from ninfer.startup import read_options

POISON = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry poison()
{
    .reg .u64 %a;
    .reg .u32 %v;
    mov.u64 %a, 64;
    mov.u32 %v, 1;
    st.global.u32 [%a], %v;
    ret;
}
\0"""
TOO_MANY = 4096  # threads of a block


@attrs.frozen(eq=False)
class Refusing:
    """A driver that starts nothing any more."""

    real: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def launch(
        self,
        function: Any,
        grid: Any,
        block: int,
        shared: int,
        stream: int,
        arguments: Any,
        dependent: bool,
    ) -> None:
        """Ask for more threads than a block may have."""
        self.real.launch(function, grid, TOO_MANY, shared, stream, arguments, dependent)


@attrs.define(eq=False)
class Breaking:
    """A program on a card that breaks; implements ``AheadProgram``."""

    program: CudaProgram
    fault: str
    left: float
    rows: int
    poison: Any = None

    def __attrs_post_init__(self) -> None:
        driver = self.library.driver
        self.poison = driver.function(driver.load(POISON), "poison")

    @property
    def library(self) -> Library:
        """The kernels of the program."""
        return self.program.verbs.products.linear.library

    @property
    def geometry(self) -> Geometry:
        """The program's."""
        return self.program.geometry

    @property
    def inventory(self) -> Inventory:
        """The program's."""
        return self.program.inventory

    def run(self, unit: Unit) -> Result:
        """Run one unit to its end."""
        return self.start(unit)()

    def start(self, unit: Unit) -> Callable[[], Result]:
        """Submit one unit, and break the card before it when the time has come."""
        self.left -= isinstance(unit, Decode) and len(unit.rows) >= self.rows
        if self.left == 0:
            self.left -= 1
            print(f"fault at {time.monotonic()}", file=sys.stderr, flush=True)
            self.breaks()
        return self.program.start(unit)

    def breaks(self) -> None:
        """Put the fault in."""
        library = self.library
        if self.fault == "refused":
            library.driver = Refusing(library.driver)
        else:
            library.driver.launch(self.poison, (1, 1, 1), 1, 0, library.stream, None, False)


@asynccontextmanager
async def build(
    model: Any, options: EngineOptions, backend: str, progress: Callable[[str], None]
) -> AsyncIterator[ThreadDevice]:
    """Build a device on the card with the fault that was asked for."""
    fault, after, rows = (os.environ[name] for name in ("FAULT", "FAIL_AFTER", "FAIL_ROWS"))

    def make() -> Breaking:
        return Breaking(build_on_card(model, options, progress), fault, float(after), int(rows))

    async with ThreadDevice.start(make, options.waits) as device:
        yield device


if __name__ == "__main__":
    sys.exit(serve(read_options(build_parser().parse_args()), build))
