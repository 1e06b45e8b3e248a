"""Good bodies made bad: some place is replaced, dropped, doubled or renamed."""

from __future__ import annotations

from typing import Any

Path = tuple[str | int, ...]
ACTS = ("drop", "rename", "double", "replace")


def places(value: Any, path: Path = ()) -> list[Path]:
    inner: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [path, *(place for step, item in inner for place in places(item, (*path, step)))]


def changed(body: Any, path: Path, act: str, new: Any, word: str) -> Any:
    if not path:
        return new
    copy = dict(body) if isinstance(body, dict) else list(body)
    step: Any = path[0]
    if len(path) > 1:
        copy[step] = changed(copy[step], path[1:], act, new, word)
    elif act == "drop":
        del copy[step]
    elif act == "rename" and isinstance(copy, dict):
        copy[word] = copy.pop(step)
    elif act == "double" and isinstance(copy, list):
        copy.append(copy[step])
    else:
        copy[step] = new
    return copy
