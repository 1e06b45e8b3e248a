"""A strict reading of chunked framing, held beside h11's lenient one.

Owns the grammar of RFC 9112 section 7.1 for requests: sizes, extensions, line ends, no trailers.
Promises that a body which passes means the same to every reader of that grammar.

The one thing a reader would get wrong: it keeps no data.  h11 still decodes the body; this only
counts it off, because h11 takes bare line feeds, NUL in extensions and blanks after a size.  The
blanks that the grammar calls bad but allows around ``;`` and ``=`` are refused by one or the other.
"""

from __future__ import annotations

import enum
import re

import attrs

from ninfer.http.refusals import malformed

LINE_LIMIT = 4_096  # bytes of one size line with its extensions
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t !#-\[\]-~\x80-\xff]|\\[\t -~\x80-\xff])*"'
_SIZE_LINE = re.compile(
    rb"([0-9A-Fa-f]{1,15})(?:;" + _TOKEN + rb"(?:=(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?)*"
)


class _Part(enum.Enum):
    SIZE = enum.auto()
    DATA = enum.auto()
    DATA_END = enum.auto()
    LAST = enum.auto()
    OVER = enum.auto()


@attrs.define
class ChunkGate:
    """Follows the framing of one chunked body.

    ``framing`` counts the bytes that were not data; what comes after the body is not looked at.
    """

    framing: int = 0
    _part: _Part = _Part.SIZE
    _line: bytearray = attrs.field(factory=bytearray)
    _left: int = 0

    def check(self, data: bytes) -> None:
        """Take the next bytes of the body; raise ``Turned`` at the first that is out of place."""
        at = 0
        while at < len(data) and self._part is not _Part.OVER:
            if self._part is _Part.DATA:
                at += self._pass_data(len(data) - at)
            else:
                at += self._take_line(data, at)

    def _pass_data(self, available: int) -> int:
        taken = min(available, self._left)
        self._left -= taken
        if not self._left:
            self._part = _Part.DATA_END
        return taken

    def _take_line(self, data: bytes, at: int) -> int:
        limit = LINE_LIMIT if self._part is _Part.SIZE else 2
        end = data.find(b"\n", at) + 1 or len(data)
        self._line += data[at : min(end, at + limit + 1)]
        self.framing += end - at
        if len(self._line) > limit:
            raise malformed("a line of the chunk framing is too long, or a trailer follows")
        if self._line.endswith(b"\n"):
            line, self._line = bytes(self._line), bytearray()
            self._end_line(line)
        return end - at

    def _end_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise malformed("a line of the chunk framing does not end in CRLF")
        if self._part is _Part.SIZE:
            self._begin_chunk(line[:-2])
        elif line != b"\r\n":
            raise malformed("chunk data is longer than its size, or a trailer follows it")
        else:
            self._part = _Part.OVER if self._part is _Part.LAST else _Part.SIZE

    def _begin_chunk(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None:
            raise malformed("a chunk does not begin with its size")
        self._left = int(match[1], 16)
        self._part = _Part.DATA if self._left else _Part.LAST
