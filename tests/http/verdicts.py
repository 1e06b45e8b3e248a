"""The verdict table: what each questionable request deserves.

One row a case: name, status (``SERVED`` when it is good), bytes.  Names follow the public scars that
taught them where there is one.
"""

from __future__ import annotations

SERVED = 0

_GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
_POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"


def _field(line: bytes) -> bytes:
    return _GET + line + b"\r\n\r\n"


def _coding(value: bytes) -> bytes:
    return _POST + b"Transfer-Encoding:" + value + b"\r\n\r\n0\r\n\r\n"


def _length(value: bytes, body: bytes = b"hello") -> bytes:
    return _POST + b"Content-Length:" + value + b"\r\n\r\n" + body


def _target(target: bytes, method: bytes = b"GET") -> bytes:
    return method + b" " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n"


def _version(version: bytes) -> bytes:
    return b"GET / " + version + b"\r\nHost: a\r\n\r\n"


def _host(value: bytes) -> bytes:
    return b"GET / HTTP/1.1\r\nHost:" + value + b"\r\n\r\n"


FRAMING = [
    ("a length", SERVED, _length(b" 5")),
    ("a length with zeros before it", SERVED, _length(b" 005")),
    ("no length", SERVED, _POST + b"\r\n"),
    ("length and coding", 400, _POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("coding and length", 400, _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n"),
    ("coding in 1.0", 400, b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("two equal lengths", 400, _POST + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    ("two lengths", 400, _POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
    ("equal lengths in one field", 400, _length(b" 5, 5")),
    ("lengths in one field", 400, _length(b" 5, 6")),
    ("a comma after the length", 400, _length(b" 5,")),
    ("plus", 400, _length(b" +5")),
    ("minus", 400, _length(b" -5")),
    ("underscore in the length", 400, _length(b" 5_0")),
    ("hexadecimal length", 400, _length(b" 0x5")),
    ("superscript digit", 400, _length(b" \xb2")),
    ("empty length", 400, _length(b" ")),
    ("blank inside the length", 400, _length(b" 5 5")),
    ("a decimal point", 400, _length(b" 5.0")),
    ("a length of 30 digits", 413, _length(b" " + b"9" * 30)),
    ("a length of 5,000 digits", 413, _length(b" " + b"9" * 5_000)),
    ("chunked", SERVED, _coding(b" chunked")),
    ("chunked in other case", SERVED, _coding(b" Chunked")),
    ("unknown coding", 501, _coding(b" gzip")),
    ("unknown coding before chunked", 501, _coding(b" gzip, chunked")),
    ("xchunked", 501, _coding(b" xchunked")),
    ("chunked twice", 501, _coding(b" chunked, chunked")),
    ("chunked with a parameter", 501, _coding(b" chunked;q=1")),
    ("chunked with a comma", 501, _coding(b" chunked,")),
    ("identity", 501, _coding(b" identity")),
    ("empty coding", 501, _coding(b"")),
    ("quoted chunked", 501, _coding(b' "chunked"')),
    ("chunked after a non-breaking space", 501, _coding(b" \xa0chunked")),
    ("chunked after a next-line", 501, _coding(b" \x85chunked")),
    ("chunked after a vertical tab", 400, _coding(b" \x0bchunked")),
    ("chunked before a file separator", 400, _coding(b" chunked\x1c")),
    (
        "two codings",
        501,
        _POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("a long body in a length", SERVED, _length(b" 5", b"hello" + _GET)),
]

CHUNKS = [
    ("one chunk", SERVED, _CHUNKED + b"5\r\nhello\r\n0\r\n\r\n"),
    ("upper-case and padded size", SERVED, _CHUNKED + b"000A\r\nhellohello\r\n000\r\n\r\n"),
    ("extension", SERVED, _CHUNKED + b"5;a=b\r\nhello\r\n0\r\n\r\n"),
    ("extension without value", SERVED, _CHUNKED + b"5;a\r\nhello\r\n0;b\r\n\r\n"),
    ("quoted extension", SERVED, _CHUNKED + b'5;a="x; \\" y";b\r\nhello\r\n0\r\n\r\n'),
    ("blank before an extension", 400, _CHUNKED + b"5 ;a=b\r\nhello\r\n0\r\n\r\n"),
    ("blank inside an extension", 400, _CHUNKED + b"5;a =b\r\nhello\r\n0\r\n\r\n"),
    ("unclosed quote", 400, _CHUNKED + b'5;a="x\r\nhello\r\n0\r\n\r\n'),
    ("line end inside a quote", 400, _CHUNKED + b'5;a="x\r\n0\r\n\r\n"\r\nhello\r\n0\r\n\r\n'),
    ("carriage return in extension", 400, _CHUNKED + b"5;a=\rb\r\nhello\r\n0\r\n\r\n"),
    ("line feed in extension", 400, _CHUNKED + b"5;a=\nb\r\nhello\r\n0\r\n\r\n"),
    ("NUL in extension", 400, _CHUNKED + b"5;\x00\r\nhello\r\n0\r\n\r\n"),
    ("empty extension", 400, _CHUNKED + b"5;\r\nhello\r\n0\r\n\r\n"),
    ("bare LF after the size", 400, _CHUNKED + b"5\nhello\r\n0\r\n\r\n"),
    ("bare LF after the data", 400, _CHUNKED + b"5\r\nhello\n0\r\n\r\n"),
    ("two LF after the data", 400, _CHUNKED + b"5\r\nhello\n\n0\r\n\r\n"),
    ("any two bytes after the data", 400, _CHUNKED + b"5\r\nhelloXX0\r\n\r\n"),
    ("data longer than its size", 400, _CHUNKED + b"4\r\nhello\r\n0\r\n\r\n"),
    ("bare LF after the last chunk", 400, _CHUNKED + b"0\n\r\n"),
    ("bare LF at the very end", 400, _CHUNKED + b"0\r\n\n"),
    ("blank after the size", 400, _CHUNKED + b"5  \r\nhello\r\n0\r\n\r\n"),
    ("blank before the size", 400, _CHUNKED + b" 5\r\nhello\r\n0\r\n\r\n"),
    ("0x before the size", 400, _CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n"),
    ("minus before the size", 400, _CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n"),
    ("no size", 400, _CHUNKED + b"\r\nhello\r\n0\r\n\r\n"),
    ("size of 20 digits", 400, _CHUNKED + b"F" * 20 + b"\r\nhello\r\n0\r\n\r\n"),
    ("size beyond the body limit", 413, _CHUNKED + b"3E9\r\n" + b"x" * 1_001 + b"\r\n0\r\n\r\n"),
    ("trailer", 400, _CHUNKED + b"0\r\nX: y\r\n\r\n"),
    ("trailer with a length", 400, _CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n"),
    ("trailer that is a request", 400, _CHUNKED + b"0\r\n" + _GET + b"\r\n"),
    ("a size line of 5,000 bytes", 400, _CHUNKED + b"5;a=" + b"b" * 5_000 + b"\r\nhello\r\n0\r\n\r\n"),
    ("framing of 2,000 bytes", 400, _CHUNKED + b"1;a=bcdefgh\r\nx\r\n" * 150 + b"0\r\n\r\n"),
]

LINES = [
    ("bare LF everywhere", 400, b"POST / HTTP/1.1\nHost: a\nContent-Length: 2\n\nhi"),
    ("bare LF after the request line", 400, b"GET / HTTP/1.1\nHost: a\r\n\r\n"),
    ("bare LF after a field", 400, b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n"),
    ("bare LF before the blank line", 400, b"GET / HTTP/1.1\r\nHost: a\n\r\n"),
    ("bare CR in a value", 400, _field(b"X: a\rb")),
    ("bare CR before CRLF", 400, _field(b"X: a\r")),
    ("folded line", 400, _field(b"X: y\r\n z")),
    ("line folded by tab", 400, _field(b"X: y\r\n\tz")),
    ("fold at the first field", 400, b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    ("CRLF before the request line", 400, b"\r\n" + _GET + b"\r\n"),
    ("LF before the request line", 400, b"\n" + _GET + b"\r\n"),
    ("blank before the request line", 400, b" " + _GET + b"\r\n"),
    ("TLS hello", 400, b"\x16\x03\x01\x02\x00\x01"),
    ("h2 preface", 505, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("an empty head", 400, b"\r\n\r\n"),
    ("SSH", 400, b"SSH-2.0-OpenSSH_9.0\r\n\r\n"),
    ("SOCKS", 400, b"\x05\x01\x00"),
    ("NUL in the request line", 400, b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n"),
]

FIELDS = [
    ("obs-text in a value", SERVED, _field(b"X: \xff\xfe")),
    ("tab in a value", SERVED, _field(b"X:\ta\tb\t")),
    ("empty value", SERVED, _field(b"X:")),
    ("blank in front of the colon", 400, _field(b"X : y")),
    ("tab in front of the colon", 400, _field(b"X\t: y")),
    ("empty name", 400, _field(b": y")),
    ("no colon", 400, _field(b"X")),
    ("parenthesis in a name", 400, _field(b"X(y): z")),
    ("non-ASCII name", 400, _field(b"X\xe9: z")),
    ("underscore in a name", SERVED, _field(b"Content_Length: 5")),
    ("100 fields", SERVED, _GET + b"a:b\r\n" * 99 + b"\r\n"),
    ("101 fields", 431, _GET + b"a:b\r\n" * 100 + b"\r\n"),
    ("a head of 16 KiB", SERVED, _field(b"X: " + b"y" * (16_384 - len(_field(b"X: ")) + 4))),
    ("a head of 16 KiB and a byte", 431, _field(b"X: " + b"y" * (16_384 - len(_field(b"X: ")) + 5))),
    ("a head that never ends", 431, _GET + b"X: " + b"y" * 20_000),
    ("100-continue", SERVED, _field(b"Expect: 100-Continue")),
    ("another expectation", 417, _field(b"Expect: 200-maybe")),
    ("two expectations", 417, _field(b"Expect: 100-continue, x")),
    ("an expectation twice", 417, _field(b"Expect: 100-continue\r\nExpect: 100-continue")),
    ("upgrade", SERVED, _field(b"Upgrade: h2c\r\nConnection: upgrade")),
    *(
        (f"byte {byte:#04x} in a value", 400, _field(b"X: a" + bytes([byte]) + b"b"))
        for byte in (*range(0x09), *range(0x0A, 0x20), 0x7F)
    ),
]

HOSTS = [
    ("host with a port", SERVED, _host(b" a:80")),
    ("host with an empty port", SERVED, _host(b" a:")),
    ("IPv6 host", SERVED, _host(b" [::1]:8080")),
    ("IPv4 host", SERVED, _host(b" 127.0.0.1")),
    ("no host in 1.0", SERVED, b"GET / HTTP/1.0\r\n\r\n"),
    ("no host", 400, b"GET / HTTP/1.1\r\n\r\n"),
    ("empty host", 400, _host(b"")),
    ("two hosts", 400, b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
    ("two hosts in 1.0", 400, b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"),
    ("two hosts in one field", 400, _host(b" a, b")),
    ("user in the host", 400, _host(b" u@a")),
    ("path in the host", 400, _host(b" a/b")),
    ("blank in the host", 400, _host(b" a b")),
    ("unclosed IPv6", 400, _host(b" [::1")),
    ("port of letters", 400, _host(b" a:http")),
    ("obs-text in the host", 400, _host(b" a\xff")),
    ("broken escape in the host", 400, _host(b" a%")),
    ("hash in the host", 400, _host(b" a#b")),
]

REQUEST_LINES = [
    ("1.0", SERVED, _version(b"HTTP/1.0")),
    ("no version", 400, b"GET /\r\nHost: a\r\n\r\n"),
    ("0.9", 505, _version(b"HTTP/0.9")),
    ("1.2", 505, _version(b"HTTP/1.2")),
    ("1.9", 505, _version(b"HTTP/1.9")),
    ("2.0", 505, _version(b"HTTP/2.0")),
    ("9.9", 505, _version(b"HTTP/9.9")),
    ("1.10", 400, _version(b"HTTP/1.10")),
    ("01.1", 400, _version(b"HTTP/01.1")),
    ("lower-case http", 400, _version(b"http/1.1")),
    ("HTTPS", 400, _version(b"HTTPS/1.1")),
    ("blank after the version", 400, _version(b"HTTP/1.1 ")),
    ("two blanks", 400, b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("tab for a blank", 400, b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("blank in the target", 400, _target(b"/a b")),
    ("lower-case method", 400, _target(b"/", b"get")),
    ("mixed-case method", 400, _target(b"/", b"Get")),
    ("unknown method", SERVED, _target(b"/", b"BREW")),
    ("method with a colon", 400, _target(b"/", b"GE:T")),
    ("no method", 400, b" / HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("absolute form", 400, _target(b"http://evil/")),
    ("authority form", 400, _target(b"a:1", b"CONNECT")),
    ("authority form in GET", 400, _target(b"a:1")),
    ("asterisk", SERVED, _target(b"*", b"OPTIONS")),
    ("asterisk in GET", 400, _target(b"*")),
    ("no slash", 400, _target(b"foo")),
    ("fragment", 400, _target(b"/#x")),
    ("fragment after a query", 400, _target(b"/?a#x")),
    ("non-ASCII target", 400, _target(b"/\xc3\xa9")),
    ("broken escape", 400, _target(b"/%zz")),
    ("cut-off escape", 400, _target(b"/%4")),
    ("backslash in the path", 400, _target(b"/a\\b")),
    ("quote in the path", 400, _target(b'/a"b')),
    ("brackets in the query", SERVED, _target(b"/?a[]=1")),
    ("query", SERVED, _target(b"/a%20b?x=/?:@")),
    ("two slashes", SERVED, _target(b"//")),
    ("a target of 8 KiB", SERVED, _target(b"/" + b"a" * 8_191)),
    ("a target of 8 KiB and a byte", 414, _target(b"/" + b"a" * 8_192)),
    ("a target without an end", 414, b"GET /" + b"a" * 20_000),
]

TABLE = [*FRAMING, *CHUNKS, *LINES, *FIELDS, *HOSTS, *REQUEST_LINES]
