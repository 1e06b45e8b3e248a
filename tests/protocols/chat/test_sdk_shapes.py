"""What we send is what the official client library's types say."""

from __future__ import annotations

import pytest

from ninfer.protocols.service import ToolCallsDelta
from tests.protocols.chat.test_render import run
from tests.protocols.fakes import answer, call, content, reasoning, timings


@pytest.mark.slow
async def test_the_official_types_read_both_forms() -> None:
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    script = answer(reasoning("Hm."), content("Hi"), ToolCallsDelta((call("look", a=1),), timings(3)))
    body = (await run(script)).json
    whole = ChatCompletion.model_validate(body, strict=True)
    assert whole.choices[0].finish_reason == "tool_calls" and whole.usage is not None
    assert whole.to_dict() == body
    exchange = await run(script, stream=True, stream_options={"include_usage": True})
    for event in exchange.events[:-1]:
        assert ChatCompletionChunk.model_validate(event.json, strict=True).to_dict() == event.json
