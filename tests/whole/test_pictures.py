"""Pictures in a prompt: the same bytes are known, other bytes in the same place never are."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import attrs

from ninfer.frontend import build_front, build_media
from ninfer.settings import GenerationDefaults, MediaOptions
from ninfer.startup import ServeOptions
from tests.sim.server import ARTIFACT, serving
from tests.sim.server import inline as run_inline
from tests.whole.kit import artifact, ask, cached, inline

EXAMPLES = ARTIFACT.parent / "examples"
PAD = "<|image_pad|>"


def shows(picture: Path) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    parts = [
        {"type": "text", "text": "Here is a picture for you to look at closely."},
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "Which colour has it?"},
    ]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 6, "reasoning_effort": "none"}


async def test_a_picture_is_known_by_its_bytes(autojump_clock: Any, tmp_path: Path) -> None:
    device, options = inline(vision=True, device_state_slots=8)
    room = build_media(artifact(), MediaOptions(policy="off"))
    room = attrs.evolve(room, run_blocking=run_inline, pulse=lambda: None)
    front = build_front(artifact(), None, 512, GenerationDefaults(), room.geometry.merge)
    one, other = EXAMPLES / "image_a.png", turned(EXAMPLES / "image_a.png", tmp_path)
    serve = ServeOptions(ARTIFACT, engine=options)
    async with serving(device, serve, front=front, media=room) as world:
        first = await ask(world, shows(one))
        assert cached(first) == 0
        prompt = device.prompts()[0]
        picture = prompt.index(front.preparer.vocabulary.special(PAD))
        again = await ask(world, shows(one))
        assert cached(again) > picture + prompt.count(prompt[picture])  # over the whole picture
        assert again["choices"] == first["choices"]
        strange = await ask(world, shows(other))
        assert strange["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]
        assert cached(strange) <= picture
        assert cached(await ask(world, shows(other))) > picture  # now its own


def turned(picture: Path, folder: Path) -> Path:
    """The same size, other bytes."""
    from PIL import Image

    path = folder / "turned.png"
    with Image.open(picture) as image:
        image.transpose(Image.Transpose.ROTATE_180).save(path)
    return path
