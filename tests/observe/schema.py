"""The documented schema of the request log, as a validator with readable complaints."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

PATH = Path(__file__).resolve().parents[2] / "docs" / "request-log.schema.json"


@cache
def document() -> dict[str, Any]:
    """The schema itself."""
    loaded: dict[str, Any] = json.loads(PATH.read_text())
    return loaded


def event_names() -> list[str]:
    """Every event that the schema describes."""
    return [entry["$ref"].rpartition("/")[2] for entry in document()["oneOf"]]


def complaints(event: dict[str, Any]) -> list[str]:
    """What is wrong with one event, each with its path; a known event is held to its own definition."""
    name = event.get("event")
    if name not in event_names():
        return [f"unknown event {name!r}"]
    schema = {"$ref": f"#/$defs/{name}", "$defs": document()["$defs"]}
    return [f"{name}{error.json_path[1:]}: {error.message}" for error in _validator(schema, event)]


def _validator(schema: dict[str, Any], event: dict[str, Any]) -> Iterable[Any]:
    return Draft202012Validator(schema).iter_errors(event)


def terminals(log: Iterable[dict[str, Any]]) -> dict[int, list[str]]:
    """Starts, ends and rejections by request, in the order of the log."""
    found: dict[int, list[str]] = {}
    for event in log:
        if event["event"] in ("request_start", "request_done", "request_error", "request_rejected"):
            found.setdefault(event["request"]["request_id"], []).append(event["event"])
    return found


def audit(log: list[dict[str, Any]]) -> None:
    """Demand that every event is as documented and every request told exactly once."""
    assert [text for event in log for text in complaints(event)] == []
    whole = (["request_start", "request_done"], ["request_start", "request_error"], ["request_rejected"])
    assert {number: told for number, told in terminals(log).items() if told not in whole} == {}
