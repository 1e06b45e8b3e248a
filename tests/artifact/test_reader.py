"""What the reader accepts, continuation files, selection of components, lifetimes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact import ArtifactError, merge_parts, open_artifact
from ninfer.artifact.write import Plan, Slice, planned, write_artifact
from tests.artifact.handmade import ARTIFACT_ID, Root, assemble, small_root, take_apart, write_edited
from tests.artifact.synthetic import configs, plan_of, random_weights, write_tiny


def test_a_minimal_file_opens(tmp_path: Path) -> None:
    with open_artifact(write_edited(tmp_path / "a.ninfer", lambda root: None)) as artifact:
        assert artifact.name == "small"
        assert artifact.version == 3
        assert artifact.formats() == {"q8_g32_fp16", "fp32"}
        assert artifact.resource("tokenizer.json") == b"{}"
        assert artifact.uses[0].policy == "AllowA4"
        assert artifact.decode("extra/w").shape == (8, 64)
        whole = artifact.decode("extra/w").reshape(-1)
        assert (artifact.decode("extra/part") == np.concatenate([whole[64:128], whole[:64]])).all()


def test_name_falls_back_to_the_architecture(tmp_path: Path) -> None:
    with open_artifact(write_edited(tmp_path / "a.ninfer", lambda root: root.pop("metadata"))) as artifact:
        assert artifact.name == artifact.architecture == "Qwen3_5ForCausalLM"


def test_blanks_after_the_header_are_part_of_it(tmp_path: Path) -> None:
    root, payload = small_root()
    (tmp_path / "a.ninfer").write_bytes(assemble(json.dumps(root).encode() + b" \n\t" * 500, payload))
    open_artifact(tmp_path / "a.ninfer").close()


def test_gaps_unreferenced_objects_and_unknown_formats_are_no_fault_until_needed(tmp_path: Path) -> None:
    def edit(root: Root) -> None:
        root["objects"][1] |= {"format": "q3_g32_fp16", "layout": "odd_v1", "bytes": 100}

    with (
        open_artifact(write_edited(tmp_path / "a.ninfer", edit)) as artifact,
        pytest.raises(ArtifactError, match="unknown format q3_g32_fp16"),
    ):
        artifact.decode("extra/w")


# Continuation files


def split_file(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    path = tmp_path / "m.ninfer"
    weights = write_tiny(path, max_file_bytes=100_000, artifact_id=ARTIFACT_ID)
    assert len(list(tmp_path.iterdir())) > 3
    return path, weights


def test_a_split_model_reads_like_a_single_file(tmp_path: Path) -> None:
    path, _ = split_file(tmp_path)
    write_tiny(tmp_path / "one.ninfer")
    with open_artifact(path) as split, open_artifact(tmp_path / "one.ninfer") as one:
        split.require(["text", "mtp", "vision", "proposal"])
        assert split.size_bytes == sum(p.stat().st_size for p in tmp_path.glob("m.ninfer*"))
        assert list(split.parameters()) == list(one.parameters())
        for name in one.parameters():
            assert (split.decode(name) == one.decode(name)).all()


def _patch(at: int, data: bytes) -> Callable[[bytearray], None]:
    def edit(found: bytearray) -> None:
        found[at : at + len(data)] = data

    return edit


PART_FAULTS: dict[str, tuple[Callable[[bytearray], None], str]] = {
    "magic": (_patch(0, b"NINFER\0\3"), "magic"),
    "index": (_patch(8, b"\2"), "part index"),
    "artifact_id": (_patch(20, b"x"), "artifact_id"),
    "padding": (_patch(4095, b"x"), "padding"),
    "one byte short": (lambda found: found.__delitem__(-1), "file"),
    "one byte long": (lambda found: found.append(0), "file"),
    "empty": (lambda found: found.clear(), "magic"),
}


@pytest.mark.parametrize(("edit", "member"), PART_FAULTS.values(), ids=PART_FAULTS.keys())
def test_a_wrong_continuation_file_is_refused_when_it_is_needed(
    tmp_path: Path, edit: Callable[[bytearray], None], member: str
) -> None:
    path, _ = split_file(tmp_path)
    part = tmp_path / "m.ninfer.part-0001"
    data = bytearray(part.read_bytes())
    edit(data)
    part.write_bytes(data)
    with open_artifact(path) as artifact, pytest.raises(ArtifactError) as caught:
        artifact.require(["text", "mtp", "vision"])
    assert caught.value.file == part
    assert caught.value.member == member


def test_an_absent_continuation_file_matters_only_to_what_lies_in_it(tmp_path: Path) -> None:
    path, _ = split_file(tmp_path)
    parts = sorted(tmp_path.glob("*.part-*"))
    parts[-1].unlink()
    with open_artifact(path) as artifact:
        artifact.decode("text/token_embedding")
        with pytest.raises(ArtifactError, match=parts[-1].name):
            artifact.require(["vision"])


def test_a_parameter_of_two_parts_in_two_files_equals_the_unsplit_one(tmp_path: Path) -> None:
    parts = configs()
    plan = plan_of(parts, random_weights(parts))
    whole = random_weights(parts)["text/layers/1/mlp/down"]
    halves = [planned("first", whole[:24], "q8_g32_fp16"), planned("last", whole[24:], "q8_g32_fp16")]
    name, count = "text/layers/1/mlp/down", whole.size
    bindings = {
        **plan.bindings,
        name: (Slice("first", (0, 24 * 128)), Slice("last", (0, count - 24 * 128))),
    }
    tensors = (halves[0], *plan.tensors, halves[1])
    split = Plan("m", plan.components, tensors, bindings)
    write_artifact(tmp_path / "m.ninfer", split, max_file_bytes=100_000)
    write_artifact(tmp_path / "one.ninfer", plan)
    with open_artifact(tmp_path / "m.ninfer") as two, open_artifact(tmp_path / "one.ninfer") as one:
        first, last = two.parameter(name).parts
        assert first.object.offset < 100_000 < last.object.offset
        assert (two.decode(name) == one.decode(name)).all()


# Components, shapes and selection


def test_each_component_is_checked_when_selected_not_before(tmp_path: Path) -> None:
    parts = configs()
    weights = random_weights(parts)
    del weights["mtp/layers/0/mlp/down"]
    weights["vision/layers/0/mlp/fc1"] = weights["vision/layers/0/mlp/fc1"][:-1]
    write_artifact(tmp_path / "m.ninfer", plan_of(parts, weights))
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        artifact.require(["text", "proposal"])
        with pytest.raises(ArtifactError, match=r"bindings.mtp/layers/0/mlp/down: is not bound"):
            artifact.require(["mtp"])
        with pytest.raises(ArtifactError, match=r"bindings.vision/layers/0/mlp/fc1: has shape \[63, 32\]"):
            artifact.require(["vision"])
        with pytest.raises(ArtifactError, match="has no dflash component"):
            artifact.require(["dflash"])


def test_a_component_of_unknown_kind_can_not_be_selected(tmp_path: Path) -> None:
    with open_artifact(write_edited(tmp_path / "a.ninfer", lambda root: None)) as artifact:
        with pytest.raises(ArtifactError, match="kind unknown here"):
            artifact.require(["extra"])
        with pytest.raises(ArtifactError, match="no proposal"):
            artifact.require(["proposal"])


def test_an_inconsistent_config_is_a_fault_of_the_file(tmp_path: Path) -> None:
    with (
        open_artifact(write_edited(tmp_path / "a.ninfer", lambda root: None)) as artifact,
        pytest.raises(ArtifactError, match=r"a.ninfer: components.text: config\.\w+: is None"),
    ):
        artifact.require(["text"])


@pytest.mark.parametrize("ids", [[0, 1, 1], [-1, 1, 2], [0, 1, 128]], ids=str)
def test_draft_ids_must_be_different_tokens(tmp_path: Path, ids: list[int]) -> None:
    parts = configs()
    weights = random_weights(parts)
    weights["proposal/token_ids"][:3] = ids
    write_artifact(tmp_path / "m.ninfer", plan_of(parts, weights))
    with (
        open_artifact(tmp_path / "m.ninfer") as artifact,
        pytest.raises(ArtifactError, match="different ids below 128"),
    ):
        artifact.require(["proposal"])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("proposal/token_ids", np.arange(32, dtype=np.float32)),
        ("text/final_norm", np.ones(64, np.int32)),
    ],
)
def test_ids_are_integers_and_nothing_else_is(tmp_path: Path, name: str, values: np.ndarray) -> None:
    parts = configs()
    weights = random_weights(parts)
    weights[name] = values
    write_artifact(tmp_path / "m.ninfer", plan_of(parts, weights))
    with (
        open_artifact(tmp_path / "m.ninfer") as artifact,
        pytest.raises(ArtifactError, match=f"bindings.{name}: is "),
    ):
        artifact.require(["text", "proposal"])


def test_a_parameter_does_not_mix_integers_and_floats(tmp_path: Path) -> None:
    def edit(root: Root) -> None:
        root["objects"][2]["format"] = "int32"
        ranges = [{"object": "w", "range": [0, 1]}, {"object": "s", "range": [0, 1]}]
        root["bindings"]["extra/both"] = {"parts": ranges}
        root["uses"] = []

    with (
        open_artifact(write_edited(tmp_path / "a.ninfer", edit)) as artifact,
        pytest.raises(ArtifactError, match="extra/both: mixes integers and floats"),
    ):
        artifact.decode("extra/both")


def test_a_format_unknown_here_is_a_fault_of_the_selected_component(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m.ninfer")
    root, payload = take_apart(tmp_path / "m.ninfer")
    item = next(item for item in root["objects"] if item["id"] == "mtp/input_projection")
    item["format"] = "gguf_q4_k"
    (tmp_path / "m.ninfer").write_bytes(assemble(root, payload))
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        artifact.require(["text", "vision"])
        with pytest.raises(ArtifactError, match="unknown format gguf_q4_k"):
            artifact.require(["mtp"])


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_an_activation_divisor_must_be_positive_and_finite(tmp_path: Path, value: float) -> None:
    parts = configs()
    plan = plan_of(parts, random_weights(parts))
    use = {
        "parameter": "text/layers/0/mlp/gate",
        "input": "text/layers/0/ffn_input",
        "auxiliaries": {"activation_input_divisor": {"object": "d"}},
    }
    tensors = (*plan.tensors, planned("d", np.array(value, np.float32), "fp32"))
    write_artifact(tmp_path / "m.ninfer", Plan("m", plan.components, tensors, plan.bindings, uses=(use,)))
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        artifact.require(["vision"])
        with pytest.raises(ArtifactError, match="activation_input_divisor"):
            artifact.require(["text"])


def test_illegal_codes_are_a_fault_of_the_object(tmp_path: Path) -> None:
    path = write_edited(tmp_path / "a.ninfer", lambda root: None)
    data = bytearray(path.read_bytes())
    start = len(data) - len(small_root()[1]) + 256
    data[start] = 0x80
    path.write_bytes(data)
    with (
        open_artifact(path) as artifact,
        pytest.raises(ArtifactError, match=r"objects\[w\]: holds a code below -127"),
    ):
        artifact.decode("extra/w")


# Lifetimes and zero copies


def test_stored_bytes_and_fp32_values_are_views_that_outlive_the_artifact(tmp_path: Path) -> None:
    weights = write_tiny(tmp_path / "m.ninfer")
    name = "text/layers/0/gdn/a_log"
    with open_artifact(tmp_path / "m.ninfer") as artifact:
        values = artifact.decode(name)
        raw = artifact.raw(artifact.parameter(name).parts[0].object)
        assert not values.flags.writeable
        assert not values.flags.owndata
    assert (values == weights[name]).all()
    assert bytes(raw) == weights[name].tobytes()


def test_neighbouring_parts_merge_into_one_range(tmp_path: Path) -> None:
    def edit(root: Root) -> None:
        root["bindings"] = {
            name: {"parts": [{"object": "w", "range": span}]}
            for name, span in {"extra/a": [0, 64], "extra/b": [64, 192], "extra/c": [256, 320]}.items()
        }
        root["uses"] = []

    with open_artifact(write_edited(tmp_path / "a.ninfer", edit)) as artifact:
        merged = merge_parts(artifact.parameter(f"extra/{name}") for name in "abc")
    assert [(part.begin, part.end) for part in merged] == [(0, 192), (256, 320)]
