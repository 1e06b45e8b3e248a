"""Timings as llama.cpp's clients read them, and the usage object.

Promises finite numbers whatever was measured.  The one thing a reader would get wrong: the first
output token belongs to the prompt, so ``predicted_n`` tokens make ``predicted_n - 1`` intervals.
"""

from __future__ import annotations

from math import isfinite

from ninfer.protocols.service import Finished, Timings


def timings_object(timings: Timings, *, terminal: bool) -> dict[str, float]:
    """Build the ``timings`` member: times in ms, rates in tokens per second.

    Draft counts appear in the terminal object alone, and only when drafting happened.
    """
    intervals = max(timings.predicted_n - 1, 0)
    built: dict[str, float] = {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _ratio(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _ratio(1000.0 * timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _ratio(timings.predicted_ms, intervals),
        "predicted_per_second": _ratio(1000.0 * intervals, timings.predicted_ms),
    }
    if terminal and timings.draft_n:
        built |= {"draft_n": timings.draft_n, "draft_n_accepted": timings.draft_n_accepted}
    return built


def _ratio(above: float, below: float) -> float:
    ratio = above / below if below > 0 else 0.0
    return ratio if isfinite(ratio) else 0.0


def usage_object(done: Finished) -> dict[str, object]:
    """Build the ``usage`` member; counts are tokens."""
    return {
        "prompt_tokens": done.prompt_tokens,
        "completion_tokens": done.completion_tokens,
        "total_tokens": done.prompt_tokens + done.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": done.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": done.reasoning_tokens},
    }
