"""The Response object, its output items and its usage, as they are written.

Promises every member that the official client's types require, null where there is nothing to tell, and
nothing invented: what a request left open stays null.

The one thing a reader would get wrong: ``status`` of an item says whether that item is whole, so the calls
of an incomplete response are completed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ninfer.engine.job import Finish
from ninfer.faults import Fault
from ninfer.prompt.conversation import Json
from ninfer.protocols.responses.schema import CreateRequest, HostedTool
from ninfer.protocols.responses.store import JsonItem
from ninfer.protocols.responses.tools import FunctionKey, shown_choice
from ninfer.protocols.service import Finished
from ninfer.protocols.status import code_of

STATUS: dict[Finish, str] = {
    Finish.STOP_TOKEN: "completed",
    Finish.STOP_STRING: "completed",
    Finish.OUTPUT_LIMIT: "incomplete",
    Finish.CONTEXT: "incomplete",
    Finish.CANCELLED: "cancelled",
}
Envelope = Mapping[str, object]


def envelope(request: CreateRequest, id: str, created: int, model: str, effort: str | None) -> Envelope:
    """Build a response that has just begun; ``created`` is in Unix seconds."""
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": request.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": shown_choice(request),
        "tools": [dict(tool.source) for tool in request.tools or () if not isinstance(tool, HostedTool)],
        "top_logprobs": 0,
        "top_p": request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
    }


def finished(begun: Envelope, output: list[JsonItem], done: Finished, now: int) -> Envelope:
    """Build the terminal response; ``now`` is in Unix seconds."""
    status = STATUS[done.finish]
    return {
        **begun,
        "completed_at": now if status == "completed" else None,
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "output": output,
        "usage": usage_object(done),
    }


def failed(begun: Envelope, output: list[JsonItem], fault: Fault) -> Envelope:
    """Build a response that could not go on; its usage is not known."""
    error = {"code": code_of(fault) or "server_error", "message": fault.message}
    return {**begun, "status": "failed", "error": error, "output": output}


def usage_object(done: Finished) -> dict[str, object]:
    """Build the ``usage`` member; counts are tokens."""
    return {
        "input_tokens": done.prompt_tokens,
        "input_tokens_details": {"cached_tokens": done.cached_tokens},
        "output_tokens": done.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": done.reasoning_tokens},
        "total_tokens": done.prompt_tokens + done.completion_tokens,
    }


# Output items


def reasoning_item(id: str, status: str, content: list[Json]) -> JsonItem:
    """Build a reasoning item; ``content`` are its raw text parts."""
    return {"id": id, "type": "reasoning", "summary": [], "content": content, "status": status}


def message_item(id: str, status: str, content: list[Json]) -> JsonItem:
    """Build an assistant message."""
    return {"id": id, "type": "message", "status": status, "role": "assistant", "content": content}


def call_item(id: str, status: str, call_id: str, function: FunctionKey, arguments: str) -> JsonItem:
    """Build a function call; ``arguments`` is JSON text."""
    namespace, name = function
    member: JsonItem = {} if namespace is None else {"namespace": namespace}
    head: JsonItem = {"id": id, "type": "function_call", "status": status, "call_id": call_id}
    return {**head, **member, "name": name, "arguments": arguments}
