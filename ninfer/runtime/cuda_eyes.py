"""The vision tower in use on CUDA: encodes items inside prompt units, keeps their rows while prompts fill.

Encoding is part of the prompt unit that first meets an item, never of a decode round.  An item is encoded
by groups of whole time slices, which nothing connects, so its workspace is that of one group.  Feature rows
outlive a pass and therefore lie in a pool of their own, with room for the media of one prompt.  A shape
that comes again is replayed from a graph, since small pictures take the host longer than the device.

The one thing a reader would get wrong: what is kept may be dropped at any time.  When the pool has no room,
everything in it goes, and whoever still needs an item has it encoded again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs
import numpy as np

from ninfer.engine.device import Prefill
from ninfer.faults import Broken
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.model.vision import Tower, read
from ninfer.ops.cuda_vision import ROWS, CudaVision, spans
from ninfer.ops.numpy_state import Ints
from ninfer.ops.vision_verbs import Patches
from ninfer.prompt.prepared import MediaSpan
from ninfer.runtime.arena import Scratch, aligned
from ninfer.runtime.cuda_transfers import Transfers
from ninfer.runtime.steps import placeholders

MOST_TOKENS = 32_768  # feature rows of one prompt
MOST_GRAPHS = 8  # shapes that are remembered


class Replay(Protocol):
    """A captured body."""

    def replay(self) -> None:
        """Submit it."""


@attrs.frozen(eq=False)
class Reading:
    """A tower recorded for one shape, and where it leaves its rows."""

    graph: Replay
    rows: DeviceArray


@attrs.define(eq=False)
class CudaEyes:
    """Feature rows (placeholders, hidden) in bf16, by lane and first placeholder.

    memory   (rows, hidden) bf16 that features are kept in
    patches  the most that a time slice may have
    capture  records a body as a graph, or None to run everything eagerly
    """

    verbs: CudaVision
    tower: Tower
    transfers: Transfers
    memory: DeviceArray
    patches: int
    capture: Callable[[Callable[[], object]], Replay] | None = None
    _seen: tuple[Patches, int] | None = None
    _graphs: dict[tuple[Patches, int], Reading] = attrs.field(factory=dict)
    _pool: Scratch = attrs.field(init=False)
    _kept: dict[tuple[int, int], DeviceArray] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._pool = Scratch(self.memory.ptr, aligned(self.memory.nbytes))

    def embeds(self, unit: Prefill) -> tuple[Ints, DeviceArray] | None:
        """Find which rows of a unit are placeholders, and with what to fill them; None for plain text."""
        if not unit.media:
            return None
        count = len(unit.ids)
        places = [placeholders(span, unit.start, count) for span in unit.media]
        rows = np.concatenate([at for at, _ in places])
        out = self.verbs.take((len(rows), self.tower.config.out_hidden), "bf16")
        begin = 0
        for span, (_, mine) in zip(unit.media, places, strict=True):
            end = begin + len(mine)
            if end > begin:  # rows of an item follow each other, also over the text between its slices
                features = self._features(unit.lane, span, unit.start + count)
                self.transfers.copy(out.rows(begin, end), features.rows(int(mine[0]), int(mine[-1]) + 1))
            begin = end
        return rows, out

    def _features(self, lane: int, span: MediaSpan, until: int) -> DeviceArray:
        """Take or make an item's rows; keep them if the item goes on behind token ``until``."""
        key = (lane, span.start)
        rows = self._kept.pop(key, None)
        if rows is None:
            rows = self.encode(span)
        if span.stop > until:
            self._kept[key] = rows
        return rows

    def encode(self, span: MediaSpan) -> DeviceArray:
        """Run the tower over an item.  -> (placeholders, hidden) of the pool."""
        whole = Patches(*span.grid, merge=self.tower.config.merge)
        out = self._room(whole.tokens)
        each, tokens = whole.count // whole.time, whole.tokens // whole.time
        for begin, end in spans(whole.time, max(1, ROWS // each)):
            part = attrs.evolve(whole, time=end - begin)
            pixels = span.payload[begin * each : end * each]
            x = self.verbs.embed_patches(pixels, self.tower.patch, self.tower.positions, part)
            self.transfers.copy(out.rows(begin * tokens, end * tokens), self._read(x, part))
        return out

    def _read(self, x: DeviceArray, shape: Patches) -> DeviceArray:
        """Run the blocks: eagerly for a new shape, from a graph for one that has just been seen.

        Scratch is lent from the bottom and holds little else here, so the place of ``x`` tells all others.
        """
        key = (shape, x.ptr)
        if key not in self._graphs and (self.capture is None or key != self._seen):
            self._seen = key
            rows: DeviceArray = read(self.verbs, self.tower, x, shape)
            return rows
        if key not in self._graphs:
            self._graphs[key] = self._record(x, shape)
        reading = self._graphs[key] = self._graphs.pop(key)
        reading.graph.replay()
        return reading.rows

    def _record(self, x: DeviceArray, shape: Patches) -> Reading:
        assert self.capture is not None
        found: list[DeviceArray] = []
        place = attrs.evolve(x, owner=None)  # a graph knows addresses and holds on to nothing

        def body() -> None:
            found[:] = [attrs.evolve(read(self.verbs, self.tower, place, shape), owner=None)]

        graph = self.capture(body)
        while len(self._graphs) >= MOST_GRAPHS:
            del self._graphs[next(iter(self._graphs))]
        return Reading(graph, found[0])

    def _room(self, tokens: int) -> DeviceArray:
        shape = (tokens, self.tower.config.out_hidden)
        try:
            return self._pool.take(shape, "bf16")
        except Broken:
            self._kept.clear()
            return self._pool.take(shape, "bf16")

    def forget(self, lane: int) -> None:
        """Drop what was kept for a lane."""
        for key in [key for key in self._kept if key[0] == lane]:
            del self._kept[key]

    def widest(self, tokens: int) -> MediaSpan:
        """An item of one time slice: ``tokens`` rows, or as many as a slice makes; for rehearsals."""
        side = self.tower.config.merge
        width = max(1, min(self.patches // side**2, tokens))
        pixels = np.broadcast_to(np.uint8(0), (side * side * width, self.tower.patch.weight.columns))
        return MediaSpan(b"", (1, side, side * width), ((0, width),), pixels)
