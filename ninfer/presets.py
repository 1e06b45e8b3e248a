"""Sampling defaults by architecture and thinking mode, and how a request's values are settled.

Order of precedence: registered preset < process flags < request fields < ``--greedy``.
The one thing a reader would get wrong: at temperature 0 a penalty applies only if the request or a
process flag set it; a penalty that comes from the registered preset alone does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ninfer.engine.job import Sampling
from ninfer.protocols.service import SamplingAsk
from ninfer.settings import SamplingOverrides, SamplingValues


@attrs.frozen
class Preset:
    """The registered defaults of one architecture."""

    thinking: SamplingValues
    plain: SamplingValues


_PLAIN = SamplingValues(0.7, 0.80, 20, 0.0, 1.5)
PRESETS: Mapping[str, Preset] = {
    "Qwen3_5ForCausalLM": Preset(SamplingValues(1.0, 0.95, 20, 0.0, 0.0), _PLAIN),
    "Qwen3_5MoeForCausalLM": Preset(SamplingValues(1.0, 0.95, 20, 0.0, 1.5), _PLAIN),
}
_FIELDS = ("temperature", "top_p", "top_k", "min_p", "presence", "frequency")
_PENALTIES = ("presence", "frequency")


def settle(
    preset: Preset,
    flags: SamplingOverrides,
    ask: SamplingAsk,
    *,
    thinking: bool,
    draw_seed: Callable[[], int],
) -> Sampling:
    """Resolve every sampling value of one request; ``draw_seed`` is called only when no seed is given."""
    base = preset.thinking if thinking else preset.plain
    chosen = {name: _first(getattr(ask, name), getattr(flags, name)) for name in _FIELDS}
    values = {name: _first(chosen[name], getattr(base, name)) for name in _FIELDS}
    seed = _first(ask.seed, flags.seed)
    if flags.greedy:
        values |= {"temperature": 0.0, "presence": 0.0, "frequency": 0.0}
    elif values["temperature"] == 0:
        values |= {name: chosen[name] or 0.0 for name in _PENALTIES}
    return Sampling(**values, seed=draw_seed() if seed is None else seed)


def _first(given: Any, otherwise: Any) -> Any:
    return otherwise if given is None else given
