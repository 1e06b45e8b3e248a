"""Contexts on disk: what was written comes back equal; everything else is reported and ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.engine.context_store import ROOT, ContextStore, Stretch, name_of
from ninfer.engine.identity import Identity, identify
from ninfer.prompt.prepared import MediaSpan, Prepared

SIGNATURE = "model 1, bf16"


def store(folder: Path, warnings: list[str] | None = None, signature: str = SIGNATURE) -> ContextStore:
    return ContextStore(folder, signature, ([] if warnings is None else warnings).append)


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
    for each in (one, two):
        store(tmp_path).write(each)
    (tmp_path / "x.part").write_bytes(b"torn")
    (tmp_path / "README").write_text("not ours")
    store(tmp_path).keep_only({two.name})
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
