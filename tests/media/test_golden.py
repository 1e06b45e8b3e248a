"""The recorded pictures and the clip, from their files to pixel values, grids, prompts and positions."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import attrs
import numpy as np
import pytest
from PIL import Image

from ninfer.artifact import open_artifact
from ninfer.frontend import build_front
from ninfer.media.decode import DecodeLimits
from ninfer.media.patches import Patches, media_key, preprocess
from ninfer.media.plan import make_plan
from ninfer.media.resize import Geometry, read_geometry
from ninfer.prompt.conversation import Conversation, MediaPart, Message, Part, TemplateOptions, TextPart
from ninfer.prompt.media import MediaItem
from ninfer.runtime.build import build_numpy
from ninfer.settings import EngineOptions, GenerationDefaults
from tests.model.checkpoint import Golden, goldens
from tests.model.test_vision import answer

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
MODELS = ("tiny-qwen3_5", "tiny-qwen3_5_moe")
FILES: dict[str, list[str]] = {
    "image": ["image_a.png"],
    "image_think": ["image_b.png"],
    "video": [f"clip_{n}.png" for n in range(4)],
}


@cache
def geometry_of(model: str) -> Geometry:
    with open_artifact(FIXTURES / f"{model}.ninfer") as artifact:
        return read_geometry(
            artifact.resource("preprocessor_config.json"),
            artifact.resource("video_preprocessor_config.json"),
        )


@cache
def recorded(model: str) -> dict[str, Golden]:
    return {golden.name: golden for golden in goldens(FIXTURES / f"{model}.ninfer") if golden.grid}


def book(model: str, name: str) -> dict[str, Any]:
    prompts = json.loads((FIXTURES / f"goldens-{model}.json").read_text())["prompts"]
    found: dict[str, Any] = next(prompt for prompt in prompts if prompt["name"] == name)
    return found


def clip_bytes(files: list[Path], milliseconds: int = 500) -> bytes:
    """The frames as a lossless animated WebP at two frames a second."""
    first, *rest = (Image.open(path).convert("RGB") for path in files)
    out = io.BytesIO()
    first.save(out, "WEBP", save_all=True, append_images=rest, duration=milliseconds, lossless=True)
    return out.getvalue()


def prepared(model: str, name: str) -> tuple[bytes, Patches]:
    files = [FIXTURES / "examples" / file for file in FILES[name]]
    kind: Literal["image", "video"] = "image" if len(files) == 1 else "video"
    data = files[0].read_bytes() if kind == "image" else clip_bytes(files)
    plan = make_plan(kind, data, "p", geometry_of(model), DecodeLimits())
    return data, preprocess(plan, data, "p", lambda: None)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", FILES)
def test_pixel_values_and_grids_are_the_recorded_ones(model: str, name: str) -> None:
    golden = recorded(model)[name]
    _, patches = prepared(model, name)
    assert golden.pixels is not None and patches.grid == golden.grid
    wanted = golden.pixels
    if wanted.dtype == np.uint8:
        wanted = wanted.astype(np.float32) / np.float32(127.5) - np.float32(1)
    values = patches.rows.astype(np.float32) / np.float32(127.5) - np.float32(1)
    assert np.abs(values - wanted).max() <= 1 / 255
    assert np.mean(np.abs(values - wanted) < 1e-6) >= 0.99


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", FILES)
def test_expanded_ids_and_positions_are_the_recorded_ones(model: str, name: str) -> None:
    golden, told = recorded(model)[name], book(model, name)
    data, patches = prepared(model, name)
    kind: Literal["image", "video"] = "image" if name != "video" else "video"
    with open_artifact(FIXTURES / f"{model}.ninfer") as artifact:
        front = build_front(artifact, None, 2048, GenerationDefaults(), merge=geometry_of(model).merge)
    item = MediaItem(kind, patches.grid, media_key(kind, data), patches.seconds, patches.rows)
    prompt = front.prepare(conversation(told), [item])
    assert prompt.ids == golden.ids
    assert prompt.positions is not None
    assert (np.array(prompt.positions) == golden.positions).all()
    assert prompt.rope_delta == golden.positions.max() + 1 - len(golden.ids)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_greedy_answers_to_the_files_are_the_recorded_ones(model: str) -> None:
    options = EngineOptions(max_context=2048, kv_dtype="fp32", vision=True)
    with open_artifact(FIXTURES / f"{model}.ninfer") as artifact:
        program = build_numpy(artifact, options, lambda text: None)
        for name, golden in recorded(model).items():
            _, patches = prepared(model, name)
            assert answer(program, attrs.evolve(golden, pixels=patches.rows)) == golden.greedy


def conversation(told: dict[str, Any]) -> Conversation:
    messages = tuple(Message(message["role"], parts_of(message["content"])) for message in told["messages"])
    thinking = told.get("enable_thinking", told.get("template_kwargs", {}).get("enable_thinking"))
    return Conversation(messages, options=TemplateOptions(enable_thinking=thinking))


def parts_of(content: Any) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(
        TextPart(part["text"]) if part["type"] == "text" else MediaPart(part["type"], "data:", "p")
        for part in content
    )
