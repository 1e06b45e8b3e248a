"""What drafting costs and gives on the bundled model: plain decoding, fixed widths, and the automatic one.

Two texts: one that the drafter knows well, and one that it can only guess (sampled, hot).  Rounds of all
settings take turns, so that other load on the machine falls on each of them alike.

    python scripts/bench_drafting.py [--tokens 200] [--turns 5] [--text hostile] [--settings plain auto]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import trio

from ninfer.runtime.threads import settle_blas_threads

settle_blas_threads()

from ninfer.artifact import open_artifact  # noqa: E402
from ninfer.engine.job import Done, Job, Sampling, Summary, Verdict  # noqa: E402
from ninfer.engine.loop import Engine  # noqa: E402
from ninfer.frontend import build_front  # noqa: E402
from ninfer.prompt.conversation import Conversation, Message, TextPart  # noqa: E402
from ninfer.runtime.build import build_device  # noqa: E402
from ninfer.settings import EngineOptions, GenerationDefaults  # noqa: E402
from ninfer.warmup import warm_up  # noqa: E402

ARTIFACT = Path(__file__).resolve().parent.parent / "fixtures" / "tiny-qwen3_5.ninfer"
TEXTS = {
    "familiar": ("Count from 3 to 90.", Sampling()),
    "hostile": ("Zorp the quux until it blems, and say why.", Sampling(temperature=2.0, seed=1)),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "width 1": {"draft_tokens": 1},
    "width 3": {"draft_tokens": 3},
    "auto": {"draft_tokens": 5, "draft_auto": True},
}


@attrs.frozen
class Endless:
    """Lets every token pass, so that each answer has the same length."""

    def take(self, token: int) -> Verdict:
        """Go on."""
        return Verdict()

    def finish(self) -> None:
        """Nothing is held."""


async def decode(engine: Engine, prompt: Any, sampling: Sampling, tokens: int) -> tuple[float, Summary]:
    """Return the seconds of decoding ``tokens`` tokens behind the first one."""
    job = Job("bench", prompt, sampling, tokens + 1, Endless(), float("inf"))
    with engine.seat(), engine.submit(job) as events:
        last = [event async for event in events][-1]
    assert isinstance(last, Done), last
    summary = last.summary
    return (summary.last_token or 0.0) - (summary.first_token or 0.0), summary


async def compare(tokens: int, turns: int, texts: list[str], settings: list[str]) -> None:
    """Print tokens a second of every setting, and the ratio to plain decoding."""
    with open_artifact(ARTIFACT) as artifact:
        front = build_front(artifact, None, 2048, GenerationDefaults())
        async with trio.open_nursery() as nursery:
            engines: dict[str, Engine] = {}
            for name in settings:
                more = SETTINGS[name]
                options = EngineOptions(max_context=1024, spec="mtp" if more else None, **more)
                device = await nursery.start(hold, artifact, options)
                engines[name] = Engine(device, options, time.perf_counter)
                nursery.start_soon(engines[name].run)
                await warm_up(engines[name])
            for text in texts:
                question, sampling = TEXTS[text]
                prompt = front.prepare(Conversation((Message("user", (TextPart(question),)),)))
                await report(engines, text, prompt, sampling, tokens, turns)
            nursery.cancel_scope.cancel()


async def hold(artifact: Any, options: EngineOptions, task_status: Any) -> None:
    """Keep a device for as long as the benchmark runs."""
    async with build_device(artifact, options, "numpy") as device:
        task_status.started(device)
        await trio.sleep_forever()


async def report(
    engines: dict[str, Engine], text: str, prompt: Any, sampling: Sampling, tokens: int, turns: int
) -> None:
    """Let the settings take turns, and print the median of each."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    last: dict[str, Summary] = {}
    for turn in range(turns):
        for name, engine in engines.items():
            chosen = attrs.evolve(sampling, seed=turn)
            spent, last[name] = await decode(engine, prompt, chosen, tokens)
            seconds[name].append(spent)
    for name, found in seconds.items():
        against = statistics.median(a / b for a, b in zip(seconds["plain"], found, strict=True))
        summary = last[name]
        drafted = (
            f"{summary.accepted}/{summary.drafted} drafts accepted" if summary.drafted else "no drafts"
        )
        rate = tokens / statistics.median(found)
        print(f"{text:9} {name:8} {rate:7.1f} tok/s, {against:5.2f} of plain; last turn {drafted}")


def main() -> int:
    """Read the options and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--text", nargs="+", choices=TEXTS, default=list(TEXTS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    options = parser.parse_args()
    settings = ["plain", *(name for name in options.settings if name != "plain")]
    trio.run(compare, options.tokens, options.turns, options.text, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
