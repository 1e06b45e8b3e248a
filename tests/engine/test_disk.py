"""The index of what is on disk: exact, bounded, and least worth first."""

from __future__ import annotations

import itertools

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.engine.disk import KINDS, Disk, Foreign, Stretch
from ninfer.engine.identity import Identity, identify
from ninfer.engine.prefix import Kind
from ninfer.prompt.prepared import Prepared
from ninfer.settings import ContextCosts

COSTS = ContextCosts(0.0, 1e9, 1e-3, 0.0)
END = KINDS.index(Kind.ENDPOINT)


def whole(*ids: int) -> Identity:
    return identify(Prepared(ids, False))


def kv(ids: tuple[int, ...], start: int, size: int = 10) -> Stretch:
    return Stretch(f"{ids}kv{start}", whole(*ids), start, END, size, size, b"")


def image(ids: tuple[int, ...], size: int = 5, kind: int = END) -> Stretch:
    return Stretch(f"{ids}image", whole(*ids), len(ids), kind, size, size, b"")


def disk(*files: Stretch, capacity: int = 1000) -> Disk:
    made = Disk(COSTS, capacity)
    for file in files:
        assert made.add(file)
    return made


def images(index: Disk, *ids: int) -> list[int]:
    """Where a prompt could start."""
    return [place.frontier for place in index.match(whole(*ids)) if place.image is not None]


def test_a_prompt_finds_every_image_on_its_way_and_the_files_that_lead_there():
    a = (1, 2, 3, 4)
    index = disk(kv(a, 0), image(a), kv((*a, 5, 6), 4), image((*a, 5, 6)))
    assert images(index, *a, 5, 6, 7) == [4, 6]
    assert images(index, *a, 5) == [4]
    assert images(index, 1, 2, 3) == images(index, 9) == []
    assert [place.kv.name for place in index.match(whole(*a, 5, 6))] == [f"{a}kv0", f"{(*a, 5, 6)}kv4"]
    assert index.used == 30 and len(index) == 4


def test_histories_that_part_inside_a_file_share_it():
    a, b = (1, 2, 3, 4), (1, 2, 8, 9)
    index = disk(kv(a, 0), image(a), kv(b, 2), image(b), image((1, 2)))
    assert images(index, *a) == [2, 4] and images(index, *b) == [2, 4]
    names = [[place.kv.name for place in index.match(whole(*each))] for each in (a, b)]
    assert names == [[f"{a}kv0", f"{a}kv0"], [f"{a}kv0", f"{b}kv2"]]
    assert index.used == 35  # the shared file once


def test_a_file_that_nothing_leads_to_or_that_adds_nothing_is_rubbish():
    index = disk(kv((1, 2), 0), image((1, 2)))
    assert not index.add(kv((1, 2, 3, 4), 3))
    assert not index.add(image((1, 3)))
    assert not index.add(attrs.evolve(image((1, 2)), name="again"))
    assert sorted(index.take_rubbish()) == ["(1, 2, 3, 4)kv3", "(1, 3)image", "again"]
    assert index.used == 15 and not index.rubbish


def test_foreign_files_go_first_then_the_least_valuable_leaf():
    long, short = tuple(range(1, 60)), (70, 71)
    index = disk(kv(long, 0), image(long), kv(short, 0), image(short), capacity=50)
    index.add_foreign(Foreign("theirs", 20))
    assert index.make_room(15, None) and index.take_rubbish() == ["theirs"]
    assert index.make_room(30, None)
    assert sorted(index.take_rubbish()) == [f"{short}image", f"{short}kv0"]
    assert images(index, *long) == [59]
    assert not index.make_room(51, None) and images(
        index, *long
    )  # more than ever fits: nothing is given up


def test_what_is_worth_more_stays_and_so_does_the_way_to_it():
    a = (1, 2, 3, 4)
    index = disk(kv(a, 0), image(a), kv((*a, 5), 4), image((*a, 5)), capacity=30)
    assert not index.make_room(1, 1e-9) and len(index) == 4
    keep, _ = index.way(whole(*a, 5))
    assert not index.make_room(1, None, set(keep))
    assert index.make_room(20, None)
    assert index.used <= 10


def test_an_image_that_was_asked_for_outlives_its_equal():
    one, two = (1, 2, 3), (4, 5, 6)
    index = disk(kv(one, 0), image(one), kv(two, 0), image(two), capacity=30)
    index.hit(index.at(whole(*one)))
    assert index.make_room(5, None)
    assert images(index, *one) == [3] and images(index, *two) == []
    place = index.at(whole(*one))
    index.value(place, Kind.SUPERSEDED, 7)
    index.value(place, Kind.SUPERSEDED, 0)
    assert (place.kind, place.hits) == (Kind.SUPERSEDED, 7)


