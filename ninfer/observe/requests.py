"""What is recorded of one request: pretty lines, JSONL events and metric counts.

Owns the request numbering and the exactly-one-terminal rule: a prepared request gets one
``request_done`` or ``request_error``; a refused one gets ``request_rejected`` and no start.

The one thing a reader would get wrong: error messages may quote the client, so the pretty log prints
codes only; the JSONL record of a rejection carries the message because it is the operator's own file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import attrs

from ninfer.engine.job import Done, Failed, Finish, Job, Shifted, Summary
from ninfer.faults import Fault
from ninfer.observe import members
from ninfer.observe.jsonl import RequestLog
from ninfer.observe.metrics import Metrics
from ninfer.observe.records import Records, count, rate, seconds
from ninfer.output.deltas import ToolParse
from ninfer.prompt.conversation import Conversation, MediaPart
from ninfer.prompt.prepared import Prepared

Members = dict[str, object]


@attrs.frozen
class Shape:
    """The recorded shape of a request: no text, only counts, names of options and ids."""

    protocol: str
    http_request_id: str
    response_id: str
    model: str
    stream: bool
    conversation: Conversation
    requested_tokens: int
    tokens_source: str  # "request" or "default"
    tool_choice: str
    semantic_change: bool


@attrs.define(eq=False)
class Ledger:
    """Hands out one ``RequestWatch`` for each request that enters preparation."""

    records: Records
    log: RequestLog
    metrics: Metrics
    clock: Callable[[], float]
    status_of: Callable[[str, Fault], tuple[int, str]]
    _numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))

    def watch(self, shape: Shape) -> RequestWatch:
        """Begin recording one request."""
        return RequestWatch(self, next(self._numbers), shape, self.clock())


@attrs.define(eq=False)
class RequestWatch:
    """Implements ``service.Watch`` for one request."""

    ledger: Ledger
    number: int
    shape: Shape
    arrived: float
    _request: Members = attrs.field(factory=dict)
    _prepare_seconds: float = 0.0
    _submitted: float = 0.0

    def prepared(self, job: Job, prepared: Prepared) -> None:
        """Record that the request enters the engine."""
        self._submitted = self.ledger.clock()
        self._prepare_seconds = self._submitted - self.arrived
        self._request = self._members(job, prepared)
        self.ledger.log.event(
            "request_start",
            {"request": self._request, "preparation_seconds": {"total": self._prepare_seconds}},
        )
        self.ledger.records.info(
            f"req#{self.number} started | {self.shape.protocol} | prompt {count(len(prepared.ids))}"
            f" | {'stream' if self.shape.stream else 'aggregate'}"
        )

    def refused(self, fault: Fault) -> None:
        """Record a refusal by preparation."""
        status, kind = self.ledger.status_of(self.shape.protocol, fault)
        error = {
            "status": status,
            "type": kind,
            "code": fault.code,
            "param": fault.param,
            "message": fault.message,
        }
        self.ledger.log.event(
            "request_rejected",
            {"phase": "prepare", "request": self._members(None, None), "error": error},
        )
        self.ledger.metrics.settle("rejected", self.ledger.clock() - self.arrived)
        self.ledger.records.info(
            f"req#{self.number} rejected during prepare | {self.shape.protocol} | {status} {fault.code}"
        )

    def abandoned(self) -> None:
        """Record that the client left during preparation."""
        self.ledger.metrics.settle("cancelled", self.ledger.clock() - self.arrived)
        self.ledger.records.info(f"req#{self.number} cancelled during prepare | {self.shape.protocol}")

    def first_token(self, at: float) -> None:
        """Count the time to the first committed token."""
        self.ledger.metrics.first_token(at - self.arrived)

    def shifted(self, event: Shifted) -> None:
        """Record a step of a pause or a recovery."""
        self.ledger.log.event("request_scheduling", members.shift(event, self._request, self._submitted))
        route = event.route or "undecided"
        self.ledger.records.debug(
            f"req#{self.number} {event.transition} | {route} | pause {event.preemption}"
        )

    def settled(self, end: Done | Failed, tools: ToolParse) -> None:
        """Record the one terminal of a started generation."""
        if isinstance(end, Failed):
            self._failed(end)
        else:
            self._done(end, tools)

    def _failed(self, end: Failed) -> None:
        self.ledger.log.event(
            "request_error", {"request": self._request, "error": {"message": end.fault.message}}
        )
        self._measure("failed", end.summary)
        self.ledger.records.error(f"req#{self.number} failed | {self.shape.protocol} | {end.fault.code}")

    def _done(self, end: Done, tools: ToolParse) -> None:
        cancelled = end.finish is Finish.CANCELLED
        self._measure("cancelled" if cancelled else "completed", end.summary)
        self.ledger.log.event("request_done", self._done_members(end, tools))
        self.ledger.records.info(self._done_line(end, cancelled))
        if tools.fallback != "none":
            self.ledger.records.warning(
                f"req#{self.number} tool markup returned as text | {tools.fallback}"
            )

    def _measure(self, outcome: str, summary: Summary) -> None:
        started = summary.submitted or self.arrived
        queued = (summary.admitted or summary.ended) - started
        self.ledger.metrics.settle(outcome, summary.ended - self.arrived, max(0.0, queued))

    def _done_line(self, end: Done, cancelled: bool) -> str:
        s = end.summary
        spans = members.stages(s)
        share = 100 * s.cached_tokens / s.prompt_tokens if s.prompt_tokens else 0.0
        parts = [
            f"req#{self.number} {'cancelled during transport' if cancelled else 'done'}",
            self.shape.protocol,
            end.finish.value,
            f"prompt {count(s.prompt_tokens)}",
            f"output {count(len(s.output_tokens))}",
            f"cache {count(s.cached_tokens)} ({share:.0f}%, {s.path})",
            f"TTFT {seconds(spans['ttft'])}",
            f"total {seconds(spans['total'])}",
            f"prefill {rate(s.computed_prefill_tokens, spans['prefill'])}",
            f"decode {rate(max(0, len(s.output_tokens) - 1), spans['decode'])}",
        ]
        if s.drafted:
            parts.append(f"accepted {s.accepted}/{s.drafted} ({100 * s.accepted / s.drafted:.0f}%)")
        if s.control_tokens:
            parts.append(f"thinking {s.model_thinking_tokens} + control {s.control_tokens}")
        return " | ".join(parts)

    def _members(self, job: Job | None, prepared: Prepared | None) -> Members:
        shape, options = self.shape, self.shape.conversation.options
        messages = shape.conversation.messages
        return {
            "request_id": self.number,
            "http_request_id": shape.http_request_id,
            "response_id": shape.response_id if job else "",
            "protocol": shape.protocol,
            "model": shape.model,
            "stream": shape.stream,
            "message_count": len(messages),
            "media_item_count": sum(isinstance(p, MediaPart) for m in messages for p in m.parts),
            "requested_output_tokens": shape.requested_tokens,
            "requested_output_tokens_source": shape.tokens_source,
            "tool_count": len(shape.conversation.tools),
            "tool_choice": shape.tool_choice,
            "has_tool_history": any(m.calls or m.role == "tool" for m in messages),
            "enable_thinking": prepared.thinking if prepared else options.enable_thinking,
            "thinking_budget": job.thinking.budget if job and job.thinking else None,
            "requested_reasoning_effort": options.reasoning_effort,
            "preserve_thinking": options.preserve_thinking,
            "preserve_thinking_semantic_change": shape.semantic_change,
            "sampling": members.sampling(job.sampling) if job else None,
        }

    def _done_members(self, end: Done, tools: ToolParse) -> Members:
        s = end.summary
        spans = members.stages(s)
        return {
            "request": self._request,
            "result": members.result(end, self._request, tools),
            "timings_seconds": {"prepare": self._prepare_seconds, "vision": s.vision_seconds, **spans},
            "speculative": members.speculative(s),
            "generation": members.generation(s, self.number),
            "engine_timing": members.engine_timing(s),
            "first_output_timing": members.first_output(s),
        }
