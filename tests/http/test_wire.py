"""The gate: every row of the verdict table, at every cut, and nothing but a verdict for any bytes."""

from __future__ import annotations

import h11
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer.faults import Broken
from ninfer.http.head import Head
from ninfer.http.refusals import Turned
from ninfer.http.wire import End, Phase, Wire
from ninfer.settings import WireLimits
from tests.cost import least_cost
from tests.http.verdicts import SERVED, TABLE

LIMITS = WireLimits(body_bytes=1_000, framing_bytes=1_500)
CUTS = (1 << 20, 1, 7)


def run(raw: bytes, cut: int, limits: WireLimits = LIMITS) -> tuple[Wire, Head | None, bytes]:
    """Feed ``raw`` in pieces of ``cut`` bytes; the wire, its head, and the body so far."""
    wire, head, body = Wire(limits), None, b""
    for at in range(0, len(raw), cut):
        wire.feed(raw[at : at + cut])
        while (event := wire.next_event()) is not None:
            if isinstance(event, Head):
                head = event
            elif event is not End.END:
                body += event
    return wire, head, body


def status_of(raw: bytes, cut: int, limits: WireLimits = LIMITS) -> int | Phase:
    """The refusal's status, ``SERVED``, or the phase in which more bytes are waited for."""
    try:
        wire, _, _ = run(raw, cut, limits)
    except Turned as turned:
        return turned.status
    return SERVED if wire.phase is Phase.WHOLE else wire.phase


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("status", "raw"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_verdict(status: int, raw: bytes, cut: int) -> None:
    assert status_of(raw, cut) == status


def test_the_table_names_every_case_once() -> None:
    names = [name for name, _, _ in TABLE]
    assert len(set(names)) == len(names) >= 150


@pytest.mark.parametrize("cut", CUTS)
def test_a_head_becomes_a_value(cut: int) -> None:
    raw = b"POST /a%20b?c=d HTTP/1.1\r\nHost: a\r\nX: 1\r\nx:\t 2 \t\r\nContent-Length: 2\r\n\r\nhi"
    _, head, body = run(raw, cut)
    assert head is not None and body == b"hi"
    assert (head.method, head.target, head.minor, head.length) == ("POST", "/a%20b?c=d", 1, 2)
    assert head.headers == {"host": "a", "x": "1, 2", "content-length": "2"}


@pytest.mark.parametrize("next_request", [b"", b"GET /2 HTTP/1.1\r\nHost: a\r\n\r\n", b"junk"])
@pytest.mark.parametrize("length", [0, 3])
def test_bytes_after_the_request_come_back_untouched(next_request: bytes, length: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % length
    wire, _, body = run(head + b"x" * length + next_request, 1 << 20)
    assert (body, wire.leftover) == (b"x" * length, next_request)


def test_a_peer_that_stops_before_the_end_is_cut_off() -> None:
    for raw in (b"", b"GET /", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nab"):
        wire, _, _ = run(raw, 1 << 20)
        with pytest.raises(Turned):
            wire.feed_eof()


@settings(max_examples=400, deadline=None)
@given(raw=st.binary(max_size=300), cut=st.integers(1, 40))
def test_any_bytes_get_a_verdict_and_nothing_else(raw: bytes, cut: int) -> None:
    prefixes = (
        b"",
        b"POST / HTTP/1.1\r\nHost: a\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ",
    )
    for prefix in (*prefixes, prefixes[2] + b"chunked\r\n\r\n"):
        status_of(prefix + raw, cut)


LINES = [
    b"GET / HTTP/1.1\r\n",
    b"POST /x HTTP/1.0\r\n",
    b"Host: a\r\n",
    b"Content-Length: 3\r\n",
    b"X: y\r\n",
]
LINES += [
    b"Transfer-Encoding: chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"3\r\nabc\r\n",
    b"0\r\n\r\n",
    b"\r\n",
]
BITS = [b"\n", b"\r", b" ", b"abc", b";e=1", b"5", b'"', b"\x00", b":", b"y" * 90, b"\t", b"HTTP/9.9"]
pieces = st.sampled_from(LINES + BITS)


@settings(max_examples=600, deadline=None)
@given(parts=st.lists(pieces, max_size=14), cut=st.integers(1, 30))
@example(parts=[b"GET / HTTP/1.1\r\n", b"Host: a\r\n", b"y" * 90, b"y" * 90, b"\n"], cut=1)
@example(parts=[b"POST /x HTTP/1.0\r\n", b"\r", b"\r\n", b"\r\n"], cut=1)
def test_the_verdict_and_the_reading_are_the_same_however_bytes_are_cut(
    parts: list[bytes], cut: int
) -> None:
    raw = b"".join(parts)
    limits = WireLimits(head_bytes=128, target_bytes=20, head_fields=4, body_bytes=9, framing_bytes=30)
    assert status_of(raw, cut, limits) == status_of(raw, 1 << 20, limits)
    if status_of(raw, cut, limits) == SERVED:
        (one, *rest), (other, *same) = run(raw, cut, limits), run(raw, 1 << 20, limits)
        assert rest == same and raw.endswith(one.leftover) and raw.endswith(other.leftover)


HEAD = b"GET / HTTP/1.1\r\nHost: a\r\n"
COSTLY = {
    "blanks in a value": HEAD + b"X: a" + b" " * 16_000 + b"b\r\n\r\n",
    "blanks after a value": HEAD + b"X: a" + b" " * 16_000 + b"\r\n\r\n",
    "a long name": HEAD + b"x" * 16_000 + b"\r\n\r\n",
    "a long host": b"GET / HTTP/1.1\r\nHost: " + b"a" * 16_000 + b"/\r\n\r\n",
    "a long host of labels": b"GET / HTTP/1.1\r\nHost: " + b"a." * 8_000 + b":a\r\n\r\n",
    "a long target": b"GET /" + b"%41" * 2_700 + b"% HTTP/1.1\r\nHost: a\r\n\r\n",
    "a long query": b"GET /?" + b"a=b&" * 2_000 + b"# HTTP/1.1\r\nHost: a\r\n\r\n",
    "many fields": HEAD + b"a:b\r\n" * 2_700 + b"\r\n",
    "a long method": b"A" * 16_000 + b"\r\n\r\n",
    "a long quoted extension": HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b'5;a="'
    + b"\\x" * 2_000
    + b"\r\nx",
    "many extensions": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5" + b";a=b" * 1_000 + b";\r\nx",
}


@pytest.mark.parametrize("cut", [1 << 20, 1])
@pytest.mark.parametrize("name", COSTLY)
def test_no_head_is_costly(name: str, cut: int) -> None:
    assert least_cost(lambda: status_of(COSTLY[name], cut)) < (0.02 if cut > 1 else 0.2)


# The answering side

SOME = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def read_answer(raw: bytes, method: str = "GET") -> tuple[h11.Response, bytes]:
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(raw)
    reader.receive_data(b"")
    response, body = None, b""
    while not isinstance(event := reader.next_event(), (h11.EndOfMessage, h11.ConnectionClosed)):
        if isinstance(event, h11.Response):
            response = event
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
    assert response is not None
    return response, body


@settings(deadline=None)
@given(frames=st.lists(st.binary(min_size=1, max_size=70_000), max_size=4))
def test_pieces_framed_here_are_read_by_h11(frames: list[bytes]) -> None:
    wire, _, _ = run(SOME, 100)
    raw = wire.open_stream((("content-type", "text/event-stream"),))
    raw += b"".join(map(wire.piece, frames)) + wire.close_stream()
    response, body = read_answer(raw)
    assert (response.status_code, body) == (200, b"".join(frames)) and wire.reusable


def test_an_empty_piece_would_end_the_stream_and_is_a_bug() -> None:
    wire, _, _ = run(SOME, 100)
    with pytest.raises(Broken):
        wire.piece(b"x")
    wire.open_stream(())
    with pytest.raises(Broken):
        wire.piece(b"")


@pytest.mark.parametrize("status", [200, 404, 431, 529, 799])
def test_every_answer_has_a_reason(status: int) -> None:
    wire, _, _ = run(SOME, 100)
    first = wire.whole(status, (), b"x").split(b"\r\n")[0]
    assert first.startswith(b"HTTP/1.1 %d " % status) and len(first) > len(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_body_has_no_length(status: int) -> None:
    wire, _, _ = run(SOME, 100)
    assert b"content-length" not in wire.whole(status, (), b"").lower()
    assert wire.reusable


def test_what_was_refused_can_still_be_answered() -> None:
    for _, status, raw in TABLE:
        if status == SERVED:
            continue
        wire = Wire(LIMITS)
        try:
            wire.feed(raw)
            while wire.next_event() is not None:
                pass
        except Turned:
            assert wire.whole(status, (("connection", "close"),), b"no").endswith(b"\r\n\r\nno")
            assert not wire.reusable
