"""Typed deltas to Messages JSON: one whole message, or the events of a stream.

Promises whole blocks (start, deltas, stop; one after another, never two open), at least one of them, a
signature on thinking blocks alone, and that both forms say the same.

The one thing a reader would get wrong: ``input_tokens`` counts only what was computed; tokens read
from a cache stand beside it, so the two add up to the prompt.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from ninfer.engine.job import Finish
from ninfer.output.deltas import ParsedCall
from ninfer.protocols.frames import Mint, compact, frame, identifier
from ninfer.protocols.messages.lower import Report
from ninfer.protocols.service import (
    ContentDelta,
    Delta,
    Finished,
    ReasoningDelta,
    Started,
    ToolCallsDelta,
)

_LIMITS = {Finish.OUTPUT_LIMIT: "max_tokens", Finish.CONTEXT: "model_context_window_exceeded"}
Block = dict[str, object]


def stop_of(done: Finished) -> dict[str, str | None]:
    """Say why the answer ended: complete calls first, then a stop sequence, then a limit."""
    if done.calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if done.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": done.stop_string}
    return {"stop_reason": _LIMITS.get(done.finish, "end_turn"), "stop_sequence": None}


def usage_object(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, int | None]:
    """Build the ``usage`` member; what was written to a cache is not known."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }


def whole(report: Report, done: Finished, mint: Mint) -> dict[str, object]:
    """Build the aggregate answer."""
    blocks = list(_blocks(done, mint)) or [_text("")]
    usage = usage_object(done.prompt_tokens, done.cached_tokens, done.completion_tokens)
    return _message(report, blocks, stop_of(done), usage)


def _message(
    report: Report, blocks: list[Block], stop: dict[str, str | None], usage: dict[str, int | None]
) -> dict[str, object]:
    head = {"id": report.id, "type": "message", "role": "assistant", "model": report.model}
    return {**head, "content": blocks, **stop, "usage": usage}


def _blocks(done: Finished, mint: Mint) -> Iterator[Block]:
    if done.reasoning:
        yield {**_thinking(done.reasoning), "signature": _sign(mint)}
    if done.content:
        yield _text(done.content)
    for call in done.calls:
        yield {**_tool_use(call, mint), "input": dict(call.arguments)}


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _thinking(text: str) -> Block:
    return {"type": "thinking", "thinking": text}


def _tool_use(call: ParsedCall, mint: Mint) -> Block:
    return {"type": "tool_use", "id": identifier("toolu_", mint), "name": call.name, "input": {}}


def _sign(mint: Mint) -> str:
    """Make the signature that clients want to see on thinking; it carries nothing."""
    return identifier("sig_", mint)


@attrs.define(eq=False)
class MessageStream:
    """Renders the deltas of one generation as events; ``after_stop`` follows the last of them."""

    report: Report
    mint: Mint
    after_stop: tuple[bytes, ...] = ()
    _open: str | None = None  # type of the block that is open
    _index: int = -1  # of the latest block

    def frames(self, delta: Delta) -> Iterator[bytes]:
        """Render one delta; a delta that a Messages client never sees renders to nothing."""
        match delta:
            case Started():
                yield self._start(delta)
            case ReasoningDelta():
                yield from self._enter(_thinking("") | {"signature": ""})
                yield self._delta("thinking_delta", "thinking", delta.text)
            case ContentDelta():
                yield from self._enter(_text(""))
                yield self._delta("text_delta", "text", delta.text)
            case ToolCallsDelta():
                for call in delta.calls:
                    yield from self._call(call)
            case Finished():
                yield from self._end(delta)

    def _start(self, started: Started) -> bytes:
        usage = usage_object(started.prompt_tokens, started.cached_tokens, 0)
        message = _message(self.report, [], {"stop_reason": None, "stop_sequence": None}, usage)
        return _event("message_start", message=message)

    def _enter(self, block: Block) -> Iterator[bytes]:
        """Make sure that a block of this type is open."""
        if self._open != block["type"]:
            yield from self._leave()
            yield from self._begin(block)

    def _begin(self, block: Block) -> Iterator[bytes]:
        self._index += 1
        self._open = str(block["type"])
        yield _event("content_block_start", index=self._index, content_block=block)

    def _leave(self) -> Iterator[bytes]:
        """Close the open block, if one is."""
        if self._open == "thinking":
            yield self._delta("signature_delta", "signature", _sign(self.mint))
        if self._open is not None:
            yield _event("content_block_stop", index=self._index)
        self._open = None

    def _call(self, call: ParsedCall) -> Iterator[bytes]:
        yield from self._leave()
        yield from self._begin(_tool_use(call, self.mint))
        yield self._delta("input_json_delta", "partial_json", compact(dict(call.arguments)))

    def _delta(self, kind: str, member: str, text: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, member: text})

    def _end(self, done: Finished) -> Iterator[bytes]:
        if self._index < 0:
            yield from self._begin(_text(""))
        yield from self._leave()
        usage = usage_object(done.prompt_tokens, done.cached_tokens, done.completion_tokens)
        yield _event("message_delta", delta=stop_of(done), usage=usage)
        yield _event("message_stop")
        yield from self.after_stop


def _event(name: str, **members: object) -> bytes:
    return frame({"type": name, **members}, name)
