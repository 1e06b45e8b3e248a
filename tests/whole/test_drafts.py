"""Drafting with the bundled model's MTP layer changes no greedy text, only how fast it comes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from ninfer.engine.device import Decode, HostLoad
from ninfer.settings import GenerationDefaults
from tests.sim.server import World, chat
from tests.whole.conftest import TOKENS
from tests.whole.kit import ask, cached, in_turn, model, talk, together
from tests.whole.test_same_text import TIGHT, Ids

GREEDY = [0, 1, 2, 3, 4, 7]  # of ``talk``; the others are sampled
WIDTHS = [{"draft_tokens": width} for width in range(1, 6)] + [{"draft_tokens": 5, "draft_auto": True}]
names = [str(each["draft_tokens"]) + "auto" * ("draft_auto" in each) for each in WIDTHS]
heads = pytest.mark.parametrize("small_head", [False, True], ids=["whole head", "proposal head"])


def drafting(small_head: bool = False, **more: Any) -> dict[str, Any]:
    return {"spec": "mtp", "draft_tokens": 3, "proposal_head": small_head, **more}


def greedy(found: Ids) -> Ids:
    return [found[index] for index in GREEDY]


@heads
@pytest.mark.parametrize("width", WIDTHS, ids=names)
async def test_alone(autojump_clock: Any, alone: Ids, width: dict[str, Any], small_head: bool) -> None:
    bodies = [talk(tokens=TOKENS)[index] for index in GREEDY]
    async with model(**drafting(small_head, **width)) as world:
        assert await in_turn(world, bodies) == greedy(alone)
        assert world.app.engine.stats().counters.spec_accepted > 0


@heads
@pytest.mark.parametrize("width", [1, 3])
async def test_in_company(autojump_clock: Any, alone: Ids, width: int, small_head: bool) -> None:
    crowd = drafting(small_head, draft_tokens=width, max_concurrency=8, kv_capacity=4096)
    async with model(**crowd) as world:
        assert greedy(await together(world, talk(tokens=TOKENS))) == greedy(alone)
        assert widest(world) >= 3


@pytest.mark.slow
async def test_in_a_batch_of_eight(autojump_clock: Any) -> None:
    bodies = [{**body, "temperature": 0} for body in (*talk(2), *talk(2)) * 2]
    for number, body in enumerate(bodies):
        body["messages"] = [user(f"Tell me a long story about a fox and {number} hares.")]
        body |= {"max_tokens": 64, "reasoning_effort": "none"}
    async with model(prefix_reuse=False) as world:
        expected = await in_turn(world, bodies)
    for small_head in (False, True):
        for width in range(1, 6):
            crowd = drafting(small_head, draft_tokens=width, max_concurrency=8, kv_capacity=4096)
            async with model(**crowd) as world:
                assert await together(world, bodies) == expected
                assert widest(world) >= 6  # the first may end before the last begin


def widest(world: World) -> int:
    """The most rows of any round."""
    return max(len(unit.rows) for unit in world.device.log if isinstance(unit, Decode))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("host", [None, 0], ids=["snapshot", "replay"])
async def test_after_pauses(autojump_clock: Any, alone: Ids, host: int | None) -> None:
    async with model(**drafting(**TIGHT, host_context_bytes=host, prefix_reuse=False)) as world:
        found = await together(world, talk(tokens=TOKENS))
        assert greedy(found) == greedy(alone)
        assert world.app.engine.stats().counters.preemptions > 0


async def test_after_hits_a_request_drafts_at_once(autojump_clock: Any, alone: Ids) -> None:
    bodies = [talk(tokens=TOKENS)[index] for index in GREEDY]
    async with model(**drafting(**{**TIGHT, "max_concurrency": 1}, device_state_slots=0)) as world:
        assert await in_turn(world, bodies) == greedy(alone)
        fresh = [event["speculative"]["accepted_tokens"] for event in world.events("request_done")]
        begun = len(world.device.log)
        assert await in_turn(world, bodies) == greedy(alone)
        again = [event["speculative"]["accepted_tokens"] for event in world.events("request_done")[6:]]
        assert any(isinstance(unit, HostLoad) for unit in world.device.log[begun:])
        assert again == fresh  # the drafter's own state came back with the rest


async def test_sampled_text_of_a_fixed_width_is_nobody_elses_business(autojump_clock: Any) -> None:
    sampled = [{**body, "temperature": 1.0, "seed": 7 + n} for n, body in enumerate(talk(4, TOKENS))]
    async with model(**drafting()) as world:
        expected = await in_turn(world, sampled)
    async with model(**drafting(max_concurrency=4, kv_capacity=2048)) as world:
        assert await together(world, sampled) == expected
    async with model(**drafting(**TIGHT, prefix_reuse=False)) as world:
        assert await together(world, sampled) == expected


# Cuts inside a round: what stands is exact, and the next turn proves it

COUNT: dict[str, Any] = {"messages": [user("Count from 3 to 20.")], "reasoning_effort": "none"}


@pytest.mark.parametrize("tokens", range(1, 12))
async def test_the_output_limit_cuts_a_round_exactly(autojump_clock: Any, tokens: int) -> None:
    async with model(**drafting()) as world:
        answer = await ask(world, {**COUNT, "max_tokens": tokens, "preserve_thinking": True})
        usage = answer["usage"]
        assert usage["completion_tokens"] == tokens
        end = usage["prompt_tokens"] + tokens - 1  # the last token was never fed
        assert frontier(world) == end
        text = answer["choices"][0]["message"]["content"]
        history = [*COUNT["messages"], {"role": "assistant", "content": text}, user("Go on.")]
        more = {**COUNT, "messages": history, "preserve_thinking": True, "max_tokens": 1}
        if text == text.strip():  # the template trims; then the history parts a token earlier
            assert cached(await ask(world, more)) == end


def frontier(world: World) -> int:
    """Where the state ends that the last answer left."""
    tree = world.app.engine.scheduler.memory.retention.tree
    return max(node.frontier for node in tree if node.checkpoint)


@pytest.mark.parametrize("stop", ["5", "8, 9", "12,", "17"])
async def test_a_stop_string_cuts_a_round_exactly(autojump_clock: Any, stop: str) -> None:
    texts = []
    for options in ({}, drafting()):
        async with model(**options) as world:
            answer = await ask(world, {**COUNT, "stop": [stop], "preserve_thinking": True})
            texts.append(answer["choices"][0]["message"]["content"])
            said = answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]
            assert said - 1 <= frontier(world) <= said
            assert answer["choices"][0]["finish_reason"] == "stop"
    assert texts[0] == texts[1]


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 8])
async def test_a_thinking_budget_is_kept_to_the_token(autojump_clock: Any, budget: int) -> None:
    found = []
    for options in ({}, drafting()):
        async with model(GenerationDefaults(thinking_budget=budget), **options) as world:
            answer = await ask(world, {"messages": [user("What is 47 + 38?")], "max_tokens": 60})
            (done,) = world.events("request_done")
            assert done["result"]["model_thinking_tokens"] == budget
            found.append((answer["choices"][0]["message"], done["result"]["generated_token_ids"]))
    assert found[0] == found[1]


async def test_the_context_ends_a_round_exactly(autojump_clock: Any) -> None:
    found = []
    for options in ({}, drafting()):
        async with model(**options, max_context=64) as world:
            answer = await ask(world, {**COUNT, "max_tokens": 500})
            assert answer["usage"]["total_tokens"] == 64
            found.append(answer["choices"][0]["message"])
    assert found[0] == found[1]


async def test_leaving_in_the_middle_of_a_round_leaves_nothing(autojump_clock: Any) -> None:
    for wait in range(3, 14, 2):
        async with model(**drafting()) as world:
            client = world.connect()
            await client.end.send(chat("Count from 3 to 20.", stream=True))
            await anyio.sleep(wait / 1000 + 0.0005)
            await client.end.aclose()
            await anyio.sleep(1)
            assert world.idle()
            (done,) = world.events("request_done")
            assert done["result"]["finish_reason"] == "cancelled"


# Numbers


async def test_counters_agree_wherever_they_are_told(autojump_clock: Any) -> None:
    async with model(**drafting()) as world:
        answer = await ask(world, {**COUNT, "max_tokens": 30})
        (done,) = world.events("request_done")
        told, timings = done["speculative"], answer["timings"]
        assert (told["backend"], told["draft_window"]) == ("mtp", 3)
        assert (timings["draft_n"], timings["draft_n_accepted"]) == (
            told["drafted_tokens"],
            told["accepted_tokens"],
        )
        assert sum(told["accepted_per_position"]) == told["accepted_tokens"] > 0
        assert told["accepted_per_position"] == sorted(told["accepted_per_position"], reverse=True)
        page = await world.scrape()
        assert page['ninfer_model_info{model_name="tiny",speculative_backend="mtp"}'] == 1
        assert page["ninfer_spec_decode_draft_window"] == 3
        for name in ("rounds", "draft_tokens", "accepted_tokens", "fallback_steps"):
            key = {"draft_tokens": "drafted_tokens"}.get(name, name)
            assert page[f"ninfer_spec_decode_{name}_total"] == told[key]
