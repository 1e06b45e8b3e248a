"""The fault vocabulary of the whole tree.

Owns the three ways in which something can be wrong:

* a peer's mistake is a ``Fault``, a value; ``Refused`` carries it up to the door that answers the peer;
* a start-up problem that the operator can mend is a ``StartupError`` (one sentence, exit code 2);
* a broken invariant is a ``Broken``: only the connection supervisor and the engine supervisor catch it.

The one thing a reader would get wrong: a ``Fault`` never chooses an HTTP status.  Each protocol
maps ``Kind`` to its own status and error type (``protocols/status.py``).
"""

from __future__ import annotations

import enum

import attrs


class Kind(enum.Enum):
    """What sort of fault it is; protocols map it to a status and an error type."""

    INVALID = "invalid"
    UNAUTHENTICATED = "unauthenticated"
    NOT_FOUND = "not_found"
    METHOD = "method"
    TOO_LARGE = "too_large"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    OVERLOADED = "overloaded"
    QUEUE_TIMEOUT = "queue_timeout"
    FETCH_FAILED = "fetch_failed"
    FETCH_TIMEOUT = "fetch_timeout"
    UNAVAILABLE = "unavailable"
    INTERNAL = "internal"


@attrs.frozen
class Fault:
    """One mistake or failure that a peer is told about.

    ``param`` is the path of the field (``messages[0].content[1].type``), ``code`` a stable
    machine word.  ``message`` names what was wrong and what is expected; it may quote the
    request, so operational logs never print it.
    """

    kind: Kind
    message: str
    code: str | None = None
    param: str | None = None


class Refused(Exception):
    """Carries a ``Fault`` to the door that answers the peer."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


def invalid(message: str, *, param: str | None = None, code: str | None = None) -> Refused:
    """Build the refusal of a malformed or impossible request."""
    return Refused(Fault(Kind.INVALID, message, code, param))


class StartupError(Exception):
    """Something the operator can mend before the server can start; the text says what to do."""


class Broken(Exception):
    """An invariant of ours does not hold.  Never caught except by the two supervisors."""
