"""Scripted doors for the protocol rooms, and independent readers of what they write.

``ScriptedService`` plays deltas that a test wrote down, ``RecordingExchange`` keeps what a handler
answers, ``parse_sse`` reads event streams byte by byte without knowing how they were made, and
``check_chat_stream`` holds any Chat stream against the order and the sums that clients rely on.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from ninfer.engine.job import Finish, Summary
from ninfer.faults import Fault, Refused
from ninfer.http.body import read_json as body_json
from ninfer.http.exchange import Reply, Request
from ninfer.output.deltas import ParsedCall, ToolParse
from ninfer.prompt.conversation import Conversation, Json
from ninfer.protocols.dialect import Dialect, Kit
from ninfer.protocols.fields import Reader
from ninfer.protocols.service import (
    Ask,
    ContentDelta,
    Delta,
    Finished,
    GenerationFailed,
    ModelCard,
    ReasoningDelta,
    Started,
    Timings,
    ToolCallsDelta,
)
from ninfer.settings import JsonBudget

CARD = ModelCard(id="tiny", max_context=8192, created=1_700_000_000, vision=False)
BUDGET = JsonBudget()
READER = Reader(BUDGET)


def read_json(body: bytes) -> object:
    """Read JSON as the server does."""
    return body_json(body, BUDGET)


def counting_mint(start: int = 1) -> Callable[[], int]:
    """Ids 1, 2, 3 in place of random ones."""
    numbers = itertools.count(start)
    return lambda: next(numbers)


# Scripts


@attrs.frozen
class Wait:
    """A pause of the scripted generation, in clock seconds."""

    seconds: float


def timings(predicted: int = 0, prompt: int = 10, cached: int = 0, **more: Any) -> Timings:
    """A plausible snapshot: 1 ms per prompt token, 10 ms per interval between output tokens."""
    computed = prompt - cached
    return Timings(
        cache_n=cached,
        prompt_n=computed,
        prompt_ms=1.0 * computed,
        predicted_n=predicted,
        predicted_ms=10.0 * max(predicted - 1, 0),
        **more,
    )


def reasoning(text: str, predicted: int = 1) -> ReasoningDelta:
    """A visible piece of reasoning."""
    return ReasoningDelta(text, timings(predicted))


def content(text: str, predicted: int = 1) -> ContentDelta:
    """A visible piece of the answer."""
    return ContentDelta(text, timings(predicted))


def call(name: str, **arguments: Json) -> ParsedCall:
    """A structured call, arguments in the order given."""
    return ParsedCall(name, arguments)


def answer(
    *pieces: Delta | Wait,
    finish: Finish = Finish.STOP_TOKEN,
    prompt: int = 10,
    cached: int = 0,
    tokens: int | None = None,
    reasoning_tokens: int = 0,
    stop_string: str | None = None,
    last: Timings | None = None,
) -> list[Delta | Wait]:
    """A whole script: Started, the pieces, and a Finished whose aggregates fit the pieces."""
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, ReasoningDelta))
    text = "".join(piece.text for piece in pieces if isinstance(piece, ContentDelta))
    calls = tuple(c for piece in pieces if isinstance(piece, ToolCallsDelta) for c in piece.calls)
    visible = [piece for piece in pieces if not isinstance(piece, Wait)]
    count = len(visible) + 1 if tokens is None else tokens
    done = Finished(
        finish=finish,
        reasoning=thoughts,
        content=text,
        calls=calls,
        tool_parse=ToolParse(marker_seen=bool(calls), calls=len(calls)),
        stop_string=stop_string,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=count,
        reasoning_tokens=reasoning_tokens,
        timings=last or timings(count, prompt, cached),
        summary=Summary(prompt_tokens=prompt, cached_tokens=cached),
    )
    return [Started(prompt, cached), *pieces, done]


def failing(fault: Fault, *pieces: Delta | Wait, prompt: int = 10) -> list[Delta | Wait]:
    """A script that begins and then fails."""
    return [Started(prompt, 0), *pieces, GenerationFailed(fault)]


# Doors


@attrs.define(eq=False)
class _ScriptedGeneration:
    script: Sequence[Delta | Wait]
    thinking: bool

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for step in self.script:
            if isinstance(step, Wait):
                await trio.sleep(step.seconds)
            else:
                await trio.lowlevel.checkpoint()
                yield step


@attrs.define(eq=False)
class ScriptedService:
    """Plays ``scripts`` one after another (the last one for ever); ``refusal`` is raised at open."""

    scripts: list[list[Delta | Wait]] = attrs.field(factory=lambda: [answer(content("Hello"))])
    refusal: Fault | None = None
    card: ModelCard = CARD
    healthy: bool = True
    thinking: bool = False
    tokens: int = 10  # what ``count`` says
    delay: float = 0.0  # clock seconds until a place is free
    asks: list[Ask] = attrs.field(factory=list)
    counted: list[Conversation] = attrs.field(factory=list)
    open_now: int = 0

    @asynccontextmanager
    async def open(self, ask: Ask) -> AsyncIterator[_ScriptedGeneration]:
        """Record the ask, raise the refusal or play the next script."""
        self.asks.append(ask)
        await trio.sleep(self.delay)
        if self.refusal is not None:
            raise Refused(self.refusal)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self.open_now += 1
        try:
            yield _ScriptedGeneration(script, self.thinking)
        finally:
            self.open_now -= 1

    async def count(self, conversation: Conversation) -> int:
        """Record the conversation and answer with ``tokens``."""
        self.counted.append(conversation)
        await trio.lowlevel.checkpoint()
        if self.refusal is not None:
            raise Refused(self.refusal)
        return self.tokens


@attrs.define(eq=False)
class RecordingExchange:
    """Keeps the reply or the frames of one answer, with the clock time of each frame."""

    answer: Reply | None = None
    frames: list[bytes] = attrs.field(factory=list)
    times: list[float] = attrs.field(factory=list)
    stream_headers: tuple[tuple[str, str], ...] = ()
    streamed: bool = False
    ended: bool = False
    started: bool = False
    breaks_after: int | None = None  # frames until the peer is gone

    async def reply(self, reply: Reply) -> None:
        """Keep a whole answer; there may be only one."""
        assert self.answer is None and not self.started, "answered twice"
        self.answer, self.started = reply, True

    @asynccontextmanager
    async def stream(self, headers: tuple[tuple[str, str], ...] = ()) -> AsyncIterator[RecordingExchange]:
        """Open the stream; nothing counts as sent before the first frame."""
        assert self.answer is None and not self.streamed, "answered twice"
        self.streamed, self.stream_headers = True, headers
        yield self
        self.ended = True

    async def send(self, frame: bytes) -> None:
        """Keep one frame."""
        await trio.lowlevel.checkpoint()
        if self.breaks_after is not None and len(self.frames) >= self.breaks_after:
            raise trio.BrokenResourceError
        self.started = True
        self.frames.append(frame)
        self.times.append(trio.current_time())

    @property
    def status(self) -> int:
        """The status that the peer saw."""
        return self.answer.status if self.answer else 200

    @property
    def json(self) -> Any:
        """The whole answer, parsed."""
        assert self.answer is not None, "no whole answer was given"
        return json.loads(self.answer.body)

    @property
    def events(self) -> list[Event]:
        """The streamed answer, read by the independent parser."""
        return list(parse_sse(b"".join(self.frames)))


def kit(service: ScriptedService, dialect: Dialect = Dialect()) -> Kit:  # noqa: B008
    """A kit around a scripted service: ids 1, 2, 3; the clock stands at 1,700,000,000."""
    return Kit(service, READER, read_json, counting_mint(), lambda: 1_700_000_000.0, dialect)


def request(
    body: object = None,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Request:
    """A whole request; ``body`` is bytes, or a value to be written as JSON."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return Request(method, path, "", headers or {}, raw, "req_0001", variables or {})


