"""Which network addresses a media URL may reach.

Owns the reading of URLs and the judgement of addresses.  Promises that ``public`` admits an address
only if every form hidden inside it (IPv4-mapped, 6to4, NAT64, IPv4-compatible, Teredo) is a globally
routable unicast address.

The one thing a reader would get wrong: ``ipaddress.is_global`` alone is not enough; it calls several
spellings of loopback global.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import attrs

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")  # all of IPv6 that is handed out for the world to reach
_SPECIAL = (
    ipaddress.ip_network("192.0.0.0/24"),  # protocol assignments
    ipaddress.ip_network("192.88.99.0/24"),  # relays to 6to4
    ipaddress.ip_network("3fff::/20"),  # documentation
)
_COMPATIBLE = ipaddress.ip_network("::/96")
_HOST = re.compile(r"([0-9A-Fa-f:]*:[0-9A-Fa-f:.]*|([A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?)\Z")
_UNSAFE = re.compile(r"[\x00-\x20\x7f-\xff\\]")


@attrs.frozen
class Target:
    """A checked http(s) URL: ``authority`` is the Host value, ``path`` includes the query."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """The Host header of a request for this target."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _default_port(self.scheme) else f"{host}:{self.port}"


class BadUrl(ValueError):
    """The URL cannot be fetched; the text says why."""


def read_url(url: str) -> Target:
    """Read an absolute http(s) URL strictly.  Raises ``BadUrl``."""
    if len(url) > 8_192:
        raise BadUrl("the URL is longer than 8192 characters")
    if _UNSAFE.search(url):
        raise BadUrl("the URL holds blanks, control, backslash or non-ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise BadUrl("the URL is malformed") from None
    if parts.scheme not in ("http", "https"):
        raise BadUrl("only http, https and data URLs are accepted")
    if "@" in parts.netloc:
        raise BadUrl("the URL must not carry credentials")
    host = parts.hostname or ""
    if len(host) > 253 or not _HOST.match(host):
        raise BadUrl("the URL has no proper host")
    if port == 0:
        raise BadUrl("the URL has no proper port")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port or _default_port(parts.scheme), path)


def public(address: str) -> bool:
    """Say whether an address (and every address hidden in it) is globally routable unicast."""
    try:
        outer = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    return all(_routable(inner) for inner in _unwrap(outer))


def _unwrap(address: Address) -> Iterator[Address]:
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    low = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    if address.sixtofour is not None:
        yield address.sixtofour
    if address.teredo is not None:
        yield from address.teredo
    if address in _NAT64 or address in _COMPATIBLE:
        yield low


def _routable(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None or address in _NAT64:
            return True  # judged by the address inside
        if address not in _UNICAST:
            return False
    closed = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback
    return address.is_global and not closed and not any(address in network for network in _SPECIAL)


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80
