"""The routing table: one path, one route; captures are decoded, nothing is normalised."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.http.exchange import Exchange, Request, Route
from ninfer.http.refusals import Turned
from ninfer.http.routes import build_router, split_target


async def handler(request: Request, exchange: Exchange) -> None:
    """Never called here."""


ROUTES = [
    Route("GET", "/v1/models", handler),
    Route("GET", "/v1/models/{id}", handler),
    Route("DELETE", "/v1/models/{id}", handler),
    Route("GET", "/v1/models/default", handler),
    Route("GET", "/v1/{kind}/{id}/items", handler),
    Route("GET", "/", handler),
]
ROUTER = build_router(ROUTES)


def found(target: str, method: str = "GET") -> tuple[str, dict[str, str]] | None:
    match = ROUTER.find(method, split_target(target))
    return None if match is None or match.route is None else (match.route.pattern, dict(match.variables))


@pytest.mark.parametrize(
    ("target", "want"),
    [
        ("/v1/models", ("/v1/models", {})),
        ("/v1/models?x=/y", ("/v1/models", {})),
        ("/v1/mod%65ls", ("/v1/models", {})),
        ("/v1/models/abc", ("/v1/models/{id}", {"id": "abc"})),
        ("/v1/models/a%2Fb%20c", ("/v1/models/{id}", {"id": "a/b c"})),
        ("/v1/models/default", ("/v1/models/default", {})),
        ("/v1/models/..", ("/v1/models/{id}", {"id": ".."})),
        ("/v1/a/b/items", ("/v1/{kind}/{id}/items", {"kind": "a", "id": "b"})),
        ("/", ("/", {})),
        ("/v1/models/", None),
        ("/v1//models", None),
        ("//v1/models", None),
        ("/v1/models//", None),
        ("/V1/models", None),
        ("/v1%2Fmodels", None),
        ("/v1/./models", None),
        ("*", None),
    ],
)
def test_a_path_leads_to_its_route_or_nowhere(target: str, want: object) -> None:
    assert found(target) == want


@given(st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1))
def test_any_text_can_be_captured(text: str) -> None:
    assert found("/v1/models/" + quote(text, safe="")) in (
        ("/v1/models/{id}", {"id": text}),
        ("/v1/models/default", {}),
    )


@pytest.mark.parametrize("segment", ["%ff", "%c3", "%ed%a0%80", "%00", "%0a", "%7f"])
def test_segments_that_are_no_text_are_refused(segment: str) -> None:
    with pytest.raises(Turned) as turned:
        split_target("/v1/models/" + segment)
    assert turned.value.status == 400


@pytest.mark.parametrize(
    ("target", "allow"), [("/v1/models", "GET HEAD OPTIONS"), ("/v1/models/x", "DELETE GET HEAD OPTIONS")]
)
def test_another_method_finds_what_is_allowed(target: str, allow: str) -> None:
    match = ROUTER.find("PATCH", split_target(target))
    assert match is not None and match.route is None and match.allow == tuple(allow.split())


def test_head_is_served_by_get_alone() -> None:
    assert found("/v1/models", "HEAD") == ("/v1/models", {})
    router = build_router([Route("POST", "/x", handler)])
    match = router.find("HEAD", split_target("/x"))
    assert match is not None and match.route is None


@pytest.mark.parametrize("pattern", ["/v1/models", "v1"])
def test_a_bad_or_doubled_route_is_a_bug_at_the_start(pattern: str) -> None:
    with pytest.raises(ValueError, match="route"):
        build_router([*ROUTES, Route("GET", pattern, handler)])
