"""Typed deltas to Chat JSON: one whole object, or the chunks of a stream.

Promises the stream's order (role, progress, reasoning, content, calls, finish, usage, ``[DONE]``) as long
as the deltas come in theirs, that both forms say the same, and that ``arguments`` is compact JSON in
the generated order.

The one thing a reader would get wrong: with ``include_usage`` every chunk before the last carries
``usage: null``, and the timings move from the finish chunk to the usage chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from ninfer.engine.job import Finish
from ninfer.output.deltas import ParsedCall
from ninfer.protocols.chat.lower import Report
from ninfer.protocols.chat.timings import timings_object, usage_object
from ninfer.protocols.dialect import Dialect
from ninfer.protocols.frames import DONE, Mint, compact, frame, identifier
from ninfer.protocols.service import (
    ContentDelta,
    Delta,
    Finished,
    PromptProgress,
    ReasoningDelta,
    Started,
    Timings,
    ToolCallsDelta,
)

_LENGTH = (Finish.OUTPUT_LIMIT, Finish.CONTEXT)


def finish_reason(done: Finished) -> str:
    """Say why the answer ended; a call that is complete counts before a limit that was reached."""
    if done.calls:
        return "tool_calls"
    return "length" if done.finish in _LENGTH else "stop"


def call_objects(calls: tuple[ParsedCall, ...], mint: Mint) -> list[dict[str, object]]:
    """Build the wire form of calls, each with a fresh id."""
    return [
        {
            "id": identifier("call_", mint),
            "type": "function",
            "function": {"name": call.name, "arguments": compact(dict(call.arguments))},
        }
        for call in calls
    ]


def whole(report: Report, done: Finished, mint: Mint) -> dict[str, object]:
    """Build the aggregate answer."""
    message: dict[str, object] = {
        "role": "assistant",
        "content": None if done.calls and not done.content else done.content,
        "refusal": None,
    }
    if done.reasoning:
        message["reasoning_content"] = done.reasoning
    if done.calls:
        message["tool_calls"] = call_objects(done.calls, mint)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(done)}
    return {
        "id": report.id,
        "object": "chat.completion",
        "created": report.created,
        "model": report.model,
        "choices": [choice],
        "usage": usage_object(done),
        "timings": timings_object(done.timings, terminal=True),
    }


@attrs.frozen
class ChatStream:
    """Renders the deltas of one generation as frames."""

    report: Report
    mint: Mint
    dialect: Dialect

    def frames(self, delta: Delta) -> Iterator[bytes]:
        """Render one delta; a delta that a Chat client never sees renders to nothing."""
        match delta:
            case Started():
                yield self._chunk({"role": "assistant", "content": ""})
            case PromptProgress():
                yield self._chunk({}, {"prompt_progress": _progress(delta)})
            case ReasoningDelta():
                yield self._chunk({"reasoning_content": delta.text}, self._live(delta.timings))
            case ContentDelta():
                yield self._chunk({"content": delta.text}, self._live(delta.timings))
            case ToolCallsDelta():
                yield self._chunk({"tool_calls": _numbered(call_objects(delta.calls, self.mint))})
            case Finished():
                yield from self._end(delta)

    def _end(self, done: Finished) -> Iterator[bytes]:
        timings = {"timings": timings_object(done.timings, terminal=True)}
        usage = self.report.include_usage
        yield self._chunk({}, {} if usage else timings, finish_reason(done))
        if usage:
            yield self._frame([], {"usage": usage_object(done), **timings})
        yield from self.dialect.before_done(done)
        yield DONE

    def _live(self, timings: Timings) -> dict[str, object]:
        if not self.report.timings_per_token:
            return {}
        return {"timings": timings_object(timings, terminal=False)}

    def _chunk(
        self, delta: dict[str, object], more: Mapping[str, object] | None = None, finish: str | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self.report.include_usage else {}
        return self._frame([choice], {**usage, **(more or {})})

    def _frame(self, choices: list[dict[str, object]], more: Mapping[str, object]) -> bytes:
        head = {
            "id": self.report.id,
            "object": "chat.completion.chunk",
            "created": self.report.created,
            "model": self.report.model,
            "choices": choices,
        }
        return frame({**head, **more})


def _numbered(calls: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{"index": index, **call} for index, call in enumerate(calls)]


def _progress(progress: PromptProgress) -> dict[str, object]:
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.processed,
        "time_ms": int(progress.time_ms),
    }