# Readers


@attrs.frozen
class Event:
    """One server-sent event as a client's parser would dispatch it."""

    name: str
    data: str

    @property
    def json(self) -> Any:
        """The data, parsed."""
        return json.loads(self.data)


def parse_sse(raw: bytes) -> Iterator[Event]:
    """Read an event stream byte by byte after the EventSource rules; comments are dropped."""
    for block in _blocks(_lines(raw)):
        data = [value for name, value in block if name == "data"]
        names = [value for name, value in block if name == "event"]
        if data:
            yield Event(names[-1] if names else "", "\n".join(data))


def _lines(raw: bytes) -> Iterator[str]:
    line, was_cr = bytearray(), False
    for byte in raw:
        if byte == 0x0A and was_cr:
            was_cr = False
        elif byte in (0x0A, 0x0D):
            yield line.decode()
            line.clear()
            was_cr = byte == 0x0D
        else:
            line.append(byte)
            was_cr = False
    assert not line, f"the stream ends inside a line: {bytes(line)!r}"


def _blocks(lines: Iterable[str]) -> Iterator[list[tuple[str, str]]]:
    block: list[tuple[str, str]] = []
    for line in lines:
        if not line:
            yield block
            block = []
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            block.append((name, value.removeprefix(" ")))
    assert not block, f"the stream ends inside an event: {block}"


