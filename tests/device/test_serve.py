"""``ninfer serve`` on a card, over HTTP: what it says is what the NumPy backend says.

The one thing a reader would get wrong: texts are compared across backends where the model is sure of each
token (by 6 and more in the logits); a free story has ties of 0.001, which rounding decides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.device.serving import MODELS, Pair, on_card, pair
from tests.e2e.drawn import QUESTION, Drawn, draw, encoded
from tests.e2e.server import Live
from tests.e2e.speak import BRIEF, PATHS, ask, asked, get, same, stream, text_of, together, user

pytestmark = pytest.mark.cuda
SUM, COUNT, STORY = "What is 12 + 30?", "Count from 3 to 20.", "Tell me a short story."
TALK = (
    SUM,
    COUNT,
    "What is the capital of France?",
    "Make a JSON object with name Milo, age 7, city Oslo.",
)
SYSTEM = "You are a helpful assistant. " + "Answer kindly, briefly and with care. " * 8
LONG = [{"role": "system", "content": SYSTEM}, user("What is 47 + 38?")]
WEATHER = {
    "name": "get_weather",
    "description": "Current weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SQUARE = Drawn("blue", "square", encoded(draw("blue", "square", (128, 96)), "PNG"))
SIZES = ("--max-concurrency", "8", "--kv-capacity", "65536")
dialects = pytest.mark.parametrize("dialect", PATHS)


@pytest.fixture(scope="module", params=MODELS)
def both(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """A bundled model with vision, eight lanes."""
    with pair("--vision", *SIZES, model=MODELS[request.param]) as servers:
        yield servers


def right(status: int, answer: Any) -> Any:
    assert status == 200, answer
    return same(answer)


def agree(servers: Pair, dialect: str, body: dict[str, Any]) -> Any:
    """Ask both; demand the same answer and return it."""
    found = [right(*ask(live, dialect, body)) for live in (servers.card, servers.cpu)]
    assert found[0] == found[1]
    return found[0]


def test_it_is_ready_in_time_and_says_on_what(both: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    status, page = get(both.card, "/health")
    assert (status, json.loads(page)["status"]) == (200, "ok")
    with capsys.disabled():
        print(f"\n{both.card.model}: ready in {both.card.seconds:.1f} s (CPU {both.cpu.seconds:.1f} s)")
    assert both.card.seconds < 15


@dialects
def test_answers_are_those_of_the_numpy_backend(both: Pair, dialect: str) -> None:
    for text in TALK:
        agree(both, dialect, asked(dialect, text))


def test_a_prompt_of_several_pages_is_answered_as_on_the_numpy_backend(both: Pair) -> None:
    answer = agree(both, "chat", asked("chat", LONG))
    assert answer["usage"]["prompt_tokens"] > 64 and "85" in answer["choices"][0]["message"]["content"]


@dialects
def test_streams_say_what_the_numpy_backend_streams(both: Pair, dialect: str) -> None:
    body = asked(dialect, SUM)
    texts = [text_of(dialect, stream(live, dialect, body)) for live in (both.card, both.cpu)]
    assert texts[0] == texts[1] and "42" in texts[0]


@pytest.mark.parametrize("text", [COUNT, STORY])
def test_eight_streams_at_once_equal_the_lone_one(both: Pair, text: str) -> None:
    body = asked("chat", text, 100)
    lone = text_of("chat", stream(both.card, "chat", body))
    crowd = together([partial(stream, both.card, "chat", body)] * 8)
    assert [text_of("chat", events) for events in crowd] == [lone] * 8
    if text == COUNT:
        assert lone == text_of("chat", stream(both.cpu, "chat", body))


def test_sampled_requests_keep_their_draws_in_company(both: Pair) -> None:
    bodies = [asked("chat", STORY, 60, temperature=1.0, seed=seed) for seed in range(4)]
    alone = [right(*ask(both.card, "chat", body))["choices"] for body in bodies]
    crowd = together([partial(ask, both.card, "chat", body) for body in bodies])
    assert [right(*answer)["choices"] for answer in crowd] == alone
    assert len({json.dumps(one) for one in alone}) > 1


def test_a_tool_is_called_and_its_answer_told(both: Pair) -> None:
    tools = [{"type": "function", "function": WEATHER}]
    turns = [user("What is the weather in Paris?")]
    status, first = ask(both.card, "chat", asked("chat", turns, tools=tools))
    message = first["choices"][0]["message"]
    (call,) = message["tool_calls"]
    assert status == 200 and first["choices"][0]["finish_reason"] == "tool_calls"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
    result = {"role": "tool", "tool_call_id": call["id"], "content": '{"temp": 21, "sky": "sunny"}'}
    turns = [*turns, {key: value for key, value in message.items() if value is not None}, result]
    second = right(*ask(both.card, "chat", asked("chat", turns, tools=tools)))
    assert second["choices"][0]["message"]["content"] == "It is 21 degrees and sunny in Paris."


def test_a_picture_is_seen(both: Pair) -> None:
    parts = [{"type": "image_url", "image_url": {"url": SQUARE.uri}}, {"type": "text", "text": QUESTION}]
    answer = agree(both, "chat", asked("chat", parts, **BRIEF["chat"]))
    assert SQUARE.named_by(answer["choices"][0]["message"]["content"])


def turns_of(live: Live) -> list[tuple[str, int, int]]:
    """Hold a conversation of three turns: what was said, how long each prompt was, what of it was known."""
    history: list[Any] = []
    told = []
    for question in ("What is 47 + 38?", "What is 5 + 6?", "What is 7 + 1?"):
        history.append(user(question))
        answer = right(*ask(live, "chat", asked("chat", history, preserve_thinking=True)))
        message, usage = answer["choices"][0]["message"], answer["usage"]
        known = usage["prompt_tokens_details"]["cached_tokens"]
        told.append((message["content"], usage["prompt_tokens"], known))
        history.append({key: message[key] for key in ("role", "content", "reasoning_content")})
    return told


def test_the_next_turn_knows_as_much_as_on_the_numpy_backend(both: Pair) -> None:
    card = turns_of(both.card)
    assert card == turns_of(both.cpu)
    assert [known > 20 for _, _, known in card] == [False, True, True]


def test_drafts_change_nothing_but_the_time(both: Pair) -> None:
    options = ("--spec", "mtp", "--draft-tokens", "3", "--max-concurrency", "4")
    with pair(*options, model=model_of(both)) as servers:
        for text in (*TALK, LONG):
            want = right(*ask(both.card, "chat", asked("chat", text)))["choices"]
            assert agree(servers, "chat", asked("chat", text))["choices"] == want
        crowd = together([partial(ask, servers.card, "chat", asked("chat", text)) for text in TALK])
        assert all(status == 200 for status, _ in crowd)
        assert turns_of(servers.card) == turns_of(servers.cpu)
        page = get(servers.card, "/metrics")[1].decode()
    drafted = [line for line in page.splitlines() if line.startswith("ninfer_") and "accepted" in line]
    assert any(float(line.rpartition(" ")[2]) > 0 for line in drafted)


def test_launching_every_kernel_gives_the_same_bits_as_graphs(both: Pair) -> None:
    with on_card("--no-cuda-graph", model=model_of(both)) as eager:
        for text in (*TALK, STORY):
            answers = [right(*ask(live, "chat", asked("chat", text))) for live in (eager, both.card)]
            assert answers[0]["choices"] == answers[1]["choices"]


@pytest.mark.parametrize("kind", ["int8", "fp8", "nvfp4", "k8v4"])
def test_every_cache_format_answers_as_on_the_numpy_backend(both: Pair, kind: str) -> None:
    with pair("--kv-dtype", kind, "--max-concurrency", "2", model=model_of(both)) as servers:
        answers = [agree(servers, "chat", asked("chat", text)) for text in (*TALK, LONG)]
        assert "42" in answers[0]["choices"][0]["message"]["content"]
        crowd = together([partial(ask, servers.card, "chat", asked("chat", text)) for text in TALK[:2]])
        assert [right(*one)["choices"] for one in crowd] == [one["choices"] for one in answers[:2]]


def model_of(both: Pair) -> Path:
    return next(path for path in MODELS.values() if path.stem == both.card.model)