def test_a_bad_file_takes_along_what_needs_it_and_counts_as_foreign():
    a, b = (1, 2, 3, 4), (1, 2, 8, 9)
    bad, also = kv(a, 0), image(b)
    index = disk(bad, image(a), kv(b, 2), also, image((1, 2)), kv((5,), 0), image((5,)))
    index.lose(also)
    assert images(index, *a) == [2, 4] and images(index, *b) == [2]
    index.lose(bad)
    assert images(index, *a) == images(index, *b) == [] and images(index, 5) == [1]
    assert bad.name not in index.rubbish and also.name not in index.rubbish  # they are left alone
    assert index.used == 15 + bad.size + also.size
    assert index.add(kv(a, 0)) and index.used == 15 + bad.size + also.size  # the same name, written anew


def test_nothing_is_kept_without_room():
    index = Disk(COSTS)
    assert not index.make_room(1, None)
    assert index.make_room(0, None)


def conversation(turns: int, first: int) -> list[Stretch]:
    """The files of a conversation: KV and an image for each turn."""
    files: list[Stretch] = []
    for turn in range(turns):
        ids = tuple(range(first, first + 3 * turn + 3))
        files += [kv(ids, 3 * turn), image(ids)]
    return files


@pytest.mark.parametrize("order", ["as they were written", "as they are found"])
def test_a_long_conversation_costs_work_by_its_turns_not_by_their_square(order, monkeypatch):
    looks, agrees = itertools.count(), Identity.agrees
    monkeypatch.setattr(Identity, "agrees", lambda *pair: (next(looks), agrees(*pair))[1])

    def work(turns: int) -> int:
        files = [file for first in (1, 100_000) for file in conversation(turns, first)]
        if order == "as they are found":
            files.sort(key=lambda one: (one.start, one.stop))
        before = next(looks)
        index = disk(*files, capacity=100_000)
        assert len(list(index)) == 2 * turns and len(index) == 4 * turns
        return next(looks) - before

    assert work(200) < 2.1 * work(100) < 2_000


ids = st.lists(st.integers(1, 2), min_size=1, max_size=6).map(tuple)
acts = st.one_of(
    st.tuples(st.just("save"), ids, st.integers(1, 9)),
    st.tuples(st.just("room"), st.integers(0, 60), st.none() | st.floats(0, 1e-3)),
    st.tuples(st.just("lose"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("hit"), ids, st.just(0)),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(acts, max_size=25), st.integers(0, 120))
def test_the_index_always_says_what_the_files_are(steps, capacity):
    index, files, number = Disk(COSTS, capacity), {}, itertools.count()

    def keep(stretch):
        if index.make_room(stretch.size, None, set(index.way(stretch.whole)[0])):
            sweep()
            files[stretch.name] = stretch
            assert index.add(stretch)

    def sweep():
        for name in index.take_rubbish():
            del files[name]

    for act, what, more in steps:
        if act == "save":
            _, known = index.way(whole(*what))
            if known < len(what):
                keep(attrs.evolve(kv(what, known, more), name=f"{next(number)}"))
            place = index.at(whole(*what))
            if index.way(whole(*what))[1] == len(what) and (place is None or place.image is None):
                keep(attrs.evolve(image(what, more), name=f"{next(number)}"))
        elif act == "room":
            index.make_room(what, more)
        elif act == "lose" and files:
            index.lose(list(files.values())[what % len(files)])
        elif act == "hit" and (place := index.at(whole(*what))):
            index.hit(place)
        sweep()
        audit(index, files, capacity)


def audit(index: Disk, files: dict[str, Stretch], capacity: int) -> None:
    assert index.used == sum(file.size for file in files.values()) <= capacity
    assert index.statistics().files == len(files)
    assert sorted(map(id, index)) == sorted(id(place) for ends in index._ends.values() for place in ends)
    for place in index:
        assert files[place.kv.name] is place.kv
        assert place.kv.start <= place.part.start and place.part.stop <= place.kv.stop
        path, above = place.part.ids, place.parent
        while above is not None:
            path, above = above.part.ids + path, above.parent
        assert place.kv.whole.ids[: len(path)] == path  # its KV is of exactly this history
        if place.image is not None:
            assert place.image.whole.ids == path and files[place.image.name] is place.image
