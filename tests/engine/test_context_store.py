"""Contexts on disk: what was written comes back equal; everything else is reported and ignored."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.engine.context_store import ContextStore, Damaged, file_bytes
from ninfer.engine.disk import Stretch
from ninfer.engine.identity import Identity, identify
from ninfer.prompt.prepared import MediaSpan, Prepared

SIGNATURE = "model 1, bf16"
NAME = "0a" * 32
STATE = (b"kv" * 50, b"more" * 9)


def store(folder: Path, warnings: list[str] | None = None, signature: str = SIGNATURE) -> ContextStore:
    return ContextStore(folder, signature, ([] if warnings is None else warnings).append)


def whole(*ids: int) -> Identity:
    return identify(Prepared(ids, False))


def parts(one: Stretch) -> tuple[object, ...]:
    it = one.whole
    return (one.name, one.start, one.kind, one.payload, one.size, it.start, it.ids, it.shape, it.media)


def back(mine: ContextStore, stretch: Stretch) -> bytes:
    room = bytearray(stretch.payload)
    mine.read(stretch, memoryview(room))
    return bytes(room)


def test_what_was_written_comes_back(tmp_path):
    written = [
        store(tmp_path).write(whole(1, 2, 3), 0, 1, STATE),
        store(tmp_path).write(whole(1, 2, 3), 3, 2, (b"image",)),
        store(tmp_path).write(whole(1, 2, 3, 4), 3, 1, (b"",)),
    ]
    found, foreign = store(tmp_path).scan()
    assert sorted(map(parts, found)) == sorted(map(parts, written)) and not foreign
    assert back(store(tmp_path), written[0]) == b"".join(STATE)
    assert [one.image for one in written] == [False, True, False]
    for one in written:
        assert (tmp_path / f"{one.name}.context").stat().st_size == one.size
        assert one.size == file_bytes(one.whole, one.payload)


def test_media_and_positions_come_back_exactly(tmp_path):
    axis = tuple(range(6))
    span = MediaSpan(b"d" * 32, (1, 2, 4), ((2, 1), (4, 1)))
    it = identify(Prepared((1, 2, 3, 4, 5, 6), False, (axis, axis, tuple(i + 1 for i in axis)), 3, (span,)))
    one = store(tmp_path).write(it, 2, 2, STATE)
    ((found,), _) = store(tmp_path).scan()
    assert parts(found) == parts(one)


def test_files_of_another_model_are_reported_and_ignored(tmp_path):
    warnings: list[str] = []
    one = store(tmp_path).write(whole(1), 0, 1, STATE)
    found, foreign = store(tmp_path, warnings, "model 2").scan()
    assert found == [] and [(one.name, one.size)] == [(each.name, each.size) for each in foreign]
    assert "another model" in warnings[0]
    two = store(tmp_path, signature="model 2").write(whole(1), 0, 1, STATE)
    assert back(store(tmp_path), one) and two.name != one.name


def test_a_file_under_a_wrong_name_is_ignored(tmp_path):
    warnings: list[str] = []
    one = store(tmp_path).write(whole(1), 0, 1, STATE)
    path = tmp_path / f"{one.name}.context"
    path.rename(path.with_stem("00" * 32))
    assert store(tmp_path, warnings).scan()[0] == []
    assert "another context" in warnings[0]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_reported_and_never_believed(tmp_path, data):
    one = store(tmp_path).write(whole(1, 2, 3), 0, 1, STATE)
    path = tmp_path / f"{one.name}.context"
    raw = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(raw)
    head, hurt = one.size - one.payload, len(raw) < one.size or raw[-one.payload :] != b"".join(STATE)
    if hurt:  # while the server runs it knows the head already
        with pytest.raises(Damaged):
            back(store(tmp_path), one)
    else:
        assert back(store(tmp_path), one) == b"".join(STATE)
    warnings: list[str] = []
    found, foreign = store(tmp_path, warnings).scan()
    assert len(found) + len(foreign) == 1 and len(foreign) == len(warnings)
    for stretch in found:
        assert parts(stretch) == parts(one) and hurt and len(raw) >= head
        with pytest.raises(Damaged):
            back(store(tmp_path), stretch)


def test_only_what_is_named_goes_and_torn_writes(tmp_path):
    mine = store(tmp_path)
    one, two = (mine.write(whole(n), 0, 1, STATE) for n in (1, 2))
    (tmp_path / f"{one.name}.part").write_bytes(b"torn")
    (tmp_path / "film.part").write_bytes(b"not ours")
    (tmp_path / "README").write_text("not ours")
    three = mine.write(whole(3), 0, 1, STATE, [one.name])
    mine.scan()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["README", "film.part", f"{two.name}.context", f"{three.name}.context"]
    )


@pytest.mark.parametrize("junk", [b"", b"hello", b"NINFERCX2\n", b"NINFERCX1\n" + bytes(300)])
def test_junk_among_the_files_is_reported_and_takes_room(tmp_path, junk):
    warnings: list[str] = []
    (tmp_path / f"{NAME}.context").write_bytes(junk)
    found, foreign = store(tmp_path, warnings).scan()
    assert found == [] and [(one.name, one.size) for one in foreign] == [(NAME, len(junk))]
    assert len(warnings) == 1


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    (path / "inside").mkdir(parents=True)


def link(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(b"NINFERCX2\n")
    path.symlink_to(path.parent / "elsewhere")


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def circle(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [pipe, folder, link, endless, circle])
def test_what_is_no_file_is_reported_and_neither_opened_counted_nor_followed(tmp_path, make):
    warnings: list[str] = []
    make(tmp_path / f"{NAME}.context")
    make(tmp_path / f"{'0b' * 32}.part")
    assert store(tmp_path, warnings).scan() == ([], []) and len(warnings) == 1
    one = store(tmp_path).write(whole(1, 2), 0, 1, STATE)
    path = tmp_path / f"{one.name}.context"
    path.unlink()
    make(path)
    with pytest.raises((Damaged, OSError)):  # it became that while the server runs
        back(store(tmp_path), one)


def test_a_draft_is_written_through_no_link(tmp_path):
    (tmp_path / "precious").write_bytes(b"precious")
    one = store(tmp_path).write(whole(1), 0, 1, STATE)
    (tmp_path / f"{one.name}.part").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic"):
        store(tmp_path).write(whole(1), 0, 1, STATE)
    assert (tmp_path / "precious").read_bytes() == b"precious"


@pytest.mark.parametrize(
    "name", ["notes.context", f"{NAME[:-1]}.context", f"{NAME.upper()}.context", "film.part"]
)
def test_files_under_other_names_are_none_of_its_business(tmp_path, name):
    (tmp_path / name).write_bytes(b"mine")
    assert ContextStore(tmp_path, SIGNATURE, pytest.fail).scan() == ([], [])
    assert (tmp_path / name).read_bytes() == b"mine"


HUGE = 1 << 40


@pytest.mark.parametrize("field", ["tokens", "items", "state"])
def test_a_size_that_is_only_claimed_allocates_nothing(tmp_path, field):
    one = store(tmp_path).write(whole(1, 2, 3), 0, 1, STATE)
    path = tmp_path / f"{one.name}.context"
    with path.open("r+b") as file:
        file.seek(10 + {"tokens": 40, "items": 48, "state": 56}[field])
        file.write((0xFFFFFFFF).to_bytes(4, "little"))
        file.truncate(HUGE)  # sparse: it takes no room
    tracemalloc.start()
    try:
        found, foreign = store(tmp_path).scan()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert found == [] and [each.size for each in foreign] == [HUGE]


def test_a_file_that_shrinks_or_goes_while_it_is_looked_at_is_ignored(tmp_path, monkeypatch):
    one = store(tmp_path).write(whole(1, 2, 3), 0, 1, STATE)
    path, real = tmp_path / f"{one.name}.context", os.fstat

    def late(number: int) -> os.stat_result:
        seen = real(number)
        os.truncate(path, 60)
        return seen

    with monkeypatch.context() as patch:
        patch.setattr("ninfer.engine.context_store.os.fstat", late)
        assert store(tmp_path).scan()[0] == []
        patch.setattr("ninfer.engine.context_store.os.listdir", lambda _: [path.name, f"{NAME}.context"])
        path.unlink()
        assert ContextStore(tmp_path, SIGNATURE, pytest.fail).scan() == ([], [])


def test_thousands_of_bad_files_are_told_of_in_a_few_lines(tmp_path):
    warnings: list[str] = []
    for number in range(40):
        (tmp_path / f"{number:064x}.context").write_bytes(b"bad")
    assert len(store(tmp_path, warnings).scan()[1]) == 40
    assert len(warnings) < 10 and "more files are ignored" in warnings[-1]


@pytest.mark.parametrize("pieces", [0, 1])
def test_long_work_ends_between_pieces_and_leaves_no_draft(tmp_path, pieces):
    calls: list[None] = []

    def pause() -> None:
        calls.append(None)
        if len(calls) > pieces:
            raise KeyboardInterrupt

    hurried = ContextStore(tmp_path, SIGNATURE, pytest.fail, pause)
    with pytest.raises(KeyboardInterrupt):
        hurried.write(whole(1), 0, 1, STATE)
    assert list(tmp_path.iterdir()) == [] and len(calls) == pieces + 1


def test_a_write_that_fails_leaves_nothing_behind(tmp_path):
    mine = store(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ninfer.engine.context_store.os.fsync", full)
        with pytest.raises(OSError, match="space"):
            mine.write(whole(1), 0, 1, STATE)
    assert list(tmp_path.iterdir()) == []


def full(_: int) -> None:
    raise OSError(28, "No space left on device")


def test_a_context_is_for_its_owner_alone(tmp_path):
    store(tmp_path).write(whole(1), 0, 1, STATE)
    assert next(tmp_path.iterdir()).stat().st_mode & 0o077 == 0
