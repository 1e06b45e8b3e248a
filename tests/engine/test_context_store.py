"""Contexts on disk: what was written comes back equal; everything else is reported and ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.engine.context_store import ContextStore, Damaged, file_bytes
from ninfer.engine.disk import Stretch
from ninfer.engine.identity import Identity, identify
from ninfer.prompt.prepared import MediaSpan, Prepared

SIGNATURE = "model 1, bf16"
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
    (tmp_path / "x.part").write_bytes(b"torn")
    (tmp_path / "README").write_text("not ours")
    three = mine.write(whole(3), 0, 1, STATE, [one.name])
    mine.scan()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["README", f"{two.name}.context", f"{three.name}.context"]
    )


@pytest.mark.parametrize("junk", [b"", b"hello", b"NINFERCX2\n", b"NINFERCX1\n" + bytes(300)])
def test_junk_among_the_files_is_reported_and_takes_room(tmp_path, junk):
    warnings: list[str] = []
    (tmp_path / "junk.context").write_bytes(junk)
    found, foreign = store(tmp_path, warnings).scan()
    assert found == [] and [(one.name, one.size) for one in foreign] == [("junk", len(junk))]
    assert len(warnings) == 1


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
