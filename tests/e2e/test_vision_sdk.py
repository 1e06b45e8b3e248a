"""Pictures and clips through the official clients: the bundled model sees what is drawn."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from anthropic import BadRequestError as BadMessage
from openai import BadRequestError, OpenAI

from tests.e2e.drawn import QUESTION, WAYS, Drawn, clip, draw, drawings, encoded
from tests.e2e.server import Live, running

pytestmark = [pytest.mark.sdk, pytest.mark.slow]
TWENTY = tuple(drawings(20, seed=11))
SQUARE = Drawn("blue", "square", encoded(draw("blue", "square", (128, 96)), "PNG"))
BRIEF: dict[str, Any] = {"temperature": 0, "reasoning_effort": "none"}


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "requests.jsonl"


@pytest.fixture(scope="module")
def seeing(journal: Path) -> Iterator[Live]:
    """The bundled dense model with vision, four lanes, and memory for two large pictures."""
    options = ["--vision", "--max-concurrency", "4", "--kv-capacity", "32768", "--media-url-policy", "any"]
    memory = ["--media-live-mib", "4", "--media-cache-mib", "3", "--request-log-jsonl", str(journal)]
    with running(*options, *memory) as server:
        yield server


@pytest.fixture
def openai(seeing: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{seeing.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def anthropic(seeing: Live) -> Iterator[Anthropic]:
    with Anthropic(base_url=seeing.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def blind(live: Live) -> Iterator[tuple[OpenAI, Anthropic]]:
    """Clients of a server without vision."""
    with (
        OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as openai,
        Anthropic(base_url=live.url, api_key="none", max_retries=0) as anthropic,
    ):
        yield openai, anthropic


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """A web server whose every path is a drawn picture."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            picture = TWENTY[int(self.path.strip("/"))]
            self.send_response(200)
            self.send_header("Content-Length", str(len(picture.data)))
            self.end_headers()
            self.wfile.write(picture.data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def events(journal: Path, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in journal.read_text().splitlines()]
    return [event for event in found if event["event"] == name]


# What is asked, in each protocol.  ``source`` is a URL or a data URI.


def shown(source: str, question: str = QUESTION) -> list[Any]:
    parts = [{"type": "image_url", "image_url": {"url": source}}, {"type": "text", "text": question}]
    return [{"role": "user", "content": parts}]


def chat(client: OpenAI, messages: list[Any]) -> str | None:
    answer = client.chat.completions.create(model="tiny-qwen3_5", messages=messages, **BRIEF)
    said: str | None = answer.choices[0].message.content
    return said


def chat_string_form(client: OpenAI, source: str) -> str | None:
    parts = [{"type": "image_url", "image_url": source}, {"type": "text", "text": QUESTION}]
    return chat(client, [{"role": "user", "content": parts}])


def chat_tool_result(client: OpenAI, source: str) -> str | None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return chat(
        client,
        [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": shown(source)[0]["content"][:1]},
            {"role": "user", "content": QUESTION},
        ],
    )


def respond(client: OpenAI, content: list[Any]) -> str:
    answer = client.responses.create(
        model="tiny-qwen3_5",
        input=[{"role": "user", "content": content}],
        temperature=0,
        reasoning={"effort": "none"},
    )
    return answer.output_text


def counted_by(client: OpenAI, content: list[Any]) -> int:
    asked: Any = [{"role": "user", "content": content}]
    return client.responses.input_tokens.count(model="tiny-qwen3_5", input=asked).input_tokens


def responses_image(client: OpenAI, source: str) -> str:
    return respond(
        client, [{"type": "input_image", "image_url": source}, {"type": "input_text", "text": QUESTION}]
    )


def message(client: Anthropic, messages: list[Any]) -> str:
    answer = client.messages.create(
        model="any",
        max_tokens=64,
        messages=messages,
        thinking={"type": "disabled"},
        extra_body={"temperature": 0},
    )
    return "".join(block.text for block in answer.content if block.type == "text")


def block(picture: Drawn) -> Any:
    source = {"type": "base64", "media_type": f"image/{picture.format}", "data": picture.base64}
    return {"type": "image", "source": source}


def messages_user(picture: Any) -> list[Any]:
    return [{"role": "user", "content": [picture, {"type": "text", "text": QUESTION}]}]


def messages_tool_result(picture: Any) -> list[Any]:
    call = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [picture]}
    return [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": QUESTION}]},
    ]


def named(answers: list[str | None]) -> int:
    return sum(picture.named_by(answer) for picture, answer in zip(TWENTY, answers, strict=True))


def test_chat_names_colour_and_shape(openai: OpenAI) -> None:
    assert named([chat(openai, shown(picture.uri)) for picture in TWENTY]) >= 18
    assert named([chat_string_form(openai, picture.uri) for picture in TWENTY]) >= 18


def test_responses_names_colour_and_shape(openai: OpenAI) -> None:
    assert named([responses_image(openai, picture.uri) for picture in TWENTY]) >= 18


