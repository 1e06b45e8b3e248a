"""The bundled artifacts, and the reference checkpoints where they are, as programs with goldens."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs
import pytest

from ninfer.artifact import open_artifact
from ninfer.runtime.build import build_numpy
from ninfer.runtime.program import NumpyProgram
from ninfer.settings import EngineOptions
from tests.model.checkpoint import Checkpoint, Golden, goldens

NAMES = ("tiny-qwen3_5", "tiny-qwen3_5_moe")
ROOTS = ("fixtures", "reference_models")


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
        """Text, mtp and vision."""
        vision = Piece(self.checkpoint.vision)
        return {"text": Piece(self.checkpoint.config), "mtp": Piece({}), "vision": vision}

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
def model_of(path: Path) -> Any:
    """Open an artifact or a checkpoint once."""
    return open_artifact(path) if path.suffix == ".ninfer" else BareModel(Checkpoint(path))


@pytest.fixture(params=[(root, name) for root in ROOTS for name in NAMES], ids="/".join)
def reference(request: pytest.FixtureRequest) -> Path:
    """Each bundled artifact and each reference checkpoint."""
    root, name = request.param
    return request.getfixturevalue(root) / (name + ".ninfer" * (root == "fixtures"))


@pytest.fixture
def build(reference: Path) -> Callable[..., NumpyProgram]:
    """Build a program of the model under test."""

    def build(**options: Any) -> NumpyProgram:
        chosen = {"max_context": 2048, "kv_dtype": "fp32", **options}
        return build_numpy(model_of(reference), EngineOptions(**chosen), lambda text: None)

    return build


@lru_cache
def text_goldens(path: Path) -> dict[str, Golden]:
    """The recorded prompts without media, by name."""
    return {golden.name: golden for golden in goldens(path) if golden.pixels is None}


@lru_cache
def media_goldens(path: Path) -> dict[str, Golden]:
    """The recorded prompts with a picture or a clip, by name."""
    return {golden.name: golden for golden in goldens(path) if golden.pixels is not None}
