"""The NumPy program: a unit of work in, committed state and tokens out.

Owns lanes, slots, pages and host memory; implements the meaning of ``engine/device.py`` unit by unit.
Not thread-safe: one thread runs it.  The one thing a reader would get wrong: rows without drafts
advance their slot at once, rows with drafts leave it at the frontier until they are settled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from ninfer.engine.device import (
    Bind,
    Clear,
    CopyImage,
    CopyPage,
    Decode,
    Geometry,
    HostDrop,
    HostLoad,
    HostSave,
    Prefill,
    Raw,
    Remember,
    Result,
    Row,
    RowResult,
    Settle,
    Unit,
)
from ninfer.faults import Broken
from ninfer.model.qwen3_5 import forward
from ninfer.model.weights import Decoder
from ninfer.ops.numpy_state import Floats, Record
from ninfer.ops.on_numpy import NumpyVerbs
from ninfer.ops.sample_numpy import Purpose
from ninfer.ops.verbs import Step
from ninfer.runtime.arrears import Arrears
from ninfer.runtime.eyes import Eyes
from ninfer.runtime.inventory import Inventory
from ninfer.runtime.lanes import Lane, Verification, judge, sample_rows
from ninfer.runtime.state import Image, KVPages, StateImages, image_in, pack_image
from ninfer.runtime.steps import ending, int32, placeholders, prefill_step, rows_step, shifted
from ninfer.spec.drafter import Drafter

Saved = tuple[Image | None, "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]"]


@attrs.define(eq=False)
class NumpyProgram:
    """Runs units in order.  Build it with ``runtime.build``."""

    geometry: Geometry
    verbs: NumpyVerbs
    decoder: Decoder
    images: StateImages
    pages: KVPages
    lanes: tuple[Lane, ...]
    drafter: Drafter | None = None
    eyes: Eyes | None = None
    inventory: Inventory = attrs.field(factory=Inventory)
    signature: str = "numpy"  # see ``engine.device.Archive``
    clock: Callable[[], float] = time.perf_counter
    _host: dict[int, Saved] = attrs.field(factory=dict)
    _arrears: dict[int, Arrears] = attrs.field(factory=dict)  # by lane: what the drafter was not told yet
    _vision: float = 0.0  # seconds of this unit that media took

    def run(self, unit: Unit) -> Result:
        """Run one unit to its end."""
        began, self._vision = self.clock(), 0.0
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # a row that is not finite is found by the sampler
            rows = self._dispatch(unit)
        return Result(rows, self.clock() - began, self._vision)

    def _dispatch(self, unit: Unit) -> tuple[RowResult, ...]:
        if isinstance(unit, Decode):
            return self._decode(unit)
        if isinstance(unit, Prefill):
            return self._prefill(unit)
        if isinstance(unit, Bind):
            self._bind(unit)
        elif isinstance(unit, Settle):
            self._settle([(unit.lane, unit.slot, unit.keep)])
        elif isinstance(unit, Remember):
            self._catch_up(unit.lane)
        else:
            self._move(unit)
        return ()

    def _bind(self, unit: Bind) -> None:
        self._arrears.pop(unit.lane, None)
        self.lanes[unit.lane].bind(unit)
        if self.eyes is not None:
            self.eyes.forget(unit.lane)

    def _move(self, unit: Clear | CopyImage | CopyPage | HostSave | HostLoad | HostDrop) -> None:
        self._attend_to(unit)
        if isinstance(unit, Clear):
            self.images.clear(unit.slot)
        elif isinstance(unit, CopyImage):
            self.images.copy(unit.source, unit.target)
        elif isinstance(unit, CopyPage):
            self.pages.copy(unit.source, unit.target)
        elif isinstance(unit, HostSave):
            image = None if unit.slot is None else self.images.save(unit.slot)
            self._host[unit.key] = image, self.pages.save(unit.pages)
        elif isinstance(unit, HostLoad):
            self._load(unit)
        else:
            del self._host[unit.key]

    def _attend_to(self, unit: Clear | CopyImage | CopyPage | HostSave | HostLoad | HostDrop) -> None:
        """Let the drafter catch up in a slot that is about to be read; forget one that is overwritten."""
        read = unit.source if isinstance(unit, CopyImage) else None
        read = unit.slot if isinstance(unit, HostSave) else read
        written = unit.target if isinstance(unit, CopyImage) else None
        written = unit.slot if isinstance(unit, Clear | HostLoad) else written
        for lane, one in list(self._arrears.items()):
            if one.slot == read:
                self._catch_up(lane)
            elif one.slot == written:
                del self._arrears[lane]

    def _load(self, unit: HostLoad) -> None:
        image, codes = self._host[unit.key]
        if unit.slot is not None:
            if image is None:
                raise Broken(f"host key {unit.key} holds no image")
            self.images.load(unit.slot, image)
        self.pages.load(unit.pages, codes[unit.skip : unit.skip + len(unit.pages)])

    # Archive

    def export(self, slot: int | None, pages: tuple[int, ...]) -> Raw:
        """Give out the image in ``slot``, or else ``pages``."""
        if slot is not None:
            return pack_image(self.images.save(slot))
        return self.pages.save(pages).tobytes()

    def export_host(self, key: int, skip: int, count: int) -> Raw:
        """Give out what ``key`` holds: its image, or ``count`` pages from ``skip`` on."""
        image, codes = self._host[key]
        return pack_image(image) if image is not None else codes[skip : skip + count].tobytes()

    def room(self, key: int, pages: int) -> memoryview:
        """Set host memory aside under a new ``key``, for an image or for ``pages`` pages."""
        raw = np.zeros(pages * self.geometry.page_bytes or self.geometry.image_bytes, np.uint8)
        codes = (raw if pages else raw[:0]).reshape(pages, self.geometry.page_bytes)
        self._host[key] = None if pages else image_in(raw), codes
        return raw.data

    def _expect(self, lane: int, slot: int, frontier: int) -> None:
        """Insist that a unit continues exactly where its slot's state ends."""
        found = int(self.images.frontiers[slot])
        if found != frontier or self.lanes[lane].open is not None:
            waits = "" if self.lanes[lane].open is None else ", with a verification to settle"
            raise Broken(f"slot {slot} stands at {found}{waits}; lane {lane} goes on at {frontier}")

    # Prompts

    def _prefill(self, unit: Prefill) -> tuple[RowResult, ...]:
        self._expect(unit.lane, unit.slot, unit.start)
        self._catch_up(unit.lane)
        if unit.ids:
            step = self._with_media(unit, prefill_step(unit))
            wanted = ending(step) if self.drafter is None else None
            last = self.verbs.last_rows(self._advance(step, wanted), wanted or step)
        else:
            last = self.verbs.slots.hidden[unit.slot][None, None]
        if not unit.sample:
            return ()
        lane, at = self.lanes[unit.lane], unit.start + len(unit.ids)
        tokens = sample_rows([lane], self._logits(last), [lane.number(at, Purpose.PREFILL)])
        return (RowResult(tuple(tokens)),)

    def _with_media(self, unit: Prefill, step: Step) -> Step:
        """Put the feature rows of media items in the place of their placeholders."""
        if not unit.media:
            return step
        if self.eyes is None:
            raise Broken("media in a prompt, but no vision tower is loaded")
        began, rows, features = self.clock(), [], []
        for span in unit.media:
            at, mine = placeholders(span, unit.start, step.rows)
            rows.append(at)
            features.append(self.eyes.features(unit.lane, span, unit.start + step.rows)[mine])
        self._vision = self.clock() - began
        return attrs.evolve(step, embeds=(np.concatenate(rows), np.concatenate(features)))

    # Decoding

    def _decode(self, unit: Decode) -> tuple[RowResult, ...]:
        self._settle([(row.lane, row.slot, row.keep) for row in unit.rows if row.keep is not None])
        for row in unit.rows:
            self._expect(row.lane, row.slot, row.frontier)
        results: dict[int, RowResult] = {}
        plain = [row for row in unit.rows if not row.draft]
        drafted = [row for row in unit.rows if row.draft]
        for row in drafted:
            self._catch_up(row.lane)
        if plain:
            self._step(plain, results)
        if drafted:
            self._verify(drafted, results)
        return tuple(results[row.lane] for row in unit.rows)

    def _step(self, rows: Sequence[Row], results: dict[int, RowResult]) -> None:
        lanes = [self.lanes[row.lane] for row in rows]
        step = rows_step("decode", rows, [[lane.feed(row)] for lane, row in zip(lanes, rows, strict=True)])
        logits = self._logits(self._advance(step))
        numbers = [lane.number(row.frontier, Purpose.DECODE) for lane, row in zip(lanes, rows, strict=True)]
        for row, token in zip(rows, sample_rows(lanes, logits, numbers), strict=True):
            results[row.lane] = RowResult((token,))

    def _verify(self, rows: Sequence[Row], results: dict[int, RowResult]) -> None:
        drafts = self._propose(rows)
        fed = [[self.lanes[row.lane].feed(row), *drafts[row.lane]] for row in rows]
        step = rows_step("verify", rows, fed)
        for row in rows:
            self.verbs.slots.records[row.lane] = Record()
        logits = self._logits(self._advance(step))
        for s, row in enumerate(rows):
            lane, mine = self.lanes[row.lane], logits[step.offsets[s] : step.offsets[s + 1]]
            tokens = judge(lane, mine, drafts[row.lane], row.frontier)
            lane.open = Verification(row, tokens)
            results[row.lane] = RowResult(tokens, len(drafts[row.lane]))

    def _propose(self, rows: Sequence[Row]) -> dict[int, list[int]]:
        """Draft ``row.draft`` tokens for each row."""
        if self.drafter is None:
            raise Broken("drafts were asked for, but no drafter is loaded")
        drafts: dict[int, list[int]] = {row.lane: [] for row in rows}
        state: Floats | None = None
        for depth in range(max(row.draft for row in rows)):
            able = [i for i, row in enumerate(rows) if row.draft > depth]
            rows, state = [rows[i] for i in able], None if state is None else state[able]
            ids = [(drafts[row.lane] or [self.lanes[row.lane].feed(row)])[-1:] for row in rows]
            step = rows_step("decode", rows, ids, ahead=depth)
            step = attrs.evolve(step, positions=step.positions - np.int32(1), first=1)
            if state is None:
                proposed, state = self.drafter.begin(self.verbs, step)
            else:
                proposed, state = self.drafter.go_on(self.verbs, state, step)
            for row, token in zip(rows, proposed.tolist(), strict=True):
                drafts[row.lane].append(token)
        return drafts

    def _settle(self, parts: Sequence[tuple[int, int, int]]) -> None:
        if not parts:
            return
        lanes, slots, keeps = zip(*parts, strict=True)
        for lane, slot, keep in parts:
            row = self.lanes[lane].settle(keep).row
            if keep:
                self.images.edges[slot] = row.frontier + keep - 1 + row.rope_delta
                self.images.frontiers[slot] = row.frontier + keep
        self.verbs.fold(int32(lanes), int32(slots), int32(keeps))

    # What both share

    def _advance(self, step: Step, wanted: Step | None = None) -> Floats:
        """Run the target and let the drafter follow.  -> hidden states, of the ``wanted`` rows if given."""
        hidden: Floats = forward(self.verbs, self.decoder, step, wanted)
        if self.drafter is not None and step.kind == "decode":
            self._defer(step)
        elif self.drafter is not None:
            self.drafter.follow(self.verbs, hidden, shifted(step, self.images.edges[step.slots]))
        self.verbs.keep_hidden(hidden, wanted or step)
        if step.kind != "verify":
            self.images.edges[step.slots] = step.positions[:, step.offsets[1:] - 1].T
            self.images.frontiers[step.slots] += np.diff(step.offsets)
        return hidden

    def _defer(self, step: Step) -> None:
        """Note what plain steps forward, for the drafter."""
        parts = (part.tolist() for part in (step.ids, step.lanes, step.slots, step.frontiers))
        for token, lane, slot, start, table in zip(*parts, step.tables, strict=True):
            one = self._arrears.setdefault(lane, Arrears(lane, slot, start, table))
            one.add(token, self.verbs.slots.hidden[slot], self.images.edges[slot], table)
            if one.full:
                self._catch_up(lane)

    def _catch_up(self, lane: int) -> None:
        """Tell the drafter of the tokens of a lane that it was not told of."""
        one = self._arrears.pop(lane, None)
        if one is not None and self.drafter is not None:
            step = one.step()
            self.drafter.remember(self.verbs, self.verbs.spread(np.stack(one.hidden), step), step)

    def _logits(self, hidden: Floats) -> Floats:
        logits = self.verbs.logits(hidden, self.decoder.head)
        return logits[:, : self.geometry.vocab]
