"""Versions 1 and 2: the same model reads alike from all three, and their own faults are clear."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.artifact import Artifact, ArtifactError, open_artifact
from ninfer.artifact.legacy import inventories
from ninfer.artifact.published import MODELS
from ninfer.artifact.write import write_artifact
from ninfer.model.config import read_draft_config, read_text_config, read_vision_config
from tests.artifact.handmade import Root, assemble, old_model
from tests.artifact.synthetic import choose_format, configs, plan_of, random_weights

TINY: Mapping[str, Mapping[str, Any]] = {"tiny-dense": configs(), "tiny-sparse": configs(sparse=True)}


def write_old(
    path: Path, version: int, model: str, edit: Callable[[Root], Any] = lambda root: None
) -> Path:
    built = old_model(TINY[model], random_weights(TINY[model]), choose_format)
    root = built.out.root(version, model)
    edit(root)
    path.write_bytes(assemble(root, bytes(built.out.payload), version))
    return path


def open_old(path: Path) -> Artifact:
    return open_artifact(path, models=TINY)


@pytest.mark.parametrize("model", TINY)
def test_one_model_decodes_alike_from_all_three_versions(tmp_path: Path, model: str) -> None:
    write_artifact(tmp_path / "3.ninfer", plan_of(TINY[model], random_weights(TINY[model])))
    components = [*TINY[model], "proposal"]
    with open_artifact(tmp_path / "3.ninfer") as new:
        new.require(components)
        for version in (1, 2):
            with open_old(write_old(tmp_path / "o.ninfer", version, model)) as old:
                assert old.version == version
                assert old.name == model
                old.require(components)
                assert set(old.parameters()) == set(new.parameters())
                assert old.components.keys() == new.components.keys()
                assert old.text_config == new.text_config
                assert old.vision_config == new.vision_config
                for name in new.parameters():
                    assert old.parameter(name).shape == new.parameter(name).shape
                    assert (old.decode(name) == new.decode(name)).all()


def test_old_frontend_files_are_resources(tmp_path: Path) -> None:
    with open_old(write_old(tmp_path / "a.ninfer", 1, "tiny-dense")) as artifact:
        for role in ("tokenizer.json", "chat_template.jinja", "video_preprocessor_config.json"):
            assert artifact.resource(role) == role.encode()
        assert artifact.components["text"].proposal is not None
        assert artifact.components["mtp"].target == "text"


def test_a_file_without_optional_parts_has_no_such_components(tmp_path: Path) -> None:
    built = old_model(TINY["tiny-dense"], random_weights(TINY["tiny-dense"]), choose_format)
    text_only = old_model(TINY["tiny-dense"], random_weights(TINY["tiny-dense"]), choose_format)
    last = next(i for i, item in enumerate(built.out.objects) if item["name"].startswith("text/draft_head"))
    text_only.out.objects = built.out.objects[:last]
    end = text_only.out.objects[-1]["offset"] + text_only.out.objects[-1]["bytes"]
    (tmp_path / "a.ninfer").write_bytes(
        assemble(text_only.out.root(1, "tiny-dense"), bytes(built.out.payload[:end]), 1)
    )
    with open_old(tmp_path / "a.ninfer") as artifact:
        assert set(artifact.components) == {"text"}
        assert artifact.components["text"].proposal is None
        artifact.require(["text"])


def test_version_2_recognises_its_floating_formats(tmp_path: Path) -> None:
    def choose(name: str, values: np.ndarray) -> str:
        if name.endswith("/mlp/gate"):
            return "nvfp4"
        return "fp8_e4m3fn_row_bf16" if name.endswith("/mlp/down") else choose_format(name, values)

    weights = random_weights(TINY["tiny-dense"])
    built = old_model(TINY["tiny-dense"], weights, choose)
    (tmp_path / "a.ninfer").write_bytes(
        assemble(built.out.root(2, "tiny-dense"), bytes(built.out.payload), 2)
    )
    with open_old(tmp_path / "a.ninfer") as artifact:
        assert {"nvfp4", "fp8_e4m3fn_row_bf16"} <= artifact.formats()
        for name in ("text/layers/0/mlp/gate", "text/layers/1/mlp/up", "text/layers/0/mlp/down"):
            assert np.abs(artifact.decode(name) - weights[name]).max() < 0.1


def _object(name: str, **changes: Any) -> Callable[[Root], Any]:
    def edit(root: Root) -> None:
        next(item for item in root["objects"] if item["name"] == name).update(changes)

    return edit


def _first(**changes: Any) -> Callable[[Root], Any]:
    return lambda root: root["objects"][0].update(changes)


FAULTS: dict[str, tuple[Callable[[Root], Any], str]] = {
    "another member": (lambda root: root.update(files=[]), "unknown member 'files'"),
    "no model id": (lambda root: root.pop("model_id"), "model_id"),
    "unknown model": (lambda root: root.update(model_id="gpt-2"), "tiny-dense or tiny-sparse"),
    "no objects": (lambda root: root.update(objects=[]), "at least 1"),
    "object with id": (_first(id="x"), "unknown member 'id'"),
    "resource encoding of version 3": (
        _object("frontend/tokenizer.json", encoding="raw_bytes_v1"),
        "raw-bytes-v1",
    ),
    "null member": (_first(offset=None), "an integer"),
    "true for an integer": (_first(offset=False), "an integer"),
    "a hole before an object": (_first(offset=256), "right after the previous"),
    "a wrong size": (_first(bytes=7), "the size of"),
    "a repeated name": (
        lambda root: root["objects"][1].update(name=root["objects"][0]["name"]),
        "repeats name",
    ),
    "the last object missing": (lambda root: root["objects"].pop(), "the end of the payload"),
    "an object past the end": (lambda root: root["objects"][-1].update(bytes=10**6), "within the payload"),
}


@pytest.mark.parametrize(("edit", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_old_header_faults_are_clear(tmp_path: Path, edit: Callable[[Root], Any], words: str) -> None:
    path = write_old(tmp_path / "a.ninfer", 1, "tiny-dense", edit)
    with pytest.raises(ArtifactError) as caught:
        open_old(path)
    assert words in str(caught.value)


@pytest.mark.parametrize("rows", [-64, 64])
def test_a_fused_parent_of_another_height_is_refused(tmp_path: Path, rows: int) -> None:
    weights = random_weights(TINY["tiny-dense"])
    gate = weights["text/layers/0/mlp/gate"]
    weights["text/layers/0/mlp/gate"] = np.resize(gate, (gate.shape[0] + rows, gate.shape[1]))
    built = old_model(TINY["tiny-dense"], weights, choose_format)
    (tmp_path / "a.ninfer").write_bytes(
        assemble(built.out.root(1, "tiny-dense"), bytes(built.out.payload), 1)
    )
    with pytest.raises(ArtifactError, match=r"mlp/gate_up.*text/layers/0/mlp/gate"):
        open_old(tmp_path / "a.ninfer")


# The published models


def parameters(shapes: Mapping[str, tuple[int, ...]], experts: int) -> int:
    return sum(math.prod(shape) * (experts if "*" in name else 1) for name, shape in shapes.items())


MULTIPLIED = {"query", "key", "value", "gate", "z", "output", "up", "down"}


def test_published_configs_have_the_published_sizes() -> None:
    sparse = MODELS["qwen3.6-35b-a3b"]
    known = inventories({name: config for name, config in sparse.items() if name != "dflash"})
    assert parameters(known.shapes, known.experts) == 35_951_822_704

    dense = MODELS["qwen3.6-27b"]
    text = inventories({"text": dense["text"]}).shapes
    per_token = sum(
        math.prod(shape)
        for name, shape in text.items()
        if name.startswith("text/layers/") and name.rpartition("/")[2] in MULTIPLIED
    )
    assert round(per_token / 1e9, 3) == 24.327


def test_published_configs_are_consistent() -> None:
    for configs_of in MODELS.values():
        text = read_text_config(configs_of["text"])
        assert read_vision_config(configs_of["vision"], text).out_hidden == text.hidden
        for name in configs_of.keys() & {"dflash", "dflash2"}:
            assert read_draft_config(configs_of[name], text).heads == 32


def test_the_second_block_drafter_has_its_byte_confirmed_size() -> None:
    """Q8 matrices, bf16 convolutions and selector; context keys and values are aliases."""
    dense = MODELS["qwen3.8-27b"]
    both = inventories({"text": dense["text"], "dflash2": dense["dflash2"]}).shapes
    shapes = {name: shape for name, shape in both.items() if name.startswith("dflash2/")}
    total = 0
    for name, shape in shapes.items():
        plain = len(shape) != 2 or "_conv/" in name or "selector" in name
        if "/attention/context_" not in name:
            total += math.prod(shape) * 2 if plain else math.prod(shape) // 32 * 34
    assert total == 2_226_792_960
