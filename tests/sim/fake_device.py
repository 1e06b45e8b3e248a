"""A device that costs simulated seconds and catches whoever reads state that is not theirs.

It runs under the mock clock (or any clock): a unit is worth the seconds of a ``Costs`` and units
follow one another strictly, as on a GPU.  Tokens come from a ``Voice``, a function of the true
token history, so a wrong page, slot, frontier, position or penalty count changes the text.

Pages and images hold *chains*: entry i is a hash of everything up to token i.  Each unit compares
the chain of its pages with that of its image; a freed, foreign or stale page or slot is therefore
a ``Trespass`` at once, never a quiet wrong answer.

    device = FakeDevice(small(lanes=2))                        # hash-determined text
    device = FakeDevice(small(), voice=Script({(1, 2): (7, 8)}))   # these tokens for this prompt
    device = FakeDevice(small(), faults={5: "fail", 7: "nan"})     # by index of Prefill and Decode
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import attrs

from ninfer.engine.device import (
    Bind,
    Clear,
    CopyImage,
    CopyPage,
    Decode,
    DeviceFailed,
    Geometry,
    HostDrop,
    HostLoad,
    HostSave,
    Prefill,
    Remember,
    Result,
    Row,
    RowResult,
    Settle,
    Unit,
)
from ninfer.engine.job import Sampling

MASK = (1 << 61) - 1
STOP = 2  # the stop token of the voices below


class Trespass(AssertionError):
    """A unit read or wrote something that is not what it believes."""


def mix(*values: int) -> int:
    """Hash small integers into one of 61 bits; stable across runs."""
    out = 0x9E3779B97F4A7C15
    for value in values:
        out = ((out ^ value) * 0xD1342543DE82EF95 + 0x2545F4914F6CDD1D) & MASK
        out ^= out >> 29
    return out


def small(**changes: int) -> Geometry:
    """A small geometry; name what the test is about."""
    base = Geometry(
        lanes=2,
        slots=4,
        pages=64,
        page_tokens=8,
        max_context=256,
        prefill_chunk=32,
        vocab=1000,
        image_bytes=1000,
        page_bytes=100,
    )
    if "lanes" in changes:
        changes.setdefault("slots", 2 * changes["lanes"])
    return attrs.evolve(base, **changes)


@attrs.frozen
class Costs:
    """Device seconds of a unit."""

    prefill: float = 0.001
    prefill_token: float = 0.0001
    decode: float = 0.010
    decode_row: float = 0.0
    draft_token: float = 0.001
    copy: float = 0.0
    host_byte: float = 0.0

    def of(self, unit: Unit) -> float:
        """Price a unit."""
        match unit:
            case Prefill():
                return self.prefill + self.prefill_token * len(unit.ids)
            case Decode():
                drafts = sum(row.draft for row in unit.rows)
                return self.decode + self.decode_row * len(unit.rows) + self.draft_token * drafts
            case CopyImage() | CopyPage():
                return self.copy
            case _:
                return 0.0


@attrs.define
class Lane:
    """A row of the batch: its sampler, what penalties count, the token held on the device."""

    sampling: Sampling
    counted: int = 0  # order-free sum over the tokens that penalties count
    pending: int = -1
    verifying: tuple[int, ...] = ()  # ids of an unsettled verification
    rope_delta: int = 0
    generated: int = 0
    behind: tuple[int, int, tuple[int, ...]] | None = None  # slot, first token not drafted from, pages

    def count(self, token: int) -> None:
        """Let penalties count one more sampled token."""
        self.counted = (self.counted + mix(7, token)) & MASK
        self.generated += 1


Voice = Callable[[Sequence[int], int, Lane], int]  # (ids so far, their chain, lane) -> next token


@attrs.frozen
class Hashed:
    """Says anything but STOP for about ``length`` tokens (0: for ever), by the whole history."""

    vocab: int = 1000
    length: int = 0

    def __call__(self, ids: Sequence[int], chain: int, lane: Lane) -> int:
        """Choose the next token."""
        draw = mix(chain, lane.sampling.seed & MASK, lane.counted)
        if self.length and draw % self.length == 0:
            return STOP
        return 3 + draw % (self.vocab - 3)


@attrs.frozen
class Script:
    """Says exactly ``answers[prompt]``, token by token, then ``STOP``."""

    answers: Mapping[tuple[int, ...], Sequence[int]]

    def __call__(self, ids: Sequence[int], chain: int, lane: Lane) -> int:
        """Choose the next token by how far the history goes beyond the longest known prompt."""
        known = [p for p in self.answers if tuple(ids[: len(p)]) == p]
        if not known:
            return STOP
        prompt = max(known, key=len)
        answer, said = self.answers[prompt], len(ids) - len(prompt)
        return answer[said] if said < len(answer) else STOP


@attrs.define
class Image:
    """What a slot holds: the history that its state stands for."""

    ids: list[int] = attrs.field(factory=list)
    chain: list[int] = attrs.field(factory=list)

    def append(self, token: int, position: tuple[int, int, int], media: int) -> None:
        """Advance over one token."""
        last = self.chain[-1] if self.chain else 1
        self.ids.append(token)
        self.chain.append(mix(last, token, *position, media))

    def copy(self) -> Image:
        """Return an image that no longer changes with this one."""
        return Image(list(self.ids), list(self.chain))

    def cut(self, frontier: int) -> None:
        """Go back to an earlier frontier."""
        del self.ids[frontier:], self.chain[frontier:]


@attrs.define(eq=False)
class FakeTicket:
    """A unit whose outcome is known and whose time has not come."""

    at: float
    outcome: Result | DeviceFailed

    async def result(self) -> Result:
        """Sleep until the unit has run."""
        await anyio.sleep_until(self.at)
        if isinstance(self.outcome, DeviceFailed):
            raise self.outcome
        return self.outcome


@attrs.define(eq=False)
class FakeDevice:
    """See the module head.  ``log`` keeps every unit, ``work`` counts Prefill and Decode units."""

    geometry: Geometry = attrs.field(factory=small)
    voice: Voice = attrs.field(factory=Hashed)
    costs: Costs = attrs.field(factory=Costs)
    faults: Mapping[int, str] = attrs.field(factory=dict)
    drafter: Callable[[int, int], bool] = lambda chain, index: mix(chain, index) % 3 > 0
    keep_log: bool = True
    guard: Callable[[Unit], None] | None = None
    log: list[Unit] = attrs.field(factory=list)
    work: int = 0
    lanes: dict[int, Lane] = attrs.field(factory=dict)
    slots: dict[int, Image] = attrs.field(factory=dict)
    pages: dict[int, list[int]] = attrs.field(factory=dict)
    host: dict[int, tuple[Image | None, list[list[int]]]] = attrs.field(factory=dict)
    rooms: dict[int, bytearray] = attrs.field(factory=dict)  # of host memory that others fill
    host_used: int = 0
    lost: DeviceFailed | None = None
    _free_at: float = 0.0

    def submit(self, unit: Unit) -> FakeTicket:
        """Run a unit at once in state, later in time."""
        if self.guard:
            self.guard(unit)
        if self.keep_log:
            self.log.append(unit)
        seconds = self.costs.of(unit)
        self._free_at = max(self._free_at, anyio.current_time()) + seconds
        return FakeTicket(self._free_at, self._run(unit, seconds))

    def _run(self, unit: Unit, seconds: float) -> Result | DeviceFailed:
        fault = None
        if isinstance(unit, Prefill | Decode):
            fault = self.faults.get(self.work)
            self.work += 1
        if fault == "fail":
            self.lost = DeviceFailed("illegal address")
        if self.lost:
            return self.lost
        rows = self._rows(unit)
        if fault == "nan" and rows:
            rows = (RowResult((-1,)), *rows[1:])
        return Result(rows, seconds)

    def _rows(self, unit: Unit) -> tuple[RowResult, ...]:
        match unit:
            case Prefill():
                return self._prefill(unit)
            case Decode():
                return tuple(self._decode(row) for row in unit.rows)
            case Bind():
                self.lanes[unit.lane] = lane = Lane(unit.sampling)
                for token in unit.generated:
                    lane.count(token)
            case Clear():
                self._overwrite(unit.slot)
                self.slots[unit.slot] = Image()
            case Settle():
                self._settle(unit.lane, unit.slot, unit.keep)
            case Remember():
                self._catch_up(unit.lane)
            case CopyImage():
                self._save(unit.source)
                self._overwrite(unit.target)
                self.slots[unit.target] = self.slots[unit.source].copy()
            case CopyPage():
                self.pages[unit.target] = list(self.pages[unit.source])
            case _:
                self._host(unit)
        return ()

    # Work

    def _prefill(self, unit: Prefill) -> tuple[RowResult, ...]:
        lane, image = self.lanes[unit.lane], self.slots[unit.slot]
        if len(unit.ids) > self.geometry.prefill_chunk:
            raise Trespass(f"a chunk of {len(unit.ids)} tokens")
        if not unit.ids and not unit.sample:
            raise Trespass("a feeding of nothing")
        if lane.verifying:
            raise Trespass("a verification was never settled")
        self._catch_up(unit.lane)
        self._audit(image, unit.start, unit.pages, unit.start + len(unit.ids))
        for offset, token in enumerate(unit.ids):
            index = unit.start + offset
            position = (index + unit.rope_delta,) * 3
            if unit.positions is not None:
                x, y, z = (axis[offset] for axis in unit.positions)
                position = x, y, z
            self._write(image, token, position, _media(unit, index), unit.pages)
        if not unit.sample:
            return ()
        return (RowResult((self._sample(lane, image),)),)

    def _decode(self, row: Row) -> RowResult:
        lane, image = self.lanes[row.lane], self.slots[row.slot]
        if row.keep is not None:
            self._settle(row.lane, row.slot, row.keep)
        elif lane.verifying:
            raise Trespass("a verification was never settled")
        if row.draft:
            self._catch_up(row.lane)
        self._audit(image, row.frontier, row.pages, row.frontier + 1 + row.draft, drafts=row.draft > 0)
        token = lane.pending if row.token is None else row.token
        if row.draft:
            return self._verify(row, lane, image, token)
        self._step(image, token, row)
        self._fall_behind(lane, row)
        return RowResult((self._sample(lane, image),))

    def _step(self, image: Image, token: int, row: Row) -> None:
        position = len(image.ids) + row.rope_delta
        self._write(image, token, (position,) * 3, 0, row.pages)

    def _verify(self, row: Row, lane: Lane, image: Image, token: int) -> RowResult:
        """Propose drafts, some of them wrong, and accept the longest right prefix."""
        if row.draft > self.geometry.drafts:
            raise Trespass(f"a draft of {row.draft}")
        inputs, tokens = [token], []
        for column in range(row.draft + 1):
            self._step(image, inputs[-1], row)
            tokens.append(self._sample(lane, image))
            if column == row.draft or not self.drafter(image.chain[-1], column):
                break
            inputs.append(tokens[-1])
        for index in range(len(image.ids), row.frontier + 1 + row.draft):
            self._row(row.pages, index)[index % self.geometry.page_tokens] = -1  # a rejected draft
        image.cut(row.frontier)
        lane.verifying, lane.rope_delta = tuple(inputs), row.rope_delta
        return RowResult(tuple(tokens), row.draft)

    def _settle(self, number: int, slot: int, keep: int) -> None:
        """Advance the state over the first ``keep`` inputs of the last verification."""
        lane, image = self.lanes[number], self.slots[slot]
        if not 0 <= keep <= len(lane.verifying):
            raise Trespass(f"settled {keep} of {len(lane.verifying)}")
        for token in lane.verifying[:keep]:
            index = len(image.ids)
            image.append(token, (index + lane.rope_delta,) * 3, 0)
        lane.verifying = ()

    def _sample(self, lane: Lane, image: Image) -> int:
        token = self.voice(image.ids, image.chain[-1], lane)
        lane.count(token)
        lane.pending = token
        return token

    # Memory

    def _write(
        self, image: Image, token: int, position: tuple[int, int, int], media: int, pages: tuple[int, ...]
    ) -> None:
        index = len(image.ids)
        image.append(token, position, media)
        self._row(pages, index)[index % self.geometry.page_tokens] = image.chain[-1]

    def _row(self, pages: tuple[int, ...], index: int) -> list[int]:
        size = self.geometry.page_tokens
        return self.pages.setdefault(pages[index // size], [0] * size)

    def _audit(
        self, image: Image, frontier: int, pages: tuple[int, ...], upto: int, *, drafts: bool = False
    ) -> None:
        """Compare the state of the slot with that of the pages, token by token.

        Tokens that drafts cannot be made from yet are negative in their page.
        """
        size = self.geometry.page_tokens
        if len(image.ids) != frontier:
            raise Trespass(f"the slot stands at {len(image.ids)}, the unit at {frontier}")
        if upto > self.geometry.max_context or upto > len(pages) * size:
            raise Trespass(f"{len(pages)} pages do not hold {upto} tokens")
        for number in range(-(-frontier // size)):
            expected = image.chain[number * size : (number + 1) * size]
            found = self.pages[pages[number]][: len(expected)]
            if (found if drafts else [abs(value) for value in found]) != expected:
                raise Trespass(f"page {pages[number]} does not hold what {number} of this lane should")

    def _fall_behind(self, lane: Lane, row: Row) -> None:
        if self.geometry.drafts:
            cell, size = self._row(row.pages, row.frontier), self.geometry.page_tokens
            cell[row.frontier % size] *= -1
            _, first, _ = lane.behind or (0, row.frontier, ())
            lane.behind = row.slot, first, row.pages

    def _catch_up(self, number: int) -> None:
        """Write what drafts are made from into the pages that the lane had last."""
        lane = self.lanes[number]
        slot, first, pages = lane.behind or (0, 0, ())
        chain = self.slots[slot].chain if pages else []
        for index in range(first, len(chain)):
            self._row(pages, index)[index % self.geometry.page_tokens] = chain[index]
        lane.behind = None

    def _save(self, slot: int | None) -> None:
        """Catch up in a slot that is about to be read."""
        for number, lane in self.lanes.items():
            if lane.behind and lane.behind[0] == slot:
                self._catch_up(number)

    def _overwrite(self, slot: int | None) -> None:
        for lane in self.lanes.values():
            if lane.behind and lane.behind[0] == slot:
                lane.behind = None

    def _host(self, unit: Unit) -> None:
        match unit:
            case HostSave():
                self._save(unit.slot)
                image = None if unit.slot is None else self.slots[unit.slot].copy()
                self.host[unit.key] = image, [list(self.pages[page]) for page in unit.pages]
                self.host_used += self._weight(unit.key)
                if self.host_used > self.geometry.host_bytes:
                    raise Trespass(f"{self.host_used} host bytes")
            case HostLoad():
                self._overwrite(unit.slot)
                saved, pages = self._held(unit.key)
                if unit.slot is not None:
                    if saved is None:
                        raise Trespass("no image was saved there")
                    self.slots[unit.slot] = saved.copy()
                for target, rows in zip(unit.pages, pages[unit.skip :], strict=False):
                    self.pages[target] = list(rows)
            case HostDrop():
                self.host_used -= self._weight(unit.key)
                self.rooms.pop(unit.key, None)
                del self.host[unit.key]
            case _:
                raise Trespass(f"unknown unit {unit}")

    # Archive

    signature = "fake"

    async def export(self, slot: int | None, pages: tuple[int, ...]) -> bytes:
        """Give out the image in ``slot``, or else ``pages``."""
        return self._pack(None if slot is None else self.slots[slot], [self.pages[page] for page in pages])

    async def export_host(self, key: int, skip: int, count: int) -> bytes:
        """Give out what ``key`` holds."""
        image, pages = self._held(key)
        return self._pack(image, pages[skip : skip + count])

    async def room(self, key: int, pages: int) -> memoryview:
        """Set host memory aside under a new ``key``."""
        self.host[key] = None if pages else Image(), [[] for _ in range(pages)]
        self.host_used += self._weight(key)
        self.rooms[key] = bytearray(pages * self.geometry.page_bytes or self.geometry.image_bytes)
        return memoryview(self.rooms[key])

    def _pack(self, image: Image | None, pages: list[list[int]]) -> bytes:
        if image is not None:
            return _stand_in(image.copy(), self.geometry.image_bytes)
        return b"".join(_stand_in(list(page), self.geometry.page_bytes) for page in pages)

    def _held(self, key: int) -> tuple[Image | None, list[list[int]]]:
        """What host memory holds; what others filled is believed from now on."""
        image, pages = self.host[key]
        raw, size = self.rooms.pop(key, None), self.geometry.page_bytes
        if raw is not None:
            image = None if image is None else _meant(raw).copy()
            pages = [list(_meant(raw[i * size :])) for i in range(len(pages))]
            self.host[key] = image, pages
        return image, pages

    def _weight(self, key: int) -> int:
        image, pages = self.host[key]
        return (image is not None) * self.geometry.image_bytes + len(pages) * self.geometry.page_bytes


def _media(unit: Prefill, index: int) -> int:
    """The digest that a placeholder row reads, or 0 for text."""
    for span in unit.media:
        for start, count in span.runs:
            if start <= index < start + count:
                return int.from_bytes(span.digest[:7], "big")
    return 0


_MEANINGS: dict[bytes, Any] = {}  # what a digest in exported bytes stands for


def _stand_in(content: Image | list[int], size: int) -> bytes:
    """Bytes of the right size that stand for some content, in this process."""
    digest = hashlib.sha256(repr(content).encode()).digest()[:24]
    _MEANINGS[digest] = content
    return digest.ljust(size, b".")


def _meant(raw: bytearray) -> Any:
    if bytes(raw[:24]) not in _MEANINGS:
        raise Trespass("host memory was loaded that nobody had filled")
    return _MEANINGS[bytes(raw[:24])]
