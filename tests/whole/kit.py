"""The whole server over the bundled model: real rooms, the real NumPy program, no thread and no socket."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import anyio
import attrs

from ninfer.artifact import open_artifact
from ninfer.engine.device import Geometry, Prefill, Raw, Result, Unit
from ninfer.runtime.build import build_numpy
from ninfer.runtime.program import NumpyProgram
from ninfer.settings import EngineOptions, GenerationDefaults
from ninfer.startup import ServeOptions
from tests.sim.server import ARTIFACT, World, request, serving

TURN, STOP = 4077, 4078  # <|im_start|>, <|im_end|>
PLAIN = GenerationDefaults()
UNIT = 0.001  # seconds of a unit on the mock clock
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


@attrs.frozen
class Answered:
    """A unit that ran when it was submitted, and takes its time on the mock clock."""

    outcome: Result

    async def result(self) -> Result:
        """Let others run and arrive."""
        await anyio.sleep(UNIT)
        return self.outcome


@attrs.define(eq=False)
class Inline:
    """A device without a thread; implements ``Device`` and ``Archive``."""

    program: NumpyProgram
    log: list[Unit] = attrs.field(factory=list)
    results: list[Result] = attrs.field(factory=list)

    @property
    def geometry(self) -> Geometry:
        """The program's."""
        return self.program.geometry

    @property
    def signature(self) -> str:
        """The program's."""
        return self.program.signature

    def submit(self, unit: Unit) -> Answered:
        """Run at once."""
        self.log.append(unit)
        self.results.append(self.program.run(unit))
        return Answered(self.results[-1])

    async def export(self, slot: int | None, pages: tuple[int, ...]) -> Raw:
        """Give out state."""
        return self.program.export(slot, pages)

    async def export_host(self, key: int, skip: int, count: int) -> Raw:
        """Give out host memory."""
        return self.program.export_host(key, skip, count)

    async def room(self, key: int, pages: int) -> memoryview:
        """Set host memory aside."""
        return self.program.room(key, pages)

    def prompts(self) -> list[tuple[int, ...]]:
        """The ids of every prompt that was computed from its first token, in order."""
        found: list[tuple[int, ...]] = []
        for unit in self.log:
            if isinstance(unit, Prefill) and unit.start == 0:
                found.append(unit.ids)
            elif isinstance(unit, Prefill) and found and unit.start == len(found[-1]):
                found[-1] += unit.ids
        return found


@cache
def artifact() -> Any:
    """The bundled dense model, opened once."""
    return open_artifact(ARTIFACT)


def inline(**options: Any) -> tuple[Inline, EngineOptions]:
    """Build a device and the options that it was built with; contexts of 512 tokens unless said."""
    chosen = EngineOptions(**{"max_context": 512, "prefill_chunk": 256, **options})
    return Inline(build_numpy(artifact(), chosen, lambda text: None)), chosen


@asynccontextmanager
async def model(defaults: GenerationDefaults = PLAIN, **options: Any) -> AsyncIterator[World]:
    """Serve the bundled model; afterwards nothing may be held."""
    device, chosen = inline(**options)
    async with serving(device, ServeOptions(ARTIFACT, engine=chosen, defaults=defaults)) as world:
        yield world
        await anyio.sleep(1)
        assert world.app.engine.failure is None
        assert world.idle()


async def ask(world: World, body: dict[str, Any], dialect: str = "chat") -> Any:
    """Send one request and return the JSON of its answer."""
    sent = {"model": "tiny", "temperature": 0, **body}
    answer = await world.connect().ask(request(PATHS[dialect], json.dumps(sent).encode()), "POST")
    assert answer.status == 200, answer.body
    return answer.json


def cached(answer: Any) -> int:
    """How much of a Chat prompt was known."""
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


# Eight requests of different kinds

TALK = (
    ("What is 47 + 38?", {}),
    ("Tell me a short story about a fox.", {"reasoning_effort": "none"}),
    ("What is the capital of France?", {}),
    ("Count from 3 to 20.", {"reasoning_effort": "none"}),
    ("Make a JSON object with name Milo, age 7, city Oslo.", {"reasoning_effort": "none"}),
    ("Describe the strangest machine that nobody ever built.", {"temperature": 1.0, "seed": 5}),
    ("Translate to Chinese: cat, water, friend", {"temperature": 0.8, "presence_penalty": 0.5, "seed": 6}),
    ("Zorp the quux until it blems, and say why.", {}),
)


def talk(count: int = 8, tokens: int = 24) -> list[dict[str, Any]]:
    """Requests of one system prompt and different questions; two of them are sampled."""
    system = {"role": "system", "content": "You are a helpful assistant. " + "Be brief and kind. " * 4}
    return [
        {"messages": [system, {"role": "user", "content": text}], "max_tokens": tokens, "seed": 1, **more}
        for text, more in TALK[:count]
    ]


async def together(world: World, bodies: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Ask everything at once; return the ids that each was answered with, in the order of asking."""
    async with anyio.create_task_group() as tasks:
        for body in bodies:
            tasks.start_soon(ask, world, body)
            await anyio.sleep(UNIT / 100)
    return said(world, len(bodies))


async def in_turn(world: World, bodies: Sequence[dict[str, Any]]) -> list[list[int]]:
    """Ask one after the other; return the ids of each answer."""
    for body in bodies:
        await ask(world, body)
    return said(world, len(bodies))


def said(world: World, last: int) -> list[list[int]]:
    """Return the ids of the last answers, in the order in which the requests began."""
    order = [event["request"]["request_id"] for event in world.events("request_start")]
    done = {event["request"]["request_id"]: event["result"] for event in world.events("request_done")}
    return [done[number]["generated_token_ids"] for number in order[-last:]]
