"""A conversation about a picture on the real program: what was seen once is not encoded again."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import attrs
import pytest

from ninfer.app import Application, Model, Ports, assemble
from ninfer.artifact import open_artifact
from ninfer.frontend import build_front, build_media
from ninfer.http.body import read_json
from ninfer.media.room import MediaRoom
from ninfer.model import vision
from ninfer.observe.jsonl import RequestLog
from ninfer.observe.records import Records
from ninfer.protocols.chat.lower import lower_chat, report_of
from ninfer.protocols.chat.schema import ChatRequest
from ninfer.protocols.fields import Reader
from ninfer.protocols.service import Finished
from ninfer.runtime import eyes
from ninfer.runtime.build import build_device
from ninfer.settings import EngineOptions, JsonBudget, MediaOptions
from ninfer.startup import ServeOptions
from tests.e2e.drawn import QUESTION, Drawn, clip, draw, encoded
from tests.sim.server import ARTIFACT

pytestmark = pytest.mark.slow


@attrs.frozen
class Seeing:
    """A server without HTTP, its media room, and the items that its tower has encoded."""

    app: Application
    room: MediaRoom
    encoded: list[Any]

    async def ask(self, messages: list[Any]) -> Finished:
        """Answer greedily, without thinking."""
        budget, body = (
            JsonBudget(),
            {"model": "m", "messages": messages, "max_tokens": 24, "temperature": 0},
        )
        request = Reader(budget).read({**body, "reasoning_effort": "none"}, ChatRequest)
        ask = lower_chat(request, report_of(request, "r", 0, "m"), "r", partial(read_json, budget=budget))
        async with self.app.service.open(ask) as generation:
            *_, last = [delta async for delta in generation]
        assert isinstance(last, Finished)
        return last


@asynccontextmanager
async def seeing(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> AsyncIterator[Seeing]:
    """Run the bundled model with vision on two lanes."""
    seen: list[Any] = []
    real = vision.encode

    def encode(verbs: Any, tower: Any, pixels: Any, shape: Any) -> Any:
        seen.append(pixels)
        return real(verbs, tower, pixels, shape)

    monkeypatch.setattr(eyes, "encode", encode)
    engine = EngineOptions(max_context=1024, kv_capacity=4096, max_concurrency=2, vision=True, **changes)
    options = ServeOptions(ARTIFACT, engine=engine, media=MediaOptions(cache_bytes=0))
    with open_artifact(ARTIFACT) as artifact:
        room = build_media(artifact, options.media)
        front = build_front(artifact, None, engine.max_context, options.defaults, room.geometry.merge)
        async with build_device(artifact, engine, "numpy") as device, anyio.create_task_group() as tasks:
            records, log = (
                Records(io.StringIO(), "error", lambda: 0.0),
                RequestLog(None, "", lambda: 0.0, print),
            )
            model = Model(artifact.name, artifact.architecture)
            ports = Ports(anyio.to_thread.run_sync)
            app = assemble(options, model, front, device, records, log, ports, room)
            tasks.start_soon(app.engine.run)
            yield Seeing(app, room, seen)
            tasks.cancel_scope.cancel()
        room.account.check()
        assert room.account.live == 0


def shown(source: str, question: str = QUESTION, kind: str = "image_url") -> list[Any]:
    return [
        {
            "role": "user",
            "content": [{"type": kind, kind: {"url": source}}, {"type": "text", "text": question}],
        }
    ]


def answered(messages: list[Any], said: Finished, question: str) -> list[Any]:
    return [
        *messages,
        {"role": "assistant", "content": said.content},
        {"role": "user", "content": question},
    ]


def picture(colour: str, shape: str, kind: str = "PNG") -> Drawn:
    return Drawn(colour, shape, encoded(draw(colour, shape, (128, 96)), kind), kind.lower())


async def test_a_second_turn_encodes_nothing_and_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first = shown(picture("red", "circle").uri)
    async with seeing(monkeypatch) as server:
        said = await server.ask(first)
        assert len(server.encoded) == 1 and said.cached_tokens == 0
        assert 0 < said.summary.vision_seconds < said.summary.ended - said.summary.submitted
        second = answered(first, said, "What colour is the circle?")
        again = await server.ask(second)
        assert len(server.encoded) == 1 and again.summary.vision_seconds == 0
        assert said.prompt_tokens - 8 <= again.cached_tokens < again.prompt_tokens
    async with seeing(monkeypatch, prefix_reuse=False) as cold:
        fresh = await cold.ask(second)
        assert len(cold.encoded) == 1 and fresh.cached_tokens == 0
    assert again.summary.output_tokens == fresh.summary.output_tokens
    assert again.prompt_tokens == fresh.prompt_tokens


@pytest.mark.parametrize("kind", ["image_url", "video_url"])
async def test_a_new_item_behind_a_known_one_is_the_only_one_encoded(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    known = picture("red", "circle").uri if kind == "image_url" else clip("left")
    new = picture("blue", "square")
    async with seeing(monkeypatch) as server:
        first = shown(known, QUESTION if kind == "image_url" else "Which way does it move?", kind)
        said = await server.ask(first)
        second = [*answered(first, said, "")[:2], *shown(new.uri)]
        answer = await server.ask(second)
        assert len(server.encoded) == 2 and answer.cached_tokens >= said.prompt_tokens - 8
    async with seeing(monkeypatch, prefix_reuse=False) as cold:
        fresh = await cold.ask(second)
        assert len(cold.encoded) == 2
    assert answer.summary.output_tokens == fresh.summary.output_tokens


async def test_only_the_same_bytes_are_the_same_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other pixels, another encoding or a trailing byte: same grid, no hit, and the right answer."""
    red = picture("red", "square")
    same_look = [picture("red", "square", "WEBP"), attrs.evolve(red, data=red.data + b"\0")]
    async with seeing(monkeypatch) as server:
        first = await server.ask(shown(red.uri))
        repeat = await server.ask(shown(red.uri))
        assert len(server.encoded) == 1 and repeat.cached_tokens > 12
        assert repeat.summary.output_tokens == first.summary.output_tokens
        for n, other in enumerate([picture("green", "square"), *same_look]):
            answer = await server.ask(shown(other.uri))
            assert answer.prompt_tokens == first.prompt_tokens and other.named_by(answer.content)
            assert answer.cached_tokens <= 5 and len(server.encoded) == n + 2


async def test_a_request_that_leaves_gives_its_media_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with seeing(monkeypatch) as server:
        asks: list[Callable[[], Awaitable[Any]]] = [
            partial(server.ask, shown(picture("red", "square").uri)) for _ in range(3)
        ]
        for seconds, ask in zip((0.0, 0.005, 0.05), asks, strict=True):
            with anyio.move_on_after(seconds):
                await ask()
        said = await server.ask(shown(picture("blue", "circle").uri))
        assert "blue" in said.content
        assert server.room.account.live == 0
