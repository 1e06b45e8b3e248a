"""The bundled models are whole, and the goldens were made from exactly their weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact import open_artifact
from ninfer.artifact.digest import weights_digest

NAMES = ("tiny-qwen3_5", "tiny-qwen3_5_moe")


@pytest.mark.parametrize("name", NAMES)
def test_bundled_model_holds_all_components_complete(fixtures: Path, name: str) -> None:
    with open_artifact(fixtures / f"{name}.ninfer") as artifact:
        artifact.require(["text", "mtp", "vision", "proposal"])
        assert artifact.name == name
        assert artifact.size_bytes == (fixtures / f"{name}.ninfer").stat().st_size < 16 << 20
        assert artifact.text_config.hidden == artifact.vision_config.out_hidden == 256
        assert b"<|im_start|>" in artifact.resource("tokenizer.json")


@pytest.mark.parametrize("name", NAMES)
def test_goldens_were_made_from_these_weights(fixtures: Path, name: str) -> None:
    golden = json.loads((fixtures / f"goldens-{name}.json").read_text())
    with open_artifact(fixtures / f"{name}.ninfer") as artifact:
        assert golden["artifact"] == artifact.path.name
        assert golden["weights_digest"] == weights_digest(artifact)


@pytest.mark.parametrize("name", NAMES)
def test_goldens_are_consistent_with_themselves(fixtures: Path, name: str) -> None:
    golden = json.loads((fixtures / f"goldens-{name}.json").read_text())
    with np.load(fixtures / f"goldens-{name}.npz") as arrays:
        for index, prompt in enumerate(golden["prompts"]):
            key = f"{index:02d}"
            count, greedy = prompt["prompt_tokens"], prompt["greedy_tokens"]
            assert arrays[f"{key}.input_ids"].shape == (count,)
            assert arrays[f"{key}.position_ids"].shape == (3, count)
            assert arrays[f"{key}.mtp_drafts"].shape == (greedy, 3)
            assert (arrays[f"{key}.top_ids"][:, 0] == arrays[f"{key}.greedy_ids"]).all()
            assert arrays[f"{key}.last_logits"].argmax() == arrays[f"{key}.greedy_ids"][0]


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_eight_bits_change_logits_little_and_greedy_text_almost_never(
    fixtures: Path, reference_models: Path, name: str
) -> None:
    """Against the reference results of the bf16 checkpoints that the bundled models were made from."""
    reference = json.loads((reference_models / name / "golden.json").read_text())["prompts"]
    golden = json.loads((fixtures / f"goldens-{name}.json").read_text())["prompts"]
    pairs = list(zip(reference, golden, strict=True))
    assert all(old["rendered"] == new["rendered"] for old, new in pairs)
    assert all(old["prompt_tokens"] == new["prompt_tokens"] for old, new in pairs)
    assert sum(old["greedy_text"] == new["greedy_text"] for old, new in pairs) >= len(pairs) - 1
