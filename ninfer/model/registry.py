"""Which architectures can be served: one line each.

The one thing a reader would get wrong: dense and sparse models share one source; the config
decides which feed-forward a layer has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from ninfer.faults import StartupError
from ninfer.model.config import TextConfig, read_text_config
from ninfer.model.qwen3_5 import forward
from ninfer.model.weights import Decoder, Loader, load_decoder
from ninfer.ops.verbs import Array, Step, Verbs


@attrs.frozen
class Architecture:
    """How to read, load and run one family of decoders."""

    read: Callable[[Mapping[str, Any]], TextConfig]
    load: Callable[[Loader, TextConfig], Decoder]
    forward: Callable[[Verbs, Decoder, Step], Array]


QWEN3_5 = Architecture(read_text_config, load_decoder, forward)

ARCHITECTURES: dict[str, Architecture] = {
    "Qwen3_5ForCausalLM": QWEN3_5,
    "Qwen3_5MoeForCausalLM": QWEN3_5,
}


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Find the architecture that a text config names; raises ``StartupError`` for a stranger."""
    names = list(config.get("architectures", ()))
    for name in names:
        if name in ARCHITECTURES:
            return ARCHITECTURES[name]
    known = ", ".join(sorted(ARCHITECTURES))
    raise StartupError(f"The artifact's architecture {names} is not supported; supported are {known}.")
