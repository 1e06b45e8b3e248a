"""Where the feeding of a prompt is cut: what was asked for always, the rest where it is worth a unit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ninfer.engine.cuts import SHARED_MARKS, plan_cuts
from ninfer.engine.prefix import Kind
from ninfer.prompt.prepared import Mark, MarkKind, Prepared
from ninfer.settings import EngineOptions

NEAR = EngineOptions().nearby_tokens
KINDS = {MarkKind.INPUT: Kind.INPUT, MarkKind.EXPLICIT: Kind.EXPLICIT, MarkKind.IMPLICIT: Kind.IMPLICIT}


def cuts(
    length: int, *marks: tuple[int, MarkKind], start: int = 0, common: int = 0, **spacing: int
) -> dict[int, Kind]:
    prompt = Prepared(tuple(range(length)), False, marks=tuple(Mark(*mark) for mark in marks))
    return plan_cuts(prompt, start, common, EngineOptions(**spacing))  # type: ignore[arg-type]


def test_a_short_chat_is_computed_in_two_units():
    assert cuts(21, (14, MarkKind.IMPLICIT), (16, MarkKind.INPUT)) == {16: Kind.INPUT}


def test_an_implicit_mark_far_before_the_input_is_kept():
    found = cuts(200, (100, MarkKind.IMPLICIT), (101 + NEAR, MarkKind.INPUT))
    assert found == {100: Kind.IMPLICIT, 101 + NEAR: Kind.INPUT}


def test_an_implicit_mark_with_nothing_behind_it_is_kept():
    assert cuts(21, (14, MarkKind.IMPLICIT)) == {14: Kind.IMPLICIT}


def test_a_regular_checkpoint_just_before_a_mark_is_left_out():
    assert cuts(140, (105, MarkKind.INPUT), checkpoint_every=50) == {50: Kind.INTERVAL, 105: Kind.INPUT}


def test_a_branch_point_is_kept_however_near_the_input_is():
    assert cuts(200, (190, MarkKind.INPUT), common=180) == {180: Kind.JUNCTION, 190: Kind.INPUT}


@given(
    st.integers(1, 400),
    st.lists(st.tuples(st.integers(1, 400), st.sampled_from(list(KINDS))), max_size=12),
    st.integers(0, 399),
)
def test_what_was_asked_for_is_never_left_out(length, marks, start):
    found = cuts(length, *marks, start=start, checkpoint_every=64)
    assert list(found) == sorted(found)
    assert all(start < index <= length for index in found)
    explicit = sorted({index for index, kind in marks if kind is MarkKind.EXPLICIT})[-SHARED_MARKS:]
    inputs = [index for index, kind in marks if kind is MarkKind.INPUT]
    asked = {index for index in (*explicit, *inputs) if start < index <= length}
    assert asked <= set(found)
    for index, after in zip(found, list(found)[1:], strict=False):
        assert index in asked or after - index > NEAR
