from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.faults import Broken, Refused
from ninfer.prompt.conversation import MediaPart
from ninfer.prompt.media import MediaItem, expand, positions, spans
from ninfer.prompt.prepared import MediaSpan
from tests.prompt.talk import shown, small_preparer, talk, turn, user

PREPARER = small_preparer()
VOCABULARY = PREPARER.vocabulary
IMAGE, VIDEO = MediaPart("image", "data:", "m[0]"), MediaPart("video", "data:", "m[1]")


def image(height: int = 2, width: int = 3) -> MediaItem:
    """An image of ``height`` x ``width`` merged patches."""
    return MediaItem("image", (1, 2 * height, 2 * width), b"image")


def video(runs: int = 2, height: int = 2, width: int = 2) -> MediaItem:
    seconds = tuple(0.25 + run for run in range(runs))
    return MediaItem("video", (runs, 2 * height, 2 * width), b"video", seconds)


def test_an_image_becomes_one_pad_per_merged_patch() -> None:
    prompt = PREPARER.prepare(talk(user("a", IMAGE, "b")), [image(2, 3)])
    run = "<|vision_start|>" + "<|image_pad|>" * 6 + "<|vision_end|>"
    assert f"user\na{run}b<|im_end|>" in shown(VOCABULARY, prompt)
    (span,) = prompt.media
    pad = VOCABULARY.special("<|image_pad|>")
    assert prompt.ids[span.start : span.stop] == (pad,) * 6
    assert pad not in prompt.ids[: span.start] + prompt.ids[span.stop :]


def test_a_video_becomes_timed_runs() -> None:
    prompt = PREPARER.prepare(talk(user(VIDEO, "?")), [video(3, 1, 2)])
    run = "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>"
    wanted = f"user\n<0.2 seconds>{run}<1.2 seconds>{run}<2.2 seconds>{run}?"
    assert wanted in shown(VOCABULARY, prompt)
    assert [count for _, count in prompt.media[0].runs] == [2, 2, 2]


def test_text_after_an_image_stands_at_the_longer_side() -> None:
    # facts: after an image of 4 x 6 merged patches the next text position is p + 6
    axes, delta = positions(3 + 24 + 2, [MediaSpan(b"", (1, 8, 12), ((3, 24),))], 2)
    assert [axis[2] for axis in axes] == [2, 2, 2]
    assert [axis[3] for axis in axes] == [3, 3, 3]
    assert [axis[26] for axis in axes] == [3, 6, 8]
    assert [axis[27] for axis in axes] == [9, 9, 9]
    assert delta == 11 - 29


def test_media_of_several_turns_keep_their_order() -> None:
    conversation = talk(user(IMAGE, VIDEO), turn("assistant", "ok"), user("again", IMAGE))
    prompt = PREPARER.prepare(conversation, [image(1, 1), video(2, 1, 1), image(2, 2)])
    assert [span.grid for span in prompt.media] == [(1, 2, 2), (2, 2, 2), (1, 4, 4)]
    assert [len(span.runs) for span in prompt.media] == [1, 2, 1]


def test_a_picture_in_a_tool_result_is_found() -> None:
    conversation = talk(user("look"), turn("assistant", "a"), turn("tool", "seen:", IMAGE))
    assert len(PREPARER.prepare(conversation, [image()]).media) == 1


def test_the_payload_travels_untouched() -> None:
    payload = object()
    item = MediaItem("image", (1, 2, 2), b"digest", payload=payload)
    (span,) = PREPARER.prepare(talk(user(IMAGE)), [item]).media
    assert (span.payload, span.digest) == (payload, b"digest")


def test_without_vision_media_are_refused_and_named() -> None:
    with pytest.raises(Refused) as refusal:
        small_preparer(merge=None).prepare(talk(user("a", IMAGE)))
    assert (refusal.value.fault.code, refusal.value.fault.param) == ("vision_disabled", "m[0]")


@pytest.mark.parametrize("items", [[], [image(), image()], [video()]])
def test_media_that_are_not_the_conversations_are_our_mistake(items: list[MediaItem]) -> None:
    with pytest.raises(Broken):
        PREPARER.prepare(talk(user(IMAGE)), items)


@pytest.mark.parametrize(
    "template",
    [
        "{{ '<|im_start|>' }}no picture",
        "{% for i in 'ab' %}<|vision_start|><|image_pad|><|vision_end|>{% endfor %}",
        "<|vision_start|><|video_pad|><|vision_end|>",
    ],
)
def test_a_template_that_does_not_show_each_item_once_is_at_fault(template: str) -> None:
    with pytest.raises(Refused) as refusal:
        small_preparer(template=template).prepare(talk(user(IMAGE)), [image()])
    assert refusal.value.fault.code == "invalid_chat_template"


def test_a_bare_pad_is_a_placeholder_too() -> None:
    preparer = small_preparer(template="a<|image_pad|>b")
    prompt = preparer.prepare(talk(user(IMAGE)), [image(1, 2)])
    wrapped = "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>"
    assert shown(preparer.vocabulary, prompt) == f"a{wrapped}b"


def test_runs_and_items_must_match() -> None:
    with pytest.raises(Broken):
        spans([1, 7, 7, 2], [], [7])
    with pytest.raises(Broken):
        spans([1, 2], [image()], [7])


ITEMS = st.lists(
    st.one_of(
        st.builds(image, st.integers(1, 4), st.integers(1, 4)),
        st.builds(video, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
    ),
    max_size=4,
)


@given(ITEMS, st.lists(st.text("a <\n", max_size=3), min_size=5, max_size=5))
def test_every_token_has_a_position_and_the_delta_continues_them(
    items: list[MediaItem], texts: list[str]
) -> None:
    kinds = {"image": IMAGE, "video": VIDEO}
    parts = [piece for text, item in zip(texts, items, strict=False) for piece in (text, kinds[item.kind])]
    prompt = PREPARER.prepare(talk(user(*parts, "end")), items)
    if not items:
        assert (prompt.positions, prompt.rope_delta, prompt.media) == (None, 0, ())
        return
    assert prompt.positions is not None
    assert {len(axis) for axis in prompt.positions} == {len(prompt.ids)}
    last = [axis[-1] for axis in prompt.positions]
    assert last == [len(prompt.ids) - 1 + prompt.rope_delta] * 3
    inside = {
        row for span in prompt.media for start, count in span.runs for row in range(start, start + count)
    }
    for row in range(1, len(prompt.ids)):
        steps = {axis[row] - axis[row - 1] for axis in prompt.positions}
        assert row in inside or row - 1 in inside or steps == {1}
    for span, item in zip(prompt.media, items, strict=True):
        assert sum(count for _, count in span.runs) == item.grid[0] * item.grid[1] * item.grid[2] // 4


@given(ITEMS)
def test_boundaries_move_with_what_grows_before_them(items: list[MediaItem]) -> None:
    pads = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    pieces = [f"text {n} <|vision_start|>{pads[item.kind]}<|vision_end|>" for n, item in enumerate(items)]
    seals = VOCABULARY.seals
    before = [len(seals.seal("".join(pieces[:n]))) for n in range(len(pieces) + 1)]
    expansion = expand(seals.seal("".join(pieces)), items, seals, 2)
    for n, offset in enumerate(before):
        part = expand(seals.seal("".join(pieces[:n])), items[:n], seals, 2)
        assert expansion.text[: expansion.moved(offset)] == part.text
