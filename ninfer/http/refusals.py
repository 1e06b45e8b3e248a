"""What the HTTP layer itself says no to, and the status each no has.

Owns ``Turned``, the one exception by which the wire, the routes and the body reader refuse a
request.  Promises that every instance carries a status that a client may see and a ``Fault`` that
a protocol can put into its own error shape.

The one thing a reader would get wrong: ``Turned`` never says whether the connection survives; that
follows from how much of the request was read (``connection.py``).
"""

from __future__ import annotations

from ninfer.faults import Fault, Kind

STATUS: dict[Kind, int] = {
    Kind.INVALID: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.NOT_FOUND: 404,
    Kind.METHOD: 405,
    Kind.TOO_LARGE: 413,
    Kind.UNSUPPORTED_ENCODING: 415,
    Kind.OVERLOADED: 503,
    Kind.QUEUE_TIMEOUT: 503,
    Kind.FETCH_FAILED: 502,
    Kind.FETCH_TIMEOUT: 504,
    Kind.UNAVAILABLE: 503,
    Kind.INTERNAL: 500,
}
"""The status of a fault that reaches the HTTP layer without one."""

Fields = tuple[tuple[str, str], ...]
"""Header fields in the order they are sent."""


class Turned(Exception):
    """A request turned away by the HTTP layer: status, fault, and fields the status calls for."""

    def __init__(self, status: int, fault: Fault, fields: Fields = ()) -> None:
        super().__init__(fault.message)
        self.status = status
        self.fault = fault
        self.fields = fields


def malformed(message: str, status: int = 400, code: str = "invalid_http") -> Turned:
    """Build the refusal of bytes that are not HTTP as we speak it."""
    return Turned(status, Fault(Kind.INVALID, message, code))


def too_large(limit: int) -> Turned:
    """Build the refusal of a body of more than ``limit`` bytes."""
    message = f"the request body is larger than {limit} bytes"
    return Turned(413, Fault(Kind.TOO_LARGE, message, "request_too_large"))


def too_slow(message: str) -> Turned:
    """Build the refusal of a request that did not arrive in time."""
    return Turned(408, Fault(Kind.INVALID, message, "request_timeout"))
