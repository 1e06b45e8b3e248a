"""An independent reading of requests, written from the grammars of RFC 9110, 9112 and 3986 alone.

It walks bytes with a cursor and shares nothing with the product.  Where the RFC lets a server choose
between refusing and mending (folded lines, repeated lengths, bare LF), it refuses.
"""

from __future__ import annotations

import string

import attrs

TCHAR = frozenset((string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~").encode())
DIGIT = frozenset(b"0123456789")
HEXDIG = frozenset(b"0123456789abcdefABCDEF")
UNRESERVED = frozenset((string.ascii_letters + string.digits + "-._~").encode())
SUB_DELIMS = frozenset(b"!$&'()*+,;=")
PCHAR = UNRESERVED | SUB_DELIMS | frozenset(b":@")
FIELD = frozenset(range(0x21, 0x7F)) | frozenset(range(0x80, 0x100)) | frozenset(b" \t")


class NotHttp(Exception):
    """The bytes break the grammar or a MUST."""


class Unfinished(Exception):
    """The bytes may become a request."""


@attrs.frozen
class Reading:
    """What the bytes say."""

    method: bytes
    target: bytes
    version: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes
    rest: bytes
    trailers: int = 0


@attrs.define
class _Cursor:
    raw: bytes
    at: int = 0

    def byte(self) -> int:
        if self.at >= len(self.raw):
            raise Unfinished
        return self.raw[self.at]

    def expect(self, literal: bytes) -> None:
        for want in literal:
            if self.byte() != want:
                raise NotHttp
            self.at += 1

    def run(self, allowed: frozenset[int], least: int = 1) -> bytes:
        begun = self.at
        while self.byte() in allowed:
            self.at += 1
        if self.at - begun < least:
            raise NotHttp
        return self.raw[begun : self.at]

    def take(self, count: int) -> bytes:
        if len(self.raw) - self.at < count:
            raise Unfinished
        self.at += count
        return self.raw[self.at - count : self.at]


def read_request(raw: bytes) -> Reading:
    """Read one request; raise ``NotHttp`` or ``Unfinished``."""
    cursor = _Cursor(raw)
    method = cursor.run(TCHAR)
    cursor.expect(b" ")
    target = cursor.run(frozenset(range(0x21, 0x7F)))
    cursor.expect(b" HTTP/")
    version = cursor.run(DIGIT) + cursor.take(1) + cursor.run(DIGIT)
    if len(version) != 3 or version[1:2] != b".":
        raise NotHttp
    cursor.expect(b"\r\n")
    _check_target(method, target)
    fields = _fields(cursor)
    if version not in (b"1.0", b"1.1"):
        raise NotHttp
    _check_host(fields, version)
    body, trailers = _body(cursor, fields, version)
    return Reading(method, target, version, tuple(fields), body, raw[cursor.at :], trailers)


def _fields(cursor: _Cursor) -> list[tuple[bytes, bytes]]:
    fields = []
    while cursor.byte() != 0x0D:
        name = cursor.run(TCHAR)
        cursor.expect(b":")
        value = cursor.run(FIELD, 0)
        cursor.expect(b"\r\n")
        fields.append((name.lower(), value.strip(b" \t")))
    cursor.expect(b"\r\n")
    return fields


def _all(text: bytes, allowed: frozenset[int]) -> bool:
    """``text`` consists of ``allowed`` and whole percent escapes."""
    at = 0
    while at < len(text):
        if text[at] in allowed:
            at += 1
        elif text[at : at + 1] == b"%" and len(text) > at + 2 and {text[at + 1], text[at + 2]} <= HEXDIG:
            at += 3
        else:
            return False
    return True


def _is_origin(target: bytes) -> bool:
    path, _, query = target.partition(b"?")
    slash = frozenset(b"/")
    return (
        target.startswith(b"/")
        and _all(path, PCHAR | slash)
        and _all(query, PCHAR | slash | frozenset(b"?"))
    )


def _is_authority(text: bytes, needs_port: bool = False) -> bool:
    host, colon, port = text.rpartition(b":") if not text.endswith(b"]") else (text, b"", b"")
    if not colon:
        host, port = text, b""
    if needs_port and not port:
        return False
    named = bool(host) and _all(host, UNRESERVED | SUB_DELIMS)
    literal = (
        host[:1] == b"["
        and host[-1:] == b"]"
        and host.count(b":") > 1
        and set(host[1:-1]) <= HEXDIG | set(b":.")
    )
    return (named or literal) and set(port) <= DIGIT


def _check_target(method: bytes, target: bytes) -> None:
    if method == b"CONNECT":
        right = _is_authority(target, needs_port=True)
    else:
        scheme, mark, rest = target.partition(b"://")
        authority, _, path = rest.partition(b"/")
        absolute = bool(mark) and scheme.isalpha() and _is_authority(authority) and _is_origin(b"/" + path)
        right = _is_origin(target) or absolute or (method, target) == (b"OPTIONS", b"*")
    if not right:
        raise NotHttp


def _check_host(fields: list[tuple[bytes, bytes]], version: bytes) -> None:
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) > 1 or (version == b"1.1" and not hosts):
        raise NotHttp
    if hosts and not _is_authority(hosts[0]):
        raise NotHttp


def _body(cursor: _Cursor, fields: list[tuple[bytes, bytes]], version: bytes) -> tuple[bytes, int]:
    lengths = [value for name, value in fields if name == b"content-length"]
    codings = [value.lower() for name, value in fields if name == b"transfer-encoding"]
    if codings:
        if lengths or version == b"1.0" or codings != [b"chunked"]:
            raise NotHttp
        return _chunked(cursor)
    if not lengths:
        return b"", 0
    if len(lengths) > 1 or not lengths[0] or not set(lengths[0]) <= DIGIT:
        raise NotHttp
    return cursor.take(int(lengths[0][-18:]) if not lengths[0][:-18].strip(b"0") else 1 << 62), 0


def _chunked(cursor: _Cursor) -> tuple[bytes, int]:
    body = b""
    while True:
        size = int(cursor.run(HEXDIG), 16)
        _extensions(cursor)
        cursor.expect(b"\r\n")
        if not size:
            return body, len(_fields(cursor))
        body += cursor.take(size)
        cursor.expect(b"\r\n")


def _extensions(cursor: _Cursor) -> None:
    blanks = frozenset(b" \t")
    while True:
        begun = cursor.at
        cursor.run(blanks, 0)
        if cursor.byte() != ord(";"):
            cursor.at = begun
            return
        cursor.at += 1
        cursor.run(blanks, 0)
        cursor.run(TCHAR)
        begun = cursor.at
        cursor.run(blanks, 0)
        if cursor.byte() != ord("="):
            cursor.at = begun
            continue
        cursor.at += 1
        cursor.run(blanks, 0)
        _quoted(cursor) if cursor.byte() == ord('"') else cursor.run(TCHAR)


def _quoted(cursor: _Cursor) -> None:
    cursor.expect(b'"')
    text = FIELD - frozenset(b'"\\')
    while True:
        cursor.run(text, 0)
        if cursor.byte() == ord('"'):
            cursor.at += 1
            return
        cursor.expect(b"\\")
        if cursor.byte() not in FIELD:
            raise NotHttp
        cursor.at += 1
