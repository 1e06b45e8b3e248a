"""The verdict on a request head: raw bytes to a ``Head``, or a refusal.

Owns every strictness that h11 lacks: one reading only, or none.  Promises that a head accepted here
means the same to any server that follows RFC 9112, so that no proxy in front can disagree with us.

The one thing a reader would get wrong: the order of the checks is part of the promise.  Bytes that
no head may hold are found while the head still arrives (``has_bad_byte``), the rest once it is
whole, and the verdict is the same however the bytes were cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import attrs

from ninfer.http.refusals import Turned, malformed, too_large
from ninfer.settings import WireLimits

# A line ends in CRLF and in nothing else; no control byte but tab; no folded line; no leading CRLF.
_BAD_BYTE = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!\n)|(?<!\r)\n|\r\n[ \t]")
_FIRST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([^ ]+) HTTP/([0-9])\.([0-9])")
_METHOD = re.compile(rb"[A-Z][A-Z_-]*")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# RFC 3986 in the path; in the query also what browsers leave unescaped there.
_TARGET = re.compile(
    rb"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*"
    rb"(?:\?(?:[A-Za-z0-9._~!$&'()*+,;=:@/?\[\]{}|^`\\-]|%[0-9A-Fa-f]{2})*)?"
)
_HOST = re.compile(
    rb"(?:(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?"
)
_LENGTH = re.compile(rb"[0-9]+")


@attrs.frozen
class Head:
    """One accepted request head.

    ``minor`` is 0 for HTTP/1.0 and 1 for HTTP/1.1.  ``headers`` has lower-case names, repeated
    fields joined with ``", "``.  ``length`` is the declared body length in bytes, None without one.
    """

    method: str
    target: str
    minor: int
    headers: Mapping[str, str]
    length: int | None
    chunked: bool

    @property
    def has_body(self) -> bool:
        """Whether any body byte is announced."""
        return self.chunked or bool(self.length)

    @property
    def expects_continue(self) -> bool:
        """Whether the peer waits for 100 before it sends the body; HTTP/1.0 cannot."""
        return self.minor == 1 and "expect" in self.headers

    @property
    def must_close(self) -> bool:
        """Whether the connection ends with this request, whatever we would like.

        A request to switch protocols is never granted; what follows it may be in that protocol.
        """
        options = self.headers.get("connection", "").lower().split(",")
        wants_close = "close" in (option.strip(" \t") for option in options)
        return wants_close or self.minor == 0 or self.chunked or "upgrade" in self.headers


def has_bad_byte(head: bytearray, start: int, end: int) -> bool:
    """Say whether ``head[start:end]``, part of an unfinished head, holds what no head may hold."""
    if head.startswith((b"\r", b"\n", b" ", b"\t")):
        return True
    if end and head[end - 1] == 0x0D:
        end -= 1  # its line feed may still come
    return _BAD_BYTE.search(head, max(0, start - 2), end) is not None


def target_of(raw: bytes) -> str:
    """Return the target of a head that was refused, as far as it can be told; else ``""``."""
    match = _FIRST_LINE.match(raw)
    return match[2].decode("latin-1") if match else ""


def parse_head(raw: bytes, limits: WireLimits) -> Head:
    """Judge a whole head, blank line included; raise ``Turned``."""
    first, *lines = raw[:-4].split(b"\r\n")
    method, target, minor = _request_line(first, limits)
    if len(lines) > limits.head_fields:
        raise malformed(f"more than {limits.head_fields} header fields", 431, "too_many_fields")
    fields = [_field(line) for line in lines]
    _check_host([value for name, value in fields if name == b"host"], minor)
    chunked = _check_coding([value for name, value in fields if name == b"transfer-encoding"])
    length = _check_length([value for name, value in fields if name == b"content-length"], limits)
    if chunked and (length is not None or minor == 0):
        raise malformed("the body is framed in two ways")
    _check_expect([value for name, value in fields if name == b"expect"])
    return Head(method, target, minor, _joined(fields), length, chunked)


def _request_line(line: bytes, limits: WireLimits) -> tuple[str, str, int]:
    match = _FIRST_LINE.fullmatch(line)
    if match is None:
        raise malformed("the request line is not METHOD target HTTP/1.1")
    method, target, major, minor = match.groups()
    if major != b"1" or minor not in b"01":
        raise malformed("only HTTP/1.0 and HTTP/1.1 are spoken here", 505, "unsupported_version")
    if len(target) > limits.target_bytes:
        raise malformed(f"the target is longer than {limits.target_bytes} bytes", 414, "target_too_long")
    if not _METHOD.fullmatch(method):
        raise malformed("the method is not in upper case")
    if not _TARGET.fullmatch(target) and (method, target) != (b"OPTIONS", b"*"):
        raise malformed("the target is not a path with an optional query")
    return method.decode("ascii"), target.decode("ascii"), int(minor)


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _NAME.fullmatch(name):
        raise malformed("a header field is not name: value")
    return name.lower(), value.strip(b" \t")


def _check_host(hosts: list[bytes], minor: int) -> None:
    if len(hosts) > 1 or (minor == 1 and not hosts):
        raise malformed("exactly one Host is required")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise malformed("Host is not a host with an optional port")


def _check_coding(codings: list[bytes]) -> bool:
    if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
        raise malformed("the only transfer coding is chunked", 501, "unsupported_coding")
    return bool(codings)


def _check_length(lengths: list[bytes], limits: WireLimits) -> int | None:
    if not lengths:
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise malformed("Content-Length is not one number")
    if len(lengths[0]) > 19:
        raise too_large(limits.body_bytes)
    return int(lengths[0])


def _check_expect(expectations: list[bytes]) -> None:
    if expectations and [value.lower() for value in expectations] != [b"100-continue"]:
        raise Turned(417, malformed("the only expectation met is 100-continue").fault)


def _joined(fields: list[tuple[bytes, bytes]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for raw, value in fields:
        name, text = raw.decode("ascii"), value.decode("latin-1")
        joined[name] = f"{joined[name]}, {text}" if name in joined else text
    return joined
