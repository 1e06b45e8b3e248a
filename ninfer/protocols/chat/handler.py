"""POST /v1/chat/completions: read, lower, ask, answer.

Promises one answer to every request: a whole object, a stream that ends with ``[DONE]``, a stream that
ends with one error line, or an error reply.

The one thing a reader would get wrong: a body found wrong while it is read is answered otherwise than
a refusal that comes later; only dialects tell the two apart.
"""

from __future__ import annotations

from functools import partial

import attrs

from ninfer.faults import Refused
from ninfer.http.exchange import Exchange, Reply, Request, Route
from ninfer.protocols.chat.lower import Report, lower_chat, report_of
from ninfer.protocols.chat.render import ChatStream, whole
from ninfer.protocols.chat.schema import ChatRequest
from ninfer.protocols.dialect import Kit
from ninfer.protocols.following import outcome, send_stream
from ninfer.protocols.frames import encode, identifier
from ninfer.protocols.service import Ask
from ninfer.protocols.status import openai_frame, openai_reply


@attrs.frozen
class ChatEndpoint:
    """Handles Chat Completions."""

    kit: Kit

    async def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer one request."""
        try:
            ask, report = await self.kit.reading(request.body, partial(self._read, request))
        except Refused as refused:
            reply = openai_reply(refused.fault)
            await exchange.reply(self.kit.dialect.malformed(refused.fault, reply))
            return
        try:
            if report.stream:
                await self._stream(ask, report, exchange)
            else:
                await exchange.reply(await self._whole(ask, report))
        except Refused as refused:
            reply = openai_reply(refused.fault)
            await exchange.reply(self.kit.dialect.failed(refused.fault, reply))

    def _read(self, request: Request) -> tuple[Ask, Report]:
        kit = self.kit
        body = kit.dialect.adapt("chat", kit.read_json(request.body))
        asked = kit.reader.read(body, ChatRequest)
        model = kit.dialect.label(asked.model, kit.service.card)
        id = identifier("chatcmpl-", kit.mint)
        report = report_of(asked, id, int(kit.now()), model)
        return lower_chat(asked, report, request.id, kit.read_json), report

    async def _whole(self, ask: Ask, report: Report) -> Reply:
        done = await outcome(self.kit.service, ask)
        return Reply(200, encode(whole(report, done, self.kit.mint)))

    async def _stream(self, ask: Ask, report: Report, exchange: Exchange) -> None:
        stream = ChatStream(report, self.kit.mint, self.kit.dialect)
        await send_stream(self.kit.service, ask, exchange, stream.frames, openai_frame)


def chat_routes(kit: Kit) -> tuple[Route, ...]:
    """Build the one route."""
    return (Route("POST", "/v1/chat/completions", ChatEndpoint(kit).handle),)
