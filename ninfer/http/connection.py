"""One connection from its first byte to its close: one exchange after another.

Owns the order of things: read, admit, answer, go on or close.  Promises that whatever a peer sends,
it gets an answer or a close, that a peer which leaves cancels the handler at work for it at once,
and that no exception but cancellation ever comes out: a fault of ours costs one answer, a fault in
telling so costs one connection.

The one thing a reader would get wrong: while a handler runs, somebody must still read the socket,
or nobody would see the peer leave.  ``watch`` does; what it reads belongs to the next request, and
it stops at one head's worth, so a pipelining peer is held back by its own socket.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio
import attrs
from anyio.abc import ByteStream

from ninfer.faults import Broken, Fault, Kind, Refused
from ninfer.http.admission import Admitted, admit, full_house
from ninfer.http.answer import Answer
from ninfer.http.exchange import PeerGone, Reply, Request
from ninfer.http.head import Head
from ninfer.http.house import Holding, House, Pool
from ninfer.http.intake import READ_BYTES, Intake
from ninfer.http.outlet import Outlet
from ninfer.http.refusals import STATUS, Fields, Turned
from ninfer.http.routes import Target, split_target
from ninfer.http.site import Site
from ninfer.http.wire import Phase, Wire

# anyio's send_eof lets the socket's own error out when the peer has reset the connection.
_GONE = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
_CRASHED = Fault(Kind.INTERNAL, "the server failed to answer this request", "internal_error")


@attrs.define(eq=False)
class Connection:
    """Serves one peer, and counts as open from its making to the end of ``run``.

    ``scarce`` marks one that only reserved routes may use, for one request.
    """

    stream: ByteStream
    site: Site
    house: House
    scarce: bool = False
    pending: bytes = b""  # of the next request
    served: int = 0
    outlet: Outlet = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.outlet = Outlet(self.stream)
        self.pool.open += 1

    async def run(self) -> None:
        """Serve until the peer or we have had enough, then close the stream."""
        try:
            while await self._serve_next():
                pass
        except PeerGone:
            self.house.departed += 1
        except Exception as exc:  # noqa: BLE001
            self.report("", exc)  # one connection must not take the others with it
        finally:
            self.pool.open -= 1
            await self.stream.aclose()

    @property
    def pool(self) -> Pool:
        """Where the connection is counted."""
        return self.house.reserve if self.scarce else self.house.ordinary

    @property
    def on_last(self) -> bool:
        """Whether the connection ends with the request at hand, for reasons of ours."""
        is_last = self.served + 1 >= self.site.limits.requests_per_connection
        return is_last or self.scarce or self.house.draining

    def report(self, request_id: str, exc: Exception) -> None:
        """Account for a fault of ours."""
        self.house.crashed += 1
        self.site.on_crash(request_id, exc)

    async def watch(self, answer: Answer) -> None:
        """Read while the handler runs, so that the peer's leaving is seen."""
        try:
            while (room := self.site.limits.head_bytes - len(self.pending)) > 0:
                self.pending += await self.stream.receive(room)
        except _GONE:
            answer.leave()

    async def _serve_next(self) -> bool:
        """Serve one request; say whether the connection can carry another."""
        if not self.pending and not await self._first_bytes():
            return False
        with self.house.exchange() as holding:
            visit = _Visit(self, Wire(self.site.limits), holding, self.site.new_id())
            answer = await visit.run()
        self.served += 1
        self.house.departed += answer.peer_left and not answer.finished
        if answer.peer_left or visit.wire.reusable:
            return answer.finished and not answer.peer_left
        if self.pending or visit.wire.phase is not Phase.WHOLE:
            await linger(self.stream, self.site.patience.linger)
        return False

    async def _first_bytes(self) -> bool:
        """Wait for the first bytes of a request; False when none come or none are wanted."""
        if self.house.draining:
            return False
        try:
            with self.pool.idling(anyio.current_time() + self.site.patience.idle):
                self.pending = await self.stream.receive(READ_BYTES)
        except _GONE:
            return False
        return bool(self.pending)


