"""The whole server in one deterministic process: real rooms, a scripted device, memory streams.

``serving`` wires the very application that ``ninfer serve`` runs (``app.assemble``) around a fake device;
tests talk to it through in-memory connections and the mock clock.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import anyio
import attrs
from anyio.abc import ByteStream

from ninfer.app import Application, Model, Ports, assemble
from ninfer.artifact import open_artifact
from ninfer.engine.device import Device
from ninfer.frontend import ArtifactFront, build_front
from ninfer.media.room import MediaRoom
from ninfer.observe.jsonl import RequestLog
from ninfer.observe.records import Records
from ninfer.protocols.dialect import RunBlocking
from ninfer.settings import EngineOptions, GenerationDefaults
from ninfer.startup import ServeOptions
from tests.http.kit import Client, head
from tests.http.memory import pair
from tests.sim.fake_device import FakeDevice, Lane, small

ARTIFACT = Path(__file__).resolve().parents[2] / "fixtures" / "tiny-qwen3_5.ninfer"
T = TypeVar("T")


@cache
def bundled_front(max_context: int = 4096, preserve: bool | None = None) -> ArtifactFront:
    """The front end of the bundled model."""
    with open_artifact(ARTIFACT) as artifact:
        return build_front(artifact, None, max_context, GenerationDefaults(preserve_thinking=preserve))


@attrs.frozen
class Says:
    """A voice that answers every prompt with ``text`` and the end-of-turn token.

    The prompt ends where the assistant's turn was opened; what follows it was said.
    """

    text: str
    front: ArtifactFront = attrs.field(factory=bundled_front)

    def __call__(self, ids: Sequence[int], chain: int, lane: Lane) -> int:
        """Choose the next token by how many this lane has said."""
        vocabulary = self.front.preparer.vocabulary
        answer = vocabulary.encode_sealed(vocabulary.seals.seal(self.text))
        said = lane.generated
        return answer[said] if said < len(answer) else vocabulary.special("<|im_end|>")


async def inline(work: Callable[[], T]) -> T:
    """Stand in for a worker thread, which the mock clock could not see."""
    await anyio.lowlevel.checkpoint()
    return work()


@attrs.define(eq=False)
class Doors:
    """A listener of memory connections."""

    _send: Any = attrs.field(init=False)
    _receive: Any = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[ByteStream](64)

    async def accept(self) -> ByteStream:
        """Wait for the next connection."""
        stream: ByteStream = await self._receive.receive()
        return stream

    async def aclose(self) -> None:
        """Accept no more."""
        self._receive.close()
        self._send.close()

    def connect(self, room: int = 65_536) -> Client:
        """Open a connection; ``room`` is how many bytes may be unread."""
        near, far = pair(room)
        self._send.send_nowait(far)
        return Client(near)


@attrs.define(eq=False)
class Journal:
    """A request log in memory; ``fault`` makes every line fail."""

    lines: list[bytes] = attrs.field(factory=list)
    fault: OSError | None = None

    def append(self, line: bytes) -> None:
        """Keep one line."""
        if self.fault is not None:
            raise self.fault
        self.lines.append(line)


@attrs.define(eq=False)
class World:
    """A running server and what it has written."""

    app: Application
    device: Any
    doors: Doors
    stderr: io.StringIO
    journal: Journal

    def connect(self, room: int = 65_536) -> Client:
        """Open a connection to it."""
        return self.doors.connect(room)

    @property
    def log(self) -> list[dict[str, Any]]:
        """Every request-log event."""
        return [json.loads(line) for line in self.journal.lines]

    def events(self, name: str) -> list[dict[str, Any]]:
        """Request-log events of one name."""
        return [event for event in self.log if event["event"] == name]

    async def scrape(self) -> dict[str, float]:
        """Everything on ``/metrics``, by sample name with labels."""
        page = (await self.connect().ask(head(target="/metrics"))).body.decode()
        rows = (line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in rows}

    def idle(self) -> bool:
        """Whether nothing is held: no seat, lane, page or exchange."""
        stats = self.app.engine.stats()
        self.app.engine.check()
        busy = stats.running + stats.waiting + stats.paused + stats.seats_taken
        return not busy and not self.app.server.house.exchanges


def chat(content: str = "hi", **members: Any) -> bytes:
    """A Chat Completions request."""
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        **members,
    }
    raw = json.dumps(body).encode()
    return request("/v1/chat/completions", raw)


def request(path: str, raw: bytes) -> bytes:
    """A POST of JSON bytes."""
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


@asynccontextmanager
async def serving(
    device: Device | None = None,
    options: ServeOptions | None = None,
    run_blocking: RunBlocking = inline,
    front: ArtifactFront | None = None,
    media: MediaRoom | None = None,
) -> AsyncIterator[World]:
    """Run a server to the end of the block; afterwards everything must have come back."""
    device = device or FakeDevice(geometry(), voice=Says("hello there"))
    options = options or ServeOptions(ARTIFACT, engine=EngineOptions(max_context=1024))
    stderr, journal = io.StringIO(), Journal()
    records = Records(stderr, options.log_level, lambda: 0.0)
    numbers = itertools.count(1)
    app = assemble(
        options,
        Model("tiny", "Qwen3_5ForCausalLM"),
        front or bundled_front(),
        device,
        records,
        RequestLog(journal, "serve-1-1", lambda: 0.0, records.warning),
        Ports(run_blocking, lambda: next(numbers), anyio.current_time),
        media,
    )
    doors = Doors()
    world = World(app, device, doors, stderr, journal)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.engine.run)
        tasks.start_soon(app.server.run, [doors])
        tasks.start_soon(app.throughput.run)
        yield world
        tasks.cancel_scope.cancel()
    assert not app.server.house.exchanges


def geometry(lanes: int = 1, **changes: int) -> Any:
    """A device geometry for the bundled vocabulary: 1,024 tokens a lane in 64-token pages."""
    base = {
        "lanes": lanes,
        "pages": 16 * lanes,
        "page_tokens": 64,
        "max_context": 1024,
        "prefill_chunk": 64,
        "vocab": 4096,
    }
    return small(**{**base, **changes})
