"""Graph capture and replay.

Owns one executable graph.  Captures in the global mode, so that any device allocation or other unsafe
call anywhere in the process fails the capture instead of becoming part of it.

The one thing a reader would get wrong: a replay reads whatever lies in device memory at that moment;
every number that varies between replays must be written there by earlier work of the same stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from ninfer.kernels_cu.pack import Library

_CAPTURE_GLOBAL = 0


@attrs.frozen(eq=False)
class Graph:
    """An instantiated graph.  ``launches`` counts the kernels in it."""

    executable: Any
    stream: Any
    launches: int

    def replay(self) -> None:
        """Run it once; returns at once."""
        self.executable.launch(self.stream)


def capture(library: Library, stream: Any, body: Callable[[], object]) -> Graph:
    """Record what ``body`` submits to ``stream``.  Nothing runs until ``replay``.

    Run ``body`` once before: the first run loads modules and raises limits, which no capture allows.
    """
    before = library.launches
    stream.begin_capture(_CAPTURE_GLOBAL)
    try:
        body()
    except BaseException:
        stream.end_capture()
        raise
    executable = stream.end_capture()
    executable.upload(stream)
    return Graph(executable, stream, library.launches - before)
