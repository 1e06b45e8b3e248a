"""``ninfer serve`` around a device that fails, or takes its time: for tests of the life cycle alone.

The environment says how: ``FAIL_AFTER`` units (of at least ``FAIL_ROWS`` decoding sequences, where that is
set), with ``HANGS`` never to return instead of failing, or ``SLOW_START`` seconds of loading.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs

from ninfer.cli import build_parser
from ninfer.engine.device import Decode, Geometry, Result, Unit
from ninfer.lifecycle import serve
from ninfer.runtime.build import build_numpy
from ninfer.runtime.device import ThreadDevice
from ninfer.runtime.inventory import Inventory
from ninfer.runtime.threads import leave
from ninfer.settings import EngineOptions
from ninfer.startup import read_options


@attrs.define(eq=False)
class Failing:
    """A program that breaks for good after ``left`` units; with ``rows`` only wide rounds count."""

    program: Any
    left: float
    rows: int = 0

    @property
    def geometry(self) -> Geometry:
        """What is on offer."""
        geometry: Geometry = self.program.geometry
        return geometry

    @property
    def inventory(self) -> Inventory:
        """What it holds."""
        inventory: Inventory = self.program.inventory
        return inventory

    def run(self, unit: Unit) -> Result:
        """Run one unit, while there are any left."""
        wide = not self.rows or (isinstance(unit, Decode) and len(unit.rows) >= self.rows)
        self.left -= wide
        if self.left < 0:
            print(f"fault at {time.monotonic()}", file=sys.stderr, flush=True)
            if os.environ.get("HANGS"):
                threading.Event().wait()
            raise RuntimeError("an illegal memory access was encountered")
        result: Result = self.program.run(unit)
        return result


@asynccontextmanager
async def build(
    model: Any, options: EngineOptions, backend: str, progress: Callable[[str], None]
) -> AsyncIterator[ThreadDevice]:
    """Build a NumPy device with the fault that was asked for."""

    def make() -> Failing:
        print("loading", file=sys.stderr, flush=True)
        time.sleep(float(os.environ.get("SLOW_START", "0")))
        after, rows = os.environ.get("FAIL_AFTER", "inf"), os.environ.get("FAIL_ROWS", "0")
        return Failing(build_numpy(model, options, progress), float(after), int(rows))

    waits = attrs.evolve(options.waits, stop=0.1)
    async with ThreadDevice.start(make, waits) as device:
        yield device


if __name__ == "__main__":
    sys.exit(leave(serve(read_options(build_parser().parse_args()), build)))