def test_messages_names_colour_and_shape(anthropic: Anthropic) -> None:
    assert named([message(anthropic, messages_user(block(picture))) for picture in TWENTY]) >= 18


def test_pictures_on_the_web_are_fetched(openai: OpenAI, anthropic: Anthropic, origin: str) -> None:
    for n, picture in enumerate(TWENTY[:4]):
        url = f"{origin}/{n}"
        remote = {"type": "image", "source": {"type": "url", "url": url}}
        answers = [
            chat(openai, shown(url)),
            responses_image(openai, url),
            message(anthropic, messages_user(remote)),
        ]
        assert all(map(picture.named_by, answers)), answers


def test_pictures_in_tool_results_are_seen(openai: OpenAI, anthropic: Anthropic) -> None:
    seen = 0
    for picture in TWENTY[:5]:
        seen += picture.named_by(chat_tool_result(openai, picture.uri))
        seen += picture.named_by(message(anthropic, messages_tool_result(block(picture))))
    assert seen >= 8


@pytest.mark.parametrize("kind", ["WEBP", "GIF"])
def test_the_direction_of_a_moving_shape_is_told(openai: OpenAI, kind: str) -> None:
    told: Counter[str] = Counter()
    for way in WAYS:
        source, question = clip(way, kind), "Which way does it move?"
        video = {"type": "video_url", "video_url": {"url": source}}
        told["chat"] += way in str(
            chat(openai, [{"role": "user", "content": [video, {"type": "text", "text": question}]}])
        )
        parts = [{"type": "input_video", "video_url": source}, {"type": "input_text", "text": question}]
        told["responses"] += way in respond(openai, parts)
    assert told["chat"] == told["responses"] == 4


# What is refused, and where it says the fault is.

