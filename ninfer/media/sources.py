"""Media bytes out of a request: data URIs, and the bytes that one request may acquire in all.

The one thing a reader would get wrong: base64 is decoded under the interpreter lock, so even a worker
thread does it in small steps, between which the event loop gets its turn.
"""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

import attrs

from ninfer.faults import Refused, invalid

STEP = 1 << 20  # characters decoded at a time; a multiple of 4
ESCAPED = 1 << 20  # longest payload in which percent escapes are read


@attrs.define(eq=False)
class Purse:
    """The source bytes of one request: each item may have ``item``, all together ``left``."""

    item: int
    left: int

    def take(self, size: int, param: str) -> None:
        """Spend bytes.  Raises ``Refused`` when there are no more."""
        self.left -= size
        if self.left < 0:
            message = f"{param}: the media of this request are larger in all than the server takes"
            raise invalid(message, param=param, code="media_budget_exceeded")


def is_data_uri(source: str) -> bool:
    """Tell a data URI from an address."""
    return source[:5].lower() == "data:"


def weigh_data_uri(source: str, param: str, purse: Purse) -> None:
    """Spend what a data URI will hold, by its length.  Raises ``Refused``."""
    size = (len(source) - source.find(",", 0, 1024) - 1) // 4 * 3
    if size > purse.item + 3:
        raise too_big(purse.item, param)
    purse.take(size, param)


def read_data_uri(source: str, param: str, limit: int) -> bytes:
    """Decode a data URI of at most ``limit`` bytes; runs on a worker thread.  Raises ``Refused``."""
    comma = source.find(",", 0, 1024)
    if comma < 0:
        raise bad_media("the data URI has no comma", param)
    if not source[:comma].lower().endswith(";base64"):
        raise bad_media("the data URI must be base64", param)
    if (len(source) - comma - 1) // 4 * 3 > limit + 3:
        raise too_big(limit, param)
    try:
        data = _decoded(source, comma + 1)
    except (binascii.Error, ValueError):
        raise bad_media("the data URI is not valid base64", param) from None
    if not data:
        raise bad_media("the data URI is empty", param)
    return data


def _decoded(text: str, start: int) -> bytes:
    if "%" in text:
        if len(text) - start > ESCAPED:
            raise ValueError("too long for percent escapes")
        text, start = unquote_to_bytes(text[start:]).decode("ascii"), 0
    if (len(text) - start) % 4:
        raise ValueError("not padded")
    steps = range(start, len(text), STEP)
    pieces = [base64.b64decode(text[at : at + STEP], validate=True) for at in steps]
    if any(len(piece) % 3 for piece in pieces[:-1]):
        raise ValueError("padding in the middle")
    return b"".join(pieces)


def bad_media(message: str, param: str) -> Refused:
    """Build the refusal of a media source that can never work."""
    return invalid(f"{param}: {message}", param=param, code="invalid_media")


def too_big(limit: int, param: str) -> Refused:
    """Build the refusal of a source over the byte budget."""
    message = f"{param}: the media item is larger than {limit} bytes"
    return invalid(message, param=param, code="media_budget_exceeded")
