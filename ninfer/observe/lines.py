"""The pretty lines of one request: fields separated by `` | ``, rounded, for people.

Owns their wording.  The one thing a reader would get wrong: nothing here may quote a request; a fault
is shown by its code, never by its message or its parameter.
"""

from __future__ import annotations

from collections.abc import Iterator

from ninfer.engine.job import Done, Finish, Summary
from ninfer.observe.members import stages
from ninfer.observe.records import count, rate, seconds


def started(number: int, protocol: str, prompt_tokens: int, stream: bool) -> str:
    """Describe a request that enters the engine."""
    answer = "stream" if stream else "aggregate"
    return f"req#{number} started | {protocol} | prompt {count(prompt_tokens)} | {answer}"


def done(number: int, protocol: str, end: Done, budget: int | None, backend: str | None) -> str:
    """Describe a generation that came to an outcome, a cancellation included."""
    how = "cancelled during transport" if end.finish is Finish.CANCELLED else "done"
    head = (f"req#{number} {how}", protocol, end.finish.value)
    return " | ".join((*head, *_figures(end.summary), *_extras(end.summary, budget, backend)))


def _figures(s: Summary) -> Iterator[str]:
    spans = stages(s)
    share = 100 * s.cached_tokens / s.prompt_tokens if s.prompt_tokens else 0.0
    yield f"prompt {count(s.prompt_tokens)}"
    yield f"output {count(len(s.output_tokens))}"
    yield f"cache {count(s.cached_tokens)} ({share:.0f}%, {s.path})"
    if s.output_tokens:
        yield f"TTFT {seconds(spans['ttft'])}"
    yield f"total {seconds(spans['total'])}"
    yield f"prefill {rate(s.computed_prefill_tokens, spans['prefill'])}"
    yield f"decode {rate(max(0, len(s.output_tokens) - 1), spans['decode'])}"


def _extras(s: Summary, budget: int | None, backend: str | None) -> Iterator[str]:
    if s.drafted:
        share = 100 * s.accepted / s.drafted
        yield f"{backend} accepted {count(s.accepted)}/{count(s.drafted)} ({share:.0f}%)"
    if budget is not None:
        used = f"thinking {count(s.model_thinking_tokens)}/{count(budget)}"
        yield used + (f" + {s.control_tokens} control" if s.control_tokens else "")
    if s.preemptions:
        yield f"paused {s.preemptions}x for {seconds(s.paused_seconds)}"
