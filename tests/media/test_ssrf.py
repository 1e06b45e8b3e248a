"""No spelling, redirect or rebinding reaches an address inside: fake DNS, fake connections, no network.

``Net`` resolves as the system does (numeric hosts in any notation become addresses without a question)
and records every connection that is opened; a connection to anything but the one public origin fails the
test.
"""

from __future__ import annotations

import socket
from typing import Any

import anyio
import attrs
import pytest

from ninfer.faults import Refused
from ninfer.media.address import public
from ninfer.media.fetch import Fetcher, FetchLimits
from ninfer.media.sources import Purse

OUTSIDE = "93.184.216.34"
PICTURE = b"\x89PNG pretend"

V4 = [
    *(
        "127.0.0.1",
        "127.0.0.2",
        "127.255.255.254",
        "127.1",
        "127.0.1",
        "0",
        "0.0.0.0",
        "0x7f000001",
        "0x7f.1",
    ),
    *(
        "0177.0.0.1",
        "0177.1",
        "2130706433",
        "017700000001",
        "0x7f.0x0.0x0.0x1",
        "127.0x1",
        "00000177.0.0.1",
    ),
    *(
        "10.0.0.1",
        "10.1",
        "0x0a000001",
        "167772161",
        "012.0.0.1",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
    ),
    *(
        "2886729729",
        "192.168.0.1",
        "192.168.1",
        "3232235521",
        "0xc0a80001",
        "192.168.255.255",
        "169.254.169.254",
    ),
    *(
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "192.0.0.1",
    ),
    *("192.0.2.7", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.2.3"),
    *(
        "240.0.0.1",
        "255.255.255.255",
        "4294967295",
        "192.88.99.1",
        "0.0.0.1",
        "0x00000000",
        "0x7F000001",
        "0x7f.0.0.1",
        "127.0.0.01",
        "00.0.0.0",
    ),
]
V6 = [
    *("::1", "0:0:0:0:0:0:0:1", "0000:0000:0000:0000:0000:0000:0000:0001", "::", "::ffff:127.0.0.1"),
    *(
        "::ffff:7f00:1",
        "0:0:0:0:0:ffff:7f00:0001",
        "::ffff:10.0.0.1",
        "::ffff:a9fe:a9fe",
        "::ffff:192.168.0.1",
    ),
    *(
        "::ffff:0:127.0.0.1",
        "::127.0.0.1",
        "::7f00:1",
        "::10.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::7f00:1",
    ),
    *(
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::7f00:1",
        "64:ff9b:1:ffff::a00:1",
        "2002:7f00:1::",
    ),
    *("2002:7f00:1::1", "2002:a00:1::", "2002:c0a8:1::5", "2002:a9fe:a9fe::", "2001:0:7f00:1::", "2001::1"),
    *(
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
        "fe80::1",
        "fe80::a9fe:a9fe",
        "febf::1",
        "fc00::1",
        "fdff::1",
    ),
    *(
        "fd00:ec2::254",
        "fec0::1",
        "feff::1",
        "ff02::1",
        "ff0e::1",
        "2001:db8::1",
        "3fff::1",
        "100::1",
        "5f00::1",
    ),
    *("2001:10::1", "2001:20::1", "4000::1", "8000::1", "e000::1", "::2"),
]
NAMES = [
    *(
        "localhost",
        "LOCALHOST",
        "localhost.",
        "printer.local",
        "metadata.google.internal",
        "router",
        "inside.example",
    ),
    *(
        "127.0.0.1.nip.example",
        "xn--inside-abc.example",
        "a_b.inside.example",
        "mixed.example",
        "late.example",
    ),
    *(
        "many.example",
        "wrapped.example",
        "localhost.localdomain",
        "ip6-localhost",
        "kubernetes.default.svc",
        "a",
    ),
]
DNS: dict[str, list[str]] = {
    "good.example": [OUTSIDE],
    "mixed.example": [OUTSIDE, "10.0.0.1"],
    "late.example": ["2606:4700::1", OUTSIDE, "::ffff:127.0.0.1"],
    "many.example": [*[OUTSIDE] * 30, "169.254.169.254"],
    "wrapped.example": ["64:ff9b::a00:1"],
}
SPELLINGS = [*V4, *(f"[{address}]" for address in V6), *NAMES]


@attrs.define(eq=False)
class Line:
    """A connection that answers once with ``reply``."""

    reply: bytes

    async def send(self, item: bytes) -> None:
        await anyio.lowlevel.checkpoint()

    async def receive(self, most: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self.reply:
            raise anyio.EndOfStream
        part, self.reply = self.reply[:most], self.reply[most:]
        return part

    async def __aenter__(self) -> Line:
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()


@attrs.define(eq=False)
class Net:
    """All there is: names, one origin, and what was connected to."""

    replies: list[bytes]
    names: dict[str, list[list[str]]] = attrs.field(factory=dict)
    connected: list[tuple[str, int]] = attrs.field(factory=list)
    asked: list[str] = attrs.field(factory=list)

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        await anyio.lowlevel.checkpoint()
        if host in self.names:
            answers = self.names[host]
            return answers.pop(0) if len(answers) > 1 else answers[0]
        if host in DNS:
            return DNS[host]
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            return [str(entry[4][0]) for entry in found]
        except socket.gaierror:
            return ["127.0.0.1"]  # every other name is inside

    async def connect(self, address: str, port: int) -> Any:
        self.connected.append((address, port))
        await anyio.lowlevel.checkpoint()
        return Line(self.replies.pop(0))

    def fetcher(self) -> Fetcher:
        return Fetcher("public", FetchLimits(), self.resolve, self.connect)


def reply(status: str = "200 OK", body: bytes = PICTURE, location: str = "") -> bytes:
    lines = [
        f"HTTP/1.1 {status}",
        f"Content-Length: {len(body)}",
        *([f"Location: {location}"] * bool(location)),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def attempt(net: Net, url: str) -> str | None:
    try:
        pieces = await net.fetcher().fetch(url, "p", Purse(1 << 20, 1 << 20))
        assert b"".join(pieces) == PICTURE
        return None
    except Refused as refused:
        return refused.fault.code


def test_there_are_enough_spellings() -> None:
    assert len(SPELLINGS) == len(set(SPELLINGS)) >= 120


async def test_the_one_outside_origin_is_reached() -> None:
    net = Net([reply()])
    assert await attempt(net, "http://good.example/a.png") is None
    assert net.connected == [(OUTSIDE, 80)]


@pytest.mark.parametrize("host", SPELLINGS)
async def test_no_spelling_reaches_inside(host: str) -> None:
    """Asked for directly, by a redirect, and by a redirect after a redirect."""
    for scheme in ("http", "https"):
        direct = Net([])
        assert await attempt(direct, f"{scheme}://{host}/") in ("media_fetch_failed", "invalid_media")
        assert direct.connected == []
        inside = f"{scheme}://{host}/latest/meta-data"
        once = Net([reply("302 Found", b"", inside)])
        assert await attempt(once, "http://good.example/") == "media_fetch_failed"
        assert once.connected == [(OUTSIDE, 80)]
        twice = Net([reply("301 Moved", b"", "/again"), reply("307 Temporary", b"", f"//{host}/")])
        assert await attempt(twice, "http://good.example/") == "media_fetch_failed"
        assert twice.connected == [(OUTSIDE, 80)] * 2


@pytest.mark.parametrize("address", [*(a for a in V4 if a.count(".") == 3), *V6])
async def test_a_name_that_changes_its_mind_gains_nothing(address: str) -> None:
    """The address that was checked is the one that is used; each redirect is checked anew."""
    net = Net([reply()], {"rebind.example": [[OUTSIDE], [address]]})
    assert await attempt(net, "http://rebind.example/") is None
    assert net.connected == [(OUTSIDE, 80)] and net.asked == ["rebind.example"]
    turned = Net([reply("302 Found", b"", "/b")], {"rebind.example": [[OUTSIDE], [address]]})
    assert await attempt(turned, "http://rebind.example/") == "media_fetch_failed"
    assert turned.connected == [(OUTSIDE, 80)]
    first = Net([], {"rebind.example": [[address], [OUTSIDE]]})
    assert await attempt(first, "http://rebind.example/") == "media_fetch_failed"
    assert first.connected == []


@pytest.mark.parametrize("port", [1, 22, 25, 6379, 8080, 65535])
async def test_other_ports_are_not_connected_to(port: int) -> None:
    net = Net([])
    assert await attempt(net, f"http://good.example:{port}/") == "media_fetch_failed"
    assert net.connected == [] and net.asked == []


@pytest.mark.parametrize(
    "location",
    [
        *(
            "file:///etc/passwd",
            "ftp://good.example/",
            "data:image/png;base64,AAAA",
            "gopher://good.example/",
        ),
        *(
            "http://user:pw@good.example/",
            "http://[::1",
            "http://[",
            "//[bad",
            "http:///",
            "",
            "http://good.example:0/",
        ),
        *(
            "http://good.example:99999/",
            "http://good.example\\@127.0.0.1/",
            "http://\x7f/",
            "http://" + "a" * 9000,
        ),
    ],
)
async def test_redirects_to_what_is_no_address_end_there(location: str) -> None:
    net = Net([reply("302 Found", b"", location)] * 9)
    assert await attempt(net, "http://good.example/") == "media_fetch_failed"
    assert set(net.connected) == {(OUTSIDE, 80)}


async def test_the_next_address_is_tried_when_one_does_not_listen(autojump_clock: Any) -> None:
    net = Net([reply()], {"two.example": [["2606:4700::1", OUTSIDE]]})
    plain = net.connect

    async def connect(address: str, port: int) -> Any:
        if address != OUTSIDE:
            net.connected.append((address, port))
            await anyio.sleep_forever()
        return await plain(address, port)

    fetcher = Fetcher("public", FetchLimits(), net.resolve, connect)
    assert await fetcher.fetch("http://two.example/", "p", Purse(100, 100)) == [PICTURE]
    assert net.connected == [("2606:4700::1", 80), (OUTSIDE, 80)]


@pytest.mark.parametrize("spelling", [*(a for a in V4 if a.count(".") == 3 and not a.startswith("0")), *V6])
def test_what_is_spelt_is_not_public(spelling: str) -> None:
    assert not public(spelling)
