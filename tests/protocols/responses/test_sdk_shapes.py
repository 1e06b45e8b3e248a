"""What we send is what the official client library's types say."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.engine.job import Finish
from ninfer.faults import Fault, Kind
from ninfer.protocols.service import Delta
from tests.protocols.fakes import Wait, answer, call, content, failing, reasoning
from tests.protocols.responses.desk import LOOK, desk, result, said, thought, user
from tests.protocols.responses.test_answer import FULL, NAMESPACE, calls

pytestmark = pytest.mark.slow
TOOLS = [LOOK, NAMESPACE]
SCRIPTS: dict[str, list[Delta | Wait]] = {
    "full": FULL,
    "text": answer(content("Hi")),
    "empty": answer(),
    "thinking": answer(reasoning("Hm"), finish=Finish.OUTPUT_LIMIT),
    "nothing": answer(finish=Finish.OUTPUT_LIMIT, tokens=0),
    "cancelled": answer(content("Hi"), finish=Finish.CANCELLED),
    "namespace": answer(calls(call("ns__look", at="x"), call("look"))),
    "failed": failing(Fault(Kind.INTERNAL, "no", "engine_failed"), reasoning("Hm"), content("x")),
}


def completed(response: dict[str, Any]) -> dict[str, Any]:
    """A response with what the newest types demand and the wire has no truth for.

    They want a count of tokens written to the cache, which is not known, and a closed list of error
    codes, where the wire has the precise one.
    """
    usage, error = response["usage"], response["error"]
    if usage is not None:
        details = {**usage["input_tokens_details"], "cache_write_tokens": 0}
        usage = {**usage, "input_tokens_details": details}
    if error is not None:
        error = {**error, "code": "server_error"}
    return {**response, "usage": usage, "error": error}


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "failed"])
async def test_the_official_types_read_every_response(name: str) -> None:
    from openai.types.responses import Response

    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]}
    for change in {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": choice, "metadata": {"a": "b"}}:
        body = completed((await desk(SCRIPTS[name]).create(**change, reasoning={"effort": "high"})).json)
        assert Response.model_validate(body, strict=True).to_dict() == body


@pytest.mark.parametrize("name", SCRIPTS)
async def test_the_official_types_read_every_event(name: str) -> None:
    from openai.types.responses import ResponseStreamEvent
    from pydantic import TypeAdapter

    adapter: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
    exchange = await desk(SCRIPTS[name]).create(stream=True, tools=TOOLS)
    for event in exchange.events:
        payload = event.json
        if "response" in payload:
            payload["response"] = completed(payload["response"])
        read = adapter.validate_python(payload, strict=True)
        assert read.type == event.name and read.to_dict() == payload


async def test_the_official_types_read_lists_and_counts() -> None:
    from openai.types.responses import ResponseItemList
    from openai.types.responses.input_token_count_response import InputTokenCountResponse

    image = {"type": "input_image", "image_url": "https://x/a"}
    history = [user(), thought(), said(), {**LOOKED, "call_id": "c"}, result("c", [image]), user()]
    here = desk()
    id = await here.made(input=history)
    body = (await here.on("GET", id, "/input_items")).json
    assert ResponseItemList.model_validate(body, strict=True).to_dict() == body
    counted = (await here.count()).json
    assert InputTokenCountResponse.model_validate(counted, strict=True).to_dict() == counted


LOOKED = {"type": "function_call", "name": "look", "arguments": "{}", "namespace": "ns"}
