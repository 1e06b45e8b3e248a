"""What is recorded of one request: pretty lines, JSONL events and metric counts.

Owns the request numbering and the exactly-one-terminal rule: a request that starts gets one
``request_done`` or ``request_error``; one that does not gets one ``request_rejected`` and no start.
Every one of them counts once in ``ninfer_requests_total``.

The one thing a reader would get wrong: fault messages may quote the client, so the pretty log prints
codes only; the JSONL record of a rejection carries the message because it is the operator's own file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import attrs

from ninfer.engine.job import Done, Failed, Finish, Job, Shifted
from ninfer.faults import Fault, Kind
from ninfer.observe import lines, members
from ninfer.observe.jsonl import RequestLog
from ninfer.observe.metrics import Metrics
from ninfer.observe.records import Records
from ninfer.output.deltas import ToolParse
from ninfer.prompt.conversation import Conversation, MediaPart
from ninfer.prompt.prepared import Preparation, Prepared

Members = dict[str, object]
_LEVELS = {
    Kind.OVERLOADED: "warning",
    Kind.QUEUE_TIMEOUT: "warning",
    Kind.UNAVAILABLE: "warning",
    Kind.INTERNAL: "error",
}


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


@attrs.frozen
class Ledger:
    """Hands out one ``RequestWatch`` for each request that asks for a generation.

    ``status_of`` gives the HTTP status, type and code with which a protocol answers a fault;
    ``speculation`` is the drafter's name (None: none) and its widest draft.
    """

    records: Records
    log: RequestLog
    metrics: Metrics
    clock: Callable[[], float]
    status_of: Callable[[str, Fault], tuple[int, str, str | None]]
    speculation: tuple[str | None, int] = (None, 0)
    _numbers: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    _answering: set[str] = attrs.field(factory=set)  # HTTP requests whose generation is complete

    def watch(self, shape: Shape) -> RequestWatch:
        """Begin recording one request."""
        return RequestWatch(self, next(self._numbers), shape, self.clock())

    def complete(self, http_request_id: str) -> None:
        """Hear that a generation is complete and only its answer has still to reach the peer."""
        self._answering.add(http_request_id)

    def answered(self, http_request_id: str, whole: bool) -> None:
        """Hear that an HTTP exchange is over, and whether its answer went out whole."""
        if http_request_id in self._answering:
            self._answering.remove(http_request_id)
            if not whole:
                self.metrics.response_failures += 1
                self.records.info(f"{http_request_id} answer not delivered | its generation was complete")


@attrs.define(eq=False)
class RequestWatch:
    """Implements ``service.Watch`` for one request."""

    ledger: Ledger
    number: int
    shape: Shape
    arrived: float
    _request: Members = attrs.field(factory=dict)
    _budget: int | None = None
    _prepare_seconds: float = 0.0
    _submitted: float = 0.0
    _first_token: bool = False

    # Before the start

    def prepared(self, job: Job, prepared: Prepared, costs: Preparation) -> None:
        """Record that the request enters the engine."""
        self.arrived, self._submitted = job.arrived, self.ledger.clock()
        self._prepare_seconds = self._submitted - self.arrived
        self._budget = job.thinking.budget if job.thinking else None
        self._request = self._members(job, prepared)
        spent = {"total": self._prepare_seconds, **attrs.asdict(costs)}
        self.ledger.log.event("request_start", {"request": self._request, "preparation_seconds": spent})
        shape = self.shape
        self.ledger.records.info(
            lines.started(self.number, shape.protocol, len(prepared.ids), shape.stream)
        )

    def refused(self, fault: Fault) -> None:
        """Record a refusal before the start."""
        status, kind, code = self.ledger.status_of(self.shape.protocol, fault)
        error = {
            "status": status,
            "type": kind,
            "code": code,
            "param": fault.param,
            "message": fault.message,
        }
        self._rejected(error, "failed" if fault.kind is Kind.INTERNAL else "rejected")
        self.ledger.records.write(
            _LEVELS.get(fault.kind, "info"),
            f"req#{self.number} rejected during prepare | {self.shape.protocol} | {status} {code}",
        )

    def abandoned(self) -> None:
        """Record that the client left before the start; nobody heard a status."""
        message = "the client left before the request was prepared"
        code = "client_disconnected"
        self._rejected(
            {"status": None, "type": "cancelled", "code": code, "param": None, "message": message},
            "cancelled",
        )
        self.ledger.records.info(f"req#{self.number} cancelled during prepare | {self.shape.protocol}")

    def _rejected(self, error: Members, outcome: str) -> None:
        members = {"phase": "prepare", "request": self._members(None, None), "error": error}
        self.ledger.log.event("request_rejected", members)
        self.ledger.metrics.settle(outcome)

    # From the start to the terminal

    def first_token(self, at: float) -> None:
        """Count the time to the first committed token, once."""
        if not self._first_token:
            self._first_token = True
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
        if end.summary.first_token is not None:
            self.first_token(end.summary.first_token)  # its reader may have left before hearing of it
        if isinstance(end, Failed):
            self._failed(end)
        else:
            self._done(end, tools)

    def _failed(self, end: Failed) -> None:
        error = {"message": end.fault.message, "code": end.fault.code}
        told = {"request": self._request, "error": error, "work": members.work(end.summary)}
        self.ledger.log.event("request_error", told)
        self.ledger.metrics.settle("failed")
        self.ledger.records.write(
            _LEVELS.get(end.fault.kind, "info"),
            f"req#{self.number} failed | {self.shape.protocol} | {end.fault.code}",
        )

    def _done(self, end: Done, tools: ToolParse) -> None:
        cancelled = end.finish is Finish.CANCELLED
        if not cancelled:
            self.ledger.complete(self.shape.http_request_id)
        spans = (members.stages(end.summary)["total"], members.queued(end.summary))
        self.ledger.metrics.settle("cancelled" if cancelled else "completed", spans)
        self.ledger.log.event("request_done", self._done_members(end, tools))
        backend, _ = self.ledger.speculation
        line = lines.done(self.number, self.shape.protocol, end, self._budget, backend)
        self.ledger.records.info(line)
        if end.summary.miss_reason is not None:
            self.ledger.records.debug(f"req#{self.number} prefix | {end.summary.miss_reason}")
        if tools.fallback != "none":
            self.ledger.records.warning(
                f"req#{self.number} tool markup returned as text | {tools.fallback}"
            )

    # Members

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
            "thinking_budget": self._budget,
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
            "result": members.result(end, self._budget, tools),
            "timings_seconds": {"prepare": self._prepare_seconds, "vision": s.vision_seconds, **spans},
            "speculative": members.speculative(s, *self.ledger.speculation),
            "generation": members.generation(s, self.number),
            "engine_timing": members.engine_timing(s),
            "first_output_timing": members.first_output(s),
        }
