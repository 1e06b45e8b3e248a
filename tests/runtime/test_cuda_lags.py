"""Slots that lag: nobody reads a slot that is behind, and no record is overwritten unread."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.device import (
    Bind,
    Clear,
    CopyImage,
    Decode,
    HostLoad,
    HostSave,
    Prefill,
    Remember,
    Row,
    Settle,
    Unit,
)
from ninfer.engine.job import Sampling
from ninfer.runtime.cuda_lags import Lag, Lags

DEPTH, MANY = 4, 3  # tokens a slot takes at once; sequences from which on slots may lag
LANES, SLOTS = 4, 6


class Card:
    """Token numbers where a device has states and records."""

    def __init__(self) -> None:
        self.slots: list[list[int]] = [[] for _ in range(SLOTS)]
        self.truth: list[list[int]] = [[] for _ in range(SLOTS)]
        self.records: list[list[int]] = [[] for _ in range(LANES)]
        self.next = 0

    def catch_up(self, lag: Lag) -> None:
        self.slots[lag.slot] += self.records[lag.lane][: lag.count]

    def step(self, row: Row, lag: int) -> None:
        count, due = divmod(lag, 2)
        assert count < DEPTH and (due or count + 1 < DEPTH)
        waiting = self.records[row.lane][:count]
        assert self.slots[row.slot] + waiting == self.truth[row.slot]
        self.next += 1
        self.truth[row.slot].append(self.next)
        if due:
            self.slots[row.slot] += [*waiting, self.next]
        else:
            self.records[row.lane] = [*waiting, self.next]

    def read(self, slot: int) -> None:
        assert self.slots[slot] == self.truth[slot]

    def write(self, slot: int, tokens: list[int]) -> None:
        self.slots[slot], self.truth[slot] = list(tokens), list(tokens)


def row(lane: int, slot: int, draft: int = 0, frontier: int = 0) -> Row:
    return Row(lane, slot, frontier, (), None, draft=draft)


lanes, slots = st.integers(0, LANES - 1), st.integers(0, SLOTS - 1)
decodes = st.builds(
    lambda ways, places, drafts, at: Decode(
        tuple(row(lane, slot, draft, at) for lane, slot, draft in zip(ways, places, drafts, strict=False))
    ),
    st.lists(lanes, min_size=1, max_size=LANES, unique=True),
    st.permutations(range(SLOTS)),
    st.lists(st.sampled_from((0, 0, 0, 2)), min_size=LANES, max_size=LANES),
    st.integers(0, 9),
)
units = st.one_of(
    decodes,
    decodes,
    st.builds(lambda lane: Bind(lane, Sampling()), lanes),
    st.builds(Clear, slots),
    st.builds(lambda lane, slot: Prefill(lane, slot, 0, (1,), ()), lanes, slots),
    st.builds(lambda lane, slot: Settle(lane, slot, 1), lanes, slots),
    st.builds(Remember, lanes, slots),
    st.builds(CopyImage, slots, slots),
    st.builds(lambda slot: HostSave(1, slot, ()), st.none() | slots),
    st.builds(lambda slot: HostLoad(1, slot, ()), st.none() | slots),
)


def decode(card: Card, lags: Lags, rows: tuple[Row, ...]) -> None:
    plain = [one for one in rows if not one.draft]
    for one in rows:
        if one.draft or len(plain) < MANY:
            card.read(one.slot)
    if len(plain) >= MANY:
        for one, lag in zip(plain, lags.advance(plain), strict=True):
            card.step(one, lag)


def play(card: Card, lags: Lags, unit: Unit) -> None:
    for lag in lags.before(unit, lambda count: count >= MANY):
        card.catch_up(lag)
    if isinstance(unit, Decode):
        decode(card, lags, unit.rows)
    elif isinstance(unit, Bind):
        card.records[unit.lane] = [-1, -1, -1]
    elif isinstance(unit, CopyImage):
        card.read(unit.source)
        card.write(unit.target, card.slots[unit.source])
    elif isinstance(unit, Clear | HostLoad):
        if unit.slot is not None:
            card.write(unit.slot, [])
    elif isinstance(unit, Prefill | Settle | Remember | HostSave) and unit.slot is not None:
        card.read(unit.slot)


@given(st.lists(units, max_size=40))
def test_whoever_reads_a_slot_finds_it_caught_up(line: list[Unit]) -> None:
    card, lags = Card(), Lags(DEPTH)
    for unit in line:
        play(card, lags, unit)
    for slot in range(SLOTS):
        for lag in lags.of(slot):
            card.catch_up(lag)
        card.read(slot)


def test_a_slot_is_written_once_in_so_many_steps() -> None:
    lags = Lags(DEPTH)
    found = [lags.advance([row(lane, lane, 0, at) for lane in range(LANES)]) for at in range(8, 17)]
    assert [of[0] for of in found] == [0, 2, 4, 7, 0, 2, 4, 7, 0]
    assert [of[3] for of in found[:5]] == [1, 0, 2, 4, 7]
    assert all(sum(lag % 2 for lag in of) == 1 for of in found)


def test_a_slot_is_written_in_time_wherever_its_sequence_goes_on() -> None:
    lags, seen = Lags(DEPTH), []
    for _ in range(9):
        seen += lags.advance([row(0, 0, 0, 4)])
    assert seen == [0, 2, 4, 7, 0, 2, 4, 7, 0]


def test_a_step_of_few_and_drafts_find_nothing_behind() -> None:
    for later in ([row(0, 0)], [row(0, 0, draft=2), row(1, 1), row(2, 2)]):
        lags = Lags(DEPTH)
        lags.advance([row(lane, lane) for lane in range(MANY)])
        found = lags.before(Decode(tuple(later)), lambda count: count >= MANY)
        assert {lag.slot for lag in found} == {one.slot for one in later}
        assert all(lag.count == 1 for lag in found)
