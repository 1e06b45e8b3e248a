"""The shape of Messages content blocks, and every block that is refused.

Owns the wire classes of content.  The order of the fields is the order in which faults are told.  The
one thing a reader would get wrong: what a role may hold is decided in ``history.py``; here every role
may carry every block that is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, TypeVar

import attrs

from ninfer.protocols.fields import JsonObject, Length, Match, Never

ToolName = Annotated[str, Match("[A-Za-z0-9_-]{1,128}")]
ToolId = Annotated[str, Length(1)]
T = TypeVar("T")


@attrs.frozen
class CacheControl:
    """A wish for a shared-prefix checkpoint; the time to live promises nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


@attrs.frozen
class Text:
    """A text block; citations that it carries are not read."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None


# Images


@attrs.frozen
class Base64Source:
    """Image bytes in the request."""

    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


@attrs.frozen
class UrlSource:
    """An image on the web."""

    type: Literal["url"]
    url: str


@attrs.frozen
class FileSource:
    """An image of the Files API, which this server does not have."""

    type: Annotated[Literal["file"], Never("uploaded files", "files_not_supported")]


@attrs.frozen
class Image:
    """An image block."""

    type: Literal["image"]
    source: Base64Source | UrlSource | FileSource
    cache_control: CacheControl | None = None


# What depends on something that is not here


@attrs.frozen
class Document:
    """A document, which nothing here can read."""

    type: Annotated[Literal["document"], Never("document input", "documents_not_supported")]


@attrs.frozen
class SearchResult:
    """A search result with citations."""

    type: Annotated[Literal["search_result"], Never("cited search results", "search_results_not_supported")]


@attrs.frozen
class ToolReference:
    """A tool found by a tool search."""

    type: Annotated[Literal["tool_reference"], Never("tool search", "server_tools_not_supported")]


@attrs.frozen
class BrowserState:
    """The state of a browser toolset."""

    type: Annotated[Literal["browser_state"], Never("a browser toolset", "toolsets_not_supported")]


@attrs.frozen
class ContainerUpload:
    """A file for a container."""

    type: Annotated[Literal["container_upload"], Never("containers", "containers_not_supported")]


@attrs.frozen
class McpBlock:
    """A call of a remote tool, or its result."""

    type: Annotated[
        Literal["mcp_tool_use", "mcp_tool_result"],
        Never("tools behind MCP servers", "mcp_not_supported"),
    ]


@attrs.frozen
class Compaction:
    """The remains of a conversation that the server compacted."""

    type: Annotated[Literal["compaction"], Never("server-side compaction", "compaction_not_supported")]


@attrs.frozen
class ServerTool:
    """A call of a tool that the server runs, or its result."""

    type: Annotated[
        Literal[
            "server_tool_use",
            "web_search_tool_result",
            "web_fetch_tool_result",
            "code_execution_tool_result",
            "bash_code_execution_tool_result",
            "text_editor_code_execution_tool_result",
            "tool_search_tool_result",
            "advisor_tool_result",
        ],
        Never("tools that the server runs", "server_tools_not_supported"),
    ]


# History


@attrs.frozen
class Thinking:
    """Visible reasoning of an earlier answer; the signature carries nothing."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


@attrs.frozen
class RedactedThinking:
    """Reasoning that another server encrypted; it cannot be read, so it is left out."""

    type: Literal["redacted_thinking"]
    data: str


@attrs.frozen
class ToolUse:
    """A call made by the assistant."""

    type: Literal["tool_use"]
    id: ToolId
    name: ToolName
    input: JsonObject
    cache_control: CacheControl | None = None


Shown = Text | Image | Document | SearchResult | ToolReference | BrowserState


@attrs.frozen
class ToolResult:
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: ToolId
    content: str | tuple[Shown, ...] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


Block = (
    Text
    | Image
    | Thinking
    | RedactedThinking
    | ToolUse
    | ToolResult
    | Document
    | SearchResult
    | ServerTool
    | ContainerUpload
    | McpBlock
    | Compaction
    | ToolReference
    | BrowserState
)


def placed(content: str | tuple[T, ...] | None, path: str) -> Iterator[tuple[str, T | Text]]:
    """Walk content with the path of each block; a string is one text block, an empty one none."""
    if isinstance(content, str):
        if content:
            yield path, Text("text", content)
    else:
        for index, block in enumerate(content or ()):
            yield f"{path}[{index}]", block
