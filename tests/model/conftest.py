"""The reference checkpoints as programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs
import pytest

from ninfer.runtime.build import build_numpy
from ninfer.runtime.program import NumpyProgram
from ninfer.settings import EngineOptions
from tests.model.checkpoint import Checkpoint, Golden, goldens

MODELS = ("tiny-qwen3_5", "tiny-qwen3_5_moe")


@attrs.frozen
class Piece:
    """A component."""

    config: dict[str, Any]


@attrs.frozen(eq=False)
class BareModel:
    """A checkpoint that stands in for an artifact."""

    checkpoint: Checkpoint

    @property
    def components(self) -> dict[str, Piece]:
        """Text and mtp."""
        return {"text": Piece(self.checkpoint.config), "mtp": Piece({})}

    def has(self, name: str) -> bool:
        """Whether a parameter exists."""
        return self.checkpoint.has(name)

    def decode(self, name: str) -> Any:
        """Read a parameter."""
        return self.checkpoint.decode(name)

    def has_resource(self, role: str) -> bool:
        """There are no frontend files."""
        return False

    def resource(self, role: str) -> bytes:
        """There are no frontend files."""
        raise KeyError(role)


@lru_cache
def checkpoint_of(path: Path) -> BareModel:
    """Read a checkpoint once."""
    return BareModel(Checkpoint(path))


@pytest.fixture(params=MODELS)
def reference(request: pytest.FixtureRequest, reference_models: Path) -> Path:
    """Each of the two reference checkpoints."""
    return reference_models / str(request.param)


@pytest.fixture
def build(reference: Path) -> Callable[..., NumpyProgram]:
    """Build a program of the reference checkpoint."""

    def build(**options: Any) -> NumpyProgram:
        chosen = {"max_context": 2048, "kv_dtype": "fp32", **options}
        return build_numpy(checkpoint_of(reference), EngineOptions(**chosen), lambda text: None)

    return build


@lru_cache
def text_goldens(path: Path) -> dict[str, Golden]:
    """The recorded prompts without media, by name."""
    return {golden.name: golden for golden in goldens(path) if "pixel_values" not in golden.extra}
