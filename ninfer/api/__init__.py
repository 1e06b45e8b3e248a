"""The Python engine API: generate text in a program, on the same engine that serves HTTP.

    from ninfer.api import InferenceEngine

    with InferenceEngine("model.ninfer") as engine:
        print(engine.generate("Hello"))

Names are imported on first use, so that ``import ninfer.api`` loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ninfer.api.backend import attn_backend as attn_backend
    from ninfer.api.engine import InferenceEngine as InferenceEngine
    from ninfer.api.sampling import (
        SamplingPipeline as SamplingPipeline,
    )
    from ninfer.api.sampling import (
        TemperatureStrategy as TemperatureStrategy,
    )
    from ninfer.api.sampling import (
        TopKStrategy as TopKStrategy,
    )
    from ninfer.api.sampling import (
        TopPStrategy as TopPStrategy,
    )
    from ninfer.api.sampling import (
        sample as sample,
    )

_HOMES = {
    "InferenceEngine": "engine",
    "attn_backend": "backend",
    "SamplingPipeline": "sampling",
    "TemperatureStrategy": "sampling",
    "TopKStrategy": "sampling",
    "TopPStrategy": "sampling",
    "sample": "sampling",
}
__all__ = [
    "InferenceEngine",
    "SamplingPipeline",
    "TemperatureStrategy",
    "TopKStrategy",
    "TopPStrategy",
    "attn_backend",
    "sample",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ninfer.api' has no attribute {name!r}")
    return getattr(importlib.import_module(f"ninfer.api.{_HOMES[name]}"), name)
