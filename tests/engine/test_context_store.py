"""Contexts on disk: what was written comes back equal; everything else is reported and ignored."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.engine.context_store import ROOT, ContextStore, Stretch, name_of
from ninfer.engine.identity import Identity, identify
from ninfer.prompt.prepared import MediaSpan, Prepared

SIGNATURE = "model 1, bf16"


def store(
    folder: Path, warnings: list[str] | None = None, signature: str = SIGNATURE, capacity: int = 1 << 20
) -> ContextStore:
    return ContextStore(folder, signature, capacity, ([] if warnings is None else warnings).append)


def stretch(ids: tuple[int, ...] = (1, 2, 3), parent: bytes = ROOT, start: int = 0, **more) -> Stretch:
    part = Identity(start, identify(Prepared(ids, False)).ids)
    return Stretch(name_of(parent, part), parent, part, more.get("kind", 1), b"kv" * 50, b"image" * 9)


def parts(one: Stretch) -> tuple[object, ...]:
    part = one.part
    return (one.name, one.parent, one.kind, one.kv, one.image, part.start, part.ids, part.shape, part.media)


def test_what_was_written_comes_back_parents_first(tmp_path):
    top = stretch()
    below = stretch((4, 5), top.name, 3)
    lowest = stretch((6,), below.name, 5)
    for one in (lowest, top, below):
        store(tmp_path).write(one)
    assert [parts(one) for one in store(tmp_path).read_all()] == [
        parts(one) for one in (top, below, lowest)
    ]
    assert store(tmp_path).has(top.name)


def test_media_and_positions_come_back_exactly(tmp_path):
    axis = tuple(range(6))
    span = MediaSpan(b"d" * 32, (1, 2, 4), ((2, 1), (4, 1)))
    part = identify(
        Prepared((1, 2, 3, 4, 5, 6), False, (axis, axis, tuple(i + 1 for i in axis)), 3, (span,))
    )
    one = Stretch(name_of(ROOT, part), ROOT, part, 2, b"kv")
    store(tmp_path).write(one)
    (back,) = store(tmp_path).read_all()
    assert parts(back) == parts(one)


def test_a_stretch_without_its_parent_is_left_out(tmp_path):
    top = stretch()
    for one in (top, stretch((4, 5), top.name, 3)):
        store(tmp_path).write(one)
    store(tmp_path)._path(top.name).unlink()
    assert list(store(tmp_path).read_all()) == []


def test_files_of_another_model_are_reported_and_ignored(tmp_path):
    warnings: list[str] = []
    store(tmp_path).write(stretch())
    assert list(store(tmp_path, warnings, "model 2").read_all()) == []
    assert "another model" in warnings[0]


def test_a_file_under_a_wrong_name_is_ignored(tmp_path):
    warnings: list[str] = []
    one = stretch()
    store(tmp_path).write(one)
    path = store(tmp_path)._path(one.name)
    path.rename(path.with_stem("00" * 32))
    assert list(store(tmp_path, warnings).read_all()) == []
    assert "another context" in warnings[0]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_reported_and_never_believed(tmp_path, data):
    one = stretch()
    path = store(tmp_path)._path(one.name)
    store(tmp_path).write(one)
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    warnings: list[str] = []
    assert list(store(tmp_path, warnings).read_all()) == []
    # A changed parent makes an orphan: nothing is wrong with it, it just leads nowhere.
    assert warnings or bytes(raw[:10]) == b"NINFERCX1\n"


def test_only_what_is_named_stays_and_torn_writes_go(tmp_path):
    one, two = stretch(), stretch((9,))
    mine = store(tmp_path)
    for each in (one, two):
        mine.write(each)
    (tmp_path / "x.part").write_bytes(b"torn")
    (tmp_path / "README").write_text("not ours")
    mine.keep_only({two.name})
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["README", two.name.hex() + ".context"]
    )
    assert [parts(each) for each in store(tmp_path).read_all()] == [parts(two)]


@pytest.mark.parametrize("junk", [b"", b"hello", b"NINFERCX1\n", b"NINFERCX2\n" + bytes(300)])
def test_junk_among_the_files_is_reported(tmp_path, junk):
    warnings: list[str] = []
    (tmp_path / "junk.context").write_bytes(junk)
    assert list(store(tmp_path, warnings).read_all()) == []
    assert len(warnings) == 1


def test_all_files_stay_within_the_bound_at_the_cost_of_foreign_ones_then_the_oldest(tmp_path):
    each = [stretch((n,)) for n in range(6)]
    store(tmp_path, signature="another").write(each[5])
    size = next(tmp_path.iterdir()).stat().st_size
    mine = store(tmp_path, capacity=3 * size + 1)
    for age, one in enumerate(each[:3]):
        assert mine.write(one)
        os.utime(mine._path(one.name), ns=(age, age))
    assert not [path for path in tmp_path.iterdir() if path.stem == each[5].name.hex()]
    mine = store(tmp_path, capacity=3 * size + 1)
    assert mine.write(each[3], keep={each[0].name})
    assert [mine.has(one.name) for one in each] == [True, False, True, True, False, False]
    assert mine.used == sum(path.stat().st_size for path in tmp_path.iterdir()) <= mine.capacity
    assert not mine.write(each[4], keep={one.name for one in each})
    assert store(tmp_path, capacity=size).used <= size  # a smaller bound holds from the start


def test_a_context_is_for_its_owner_alone(tmp_path):
    store(tmp_path).write(stretch())
    assert next(tmp_path.iterdir()).stat().st_mode & 0o077 == 0
