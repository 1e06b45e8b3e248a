"""Recipes: which numeric format each role of parameter gets, and what may share one stored matrix.

Owns the tables and the packing groups.  Promises that a matrix which a format can't hold falls back to
eight bits, and that every fallback is reported.

The one thing a reader would get wrong: a fused parent exists only where all its members share a format;
otherwise the group is halved until they do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import attrs

from ninfer.artifact.formats import FP8_ROW, GROUPED, NVFP4
from ninfer.artifact.manifest import Shape

Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
BF16 = "bf16"

# The first pattern that matches decides; text patterns come last because mtp and dflash share their words.
ROLES: tuple[tuple[str, str], ...] = (
    (r"/token_ids$", "ids"),
    (r"/(a_log|dt_bias)$", "control"),
    (r"(norm|norm\d?_(weight|bias)|_bias|/convolution|_embedding_bias|/position_embedding)$", "plain"),
    (r"/(a_projection|b_projection|router|shared_score)$", "plain"),
    (r"^text/token_embedding$", "embedding"),
    (r"^text/output_head$", "head"),
    (r"^proposal/head$", "proposal"),
    (r"^(mtp|dflash)/", "draft"),
    (r"^vision/patch_embedding$", "vision_patch"),
    (r"^vision/merger/", "vision_merger"),
    (r"^vision/.*/(attention/output|mlp/fc2)$", "vision_out"),
    (r"^vision/", "vision_in"),
    (r"/moe/experts/[^/]+/down$", "expert_out"),
    (r"/moe/experts/", "expert_in"),
    (r"/moe/shared/", "shared"),
    (r"/(attention|gdn)/(query|key)$", "mixer_in"),
    (r"/(attention|gdn)/", "mixer_out"),
    (r"/mlp/down$", "mlp_out"),
    (r"/mlp/", "mlp_in"),
)
_COMPILED = tuple((re.compile(pattern), role) for pattern, role in ROLES)

MATRIX_ROLES = tuple(role for _, role in ROLES if role not in ("ids", "control", "plain"))
_TEXT = ("mixer_in", "mixer_out", "mlp_in", "mlp_out", "expert_in", "expert_out", "shared")
_VISION = {"vision_in": Q4, "vision_out": Q5, "vision_patch": Q6, "vision_merger": Q8}
_SMALL = {"embedding": Q8, "head": Q8, "draft": Q8, "proposal": Q4, **_VISION}


@attrs.frozen
class Recipe:
    """Formats by role; ``sparse`` overrides them for a mixture of experts."""

    help: str
    formats: Mapping[str, str]
    sparse: Mapping[str, str] = attrs.field(factory=dict)


RECIPES: Mapping[str, Recipe] = {
    "bf16": Recipe("everything as trained", dict.fromkeys(MATRIX_ROLES, BF16)),
    "q8": Recipe(
        "every matrix in 8.5 bits a weight; the drafting head in 4.25",
        {**dict.fromkeys(MATRIX_ROLES, Q8), "proposal": Q4},
    ),
    "groupwise": Recipe(
        "4 and 5 bits in groups of 64, 8 bits where it matters",
        {**_SMALL, "mixer_in": Q4, "mixer_out": Q5, "mlp_in": Q4, "mlp_out": Q5},
        {"head": Q6, "mixer_in": Q8, "mixer_out": Q8, "shared": Q8, "expert_in": Q4, "expert_out": Q5},
    ),
    "nvfp4": Recipe(
        "4-bit floats with 16-element block scales",
        {**_SMALL, **dict.fromkeys(_TEXT, NVFP4)},
        {"mixer_in": Q8, "mixer_out": Q8, "shared": Q8},
    ),
    "fp8": Recipe(
        "8-bit floats with one scale a row",
        {**_SMALL, **dict.fromkeys((*_TEXT, "embedding", "head"), FP8_ROW)},
    ),
}


def role_of(name: str) -> str:
    """Classify a logical parameter."""
    return next(role for pattern, role in _COMPILED if pattern.search(name))


def choose(recipe: Recipe, sparse: bool, name: str, shape: Shape) -> tuple[str, str | None]:
    """The format of a parameter, and why it isn't the recipe's own (None if it is)."""
    role = role_of(name)
    if role in ("ids", "control"):
        return ("int32" if role == "ids" else "fp32"), None
    if role == "plain":
        return BF16, None
    wanted = (recipe.sparse if sparse else {}).get(role) or recipe.formats[role]
    reason = misfit(wanted, shape)
    return (Q8, reason) if reason else (wanted, None)


def misfit(form: str, shape: Shape) -> str | None:
    """Why a format can't hold a matrix well, or None.  Eight bits take any shape."""
    rows, columns = shape[0], shape[-1]
    if form == NVFP4 and (rows % 128 or columns % 64):
        return f"nvfp4 needs rows in 128s and columns in 64s, not {rows} x {columns}"
    if form in GROUPED and form != Q8 and columns % GROUPED[form].group:
        return f"{form} needs columns in {GROUPED[form].group}s, not {columns}"
    return None


def pack(names: Sequence[str], format_of: Callable[[str], str]) -> list[tuple[str, ...]]:
    """Split a group of parameters into runs that share one format, by halving."""
    if len({format_of(name) for name in names}) == 1:
        return [tuple(names)]
    half = len(names) // 2
    return pack(names[:half], format_of) + pack(names[half:], format_of)
