"""Sans-I/O half of one HTTP/1.1 exchange: bytes in, events out; replies in, bytes out.

Owns one ``h11.Connection`` per request and everything that is checked around it.  Promises that
any bytes give events or ``Turned``, nothing else, and the same ones however they are cut.

The one thing a reader would get wrong: h11 lives for one request only.  Bytes of the next request
come back through ``leftover`` and start at the gate again, so a pipelined request is judged as
strictly as the first.  Stream pieces are framed here, not by h11, which would cost more than the
rest of the way; h11 still writes head and end, so it knows where the exchange stands.
"""

from __future__ import annotations

import enum
from http import HTTPStatus

import attrs
import h11

from ninfer.faults import Broken
from ninfer.http.chunks import ChunkGate
from ninfer.http.head import Head, has_bad_byte, parse_head, target_of
from ninfer.http.refusals import Fields, Turned, malformed, too_large
from ninfer.settings import WireLimits

REASONS = {status.value: status.phrase for status in HTTPStatus} | {529: "Overloaded"}
_BODILESS = (204, 304)


class Phase(enum.Enum):
    """Where the peer stands.  Only ``Wire`` moves it, only forward."""

    HEAD = enum.auto()
    BODY = enum.auto()
    WHOLE = enum.auto()


class End(enum.Enum):
    """The event after the last byte of a request."""

    END = enum.auto()


Event = Head | bytes | End


@attrs.define(eq=False)
class Wire:
    """One request and its answer.  Feed bytes, take events; name replies, take bytes."""

    limits: WireLimits
    phase: Phase = Phase.HEAD
    head: Head | None = None
    _raw: bytearray = attrs.field(factory=bytearray)
    _judged: int = 0
    _h11: h11.Connection = attrs.field(factory=lambda: h11.Connection(h11.SERVER))
    _gate: ChunkGate | None = None
    _body: int = 0
    _piecewise: bool = False

    # The request

    @property
    def target(self) -> str:
        """The request target as far as it is known, for the sake of error replies."""
        return self.head.target if self.head else target_of(bytes(self._raw))

    @property
    def leftover(self) -> bytes:
        """Bytes that came after this request."""
        return bytes(self._h11.trailing_data[0]) if self.phase is Phase.WHOLE else b""

    @property
    def body_begun(self) -> bool:
        """Whether bytes after the head have arrived; such a peer waits for no 100."""
        return self._body > 0 or bool(self._h11.trailing_data[0])

    def feed(self, data: bytes) -> None:
        """Take bytes from the peer."""
        if self.phase is Phase.HEAD:
            self._feed_head(data)
        else:
            self._feed_body(data)

    def feed_eof(self) -> None:
        """Hear that the peer will send no more."""
        if self.phase is not Phase.WHOLE:
            raise malformed("the request is cut off")

    def next_event(self) -> Event | None:
        """Return the next event: the ``Head``, body bytes, ``End``; None while more is needed."""
        if self.phase is not Phase.BODY:
            return None
        event = self._next_h11()
        if isinstance(event, h11.Request):
            return self.head
        if isinstance(event, h11.EndOfMessage):
            self.phase = Phase.WHOLE
            return End.END
        if not isinstance(event, h11.Data):
            return None
        self._body += len(event.data)
        if self._body > self.limits.body_bytes:
            raise too_large(self.limits.body_bytes)
        return bytes(event.data)

    def _feed_head(self, data: bytes) -> None:
        self._raw += data
        window = self.limits.head_bytes + 4
        blank = self._raw.find(b"\r\n\r\n", max(0, self._judged - 3), window)
        stop = blank + 4 if blank >= 0 else min(len(self._raw), window)
        if has_bad_byte(self._raw, self._judged, stop):
            raise malformed("the head holds a byte or a line end that no head may hold")
        self._judged = stop
        if blank < 0:
            self._check_growth(window)
            return
        rest = bytes(self._raw[stop:])
        del self._raw[stop:]
        self.head = parse_head(bytes(self._raw), self.limits)
        self.phase = Phase.BODY
        self._gate = ChunkGate() if self.head.chunked else None
        self._h11.receive_data(bytes(self._raw))
        if rest:
            self._feed_body(rest)

    def _check_growth(self, window: int) -> None:
        if len(self._raw) < window:
            return
        if self._raw.find(b"\r\n", 0, window) < 0:
            raise malformed("the request line is too long", 414, "target_too_long")
        raise malformed(f"the head is larger than {self.limits.head_bytes} bytes", 431, "head_too_large")

    def _feed_body(self, data: bytes) -> None:
        if self._gate is not None:
            self._gate.check(data)
            if self._gate.framing > self.limits.framing_bytes:
                raise malformed("the chunk framing outweighs its data")
        self._h11.receive_data(data)

    def _next_h11(self) -> object:
        try:
            return self._h11.next_event()
        except h11.RemoteProtocolError as exc:
            raise Turned(exc.error_status_hint, malformed("the request is malformed").fault) from exc

    # The answer

    def go_on(self) -> bytes:
        """Bytes that tell the peer to send its body."""
        return self._send(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))

    def whole(self, status: int, fields: Fields, body: bytes) -> bytes:
        """Bytes of a whole answer; HEAD gets the head alone."""
        bodiless = status in _BODILESS
        length: Fields = () if bodiless else (("content-length", str(len(body))),)
        out = self._send(_response(status, (*fields, *length)))
        if not bodiless and not self._head_only:
            out += self._send(h11.Data(data=body))
        return out + self._send(h11.EndOfMessage())

    def open_stream(self, fields: Fields) -> bytes:
        """Bytes of the head of an answer of unknown length: chunked, or until close in HTTP/1.0."""
        self._piecewise = self.head is not None and self.head.minor == 1
        return self._send(_response(200, fields))

    def piece(self, data: bytes) -> bytes:
        """Bytes of one piece of an opened stream; ``data`` is not empty."""
        if self._h11.our_state is not h11.SEND_BODY or not data:
            raise Broken("a piece outside a stream, or an empty one, which would end it")
        if self._head_only:
            return b""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._piecewise else data

    def close_stream(self) -> bytes:
        """Bytes that end an opened stream."""
        return self._send(h11.EndOfMessage())

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request once this answer is out."""
        return self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE

    @property
    def _head_only(self) -> bool:
        return self.head is not None and self.head.method == "HEAD"

    def _send(self, event: h11.Event) -> bytes:
        return self._h11.send(event) or b""


def _response(status: int, fields: Fields) -> h11.Response:
    reason = REASONS.get(status, "Unknown").encode("ascii")
    return h11.Response(status_code=status, headers=list(fields), reason=reason)
