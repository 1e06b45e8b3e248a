"""The CUDA program: a unit of work in, committed state and tokens out; the twin of ``runtime/program.py``.

Owns lanes, slots, pages and host memory on the device's side.  ``start`` submits a unit and returns at
once; what it returns waits for the unit and gives its result, so the next unit can be submitted before
the last one's tokens have been read.  Decode rounds are replayed from graphs, one for each exact batch;
every number that varies lies in the packer's block.

The one thing a reader would get wrong: units are ordered by the stream alone.  Nothing here waits, and
nothing on the host may depend on tokens; what does (settling) comes back from the engine as a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

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
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.model.qwen3_5 import forward
from ninfer.model.weights import Decoder
from ninfer.ops.cuda_sampler import pack_sampler
from ninfer.ops.cuda_state import EDGE_BYTES, LATE, PAGE_TOKENS, ImagePool, PagePool
from ninfer.ops.numpy_state import Ints
from ninfer.ops.on_cuda import CudaVerbs
from ninfer.ops.sample_numpy import Purpose
from ninfer.ops.verbs import Step
from ninfer.runtime.cuda_eyes import CudaEyes
from ninfer.runtime.cuda_lags import Lag, Lags
from ninfer.runtime.cuda_round import Fold, forced_tokens, lay_fold, lay_round
from ninfer.runtime.cuda_steps import Packer
from ninfer.runtime.cuda_transfers import Bytes, Mark, Transfers
from ninfer.runtime.inventory import Inventory
from ninfer.runtime.steps import ending, int32, prefill_step, rows_step, shifted
from ninfer.spec.drafter import Drafter

Finish = Callable[[], tuple[RowResult, ...]]
COUNTED_AT_ONCE = 1024  # generated ids that one launch counts


class Replay(Protocol):
    """A captured body."""

    def replay(self) -> None:
        """Submit it."""


@attrs.frozen
class Verification:
    """A verification that was not settled yet: its row, and what it published once that is known."""

    row: Row
    published: list[int]


@attrs.frozen(eq=False)
class Saved:
    """What a host key holds; the edge of an image that came from elsewhere lies in its last bytes."""

    data: Bytes
    image_bytes: int  # 0: no image
    edge: Ints


@attrs.define(eq=False)
class CudaProgram:
    """Runs units in order.  Build it with ``runtime.cuda_build``.

    results   (lanes * (2 + drafts),) i32: tokens of the last round
    edges     (slots, 3) rotary position of each slot's last token; the host knows them all
    capture   records a body as a graph, or None to run every round eagerly
    """

    geometry: Geometry
    verbs: CudaVerbs
    decoder: Decoder
    images: ImagePool
    pages: PagePool
    transfers: Transfers
    packer: Packer
    results: DeviceArray
    drafter: Drafter | None = None
    eyes: CudaEyes | None = None
    capture: Callable[[Callable[[], object]], Replay] | None = None
    inventory: Inventory = attrs.field(factory=Inventory)
    signature: str = "cuda"  # see ``engine.device.Archive``
    edges: Ints = attrs.field(init=False)
    lags: Lags = attrs.field(factory=lambda: Lags(LATE))
    _open: dict[int, Verification] = attrs.field(factory=dict)
    _host: dict[int, Saved] = attrs.field(factory=dict)
    _sight: tuple[Mark, Mark] | None = None  # where the media of the unit being submitted begin and end
    _seen: set[tuple[object, ...]] = attrs.field(factory=set)
    _graphs: dict[tuple[object, ...], Replay] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.edges = np.zeros((self.geometry.slots, 3), np.int32)

    def run(self, unit: Unit) -> Result:
        """Run one unit to its end."""
        return self.start(unit)()

    def start(self, unit: Unit) -> Callable[[], Result]:
        """Submit one unit; call what is returned to wait for its result."""
        began, self._sight = self.transfers.mark(), None
        finish = self._dispatch(unit)
        ended, sight = self.transfers.mark(), self._sight

        def result() -> Result:
            ended.wait()
            vision = self.transfers.seconds(*sight) if sight else 0.0
            return Result(finish(), self.transfers.seconds(began, ended), vision)

        return result

    def _dispatch(self, unit: Unit) -> Finish:
        self._catch_up(self.lags.before(unit, self.verbs.delta.lagging))
        if isinstance(unit, Decode):
            return self._decode(unit)
        if isinstance(unit, Prefill):
            return self._prefill(unit)
        if isinstance(unit, Bind):
            self._bind(unit)
        elif isinstance(unit, Settle):
            self._settle([(unit.lane, unit.slot, unit.keep)])
        elif not isinstance(unit, Remember):  # its drafter follows every pass at once
            self._move(unit)
        return tuple

    def _bind(self, unit: Bind) -> None:
        s, sampler = unit.sampling, self.verbs.sampler
        packed = pack_sampler(s.temperature, s.top_p, s.min_p, s.presence, s.frequency, s.top_k, s.seed)
        row = sampler.memory.samplers.rows(unit.lane, unit.lane + 1)
        self.transfers.send(row, np.frombuffer(packed, np.uint8))
        self._open.pop(unit.lane, None)
        if self.eyes is not None:
            self.eyes.forget(unit.lane)
        if s.presence or s.frequency:
            sampler.clear_counts(unit.lane)
            for begin in range(0, len(unit.generated), COUNTED_AT_ONCE):
                self.packer.begin()
                part = self.packer.put(int32(unit.generated[begin : begin + COUNTED_AT_ONCE]))
                self._send()
                sampler.add_counts(unit.lane, part)

    def _send(self) -> None:
        self.transfers.send(self.packer.block, self.packer.numbers)

    # Memory

    def _catch_up(self, lags: Sequence[Lag]) -> None:
        """Enter into slots what waits for them."""
        for begin in range(0, len(lags), self.geometry.lanes):
            part = lags[begin : begin + self.geometry.lanes]
            self.packer.begin()
            put, columns = self.packer.put, zip(*(attrs.astuple(lag) for lag in part), strict=True)
            lanes, slots, counts = (put(int32(column)) for column in columns)
            self._send()
            self.verbs.delta.catch_up(lanes, slots, counts)

    def _move(self, unit: Clear | CopyImage | CopyPage | HostSave | HostLoad | HostDrop) -> None:
        if isinstance(unit, Clear):
            self.transfers.fill(self.images.image(unit.slot))
            self.edges[unit.slot] = 0
        elif isinstance(unit, CopyImage):
            self.transfers.copy(self.images.image(unit.target), self.images.image(unit.source))
            self.edges[unit.target] = self.edges[unit.source]
        elif isinstance(unit, CopyPage):
            self.transfers.copy(self.pages.page(unit.target), self.pages.page(unit.source))
        elif isinstance(unit, HostSave):
            self._save(unit)
        elif isinstance(unit, HostLoad):
            self._load(unit)
        else:
            self.transfers.drop(self._host.pop(unit.key).data)

    def _save(self, unit: HostSave) -> None:
        arrays = [] if unit.slot is None else [self.images.image(unit.slot)]
        size = arrays[0].nbytes if arrays else 0
        edge = np.zeros(3, np.int32) if unit.slot is None else self.edges[unit.slot].copy()
        data = self.transfers.save(arrays + [self.pages.page(page) for page in unit.pages])
        self._host[unit.key] = Saved(data, size, edge)

    def _load(self, unit: HostLoad) -> None:
        saved = self._host[unit.key]
        if unit.slot is not None:
            if not saved.image_bytes:
                raise Broken(f"host key {unit.key} holds no image")
            self.transfers.load(self.images.image(unit.slot), saved.data, 0)
            self.edges[unit.slot] = saved.edge
        for number, page in enumerate(unit.pages, unit.skip):
            at = saved.image_bytes + number * self.pages.page_bytes
            self.transfers.load(self.pages.page(page), saved.data, at)

    # Archive

    def export(self, slot: int | None, pages: tuple[int, ...]) -> Raw:
        """Give out the image in ``slot``, or else ``pages``."""
        if slot is None:
            return self.transfers.read([self.pages.page(page) for page in pages]).data
        self._catch_up(self.lags.of(slot))
        return _with_edge(self.transfers.read([self.images.image(slot)]), self.edges[slot])

    def export_host(self, key: int, skip: int, count: int) -> Raw:
        """Give out what ``key`` holds: its image, or ``count`` pages from ``skip`` on."""
        saved, size = self._host[key], self.pages.page_bytes
        if saved.image_bytes:
            return _with_edge(saved.data[: saved.image_bytes].copy(), saved.edge)
        return saved.data[skip * size : (skip + count) * size].copy().data

    def room(self, key: int, pages: int) -> memoryview:
        """Set pinned memory aside under a new ``key``, for an image or for ``pages`` pages."""
        size = 0 if pages else self.images.image_bytes
        data = self.transfers.room(size + pages * self.pages.page_bytes)
        edge = data[size - EDGE_BYTES : size].view(np.int32)[:3] if size else np.zeros(3, np.int32)
        self._host[key] = Saved(data, size, edge)
        return data.data

    # Prompts

    def _prefill(self, unit: Prefill) -> Finish:
        packer, verbs = self.packer, self.verbs
        media = self._media(unit)
        packer.begin()
        point = packer.put(int32([unit.start + len(unit.ids)]))
        out = self.results.rows(0, 1)
        if unit.ids:
            needed = -(-(unit.start + len(unit.ids)) // PAGE_TOKENS)
            host = prefill_step(attrs.evolve(unit, pages=unit.pages[:needed]))
            host = attrs.evolve(host, kind="tail") if unit.tail else host
            step = packer.step(host)
            wanted = self._wanted(step, host)
            if media is not None:
                step = attrs.evolve(step, embeds=(packer.put(media[0]), media[1]))
            follow = self._follow(step, host)
            self._send()
            hidden = self._advance(step, follow, wanted)
            last = verbs.last_rows(hidden, wanted or step) if unit.sample else None
            self.edges[unit.slot] = host.positions[:, -1]
        else:
            step = packer.step(_slot_step(unit))
            self._send()
            last = verbs.hidden_of(step.slots)
        if not unit.sample or last is None:
            return tuple
        verbs.sampler.draw(verbs.logits(last, self.decoder.head), step, point, Purpose.PREFILL, out)
        return self._tokens(out)

    def _media(self, unit: Prefill) -> tuple[Ints, DeviceArray] | None:
        if unit.media and self.eyes is None:
            raise Broken("media in a prompt, but no vision tower is loaded")
        if self.eyes is None or not unit.media:
            return None
        began = self.transfers.mark()
        found = self.eyes.embeds(unit)
        self._sight = began, self.transfers.mark()
        return found

    def _tokens(self, out: DeviceArray) -> Finish:
        tokens, mark = self.transfers.fetch(out)

        def finish() -> tuple[RowResult, ...]:
            mark.wait()
            return tuple(RowResult((token,)) for token in tokens.tolist())

        return finish

    def _follow(self, step: Step, host: Step) -> Step | None:
        """The same rows for the drafter, which needs the positions one token earlier."""
        if self.drafter is None:
            return None
        return self.packer.moved(step, shifted(host, self.edges[host.slots]))

    def _wanted(self, step: Step, host: Step) -> Step | None:
        """The rows of a prompt piece whose hidden states are read; None: all, which a drafter does."""
        if self.drafter is not None or host.kind != "prefill":
            return None
        return self.packer.ending(step, ending(host))

    def _advance(self, step: Step, follow: Step | None, wanted: Step | None = None) -> DeviceArray:
        """Run the target and let the drafter follow.  -> hidden states, of the ``wanted`` rows if given."""
        hidden: DeviceArray = forward(self.verbs, self.decoder, step, wanted)
        if self.drafter is not None and follow is not None:
            self.drafter.follow(self.verbs, hidden, follow)
        self.verbs.keep_hidden(hidden, wanted or step)
        self.verbs.attention.leave()
        return hidden

    # Decoding

    def _decode(self, unit: Decode) -> Finish:
        plain = [row for row in unit.rows if not row.draft]
        self._settle([(row.lane, row.slot, row.keep) for row in plain if row.keep is not None])
        drafted = sorted((row for row in unit.rows if row.draft), key=lambda row: -row.draft)
        parts = [(rows, go(rows)) for rows, go in ((plain, self._step), (drafted, self._verify)) if rows]

        def finish() -> tuple[RowResult, ...]:
            found = {
                row.lane: result for rows, end in parts for row, result in zip(rows, end(), strict=True)
            }
            return tuple(found[row.lane] for row in unit.rows)

        return finish

    def _step(self, rows: Sequence[Row]) -> Finish:
        packer, count = self.packer, len(rows)
        host = rows_step("decode", rows, [(0,)] * count)
        packer.begin()
        ids, forced = packer.room(count), packer.put(forced_tokens(rows))
        step = packer.step(host, ids)
        if self.verbs.delta.lagging(count):
            step = attrs.evolve(step, lags=packer.put(int32(self.lags.advance(rows))))
        follow = self._follow(step, host)
        self._send()
        out = self.results.rows(0, count)

        def body() -> None:
            sampler = self.verbs.sampler
            sampler.feed(step.ids, forced, step.lanes)
            hidden = self._advance(step, follow)
            logits = self.verbs.logits(hidden, self.decoder.head)
            sampler.draw(logits, step, step.frontiers, Purpose.DECODE, out)

        self._play(("decode", count), body)
        self.edges[host.slots] = host.positions.T
        return self._tokens(out)

    def _play(self, key: tuple[object, ...], body: Callable[[], None]) -> None:
        """Run a body: eagerly the first time (which loads its kernels), from its graph after that.

        Rounds whose rows draft differently are few and of many kinds, so they have no graphs.
        """
        if self.capture is None or len(set(key[1:])) > 1 or key not in self._seen:
            self._seen.add(key)
            body()
            return
        if key not in self._graphs:
            self._graphs[key] = self.capture(body)
        self._graphs[key].replay()

    def _verify(self, rows: Sequence[Row]) -> Finish:
        if self.drafter is None:
            raise Broken("drafts were asked for, but no drafter is loaded")
        drafter, count = self.drafter, len(rows)
        totals = self._close([(row.lane, row.slot, row.keep) for row in rows])
        slots = [row.slot for row in rows]
        laid = lay_round(self.packer, rows, totals, self.edges[slots])
        self._send()
        lanes, width = self.geometry.lanes, 1 + self.verbs.sampler.memory.width
        out = self.results.rows(lanes, lanes + count * width).reshape(count, width)

        def body() -> None:
            sampler, step = self.verbs.sampler, laid.step
            self._fold(laid.fold)
            sampler.feed(laid.fed, laid.forced, step.lanes)
            sampler.line(step.ids, laid.fed, self._propose(drafter, laid.ahead), step)
            hidden = self._advance(step, laid.follow)
            sampler.judge(self.verbs.logits(hidden, self.decoder.head), step, out)

        self._play(("verify", *(row.draft for row in rows)), body)
        return self._judged(rows, out)

    def _propose(self, drafter: Drafter, steps: Sequence[Step]) -> list[DeviceArray]:
        """Draft as deep as there are steps; deeper steps hold fewer sequences."""
        proposed: list[DeviceArray] = []
        state: DeviceArray | None = None
        for step in steps:
            if state is None:
                tokens, state = drafter.begin(self.verbs, step)
            else:
                count = step.sequences
                fed = attrs.evolve(step, ids=proposed[-1].rows(0, count))
                tokens, state = drafter.go_on(self.verbs, state.rows(0, count), fed)
            proposed.append(tokens)
        return proposed

    def _judged(self, rows: Sequence[Row], out: DeviceArray) -> Finish:
        opened = [Verification(row, []) for row in rows]
        self._open.update({row.lane: one for row, one in zip(rows, opened, strict=True)})
        found, mark = self.transfers.fetch(out)

        def finish() -> tuple[RowResult, ...]:
            mark.wait()
            for one, line in zip(opened, found.tolist(), strict=True):
                one.published[:] = line[1 : 1 + line[0]]
            return tuple(RowResult(tuple(one.published), one.row.draft) for one in opened)

        return finish

    def _settle(self, parts: Sequence[tuple[int, int, int]]) -> None:
        if not parts:
            return
        totals = self._close(parts)
        self.packer.begin()
        fold = lay_fold(self.packer, [(*part, total) for part, total in zip(parts, totals, strict=True)])
        self._send()
        self._fold(fold)

    def _close(self, parts: Sequence[tuple[int, int, int | None]]) -> list[int]:
        """Close verifications on the host's side; a ``keep`` of None had none.  -> tokens published."""
        totals = []
        for lane, slot, keep in parts:
            done = self._open.pop(lane, None)
            published = [] if done is None or keep is None else done.published
            totals.append(len(published))
            if keep is None:
                continue
            if done is None or not 0 <= keep <= len(published):
                raise Broken(f"settling {keep} of {done}")
            if keep:
                self.edges[slot] = done.row.frontier + keep - 1 + done.row.rope_delta
        return totals

    def _fold(self, fold: Fold) -> None:
        """Take back what was not kept and advance the slots over what was."""
        self.verbs.sampler.settle(fold.lanes, fold.keeps, fold.totals)
        self.verbs.fold(fold.lanes, fold.slots, fold.keeps)


def _with_edge(image: Bytes, edge: Ints) -> memoryview:
    """Put the edge, which the host knows, where an exported image has it."""
    image[-EDGE_BYTES:].view(np.int32)[:] = *edge, 0
    return image.data


def _slot_step(unit: Prefill) -> Step:
    """A step that only names the slot and the lane, to sample from a saved hidden state."""
    return Step(
        kind="decode",
        rows=1,
        sequences=1,
        ids=int32([0]),
        positions=np.zeros((3, 1), np.int32),
        offsets=int32([0, 1]),
        frontiers=int32([unit.start]),
        tables=int32([unit.pages[:1] or (0,)]),
        slots=int32([unit.slot]),
        lanes=int32([unit.lane]),
    )
