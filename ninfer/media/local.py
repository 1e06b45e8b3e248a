"""Local media of the command line: files named in a conversation become data URIs.

The one thing a reader would get wrong: only ``ninfer run`` calls this, on a file that the person at the
terminal chose; a server never reads a path for a client.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

from ninfer.faults import StartupError

_REMOTE = re.compile(r"(https?://|data:)", re.IGNORECASE)
_FIELDS = ("image_url", "video_url")


def inline_media(messages: object, base: Path, limit: int) -> None:
    """Replace paths (relative to ``base``) in Chat messages by the files' bytes, in place.

    Whatever is no well-formed media part is left for the reader of the request to judge.  Raises
    ``StartupError`` for a file that cannot be read or has more than ``limit`` bytes.
    """
    for part in _parts(messages):
        for field in _FIELDS:
            value = part.get(field)
            if isinstance(value, str):
                part[field] = _inlined(value, base, limit)
            elif isinstance(value, dict) and isinstance(value.get("url"), str):
                value["url"] = _inlined(value["url"], base, limit)


def _parts(messages: object) -> Iterator[dict[str, object]]:
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else []:
            if isinstance(part, dict):
                yield part


def _inlined(source: str, base: Path, limit: int) -> str:
    if _REMOTE.match(source):
        return source
    path = base / source
    try:
        if path.stat().st_size > limit:
            raise StartupError(f"{path}: is larger than {limit} bytes")
        return "data:;base64," + base64.b64encode(path.read_bytes()).decode()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "no such path"
        raise StartupError(f"{path}: cannot be read ({reason})") from None
