"""POST /v1/messages and POST /v1/messages/count_tokens: read, lower, ask, answer.

Promises one answer to every request: a whole message, a stream that ends with ``message_stop`` or with
one ``error`` event, a count, or an error reply.

The one thing a reader would get wrong: ``model`` is a label of the client's own and is echoed; it
never selects anything, in any dialect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import attrs

from ninfer.faults import Refused
from ninfer.http.exchange import Exchange, Reply, Request, Route
from ninfer.prompt.conversation import Conversation
from ninfer.protocols.dialect import Kit
from ninfer.protocols.following import outcome, send_stream
from ninfer.protocols.frames import encode, identifier
from ninfer.protocols.messages.lower import Report, lower_prompt, lower_request
from ninfer.protocols.messages.render import MessageStream, whole
from ninfer.protocols.messages.schema import Output, Prompt
from ninfer.protocols.service import Ask
from ninfer.protocols.status import anthropic_frame, anthropic_reply

T = TypeVar("T")


@attrs.frozen
class MessagesEndpoint:
    """Handles Messages and the counting of their prompts."""

    kit: Kit

    async def create(self, request: Request, exchange: Exchange) -> None:
        """Answer one request for a message."""
        await self._handle(request, exchange, self._read, self._answer)

    async def count(self, request: Request, exchange: Exchange) -> None:
        """Answer one request for a count."""
        await self._handle(request, exchange, self._read_prompt, self._count)

    async def _handle(
        self,
        request: Request,
        exchange: Exchange,
        read: Callable[[Request], T],
        answer: Callable[[T, Exchange], Awaitable[None]],
    ) -> None:
        shape = self.kit.dialect.malformed
        try:
            asked = await self.kit.reading(request.body, partial(read, request))
            shape = self.kit.dialect.failed
            await answer(asked, exchange)
        except Refused as refused:
            reply = anthropic_reply(refused.fault, request.id)
            await exchange.reply(shape(refused.fault, reply))

    def _body(self, request: Request) -> object:
        return self.kit.dialect.adapt("messages", self.kit.read_json(request.body))

    def _read(self, request: Request) -> tuple[Ask, Report]:
        body = self._body(request)
        prompt, output = self.kit.reader.read(body, Prompt), self.kit.reader.read(body, Output)
        report = Report(identifier("msg_", self.kit.mint), prompt.model, bool(output.stream))
        return lower_request(prompt, output, report, request.id), report

    def _read_prompt(self, request: Request) -> Conversation:
        return lower_prompt(self.kit.reader.read(self._body(request), Prompt))[0]

    async def _answer(self, asked: tuple[Ask, Report], exchange: Exchange) -> None:
        ask, report = asked
        kit = self.kit
        if report.stream:
            stream = MessageStream(report, kit.mint, kit.dialect.after_stop)
            tell = partial(anthropic_frame, request_id=ask.request_id)
            await send_stream(kit.service, ask, exchange, stream.frames, tell)
        else:
            done = await outcome(kit.service, ask)
            await exchange.reply(Reply(200, encode(whole(report, done, kit.mint))))

    async def _count(self, conversation: Conversation, exchange: Exchange) -> None:
        tokens = await self.kit.service.count(conversation)
        await exchange.reply(Reply(200, encode({"input_tokens": tokens})))


def messages_routes(kit: Kit) -> tuple[Route, ...]:
    """Build the two routes."""
    endpoint = MessagesEndpoint(kit)
    return (
        Route("POST", "/v1/messages", endpoint.create),
        Route("POST", "/v1/messages/count_tokens", endpoint.count),
    )
