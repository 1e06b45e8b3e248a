"""Address judgement: every spelling of an inside address stays inside."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.media.address import BadUrl, public, read_url

INSIDE = [
    *(
        "127.0.0.1",
        "127.255.255.254",
        "0.0.0.0",
        "10.0.0.1",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
    ),
    *("192.168.0.1", "169.254.169.254", "100.64.0.1", "100.127.255.255", "192.0.0.8", "192.0.2.1"),
    *("198.18.0.1", "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1"),
    *("255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "fec0::1"),
    *("ff02::1", "ff0e::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:100.64.0.1", "::127.0.0.1"),
    *("::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::"),
    *(
        "2002:a00:1::1",
        "2002:c0a8:1::",
        "2001:0:7f00:1::",
        "2001:db8::1",
        "100::1",
        "3fff::1",
        "5f00::1",
        "4000::1",
        "::ffff:0:7f00:1",
        "192.88.99.1",
        "2001:20::1",
        "not an address",
        "",
    ),
]
OUTSIDE = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "2606:4700:4700::1111",
    "::ffff:8.8.8.8",
    "64:ff9b::808:808",
]


@pytest.mark.parametrize("address", INSIDE)
def test_inside_addresses_are_not_public(address: str) -> None:
    assert not public(address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_outside_addresses_are_public(address: str) -> None:
    assert public(address)


@given(st.ip_addresses(v=4))
def test_no_wrapping_makes_an_inside_address_public(inner: ipaddress.IPv4Address) -> None:
    number = int(inner)
    wrapped = [
        ipaddress.IPv6Address((0xFFFF << 32) | number),
        ipaddress.IPv6Address((0x64FF9B << 96) | number),
        ipaddress.IPv6Address((0x2002 << 112) | (number << 80)),
    ]
    for outer in wrapped:
        assert not public(str(outer)) or public(str(inner))


@pytest.mark.parametrize(
    "url",
    [
        *(
            "file:///etc/passwd",
            "ftp://example.com/a",
            "gopher://x/",
            "//example.com/a",
            "example.com/a",
            "",
        ),
        *("http://", "http:///path", "http://user@example.com/", "http://user:pw@example.com/a.png"),
        *(
            "http://evil\\@127.0.0.1/",
            "http://exa mple.com/",
            "http://exam\tple.com/",
            "http://ex\nample.com",
        ),
        *(
            "http://example.com:99999/",
            "http://example.com:x/",
            "http://..example.com/",
            "http://ex\u0430mple.com/",
        ),
        *(
            "http://example.com:0/",
            f"http://{'a' * 64}.com/",
            "http://a.b..c/",
            "http://./",
            "http://[::1%25eth0]/",
        ),
        *("http://" + "a." * 130 + "com/", "http://-:80:80/", "http://a:b@c:1/", "http://[127.0.0.1]/"),
        *("http://[::1", "http://%31%32%37.0.0.1/", "http://example.com/" + "a" * 9000),
    ],
)
def test_dishonest_urls_are_refused(url: str) -> None:
    with pytest.raises(BadUrl):
        read_url(url)


def test_a_proper_url_is_taken_apart() -> None:
    target = read_url("https://example.com:8443/a/b.png?x=1#frag")
    assert (target.host, target.port, target.path) == ("example.com", 8443, "/a/b.png?x=1")
    assert target.authority == "example.com:8443"
    assert read_url("http://[2606:4700::1]/a").authority == "[2606:4700::1]"
