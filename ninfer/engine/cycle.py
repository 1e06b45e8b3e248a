"""One cycle of the device: what is submitted together, in which order, and what came back.

Owns the making of units from sequences; decides nothing.  Promises that copies which must precede the
work are submitted before it and captures of its outcome after it.

The one thing a reader would get wrong: ``Flight.rows`` is who is waiting for the unit.  Copies carry
none, except the last copy that brings a request's state back from the host.
"""

from __future__ import annotations

import attrs

from ninfer.engine.device import CopyImage, CopyPage, HostLoad, Prefill, Row, Settle, Unit
from ninfer.engine.sequence import Sequence, State


@attrs.frozen(eq=False)
class Flight:
    """A unit and whose rows it carries; ``control`` are forced tokens, ``role`` why it runs.

    ``drafts`` says how many tokens each row drafts; it is empty without speculation.
    """

    unit: Unit
    rows: tuple[Sequence, ...] = ()
    control: tuple[int, ...] = ()
    role: State = State.DECODING
    drafts: tuple[int, ...] = ()
    owner: Sequence | None = None  # whom a copy is for; None when it serves the cache


@attrs.frozen
class Landed:
    """What one request got from a unit: control tokens first, then tokens the model chose.

    ``processed`` is how many prompt tokens have state now, when the unit computed some of them.
    """

    seq: Sequence
    processed: int | None = None
    control: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()


@attrs.define(eq=False)
class Cycle:
    """Collects the flights of one cycle."""

    before: list[Unit] = attrs.field(factory=list)
    work: list[Flight] = attrs.field(factory=list)
    after: list[Unit] = attrs.field(factory=list)
    loading: dict[int, Sequence] = attrs.field(factory=dict)  # index in ``before`` -> who waits
    owners: dict[int, Sequence] = attrs.field(factory=dict)  # index in ``before`` -> whom it is for

    def waits(self, seq: Sequence, since: int) -> bool:
        """Let ``seq`` wait for the copies from the host among ``before[since:]``, if there are any."""
        loads = [i for i in range(since, len(self.before)) if isinstance(self.before[i], HostLoad)]
        for index in range(since, len(self.before)):
            if isinstance(self.before[index], HostLoad | CopyImage | CopyPage):
                self.owners[index] = seq
        if loads:
            self.loading[loads[-1]] = seq
            seq.flying += 1
        return bool(loads)

    def flights(self) -> list[Flight]:
        """Return everything in order of submission."""
        before = [self._copy(i, unit) for i, unit in enumerate(self.before)]
        return before + self.work + [Flight(unit) for unit in self.after]

    def _copy(self, index: int, unit: Unit) -> Flight:
        owner = self.owners.get(index)
        if index in self.loading:
            return Flight(unit, (self.loading[index],), role=State.RESTORING, owner=owner)
        return Flight(unit, owner=owner)


def feed(seq: Sequence, upto: int) -> Flight:
    """Build the unit that forwards known tokens ``frontier .. upto`` (control tokens included)."""
    prompt, start = seq.job.prompt, seq.frontier
    control = seq.control if seq.state is State.STEERING else ()
    ends_prompt = seq.state is State.PREFILLING and upto == seq.prompt_tokens
    sample = bool(control) or (ends_prompt and seq.capacity > 0)
    unit = Prefill(
        lane=seq.lane,
        slot=seq.slot,
        start=start,
        ids=seq.ids(start, min(upto, seq.known)) + control,
        pages=seq.pages,
        positions=_positions(seq, start, upto),
        rope_delta=prompt.rope_delta,
        sample=sample,
        media=tuple(span for span in prompt.media if span.start < upto and span.stop > start),
        tail=seq.tail <= start and upto <= seq.prompt_tokens and not control,
    )
    return Flight(unit, (seq,), control, seq.state)


def row(seq: Sequence, draft: int = 0) -> Row:
    """Build a decode row; a token that has not been read yet is on the device."""
    return Row(
        lane=seq.lane,
        slot=seq.slot,
        frontier=seq.frontier,
        pages=seq.pages,
        token=None if seq.unread else seq.outputs[-1],
        rope_delta=seq.job.prompt.rope_delta,
        draft=draft,
        keep=seq.keep,
    )


def settle(seq: Sequence, units: list[Unit]) -> None:
    """Make the state of ``seq`` take in what its last verification left open."""
    if seq.keep is not None:
        units.append(Settle(seq.lane, seq.slot, seq.keep, seq.pages))
        seq.keep = None


def processed(flight: Flight) -> int | None:
    """Return how many prompt tokens have state once this unit has run, if it computes any."""
    unit = flight.unit
    if isinstance(unit, Prefill) and unit.ids and flight.role is State.PREFILLING:
        return unit.start + len(unit.ids)
    return None


def _positions(
    seq: Sequence, start: int, stop: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Slice the three axes; tokens behind the prompt go on counting with the prompt's delta."""
    prompt, length = seq.job.prompt, seq.prompt_tokens
    if prompt.positions is None or start >= length:
        return None
    tail = tuple(i + prompt.rope_delta for i in range(length, stop))
    x, y, z = (axis[start:stop] + tail for axis in prompt.positions)
    return x, y, z
