"""Permissive CORS for browsers, off unless asked for.

Owns the fields of both kinds of answer.  Promises that a preflight is answered whatever the key,
because a browser sends it without credentials.

The one thing a reader would get wrong: ``*`` in allow-headers does not cover Authorization, so the
names that a preflight asks for are sent back to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ninfer.http.refusals import Fields

EVERY_ANSWER: Fields = (
    ("access-control-allow-origin", "*"),
    ("access-control-expose-headers", "*"),
)
_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_USUAL = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta"


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Say whether a browser asks for leave, and not a client for options."""
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


def preflight_fields(headers: Mapping[str, str], allow: tuple[str, ...]) -> Fields:
    """Fields that grant what the preflight asks for; ``EVERY_ANSWER`` comes on top."""
    asked = headers.get("access-control-request-headers", "")
    fields: Fields = (
        ("access-control-allow-methods", ", ".join(allow)),
        ("access-control-allow-headers", asked if _NAMES.fullmatch(asked) else _USUAL),
        ("access-control-max-age", "86400"),
    )
    if headers.get("access-control-request-private-network") == "true":
        fields += (("access-control-allow-private-network", "true"),)
    return (*fields, ("vary", "access-control-request-headers"))
