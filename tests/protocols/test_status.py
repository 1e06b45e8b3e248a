"""Faults on the wire: every kind, both shapes, and the HTTP layer's own faults."""

from __future__ import annotations

import json

import pytest

from ninfer.faults import Fault, Kind
from ninfer.protocols import status

TABLE = [
    (Kind.INVALID, 400, None, 400, "invalid_request_error"),
    (Kind.UNAUTHENTICATED, 401, "invalid_api_key", 401, "authentication_error"),
    (Kind.NOT_FOUND, 404, "not_found", 404, "not_found_error"),
    (Kind.METHOD, 405, "method_not_allowed", 405, "invalid_request_error"),
    (Kind.TOO_LARGE, 413, "request_too_large", 413, "request_too_large"),
    (Kind.UNSUPPORTED_ENCODING, 415, "unsupported_encoding", 415, "invalid_request_error"),
    (Kind.OVERLOADED, 429, "server_overloaded", 529, "overloaded_error"),
    (Kind.QUEUE_TIMEOUT, 503, "request_queue_timeout", 504, "timeout_error"),
    (Kind.FETCH_FAILED, 502, "media_fetch_failed", 502, "api_error"),
    (Kind.FETCH_TIMEOUT, 504, "media_fetch_timeout", 504, "timeout_error"),
    (Kind.UNAVAILABLE, 503, "service_unavailable", 503, "api_error"),
    (Kind.INTERNAL, 500, "internal_error", 500, "api_error"),
]


def test_every_kind_has_a_row() -> None:
    assert {row[0] for row in TABLE} == set(Kind)


@pytest.mark.parametrize("kind, openai, code, anthropic, kind_word", TABLE)
def test_a_kind_has_its_status_and_shape(
    kind: Kind, openai: int, code: str | None, anthropic: int, kind_word: str
) -> None:
    reply = status.openai_reply(Fault(kind, "no"))
    assert reply.status == openai
    error = json.loads(reply.body)["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["message"], error["param"], error["code"]) == ("no", None, code)
    other = status.anthropic_reply(Fault(kind, "no"), "req_1")
    assert other.status == anthropic
    assert json.loads(other.body) == {
        "type": "error",
        "error": {"type": kind_word, "message": "no"},
        "request_id": "req_1",
    }


@pytest.mark.parametrize(
    "code, kind", [(400, "invalid_request_error"), (429, "rate_limit_error"), (503, "server_error")]
)
def test_an_openai_type_follows_from_the_status(code: int, kind: str) -> None:
    assert status.openai_type(code) == kind


def test_a_fault_keeps_its_own_code_and_param() -> None:
    fault = Fault(Kind.INVALID, "no", "vision_disabled", "messages[0].content[1]")
    error = json.loads(status.openai_reply(fault).body)["error"]
    assert (error["code"], error["param"]) == ("vision_disabled", "messages[0].content[1]")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_the_http_layers_faults_speak_anthropic_on_messages(path: str) -> None:
    body = json.loads(status.render_fault(path, 408, Fault(Kind.INVALID, "slow"), "req_1"))
    assert body["type"] == "error" and body["request_id"] == "req_1"
    assert body["error"] == {"type": "invalid_request_error", "message": "slow"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messagesx", "/", "/v1/models"])
def test_the_http_layers_faults_speak_openai_elsewhere(path: str) -> None:
    error = json.loads(status.render_fault(path, 431, Fault(Kind.INVALID, "big", "x")))["error"]
    assert error == {"message": "big", "type": "invalid_request_error", "param": None, "code": "x"}


def test_the_status_chooses_the_type_where_the_kind_would_not() -> None:
    body = json.loads(status.render_fault("/v1/messages", 413, Fault(Kind.INVALID, "big"), "r"))
    assert body["error"]["type"] == "request_too_large"


def test_a_status_can_be_asked_for() -> None:
    assert status.status_of("/v1/messages", Kind.OVERLOADED) == 529
    assert status.status_of("/v1/responses", Kind.OVERLOADED) == 429


def test_stream_errors_are_one_event() -> None:
    fault = Fault(Kind.INTERNAL, "lost\ndevice")
    assert status.openai_frame(fault).count(b"\n") == 2
    name, data, *rest = status.anthropic_frame(fault, "r").split(b"\n")
    assert name == b"event: error" and data.startswith(b"data: {") and rest == [b"", b""]
