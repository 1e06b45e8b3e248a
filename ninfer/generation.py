"""One running generation as protocols see it: engine events in, typed deltas out.

Owns the mapping of ``engine.job`` events through the tool parser, the aggregates and the timing
snapshot.  Runs in the request's own task, so a slow reader delays nobody else.

The one thing a reader would get wrong: text held by the tool parser is set free at the end, so
``Finished.content`` equals the concatenation of all content deltas, whatever the parser decided.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import attrs

from ninfer.engine.channel import Reader
from ninfer.engine.job import Admitted, Committed, Done, Event, Failed, Progress, Shifted
from ninfer.faults import Broken
from ninfer.output.deltas import ParsedCall, Piece, ToolParse
from ninfer.output.session import OutputSession
from ninfer.output.toolcalls import ToolStream
from ninfer.protocols.service import (
    ContentDelta,
    Delta,
    Finished,
    GenerationFailed,
    PromptProgress,
    ReasoningDelta,
    Started,
    Timings,
    ToolCallsDelta,
)


@attrs.define(eq=False)
class RunningGeneration:
    """Implements ``protocols.service.Generation``."""

    thinking: bool
    prompt_tokens: int
    judge: OutputSession
    tools: ToolStream
    progress: bool = False
    on_first: Callable[[float], None] = lambda at: None
    on_shift: Callable[[Shifted], None] = lambda event: None
    events: Reader[Event] | None = None
    tool_parse: ToolParse = attrs.field(factory=ToolParse)
    calls: tuple[ParsedCall, ...] = ()
    cached: int = 0
    _admitted: float = 0.0
    _first: float | None = None
    _last: float | None = None
    _processed: int = 0
    _tokens: int = 0
    _drafted: int = 0
    _accepted: int = 0
    _reasoning: list[str] = attrs.field(factory=list)
    _content: list[str] = attrs.field(factory=list)

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Yield deltas in order; the last is ``Finished`` or ``GenerationFailed``."""
        if self.events is None:
            raise Broken("a generation was read before it was submitted")
        async for event in self.events:
            for delta in self._deltas(event):
                yield delta

    @property
    def timings(self) -> Timings:
        """Snapshot of the committed frontier; all values finite."""
        first, last = self._first, self._last
        return Timings(
            cache_n=self.cached,
            prompt_n=self.prompt_tokens - self.cached,
            prompt_ms=0.0 if first is None else (first - self._admitted) * 1e3,
            predicted_n=self._tokens,
            predicted_ms=0.0 if first is None or last is None else (last - first) * 1e3,
            draft_n=self._drafted,
            draft_n_accepted=self._accepted,
        )

    def _deltas(self, event: Event) -> Iterator[Delta]:
        if isinstance(event, Admitted):
            yield from self._started(event)
        elif isinstance(event, Progress):
            yield from self._advanced(event)
        elif isinstance(event, Committed):
            yield from self._committed(event)
        elif isinstance(event, Shifted):
            self.on_shift(event)
        elif isinstance(event, Done):
            yield from self._done(event)
        elif isinstance(event, Failed):
            yield GenerationFailed(event.fault)

    def _started(self, event: Admitted) -> Iterator[Delta]:
        self._admitted, self.cached = event.at, event.cached_tokens
        self._processed = event.cached_tokens
        yield Started(event.prompt_tokens, event.cached_tokens)
        if self.progress:
            yield PromptProgress(self.prompt_tokens, self.cached, self.cached, 0.0)

    def _advanced(self, event: Progress) -> Iterator[Delta]:
        if self.progress and event.processed > self._processed:
            self._processed = event.processed
            elapsed = (event.at - self._admitted) * 1e3
            yield PromptProgress(self.prompt_tokens, self.cached, event.processed, elapsed)

    def _committed(self, event: Committed) -> Iterator[Delta]:
        if self._first is None:
            self._first = event.at
            self.on_first(event.at)
            yield from self._advanced(Progress(event.at, self.prompt_tokens))
        self._last = event.at
        self._tokens += len(event.tokens)
        self._drafted, self._accepted = event.drafted, event.accepted
        yield from self._visible(event.piece)

    def _visible(self, piece: Piece | None) -> Iterator[Delta]:
        if piece is None:
            return
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
            yield ReasoningDelta(piece.reasoning, self.timings)
        yield from self._text(self.tools.feed(piece.content) if piece.content else "")

    def _text(self, text: str) -> Iterator[Delta]:
        if text:
            self._content.append(text)
            yield ContentDelta(text, self.timings)

    def _done(self, event: Done) -> Iterator[Delta]:
        if self._first is None:
            yield from self._advanced(Progress(event.summary.ended, self.prompt_tokens))
        yield from self._visible(event.piece)
        rest, self.calls, self.tool_parse = self.tools.finish()
        yield from self._text(rest)
        if self.calls:
            yield ToolCallsDelta(self.calls, self.timings)
        yield self._finished(event)

    def _finished(self, event: Done) -> Finished:
        return Finished(
            finish=event.finish,
            reasoning="".join(self._reasoning),
            content="".join(self._content),
            calls=self.calls,
            tool_parse=self.tool_parse,
            stop_string=self.judge.stop_string,
            prompt_tokens=event.summary.prompt_tokens,
            cached_tokens=event.summary.cached_tokens,
            completion_tokens=len(event.summary.output_tokens),
            reasoning_tokens=event.summary.thinking_tokens,
            timings=self.timings,
            summary=event.summary,
        )
