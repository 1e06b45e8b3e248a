"""POST /v1/responses and /v1/responses/input_tokens: read, find the parent, lower, ask, answer, keep.

Promises one answer to every request: a whole object, a stream that ends with one terminal event, or an
error reply; and that what is stored is the terminal object that was sent.

The one thing a reader would get wrong: a response is stored before its last event is sent, so a client
that has seen the event finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import attrs

from ninfer.faults import Broken, Fault, Kind, Refused
from ninfer.http.exchange import Exchange, Reply, Request, Route
from ninfer.protocols.dialect import Kit
from ninfer.protocols.following import following, send_stream
from ninfer.protocols.frames import encode
from ninfer.protocols.responses.answer import Answer
from ninfer.protocols.responses.lower import Plan, lower_count, lower_create
from ninfer.protocols.responses.objects import Envelope
from ninfer.protocols.responses.resources import resource_routes
from ninfer.protocols.responses.schema import CountRequest, CreateRequest
from ninfer.protocols.responses.store import ResponseStore, Stored
from ninfer.protocols.status import openai_reply

T = TypeVar("T")
R = TypeVar("R", CreateRequest, CountRequest)


@attrs.frozen
class ResponsesEndpoint:
    """Handles Create and the token count."""

    kit: Kit
    store: ResponseStore

    async def create(self, request: Request, exchange: Exchange) -> None:
        """Answer one Create request."""
        try:
            plan = await self._plan(request)
        except Refused as refused:
            await self._refuse(refused.fault, exchange, reading=True)
            return
        answer = Answer(
            plan.begun, plan.names.origin, partial(self._keep, plan), self.kit.mint, self.kit.now
        )
        try:
            if plan.ask.stream:
                await send_stream(self.kit.service, plan.ask, exchange, answer.frames, answer.failure)
            else:
                await exchange.reply(Reply(200, encode(await self._whole(plan, answer))))
        except Refused as refused:
            await self._refuse(refused.fault, exchange)

    async def count(self, request: Request, exchange: Exchange) -> None:
        """Answer one count request."""
        try:
            asked, _ = await self._read(request, CountRequest)
            create, parent = asked.as_create(), self._parent(asked)
            work = partial(lower_count, create, parent, self.kit)
            conversation = await self._lowered(request, parent, work)
        except Refused as refused:
            await self._refuse(refused.fault, exchange, reading=True)
            return
        try:
            tokens = await self.kit.service.count(conversation)
        except Refused as refused:
            await self._refuse(refused.fault, exchange)
        else:
            body = {"object": "response.input_tokens", "input_tokens": tokens}
            await exchange.reply(Reply(200, encode(body)))

    async def _refuse(self, fault: Fault, exchange: Exchange, *, reading: bool = False) -> None:
        """Answer a fault; a body found wrong while it is read is a dialect's own case."""
        dialect = self.kit.dialect
        shape = dialect.malformed if reading and fault.kind is Kind.INVALID else dialect.failed
        await exchange.reply(shape(fault, openai_reply(fault)))

    async def _plan(self, request: Request) -> Plan:
        asked, model = await self._read(request, CreateRequest)
        parent = self._parent(asked)
        work = partial(lower_create, asked, parent, model, request.id, self.kit)
        plan = await self._lowered(request, parent, work)
        if plan.store:
            self.store.check(plan.least)
        return plan

    async def _read(self, request: Request, shape: type[R]) -> tuple[R, str]:
        def read() -> tuple[R, str]:
            asked = self.kit.reader.read(self.kit.read_json(request.body), shape)
            return asked, self.kit.dialect.label(asked.model, self.kit.service.card)

        return await self.kit.reading(request.body, read)

    def _parent(self, asked: CreateRequest | CountRequest) -> Stored | None:
        id = asked.previous_response_id
        return None if id is None else self.store.find(id, "previous_response_id")

    async def _lowered(self, request: Request, parent: Stored | None, work: Callable[[], T]) -> T:
        return await self.kit.at_size(len(request.body) + (parent.link.total if parent else 0), work)

    async def _whole(self, plan: Plan, answer: Answer) -> Envelope:
        async with following(self.kit.service, plan.ask) as deltas:
            async for delta in deltas:
                for _ in answer.events(delta):
                    pass
        if answer.response is None:
            raise Broken("unreachable: a followed generation ends with Finished or raises")
        return answer.response

    def _keep(self, plan: Plan, response: Envelope) -> None:
        if plan.store:
            self.store.put(plan.stored(response))


def responses_routes(kit: Kit) -> tuple[Route, ...]:
    """Build the routes, around a store of their own."""
    store = ResponseStore(kit.responses)
    endpoint = ResponsesEndpoint(kit, store)
    return (
        Route("POST", "/v1/responses", endpoint.create),
        Route("POST", "/v1/responses/input_tokens", endpoint.count),
        *resource_routes(kit, store),
    )
