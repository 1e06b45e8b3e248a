"""The neutral conversation that every protocol lowers to.

Owns plain values only; what a chat template may see and nothing of any wire format.
The one thing a reader would get wrong: ``ToolCall.arguments`` and ``ToolDef.definition`` keep
the member order in which the client sent them, because that order reaches the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import attrs

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Role = Literal["system", "developer", "user", "assistant", "tool"]


@attrs.frozen
class TextPart:
    """Text as the client sent it.  ``mark`` asks for a shared-prefix checkpoint after it."""

    text: str
    mark: bool = False


@attrs.frozen
class MediaPart:
    """An image or a video by its source: an http(s) URL, a data URI, or a local path (CLI only).

    ``param`` is the wire path of the part, for faults found while it is fetched or decoded.
    """

    kind: Literal["image", "video"]
    source: str
    param: str
    mark: bool = False


Part = TextPart | MediaPart


@attrs.frozen
class ToolCall:
    """A call made by the assistant; ``mark`` asks for a shared-prefix checkpoint after it."""

    id: str
    name: str
    arguments: dict[str, Json]
    mark: bool = False


@attrs.frozen
class Message:
    """One turn.  Only assistant turns have ``reasoning`` and ``calls``; only tool turns ``call_id``."""

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    is_error: bool = False


@attrs.frozen
class ToolDef:
    """A callable function.  ``definition`` is the JSON the template renders, in client order."""

    name: str
    definition: dict[str, Json]
    parameters: dict[str, Json] | None = None
    mark: bool = False


@attrs.frozen
class TemplateOptions:
    """Template switches, settled; None means unspecified (the template's own default decides).

    Effort ``none`` comes with ``enable_thinking`` False; it is kept for the request log.
    ``effort_apart`` says that any other effort does not speak about whether to think.
    ``kwargs`` are the template's own: none is a switch, and none of a name that the server gives.
    """

    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    preserve_thinking: bool | None = None
    kwargs: Mapping[str, Json] = attrs.field(factory=dict)
    effort_apart: bool = False


@attrs.frozen
class CachePolicy:
    """Whether the end of the latest cacheable part is marked without being asked."""

    implicit: bool = True


@attrs.frozen
class Conversation:
    """Everything that decides the prompt's tokens.

    ``tools`` is the effective set (already filtered by tool choice).  ``continue_final`` leaves
    the last assistant turn open so that generation continues its text.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolDef, ...] = ()
    options: TemplateOptions = TemplateOptions()
    cache: CachePolicy = CachePolicy()
    continue_final: bool = False
