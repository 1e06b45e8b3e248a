"""The API key: who may ask for more than health.

Owns both spellings of the key.  Promises a comparison in constant time, on bytes, before a single
byte of the body is read.

The one thing a reader would get wrong: either spelling is enough.  A right ``x-api-key`` beside a
wrong bearer (clients that always send both) is served.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping

import attrs

from ninfer.faults import Fault, Kind
from ninfer.http.refusals import Turned

_BEARER = re.compile(r"bearer[ \t]+(.*)", re.IGNORECASE | re.DOTALL)


@attrs.frozen
class KeyCheck:
    """The configured key; None lets everybody in."""

    key: str | None = attrs.field(default=None, repr=False)

    def require(self, headers: Mapping[str, str]) -> None:
        """Raise ``Turned`` (401) unless one of the two fields carries the key."""
        if self.key is None:
            return
        bearer = _BEARER.fullmatch(headers.get("authorization", ""))
        right = self._is_right(bearer[1] if bearer else None)
        if not right | self._is_right(headers.get("x-api-key")):
            raise Turned(
                401,
                Fault(Kind.UNAUTHENTICATED, "a valid API key is required", "invalid_api_key"),
                (("www-authenticate", "Bearer"),),
            )

    def _is_right(self, offered: str | None) -> bool:
        key = (self.key or "").encode("utf-8")
        return hmac.compare_digest((offered or "").encode("latin-1"), key) and offered is not None
