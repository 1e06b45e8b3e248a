"""Measure what preparing pictures costs beside the decoder's own work.

Prints, for a 12-megapixel JPEG and a few other pictures, milliseconds of the decoder and its bicubic resize
alone, of the whole preparation (header, plan, identity, decode, resize, patches) and their ratio, the best
of several turns taken alternately; then the longest time that the event loop stood still while sixteen such
requests were prepared by the media room.
"""

from __future__ import annotations

import base64
import io
import json
import time
from collections.abc import Callable
from functools import partial

import anyio
import attrs
import numpy as np
from PIL import Image

from ninfer.frontend import build_media
from ninfer.media.decode import DecodeLimits
from ninfer.media.patches import media_key, preprocess
from ninfer.media.plan import make_plan
from ninfer.media.resize import Geometry
from ninfer.prompt.conversation import Conversation, MediaPart, Message
from ninfer.prompt.prepared import Preparation
from ninfer.settings import MediaOptions

TURNS = 9
GEOMETRY, LIMITS = Geometry(), DecodeLimits()


def photograph(width: int, height: int) -> Image.Image:
    """Smooth content with some grain, about as hard to decode as a photograph."""
    chance = np.random.default_rng(0)
    coarse = Image.fromarray(chance.integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    grain = chance.integers(-6, 7, (height, width, 1), dtype=np.int16)
    return Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))


def encoded(picture: Image.Image, kind: str) -> bytes:
    """A picture's file."""
    out = io.BytesIO()
    picture.save(out, kind, quality=90)
    return out.getvalue()


def alone(data: bytes, size: tuple[int, int]) -> None:
    """Decode and resize, as anybody would."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    if picture.size != size:
        picture.resize(size, Image.Resampling.BICUBIC)


def whole(data: bytes) -> None:
    """Everything that the media room does on a worker for one item."""
    media_key("image", data)
    preprocess(make_plan("image", data, "p", GEOMETRY, LIMITS), data, "p", lambda: None)


def timed(work: Callable[[], None]) -> float:
    """Seconds of one turn."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compare(name: str, data: bytes) -> None:
    """Print one line."""
    plan = make_plan("image", data, "p", GEOMETRY, LIMITS)
    size = (plan.width, plan.height)
    turns = [(timed(partial(alone, data, size)), timed(partial(whole, data))) for _ in range(TURNS)]
    base, ours = (min(column) for column in zip(*turns, strict=True))
    print(f"{name:28} {base * 1e3:8.1f} ms alone {ours * 1e3:8.1f} ms in all   ratio {ours / base:.2f}")


@attrs.frozen
class Configs:
    """The processor configs of the published models."""

    def has_resource(self, role: str) -> bool:
        """Both are there."""
        return True

    def resource(self, role: str) -> bytes:
        """Return the bounds in pixels."""
        low, high = (4096, 25_165_824) if "video" in role else (65_536, 16_777_216)
        return json.dumps({"size": {"shortest_edge": low, "longest_edge": high}}).encode()


async def stall(data: bytes) -> float:
    """Return the longest delay of a task that asks for a millisecond, in seconds."""
    room = build_media(Configs(), MediaOptions(cache_bytes=0))
    longest = 0.0

    async def tick() -> None:
        nonlocal longest
        while True:
            began, worked = time.perf_counter(), time.process_time()
            await anyio.sleep(0.001)
            waited = min(time.perf_counter() - began - 0.001, time.process_time() - worked)
            longest = max(longest, waited)

    async def request(n: int) -> None:
        source = "data:;base64," + base64.b64encode(data + bytes([n])).decode()
        part = MediaPart("image", source, "p")
        async with room.items(Conversation((Message("user", (part,)),)), Preparation()):
            pass

    async with anyio.create_task_group() as clock:
        clock.start_soon(tick)
        async with anyio.create_task_group() as tasks:
            for n in range(16):
                tasks.start_soon(request, n)
                await anyio.sleep(0.005)
        clock.cancel_scope.cancel()
    return longest


def main() -> None:
    """Measure and print."""
    large = photograph(4000, 3000)
    jpeg = encoded(large, "JPEG")
    compare("JPEG 4000 x 3000", jpeg)
    compare("JPEG 1920 x 1080", encoded(large.resize((1920, 1080)), "JPEG"))
    compare("PNG 1024 x 1024", encoded(large.resize((1024, 1024)), "PNG"))
    compare("WebP 1920 x 1080", encoded(large.resize((1920, 1080)), "WEBP"))
    longest = anyio.run(stall, jpeg, backend="trio")
    print(f"longest stall of the event loop, sixteen requests: {longest * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
