"""The writer: exact files, splitting at a limit, and nothing left behind when it fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ninfer.artifact import open_artifact
from ninfer.artifact.digest import weights_digest
from ninfer.artifact.write import ComponentPlan, Plan, Slice, TensorPlan, planned, write_artifact
from tests.artifact.handmade import ARTIFACT_ID, take_apart
from tests.artifact.synthetic import TEXT, configs, plan_of, random_weights, write_tiny


def one_tensor(values: np.ndarray) -> Plan:
    text = ComponentPlan({"architectures": ["Qwen3_5ForCausalLM"]})
    return Plan("one", {"text": text}, (planned("w", values, "fp32"),), {"extra/w": (Slice("w"),)})


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tiny(tmp_path / name, artifact_id=ARTIFACT_ID)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_file_sets_get_different_ids(tmp_path: Path) -> None:
    heads = set()
    for name in ("a", "b"):
        write_tiny(tmp_path / name)
        heads.add((tmp_path / name).read_bytes()[16:32])
    assert len(heads) == 2


def test_resources_come_first_then_aligned_tensors(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a")
    root, payload = take_apart(tmp_path / "a")
    kinds = [item["kind"] for item in root["objects"]]
    assert kinds == sorted(kinds)
    assert all(item["offset"] % 256 == 0 for item in root["objects"] if item["kind"] == "tensor")
    assert root["objects"][-1]["offset"] + root["objects"][-1]["bytes"] == len(payload)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limit=st.integers(60_000, 700_000))
def test_no_file_is_over_the_limit_and_the_weights_stay(tmp_path: Path, limit: int) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    write_tiny(tmp_path / "a", max_file_bytes=limit)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert max(sizes) <= limit
    with open_artifact(tmp_path / "a") as split:
        assert sum(sizes) == split.size_bytes
        split.require([*configs(), "proposal"])
        assert split.decode("text/final_norm").shape == (TEXT["hidden_size"],)


def test_split_and_whole_have_one_digest(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a", max_file_bytes=100_000)
    write_tiny(tmp_path / "b")
    with open_artifact(tmp_path / "a") as split, open_artifact(tmp_path / "b") as whole:
        assert weights_digest(split) == weights_digest(whole)


def test_digest_sees_one_changed_value(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32)
    digests = set()
    for change in (0.0, 1e-6):
        values[3] += np.float32(change)
        write_artifact(tmp_path / "a", one_tensor(values))
        with open_artifact(tmp_path / "a") as artifact:
            digests.add(weights_digest(artifact))
    assert len(digests) == 2


@pytest.mark.parametrize("limit", [0, 1, 4096, 8191, 8192, 12_288])
def test_a_limit_without_room_for_the_header_is_refused(tmp_path: Path, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        write_tiny(tmp_path / "a", max_file_bytes=limit)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_source_of_another_length_is_refused_and_nothing_stays(tmp_path: Path, size: int) -> None:
    plan = one_tensor(np.zeros(8, np.float32))
    wrong = TensorPlan("w", (8,), "fp32", lambda: [bytes(size)])
    with pytest.raises(ValueError, match=f"object w gave {size} bytes of 32"):
        write_artifact(tmp_path / "a", Plan("one", plan.components, (wrong,), plan.bindings))
    assert not list(tmp_path.iterdir())


def test_a_failing_source_leaves_the_old_file_alone(tmp_path: Path) -> None:
    write_tiny(tmp_path / "a", artifact_id=ARTIFACT_ID)
    before = (tmp_path / "a").read_bytes()

    def fails() -> list[bytes]:
        raise OSError("disk gone")

    parts = configs()
    plan = plan_of(parts, random_weights(parts))
    broken = TensorPlan("late", (8,), "fp32", fails)
    with pytest.raises(OSError, match="disk gone"):
        write_artifact(
            tmp_path / "a",
            Plan("m", plan.components, (*plan.tensors, broken), plan.bindings),
            max_file_bytes=90_000,
        )
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == before


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    write_tiny(tmp_path / "a", progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]
