"""Keys and CORS: either spelling is enough, health and preflights are open, the body is never read."""

from __future__ import annotations

import pytest
import trio.testing

from ninfer.http.auth import KeyCheck
from ninfer.http.refusals import Turned
from tests.http.kit import connected, head, make_site, post

Clock = trio.testing.MockClock
KEY = "sécret key"


def allows(key: str | None, **headers: str) -> bool:
    try:
        KeyCheck(key).require({name.replace("_", "-"): value for name, value in headers.items()})
    except Turned as turned:
        assert turned.status == 401
        return False
    return True


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, False),
        ({"authorization": "Bearer k"}, True),
        ({"authorization": "bearer k"}, True),
        ({"authorization": "BEARER \t k"}, True),
        ({"authorization": "Bearer"}, False),
        ({"authorization": "Bearer "}, False),
        ({"authorization": "Bearerk"}, False),
        ({"authorization": "k"}, False),
        ({"authorization": "Basic k"}, False),
        ({"authorization": "Bearer k "}, False),
        ({"authorization": "Bearer K"}, False),
        ({"x_api_key": "k"}, True),
        ({"x_api_key": "K"}, False),
        ({"x_api_key": ""}, False),
        ({"x_api_key": "k, k"}, False),
        ({"authorization": "Bearer k", "x_api_key": "wrong"}, True),
        ({"authorization": "Bearer wrong", "x_api_key": "k"}, True),
        ({"authorization": "Bearer wrong", "x_api_key": "wrong"}, False),
    ],
)
def test_either_spelling_of_the_key_is_enough(headers: dict[str, str], allowed: bool) -> None:
    assert allows("k", **headers) is allowed
    assert allows(None, **headers)


def test_keys_are_compared_as_bytes() -> None:
    spelled = KEY.encode().decode("latin-1")
    assert allows(KEY, authorization=f"Bearer {spelled}") and allows(KEY, x_api_key=spelled)
    assert not allows(KEY, x_api_key=KEY)


def test_the_key_does_not_show_in_its_repr() -> None:
    assert "k3y" not in repr(KeyCheck("k3y")) and "k3y" not in repr(make_site(key="k3y"))


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (head("GET", "/health"), 200),
        (head("HEAD", "/health"), 200),
        (head("GET", "/metrics"), 401),
        (head("GET", "/nope"), 401),
        (head("PUT", "/metrics"), 401),
        (head("OPTIONS", "/metrics"), 401),
        (head("GET", "/metrics", "x-api-key: k"), 200),
        (head("GET", "/nope", "x-api-key: k"), 404),
        (head("POST", "/echo", "Content-Length: 99999999999"), 401),
        (head("POST", "/echo", "Content-Length: 9", "Expect: 100-continue"), 401),
        (post("/echo", b"{}", "Authorization: Bearer k"), 200),
    ],
)
async def test_what_is_closed_without_the_key(autojump_clock: Clock, raw: bytes, status: int) -> None:
    async with connected(make_site(key="k")) as client:
        answer = await client.ask(raw, raw[:4].decode().strip())
        assert answer.status == status
        assert ("www-authenticate" in answer.headers) == (status == 401)


PREFLIGHT = (
    "Origin: https://x.example",
    "Access-Control-Request-Method: POST",
    "Access-Control-Request-Headers: authorization,x-stainless-os",
)


async def test_a_preflight_needs_no_key_and_is_granted_what_it_asks(autojump_clock: Clock) -> None:
    async with connected(make_site(key="k", cors=True)) as client:
        answer = await client.ask(head("OPTIONS", "/echo", *PREFLIGHT))
        allowed = {name: value for name, value in answer.headers.items() if name.startswith("access-")}
        assert (answer.status, answer.body) == (204, b"")
        assert allowed["access-control-allow-origin"] == "*"
        assert "POST" in allowed["access-control-allow-methods"]
        assert allowed["access-control-allow-headers"] == "authorization,x-stainless-os"
        private = await client.ask(
            head("OPTIONS", "/echo", *PREFLIGHT, "Access-Control-Request-Private-Network: true")
        )
        assert private.headers["access-control-allow-private-network"] == "true"


async def test_a_preflight_without_cors_is_answered_and_grants_nothing(autojump_clock: Clock) -> None:
    async with connected(make_site(key="k")) as client:
        answer = await client.ask(head("OPTIONS", "/echo", *PREFLIGHT))
        assert answer.status == 204 and not [name for name in answer.headers if name.startswith("access")]


@pytest.mark.parametrize(
    "raw", [head(), head("GET", "/nope"), post("/crash"), post("/stream"), b"junk\r\n\r\n"]
)
async def test_with_cors_every_answer_may_be_read(autojump_clock: Clock, raw: bytes) -> None:
    async with connected(make_site(cors=True)) as client:
        headers = (await client.ask(raw)).headers
        assert headers["access-control-allow-origin"] == "*"
        assert headers["access-control-expose-headers"] == "*"


async def test_without_cors_no_answer_may_be_read(autojump_clock: Clock) -> None:
    async with connected(make_site()) as client:
        answer = await client.ask(head("GET", "/health", "Origin: https://x.example"))
        assert not [name for name in answer.headers if name.startswith("access")]


async def test_names_that_are_no_names_are_not_sent_back(autojump_clock: Clock) -> None:
    async with connected(make_site(cors=True)) as client:
        bad = (*PREFLIGHT[:2], "Access-Control-Request-Headers: a b; c")
        answer = await client.ask(head("OPTIONS", "/echo", *bad))
        assert "a b" not in answer.headers["access-control-allow-headers"]
