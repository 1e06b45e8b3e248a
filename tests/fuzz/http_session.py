"""One mutant against one connection: what must come back, and what did.

``expected`` predicts with the wire alone how many answers a peer gets and to which methods;
``session`` plays the bytes over a memory stream on a mock clock and reads the answers with h11.
"""

from __future__ import annotations

import random

import anyio
import attrs
import h11
import trio

from ninfer.http.connection import Connection
from ninfer.http.house import House
from ninfer.http.refusals import Turned
from ninfer.http.site import Site
from ninfer.http.wire import End, Wire
from tests.fuzz.http_mutants import SEEDS, cuts, mutants
from tests.http.kit import Crashes, make_site
from tests.http.memory import End as StreamEnd
from tests.http.memory import pair


@attrs.frozen
class Expected:
    """Methods of the requests that are answered, in order; ``refused`` ends them."""

    methods: tuple[str, ...]
    refused: bool


def expected(raw: bytes, site: Site) -> Expected:
    """Read ``raw`` as requests one after another, as far as a connection would."""
    methods: list[str] = []
    while raw:
        wire = Wire(site.limits)
        whole = _is_whole(wire, raw)
        methods.append(wire.head.method if wire.head else "GET")
        if not whole or wire.head is None:
            return Expected(tuple(methods), refused=True)
        if wire.head.must_close:
            break
        raw = wire.leftover
    return Expected(tuple(methods), refused=False)


def _is_whole(wire: Wire, raw: bytes) -> bool:
    try:
        wire.feed(raw)
        while (event := wire.next_event()) is not End.END:
            if event is None:
                return False
    except Turned:
        return False
    return True


@attrs.frozen
class Heard:
    """Statuses of the answers; ``cut_off`` when the last of them did not come to its end."""

    statuses: tuple[int, ...]
    cut_off: bool = False


async def session(raw: bytes, site: Site, house: House, rng: random.Random) -> Heard:
    """Play one mutant and read the answers.  Raises when anything but HTTP comes back."""
    near, far = pair(1 << 20)
    heard = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Connection(far, site, house).run)
        nursery.start_soon(_hear, near, heard)
        for piece in cuts(raw, rng):
            try:
                await near.send(piece)
            except anyio.BrokenResourceError:
                break
    return read_answers(bytes(heard), expected(raw, site).methods)


async def _hear(near: StreamEnd, heard: bytearray) -> None:
    try:
        while True:
            heard += await near.receive()
    except anyio.EndOfStream:
        await near.aclose()


def read_answers(raw: bytes, methods: tuple[str, ...]) -> Heard:
    """Parse a whole connection's answers; only a stream may be cut off, and only as the last."""
    statuses: list[int] = []
    for method in methods:
        if not raw:
            break
        status, rest = _read_answer(raw, method)
        statuses.append(status)
        if rest is None:
            return Heard(tuple(statuses), cut_off=True)
        raw = rest
    assert not raw, f"more was answered than asked: {raw[:200]!r}"
    return Heard(tuple(statuses))


def _read_answer(raw: bytes, method: str) -> tuple[int, bytes | None]:
    reader = h11.Connection(h11.CLIENT)
    reader.send(h11.Request(method=method, target="/", headers=[("host", "a")]))
    reader.send(h11.EndOfMessage())
    reader.receive_data(raw)
    reader.receive_data(b"")
    status = 0
    try:
        while not isinstance(event := reader.next_event(), h11.EndOfMessage):
            status = event.status_code if isinstance(event, h11.Response) else status
    except h11.RemoteProtocolError:
        assert status == 200, f"an answer that is no HTTP: {raw[:200]!r}"
        return status, None
    return status, bytes(reader.trailing_data[0])


@attrs.frozen
class Tally:
    """What a batch of mutants came to."""

    mutants: int
    answers: int
    refusals: int


def check(heard: Heard, want: Expected, raw: bytes) -> None:
    """As many answers as requests, unless one of them ended the connection as it may."""
    fewer = len(heard.statuses) < len(want.methods)
    closed_over_a_body = bool(heard.statuses) and heard.statuses[-1] >= 400
    assert not fewer or heard.cut_off or closed_over_a_body, raw
    assert not want.refused or heard.cut_off or closed_over_a_body, raw


async def play(seed: int, count: int) -> Tally:
    """Play a batch; raise unless each mutant got what was expected and nothing was left behind."""
    crashes, rng = Crashes(), random.Random(seed)
    site = make_site(on_crash=crashes)
    house = House(site.limits)
    statuses: list[int] = []
    for raw in mutants(seed, count):
        heard = await session(raw, site, house, rng)
        check(heard, expected(raw, site), raw)
        statuses += heard.statuses
    assert (await session(SEEDS[0], site, house, rng)).statuses == (200,)
    assert {type(exc) for _, exc in crashes.heard} <= {ZeroDivisionError}, crashes.heard
    assert (house.connections, house.exchanges, house.body_bytes) == (0, 0, 0)
    return Tally(count, len(statuses), sum(status >= 400 for status in statuses))
