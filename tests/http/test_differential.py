"""Three readings of the same bytes: ours, h11's own, and one written from the RFC alone.

Every disagreement must be explained by a row of the tables below; an unexplained one is a bug in one
of the three.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import attrs
import h11
import pytest

from ninfer.http.head import Head
from ninfer.http.refusals import Turned
from ninfer.http.wire import End, Phase, Wire
from ninfer.settings import WireLimits
from tests.fuzz.http_mutants import mutants
from tests.http.rfc9112 import NotHttp, Reading, Unfinished, read_request
from tests.http.verdicts import TABLE

LIMITS = WireLimits(body_bytes=1_000, framing_bytes=1_500)


@attrs.frozen
class Seen:
    """What matters of a reading: two servers that agree on this agree on the request."""

    method: bytes
    target: bytes
    body: bytes
    rest: bytes


def ours(raw: bytes) -> Seen | int | None:
    """Our reading, the status of our refusal, or None for "more"."""
    wire, head, body = Wire(LIMITS), None, b""
    try:
        wire.feed(raw)
        while (event := wire.next_event()) is not None:
            if isinstance(event, Head):
                head = event
            elif event is not End.END:
                body += event
    except Turned as turned:
        return turned.status
    if wire.phase is not Phase.WHOLE or head is None:
        return None
    return Seen(head.method.encode(), head.target.encode(), body, wire.leftover)


def by_h11(raw: bytes) -> Seen | int | None:
    """The same by h11 without us."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(raw)
    request, body = None, b""
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            else:
                return None
    except h11.RemoteProtocolError as exc:
        return exc.error_status_hint
    assert request is not None
    return Seen(bytes(request.method), bytes(request.target), body, bytes(connection.trailing_data[0]))


def by_rfc(raw: bytes) -> Reading | int | None:
    """The same by the RFC's grammar."""
    try:
        return read_request(raw)
    except NotHttp:
        return 400
    except Unfinished:
        return None


def _has(pattern: bytes) -> Callable[[bytes], bool]:
    compiled = re.compile(pattern, re.DOTALL | re.IGNORECASE)
    return lambda raw: compiled.search(raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n") is not None


def _method_is_lower(raw: bytes) -> bool:
    return re.match(rb"[A-Z][A-Z_-]* ", raw) is None


# The grammar allows it, we refuse.
STRICTER_THAN_THE_RFC: dict[str, Callable[[bytes], bool]] = {
    "absolute form": _has(rb"^\S+ \w+://"),
    "authority form": _has(rb"^CONNECT "),
    "a method that is not in upper case": _method_is_lower,
    "an expectation that is not met": _has(rb"\r\nexpect:"),
    "an asterisk is for OPTIONS": _has(rb"^(?!OPTIONS)\S+ \*"),
    "too many fields": lambda raw: raw.partition(b"\r\n\r\n")[0].count(b"\r\n") > LIMITS.head_fields,
    "too long a head or target": lambda raw: len(raw.partition(b"\r\n\r\n")[0]) > LIMITS.target_bytes,
    "too large a body or framing": lambda raw: len(raw) > LIMITS.body_bytes,
    "blanks in chunk extensions": lambda raw: (
        re.search(rb"\r\n[0-9a-f]+[^\r]*[ \t]", raw, re.I) is not None
    ),
    "sizes of more than 15 digits": lambda raw: re.search(rb"\r\n[0-9a-f]{16}", raw, re.I) is not None,
}

# The grammar refuses it, we serve.
LAXER_THAN_THE_RFC: dict[str, Callable[[bytes], bool]] = {
    "what browsers leave unescaped in a query": _has(rb"^\S+ /[^? ]*\?[^ ]*[\[\]{}|^`\\]"),
    "hosts that look like IPv6 and are none": _has(rb"\r\nhost:[ \t]*\["),
}


def explained(raw: bytes, table: dict[str, Callable[[bytes], bool]]) -> list[str]:
    return [name for name, applies in table.items() if applies(raw)]


def corpus() -> list[bytes]:
    return [raw for _, _, raw in TABLE] + list(mutants(seed=9112, count=4_000))


@pytest.mark.slow
def test_disagreements_with_the_rfc_are_all_explained() -> None:
    reasons: Counter[str] = Counter()
    for raw in corpus():
        we, they = ours(raw), by_rfc(raw)
        if isinstance(we, Seen) and isinstance(they, Reading):
            assert they.trailers == 0
            assert we == Seen(they.method, they.target, they.body, they.rest), raw
        elif isinstance(we, Seen):
            why = explained(raw, LAXER_THAN_THE_RFC)
            assert why, raw
            reasons.update(why)
        elif isinstance(they, Reading) and they.trailers == 0:
            why = explained(raw, STRICTER_THAN_THE_RFC)
            assert why, (raw, we)
            reasons.update(why)
    assert reasons["an expectation that is not met"] and reasons["absolute form"]  # the tables are alive


@pytest.mark.slow
def test_what_we_serve_h11_reads_alike_and_it_takes_more() -> None:
    more = 0
    for raw in corpus():
        we, they = ours(raw), by_h11(raw)
        if isinstance(we, Seen):
            assert they == we, raw
        more += isinstance(they, Seen) and not isinstance(we, Seen)
    assert more > 100


def test_the_recogniser_reads_the_examples_of_the_table() -> None:
    """Rows that are served are in the grammar, refused ones are not, but for the listed reasons."""
    for name, status, raw in TABLE:
        reading = by_rfc(raw)
        if status == 0:
            assert isinstance(reading, Reading) or explained(raw, LAXER_THAN_THE_RFC), name
        elif isinstance(reading, Reading) and not reading.trailers:
            assert explained(raw, STRICTER_THAN_THE_RFC), name