WRONG: list[tuple[str, str]] = [
    ("data:image/png;base64,@@@", "invalid_media"),
    ("data:image/png,abc", "invalid_media"),
    ("data:image/png;base64," + base64.b64encode(b"hello").decode(), "invalid_media"),
    (
        "data:image/png;base64," + base64.b64encode(SQUARE.data[: len(SQUARE.data) // 2]).decode(),
        "invalid_media",
    ),
    ("data:image/png;base64,", "invalid_media"),
    ("file:///etc/passwd", "invalid_media"),
    ("/etc/passwd", "invalid_media"),
    ("http://user@127.0.0.1/", "invalid_media"),
]


@pytest.mark.parametrize(("source", "code"), WRONG, ids=range(len(WRONG)))
def test_wrong_media_name_their_part(openai: OpenAI, source: str, code: str) -> None:
    both = [*shown(SQUARE.uri), {"role": "assistant", "content": "ok"}, *shown(source)]
    with pytest.raises(BadRequestError) as chatted:
        chat(openai, both)
    assert chatted.value.code == code and str(chatted.value.param).startswith("messages[2].content[0]")
    with pytest.raises(BadRequestError) as responded:
        responses_image(openai, source)
    assert responded.value.code == code and str(responded.value.param).startswith("input[0].content[0]")
    part = {"type": "input_image", "image_url": source}
    with pytest.raises(BadRequestError) as counted:
        counted_by(openai, [part])
    assert counted.value.code == code


@pytest.mark.parametrize("data", ["@@@", base64.b64encode(b"hello").decode(), "", SQUARE.base64[: 4 * 40]])
def test_wrong_image_blocks_name_their_part(anthropic: Anthropic, data: str) -> None:
    wrong = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    for ask in (partial(message, anthropic), partial(anthropic.messages.count_tokens, model="any")):
        for messages in (messages_user(wrong), messages_tool_result(wrong)):
            with pytest.raises(BadMessage) as caught:
                ask(messages=messages)
            assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
            assert f"messages[{len(messages) - 1}].content[0]" in str(caught.value)


def test_a_picture_too_large_is_over_budget(openai: OpenAI) -> None:
    huge = b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x11\0\x02\x11\0\x03\x11\0\xff\xd9"
    with pytest.raises(BadRequestError) as caught:
        chat(openai, shown("data:image/jpeg;base64," + base64.b64encode(huge).decode()))
    assert caught.value.code == "media_budget_exceeded"
    with pytest.raises(BadRequestError) as many:
        chat(openai, [shown(p.uri)[0] for p in drawings(4, 5, side=512)])  # live memory fits two
    assert many.value.code == "media_budget_exceeded"


def test_an_origin_that_fails_is_told_apart(openai: OpenAI, origin: str, seeing: Live) -> None:
    body = {"model": seeing.model, "messages": shown(f"{origin}/nothing")}
    answer = httpx.post(f"{seeing.url}/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "media_fetch_failed")


def test_without_vision_media_are_refused_and_not_counted(blind: tuple[OpenAI, Anthropic]) -> None:
    openai, anthropic = blind
    video = [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": clip("up")}}]}]
    part = {"role": "user", "content": [{"type": "input_image", "image_url": SQUARE.uri}]}
    for ask in (
        lambda: chat(openai, shown(SQUARE.uri)),
        lambda: chat(openai, video),
        lambda: responses_image(openai, SQUARE.uri),
        lambda: openai.responses.input_tokens.count(model="tiny-qwen3_5", input=[part]),  # type: ignore[list-item]
    ):
        with pytest.raises(BadRequestError) as caught:
            ask()
        assert caught.value.code == "vision_disabled" and "content[0]" in str(caught.value.param)
    for messages in (messages_user(block(SQUARE)), messages_tool_result(block(SQUARE))):
        with pytest.raises(BadMessage) as refused:
            anthropic.messages.count_tokens(model="any", messages=messages)
        assert "--vision" in str(refused.value)


def test_media_spelt_in_text_stay_text(blind: tuple[OpenAI, Anthropic]) -> None:
    text = "data:image/png;base64,AAAA <|vision_start|><|image_pad|><|vision_end|>"
    assert chat(blind[0], [{"role": "user", "content": text}]) is not None


# What is counted, reused and held.


def test_counts_are_of_expanded_tokens(openai: OpenAI, anthropic: Anthropic, seeing: Live) -> None:
    for picture in TWENTY[:3]:
        content = [
            {"type": "input_image", "image_url": picture.uri},
            {"type": "input_text", "text": QUESTION},
        ]
        asked: Any = {"model": seeing.model, "input": [{"role": "user", "content": content}]}
        counted = openai.responses.input_tokens.count(**asked)
        answered = openai.responses.create(**asked, max_output_tokens=1)
        assert answered.usage is not None and counted.input_tokens == answered.usage.input_tokens
        assert counted.input_tokens - counted_by(openai, content[1:]) >= 4 + 2
        sent: Any = {"model": "any", "messages": messages_user(block(picture))}
        usage = anthropic.messages.create(**sent, max_tokens=1).usage
        read = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert anthropic.messages.count_tokens(**sent).input_tokens == read == counted.input_tokens


def usage_of(client: OpenAI, messages: list[Any]) -> tuple[str | None, int, int]:
    answer = client.chat.completions.create(model="tiny-qwen3_5", messages=messages, **BRIEF)
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    return answer.choices[0].message.content, answer.usage.prompt_tokens, cached or 0


def test_a_second_turn_about_a_picture_reuses_it(openai: OpenAI, journal: Path) -> None:
    picture = next(iter(drawings(1, seed=77)))
    first = shown(picture.uri)
    said, length, _ = usage_of(openai, first)
    second = [
        *first,
        {"role": "assistant", "content": said},
        {"role": "user", "content": f"What colour is the {picture.shape}?"},
    ]
    answer, total, cached = usage_of(openai, second)
    assert picture.colour in str(answer)
    assert length - 8 <= cached < total  # all of the first prompt but its opening of the answer
    done, start = events(journal, "request_done")[-1], events(journal, "request_start")[-1]
    assert done["result"]["prefix_cache_hit_tokens"] == cached
    assert (
        done["timings_seconds"]["vision"]
        == 0
        < events(journal, "request_done")[-2]["timings_seconds"]["vision"]
    )
    assert done["result"]["computed_prefill_tokens"] == total - cached
    spent = start["preparation_seconds"]
    assert (spent["cache_hits"], spent["cache_misses"], spent["built_patch_bytes"]) == (1, 0, 0)
    assert spent["media_items"] == 1 and spent["media_bytes"] == len(picture.data)


def test_other_bytes_of_the_same_grid_never_hit(openai: OpenAI) -> None:
    pictures = [Drawn(c, "square", encoded(draw(c, "square", (128, 96)), "PNG")) for c in ("red", "green")]
    red, green = pictures
    again = Drawn("red", "square", encoded(draw("red", "square", (128, 96)), "WEBP"), "webp")
    _, length, _ = usage_of(openai, shown(red.uri))
    _, same, cached = usage_of(openai, shown(red.uri))
    assert same == length and cached > length - 8
    for other in (green, again):
        answer, same, cached = usage_of(openai, shown(other.uri))
        assert same == length and other.named_by(answer)
        assert cached <= 5  # what precedes the picture


def test_sixteen_requests_with_eight_large_pictures_finish_in_memory_for_two(
    openai: OpenAI, seeing: Live
) -> None:
    large = list(drawings(8, seed=5, side=512))  # a mebibyte and a half each, once prepared
    answers: dict[int, str | None] = {}

    def ask(n: int) -> None:
        answers[n] = chat(openai, shown(large[n % 8].uri))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 16 and all(answers.values())
    assert all(answers[n] == answers[n + 8] for n in range(8))
    told = media_gauges(seeing)
    assert told["live_bytes"] == told["cached_bytes"] <= 3 << 20 and told["capacity_bytes"] == 4 << 20


def media_gauges(server: Live) -> dict[str, float]:
    """What the server tells of its media memory, once nobody uses any."""
    for _ in range(50):
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        pairs = [line.split() for line in lines if line.startswith("ninfer_media_")]
        found = {name.removeprefix("ninfer_media_"): float(value) for name, value in pairs}
        if found["live_bytes"] == found["cached_bytes"]:
            break
    return found
