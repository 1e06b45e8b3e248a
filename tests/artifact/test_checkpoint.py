"""Checkpoints that can't be converted: settings, tensors, safetensors and indexes, each explained."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.artifact import ArtifactError
from ninfer.artifact.convert.run import Options, convert
from ninfer.faults import StartupError
from tests.artifact.hf import hf_config, hf_tensors, safetensors, write_hf


def run(tmp_path: Path, source: Path, recipe: str = "bf16") -> None:
    convert(Options(source, tmp_path / "out.ninfer", recipe))


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another family": (lambda c: c.update(model_type="llama"), "model_type"),
    "no family": (lambda c: c.pop("model_type"), "model_type"),
    "another activation": (lambda c: c["text_config"].update(hidden_act="gelu"), "hidden_act"),
    "biases": (lambda c: c["text_config"].update(attention_bias=True), "attention_bias"),
    "no output gate": (lambda c: c["text_config"].update(attn_output_gate=False), "attn_output_gate"),
    "two mtp layers": (lambda c: c["text_config"].update(mtp_num_hidden_layers=2), "mtp_num_hidden_layers"),
    "scaled rotary": (lambda c: c["text_config"]["rope_parameters"].update(rope_type="yarn"), "rope_type"),
    "axes in blocks": (
        lambda c: c["text_config"]["rope_parameters"].update(mrope_interleaved=False),
        "mrope_interleaved",
    ),
    "deepstack": (lambda c: c["vision_config"].update(deepstack_visual_indexes=[1]), "deepstack"),
    "no layer kinds": (lambda c: c["text_config"].pop("layer_types"), "layer_types"),
    "vision of another width": (lambda c: c["vision_config"].update(out_hidden_size=3), "out_hidden_size"),
    "text is a list": (lambda c: c.update(text_config=[]), "text_config"),
}


@pytest.mark.parametrize(("edit", "member"), REFUSED.values(), ids=REFUSED.keys())
def test_settings_of_another_mathematics_are_refused(
    tmp_path: Path, edit: Callable[[dict[str, Any]], Any], member: str
) -> None:
    config = hf_config()
    tensors = hf_tensors(config)
    edit(config)
    with pytest.raises(StartupError, match=member):
        run(tmp_path, write_hf(tmp_path / "hf", tensors, config))
    assert not (tmp_path / "out.ninfer").exists()


def test_missing_unexpected_and_misshapen_tensors_are_all_listed(tmp_path: Path) -> None:
    config = hf_config()
    tensors = hf_tensors(config)
    for n in range(2):
        del tensors[f"model.language_model.layers.{n}.mlp.up_proj.weight"]
    tensors["extra.weight"] = np.zeros(3, np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1]
    with pytest.raises(ArtifactError) as caught:
        run(tmp_path, write_hf(tmp_path / "hf", tensors, config))
    text = str(caught.value)
    assert "2 missing: model.language_model.layers.0.mlp.up_proj.weight, " in text
    assert "1 unexpected: extra.weight" in text
    assert "1 of another shape: lm_head.weight [127, 64] instead of [128, 64]" in text
    assert not (tmp_path / "out.ninfer").exists()


def test_a_long_list_of_missing_tensors_is_cut(tmp_path: Path) -> None:
    config = hf_config()
    tensors = {"lm_head.weight": hf_tensors(config)["lm_head.weight"]}
    with pytest.raises(ArtifactError, match=re.compile(r"\d\d missing: ([^,]+, ){8}\.\.\.")):
        run(tmp_path, write_hf(tmp_path / "hf", tensors, config))


@pytest.mark.parametrize("recipe", ["q8", "nvfp4", "fp8"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_name_their_tensor(tmp_path: Path, recipe: str, bad: float) -> None:
    config = hf_config()
    tensors = hf_tensors(config)
    name = "model.language_model.layers.1.mlp.down_proj.weight"
    tensors[name][3, 5] = bad
    with pytest.raises(ArtifactError) as caught:
        run(tmp_path, write_hf(tmp_path / "hf", tensors, config), recipe)
    assert caught.value.member == name
    assert {path.name for path in tmp_path.iterdir()} == {"hf"}


# Safetensors


def _header(edit: Callable[[dict[str, Any]], Any]) -> bytes:
    data = safetensors({"w": np.zeros((2, 3), np.float32)})
    count = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + count])
    edit(header["w"])
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + count :]


SAFETENSORS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "header length"),
    "cut short": (b"\1\0\0", "header length"),
    "no header": (bytes(64), "header length"),
    "header past the end": ((1000).to_bytes(8, "little") + bytes(64), "header length"),
    "header of 2^64 - 1": (b"\xff" * 8 + bytes(64), "header length"),
    "header is no JSON": ((4).to_bytes(8, "little") + b"{{{{", "does not parse"),
    "header is a list": ((2).to_bytes(8, "little") + b"[]", "an object"),
    "eight-bit integers": (_header(lambda w: w.update(dtype="I8")), "BF16 or F16 or F32"),
    "no shape": (_header(lambda w: w.pop("shape")), "shape"),
    "negative dimension": (_header(lambda w: w.update(shape=[-2, 3])), "an integer from 1"),
    "one number of offsets": (_header(lambda w: w.update(data_offsets=[24])), "[begin, end)"),
    "fewer bytes than the shape": (_header(lambda w: w.update(data_offsets=[0, 20])), "24 bytes inside"),
    "past the end": (_header(lambda w: w.update(data_offsets=[4, 28])), "24 bytes inside"),
    "backwards": (_header(lambda w: w.update(data_offsets=[24, 0])), "24 bytes inside"),
    "a larger shape": (_header(lambda w: w.update(shape=[2**31, 2**31])), "bytes inside"),
}


@pytest.mark.parametrize(("data", "words"), SAFETENSORS.values(), ids=SAFETENSORS.keys())
def test_bad_safetensors_are_explained(tmp_path: Path, data: bytes, words: str) -> None:
    source = write_hf(tmp_path / "hf", {}, hf_config())
    (source / "model.safetensors").write_bytes(data)
    with pytest.raises(ArtifactError) as caught:
        run(tmp_path, source)
    assert words in str(caught.value)
    assert caught.value.file == source / "model.safetensors"


INDEXES: dict[str, tuple[str, str]] = {
    "no map": ("{}", "weight_map"),
    "map is a list": ('{"weight_map": []}', "an object"),
    "outside the directory": ('{"weight_map": {"w": "../x.safetensors"}}', "plain file name"),
    "absent shard": ('{"weight_map": {"w": "x.safetensors"}}', "can't be read"),
    "not JSON": ("{", "does not parse"),
}


@pytest.mark.parametrize(("text", "words"), INDEXES.values(), ids=INDEXES.keys())
def test_bad_indexes_are_explained(tmp_path: Path, text: str, words: str) -> None:
    source = write_hf(tmp_path / "hf", {}, hf_config())
    (source / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ArtifactError) as caught:
        run(tmp_path, source)
    assert words in str(caught.value)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "hf", {}, hf_config())
    for name in ("a", "b"):
        (source / f"{name}.safetensors").write_bytes(safetensors({"w": np.zeros(2, np.float32)}))
    weights = {"x": "a.safetensors", "y": "b.safetensors"}
    (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(ArtifactError, match=r"'w': is also in a\.safetensors"):
        run(tmp_path, source)


def test_shards_without_an_index_are_not_guessed(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "hf", {}, hf_config())
    (source / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match="holds 0 safetensors files"):
        run(tmp_path, source)
    for name in ("a", "b"):
        (source / f"{name}.safetensors").write_bytes(safetensors({}))
    with pytest.raises(ArtifactError, match="holds 2 safetensors files"):
        run(tmp_path, source)