@attrs.define(eq=False)
class _Visit:
    """One request of a connection, and its answer."""

    at: Connection
    wire: Wire
    holding: Holding
    id: str
    path: str = ""
    handled: bool = False  # a handler was called
    answer: Answer = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._open_answer(lambda: True)  # until the request is read, only to say that it never was

    async def run(self) -> Answer:
        """Serve the request; whatever our faults, the peer is told while it still can be."""
        try:
            await self._serve()
        except Exception as exc:  # noqa: BLE001
            await self._account_for(_bare(exc))
        finally:
            if self.handled:
                self.at.site.on_answered(self.id, self.answer.finished)
        return self.answer

    async def _serve(self) -> None:
        try:
            request, admitted = await self._receive()
        except Turned as turned:
            await self._turn_away(turned)
        else:
            await self._handle(request, admitted)

    async def _receive(self) -> tuple[Request, Admitted]:
        intake = Intake(self.at.stream, self.wire, self.at.site.patience)
        first, self.at.pending = self.at.pending, b""
        head = await intake.head(first)
        target = split_target(head.target)
        admitted = admit(self.at.site, head, target, scarce=self.at.scarce)
        if head.expects_continue and head.has_body and not self.wire.body_begun:
            await self.at.outlet.send_in_time(self.wire.go_on(), self.at.site.patience.write)
        body = await intake.body(self.holding)
        self.at.pending = self.wire.leftover
        return _request(head, target, body, self.id, admitted), admitted

    async def _turn_away(self, turned: Turned) -> None:
        self.path = self.wire.target.partition("?")[0]
        absorbed = self._absorb()
        self._open_answer(lambda: not absorbed or self.at.on_last)
        await self._refuse(turned.status, turned.fault, turned.fields)

    def _absorb(self) -> bool:
        """Pass over body bytes that are here already; True if the request is whole with them."""
        try:
            while self.wire.next_event() is not None:
                pass
        except Turned:
            return False
        self.at.pending = self.wire.leftover
        return self.wire.phase is Phase.WHOLE

    async def _handle(self, request: Request, admitted: Admitted) -> None:
        self.path = request.path
        answer = self._open_answer(lambda: self.at.on_last)
        self.at.house.requests += 1
        self.handled = True
        async with anyio.create_task_group() as tasks:
            answer.tasks = tasks
            tasks.start_soon(self.at.watch, answer)
            with answer.scope:
                await admitted.handler(request, answer)
            tasks.cancel_scope.cancel()
        if not (answer.finished or answer.peer_left):
            raise Broken("the handler returned without an answer")

    async def _account_for(self, exc: Exception) -> None:
        """Tell the peer what became of its request, if it can be told, and us if it was our fault."""
        if isinstance(exc, PeerGone):
            self.answer.peer_left = True
            return
        refused = exc.fault if isinstance(exc, Refused) and not self.answer.started else None
        if refused is None:
            self.at.report(self.id, exc)
        if not self.answer.started:
            fault = refused or _CRASHED
            await self._refuse(STATUS[fault.kind], fault)

    async def _refuse(self, status: int, fault: Fault, fields: Fields = ()) -> None:
        body = self.at.site.render_fault(self.path, status, fault, self.id)
        await self.answer.reply(Reply(status, body, headers=fields))

    def _open_answer(self, closes: Callable[[], bool]) -> Answer:
        site = self.at.site
        fields = site.fields(self.path, self.id)
        self.answer = Answer(self.wire, self.at.outlet, site.patience, fields, closes)
        return self.answer


def _bare(exc: Exception) -> Exception:
    """What a handler's own task groups wrapped, if it is one exception."""
    while isinstance(exc, ExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc


def _request(head: Head, target: Target, body: bytes, request_id: str, admitted: Admitted) -> Request:
    return Request(
        head.method, target.path, target.query, head.headers, body, request_id, admitted.variables
    )


async def linger(stream: ByteStream, seconds: float) -> None:
    """End our side and read away what a refused peer still sends, for ``seconds`` at most.

    Closing over unread bytes would reset the connection and could destroy the answer on its way.
    """
    with suppress(*_GONE), anyio.move_on_after(seconds):
        await stream.send_eof()
        while True:
            await stream.receive(READ_BYTES)


async def turn_away(stream: ByteStream, site: Site) -> None:
    """Answer 503 to a connection that there is no room for, and close it."""
    turned, request_id = full_house(), site.new_id()
    body = site.render_fault("", turned.status, turned.fault, request_id)
    fields = (*site.fields("", request_id), ("content-type", "application/json"), *turned.fields)
    reply = Wire(site.limits).whole(turned.status, (*fields, ("connection", "close")), body)
    try:
        with suppress(PeerGone):
            await Outlet(stream).send_in_time(reply, site.patience.linger)
            await linger(stream, site.patience.linger)
    finally:
        await stream.aclose()