@attrs.define
class ChatStream:
    """What a Chat stream said, put together again."""

    id: str = ""
    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = attrs.field(factory=list)
    finish: str | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None
    progress: list[dict[str, Any]] = attrs.field(factory=list)
    error: dict[str, Any] | None = None


_PHASES = ("role", "progress", "reasoning", "content", "calls", "finish", "usage")


def _phase(chunk: dict[str, Any]) -> str:
    if not chunk["choices"]:
        return "usage"
    choice = chunk["choices"][0]
    delta = choice["delta"]
    if choice["finish_reason"] is not None:
        return "finish"
    if "role" in delta:
        return "role"
    if "prompt_progress" in chunk:
        return "progress"
    if "tool_calls" in delta:
        return "calls"
    return "reasoning" if "reasoning_content" in delta else "content"


def _check_chunk(chunk: dict[str, Any], first: dict[str, Any]) -> None:
    assert chunk["object"] == "chat.completion.chunk"
    for member in ("id", "model", "created"):
        assert chunk[member] == first[member], member
    for choice in chunk["choices"]:
        assert choice["index"] == 0 and choice["logprobs"] is None


def check_chat_stream(events: Sequence[Event], *, include_usage: bool = False) -> ChatStream:
    """Hold a Chat stream against its promises and put the answer together.

    One id throughout; role, progress, reasoning, content, calls, finish, usage in that order;
    one terminal; ``usage`` null before the last chunk when it was asked for, absent otherwise;
    ``timings`` on the last JSON chunk; ``[DONE]`` once, last.  A failed stream ends with its
    error line instead.
    """
    out = ChatStream()
    assert all(event.name == "" for event in events)
    payloads = [event.data for event in events]
    if payloads and payloads[-1] != "[DONE]":
        out.error = json.loads(payloads[-1])["error"]
    chunks = [json.loads(payload) for payload in payloads[:-1]]
    for chunk in chunks:
        _check_chunk(chunk, chunks[0])
        _add_chunk(out, chunk)
    phases = [_PHASES.index(_phase(chunk)) for chunk in chunks]
    assert phases == sorted(phases), [_PHASES[phase] for phase in phases]
    _check_once(chunks, phases, failed=out.error is not None)
    if out.error is None:
        _check_end(out, chunks, include_usage)
    return out


def _add_chunk(out: ChatStream, chunk: dict[str, Any]) -> None:
    out.id = chunk["id"]
    out.usage = chunk.get("usage") or out.usage
    out.timings = chunk.get("timings") or out.timings
    if "prompt_progress" in chunk:
        out.progress.append(chunk["prompt_progress"])
    for choice in chunk["choices"]:
        delta = choice["delta"]
        out.reasoning += delta.get("reasoning_content", "")
        out.content += delta.get("content", "")
        out.calls += delta.get("tool_calls", [])
        out.finish = choice["finish_reason"] or out.finish


def _check_once(chunks: list[dict[str, Any]], phases: list[int], *, failed: bool) -> None:
    count = {name: phases.count(index) for index, name in enumerate(_PHASES)}
    if chunks:
        assert count["role"] == 1 and phases[0] == 0
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert count["calls"] <= 1 and count["usage"] <= 1
    assert count["finish"] == (0 if failed else 1)


def _check_end(out: ChatStream, chunks: list[dict[str, Any]], include_usage: bool) -> None:
    assert "timings" in chunks[-1]
    finish = next(chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["finish_reason"])
    assert finish["choices"][0]["delta"] == {}
    if include_usage:
        assert not chunks[-1]["choices"] and out.usage is not None
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        total = out.usage["prompt_tokens"] + out.usage["completion_tokens"]
        assert out.usage["total_tokens"] == total
    else:
        assert all("usage" not in chunk for chunk in chunks)
    for index, made in enumerate(out.calls):
        assert made["index"] == index and made["type"] == "function"
        json.loads(made["function"]["arguments"])
