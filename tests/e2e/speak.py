"""Speaking with a live server in its three dialects, with nothing but the standard library.

The one thing a reader would get wrong: ``same`` drops what differs between two runs of the same request
(ids and times), so that two answers can be compared whole.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

from tests.e2e.server import Live

T = TypeVar("T")
Json = dict[str, Any]
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
BRIEF: dict[str, Json] = {
    "chat": {"reasoning_effort": "none"},
    "responses": {"reasoning": {"effort": "none"}},
    "messages": {"thinking": {"type": "disabled"}},
}
LIMIT = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
TURNS = {"chat": "messages", "responses": "input", "messages": "messages"}
_OWN = {"id", "item_id", "call_id", "created", "created_at", "completed_at", "signature", "timings"}
PATIENCE = 60.0  # seconds that a whole answer may take


def asked(dialect: str, content: Any, tokens: int = 120, **members: Any) -> Json:
    """Build a greedy request of one user turn, or of the given turns."""
    turns = content if isinstance(content, list) and "role" in content[0] else [user(content)]
    return {"temperature": 0, LIMIT[dialect]: tokens, TURNS[dialect]: turns, **members}


def user(content: Any) -> Json:
    """Build a user turn."""
    return {"role": "user", "content": content}


def ask(live: Live, dialect: str, body: Json) -> tuple[int, Any]:
    """Send one request; status and JSON of the answer."""
    with closing(_sent(live, dialect, body)) as client:
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())


def stream(live: Live, dialect: str, body: Json) -> list[Any]:
    """Send one request as a stream; every event's JSON, up to the end or to where it was cut."""
    return list(streamed(live, dialect, body))


def streamed(live: Live, dialect: str, body: Json) -> Iterator[Any]:
    """Send one request as a stream and yield each event's JSON as it comes."""
    with closing(_sent(live, dialect, {**body, "stream": True})) as client:
        answer = client.getresponse()
        if answer.status != 200:
            yield {"status": answer.status, **json.loads(answer.read())}
            return
        while line := answer.readline():
            word, _, data = line.decode().rstrip("\n").partition(": ")
            if word == "data" and data != "[DONE]":
                yield json.loads(data)


def _sent(live: Live, dialect: str, body: Json) -> http.client.HTTPConnection:
    client = http.client.HTTPConnection("127.0.0.1", int(live.url.rpartition(":")[2]), timeout=PATIENCE)
    client.request("POST", PATHS[dialect], json.dumps({"model": live.model, **body}).encode())
    return client


def get(live: Live, path: str) -> tuple[int, bytes]:
    """Fetch one of the operator's pages."""
    port = int(live.url.rpartition(":")[2])
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read()


def together(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make calls at the same time; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def same(answer: Any) -> Any:
    """Drop ids and times."""
    if isinstance(answer, dict):
        return {key: same(value) for key, value in answer.items() if key not in _OWN}
    return [same(item) for item in answer] if isinstance(answer, list) else answer


def text_of(dialect: str, events: Sequence[Any]) -> str:
    """Everything that a stream showed, reasoning included, in order."""
    return "".join(_piece(dialect, event) for event in events)


def _piece(dialect: str, event: Any) -> str:
    if dialect == "chat":
        delta = event["choices"][0]["delta"] if event.get("choices") else {}
        return str(delta.get("reasoning_content") or delta.get("content") or "")
    delta = event.get("delta")
    if dialect == "messages":
        return str(delta.get("thinking") or delta.get("text") or "") if isinstance(delta, dict) else ""
    return delta if isinstance(delta, str) else ""
