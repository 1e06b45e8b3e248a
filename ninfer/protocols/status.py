"""Faults to HTTP: which status and error type each ``Kind`` becomes, and what the body looks like.

Owns the two error shapes (OpenAI's and Anthropic's) and the choice between them by path.  Promises
that ``code`` and ``param`` are always present in the OpenAI shape (null when absent) and that
``request_id`` is always present in Anthropic's.

The one thing a reader would get wrong: the same overload is 429 to one client and 529 to another;
a ``Fault`` therefore carries no status, and only this module knows one.  The error *type* follows
from the status, because the HTTP layer answers with statuses that no ``Kind`` stands for.
"""

from __future__ import annotations

from collections.abc import Callable

from ninfer.faults import Fault, Kind
from ninfer.http.exchange import Reply
from ninfer.protocols.frames import encode, frame

RenderFault = Callable[[str, int, Fault, str], bytes]
"""(path, status, fault, request id) to the body of an answer that the HTTP layer itself gives."""

OPENAI_STATUS: dict[Kind, int] = {
    Kind.INVALID: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.NOT_FOUND: 404,
    Kind.METHOD: 405,
    Kind.TOO_LARGE: 413,
    Kind.UNSUPPORTED_ENCODING: 415,
    Kind.OVERLOADED: 429,
    Kind.QUEUE_TIMEOUT: 503,
    Kind.FETCH_FAILED: 502,
    Kind.FETCH_TIMEOUT: 504,
    Kind.UNAVAILABLE: 503,
    Kind.INTERNAL: 500,
}
ANTHROPIC_STATUS: dict[Kind, int] = {**OPENAI_STATUS, Kind.OVERLOADED: 529, Kind.QUEUE_TIMEOUT: 504}

CODES: dict[Kind, str] = {
    Kind.UNAUTHENTICATED: "invalid_api_key",
    Kind.NOT_FOUND: "not_found",
    Kind.METHOD: "method_not_allowed",
    Kind.TOO_LARGE: "request_too_large",
    Kind.UNSUPPORTED_ENCODING: "unsupported_encoding",
    Kind.OVERLOADED: "server_overloaded",
    Kind.QUEUE_TIMEOUT: "request_queue_timeout",
    Kind.FETCH_FAILED: "media_fetch_failed",
    Kind.FETCH_TIMEOUT: "media_fetch_timeout",
    Kind.UNAVAILABLE: "service_unavailable",
    Kind.INTERNAL: "internal_error",
}
"""The code of a fault that names none."""

_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def openai_type(status: int) -> str:
    """Return the OpenAI error type of a status."""
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"


def anthropic_type(status: int) -> str:
    """Return the Anthropic error type of a status."""
    return _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")


def code_of(fault: Fault) -> str | None:
    """Return the machine word of a fault; None for a malformed request that names none."""
    return fault.code or CODES.get(fault.kind)


def openai_error(fault: Fault, status: int | None = None) -> dict[str, object]:
    """Build the OpenAI error body."""
    kind = openai_type(status or OPENAI_STATUS[fault.kind])
    error = {"message": fault.message, "type": kind, "param": fault.param, "code": code_of(fault)}
    return {"error": error}


def anthropic_error(fault: Fault, request_id: str, status: int | None = None) -> dict[str, object]:
    """Build the Anthropic error body."""
    kind = anthropic_type(status or ANTHROPIC_STATUS[fault.kind])
    error = {"type": kind, "message": fault.message}
    return {"type": "error", "error": error, "request_id": request_id}


def openai_reply(fault: Fault) -> Reply:
    """Answer a fault before any stream began, in the OpenAI shape."""
    return Reply(OPENAI_STATUS[fault.kind], encode(openai_error(fault)))


def anthropic_reply(fault: Fault, request_id: str) -> Reply:
    """Answer a fault before any stream began, in the Anthropic shape."""
    return Reply(ANTHROPIC_STATUS[fault.kind], encode(anthropic_error(fault, request_id)))


def openai_frame(fault: Fault) -> bytes:
    """Tell a fault inside a Chat stream: one data line."""
    return frame(openai_error(fault))


def anthropic_frame(fault: Fault, request_id: str) -> bytes:
    """Tell a fault inside a Messages stream: one ``error`` event."""
    return frame(anthropic_error(fault, request_id), "error")


def speaks_anthropic(path: str) -> bool:
    """Say whether a path belongs to the Messages API."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def render_fault(path: str, status: int, fault: Fault, request_id: str = "") -> bytes:
    """Body of an answer that the HTTP layer itself gives, in the shape of ``path``'s protocol.

    ``status`` is the one the HTTP layer answers with (400, 401, 404, 405, 408, 413, 415, 431, 503).
    """
    if speaks_anthropic(path):
        return encode(anthropic_error(fault, request_id, status))
    return encode(openai_error(fault, status))


def status_of(path: str, kind: Kind) -> int:
    """Return the status that a fault of this kind has at this path."""
    return (ANTHROPIC_STATUS if speaks_anthropic(path) else OPENAI_STATUS)[kind]
