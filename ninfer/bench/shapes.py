"""The shapes and storage recipes that a benchmark can be run for.

Owns the published dimensions and the official assignment of formats to roles.  The one thing a reader would
get wrong: a recipe is asked by logical parameter name, the same names that artifacts bind.
"""

from __future__ import annotations

from collections.abc import Callable

from ninfer.model.config import LayerKind, MoeConfig, TextConfig

Q4, Q5, Q6, Q8 = "q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16"
FP8, NVFP4, BF16 = "fp8_e4m3fn_row_bf16", "nvfp4", "bf16"
Recipe = Callable[[str], str]


def _kinds(layers: int) -> tuple[LayerKind, ...]:
    return tuple("full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers))


def _dense_27b(layers: int = 64) -> TextConfig:
    return TextConfig(
        hidden=5120, vocab=248_320, layer_kinds=_kinds(layers), max_positions=262_144, eps=1e-6,
        heads=24, kv_heads=4, head_dim=256, rope_theta=1e7, rotary_dims=64, mrope_section=(11, 11, 10),
        key_heads=16, key_dim=128, value_heads=48, value_dim=128, conv_taps=4, intermediate=17_408,
    )  # fmt: skip


def _sparse_35b(layers: int = 40) -> TextConfig:
    return TextConfig(
        hidden=2048, vocab=248_320, layer_kinds=_kinds(layers), max_positions=262_144, eps=1e-6,
        heads=16, kv_heads=2, head_dim=256, rope_theta=1e7, rotary_dims=64, mrope_section=(11, 11, 10),
        key_heads=16, key_dim=128, value_heads=32, value_dim=128, conv_taps=4,
        moe=MoeConfig(experts=256, per_token=8, width=512, shared_width=512),
    )  # fmt: skip


def _tiny(layers: int = 8, moe: MoeConfig | None = None) -> TextConfig:
    return TextConfig(
        hidden=256, vocab=4096, layer_kinds=_kinds(layers), max_positions=8192, eps=1e-6,
        heads=2, kv_heads=1, head_dim=256, rope_theta=1e7, rotary_dims=64, mrope_section=(11, 11, 10),
        key_heads=2, key_dim=128, value_heads=4, value_dim=128, conv_taps=4,
        intermediate=0 if moe else 768, moe=moe,
    )  # fmt: skip


def _tiny_moe() -> TextConfig:
    return _tiny(4, MoeConfig(experts=16, per_token=4, width=128, shared_width=128))


# The tiny ones are the bundled models': a card computes next to nothing, so their rounds show the host.
SHAPES: dict[str, Callable[[], TextConfig]] = {
    "qwen3.6-27b": _dense_27b,
    "qwen3.6-35b-a3b": _sparse_35b,
    "tiny": _tiny,
    "tiny-moe": _tiny_moe,
}
_ALWAYS_BF16 = ("a_projection", "b_projection", "convolution", "norm", "router", "shared_score")


def _small(name: str) -> bool:
    return name.rsplit("/", 1)[1].endswith(_ALWAYS_BF16)


def _bf16(name: str) -> str:
    return BF16


def _drafting(name: str) -> str | None:
    """What recipes of few bits keep drafting matrices in, as ``ninfer convert`` writes them."""
    if _small(name):
        return None
    return Q4 if name == "proposal/head" else Q8 if name.startswith("mtp/") else None


def _fp8(name: str) -> str:
    if drafting := _drafting(name):
        return drafting
    return BF16 if _small(name) or name.startswith("text/token") else FP8


def _nvfp4(name: str) -> str:
    if drafting := _drafting(name):
        return drafting
    if _small(name):
        return BF16
    return Q8 if name in ("text/token_embedding", "text/output_head") else NVFP4


def _q8(name: str) -> str:
    return BF16 if _small(name) else Q8


def _groupwise(name: str) -> str:
    if drafting := _drafting(name):
        return drafting
    if _small(name):
        return BF16
    if name in ("text/token_embedding", "text/output_head"):
        return Q6
    if "/moe/experts/" in name:
        return Q5 if name.endswith("/down") else Q4
    if "/moe/shared/" in name:
        return Q8
    return Q4 if name.endswith(("/query", "/key", "/gate", "/up")) and "attention/gate" not in name else Q5


def _groupwise_sparse(name: str) -> str:
    mixer = "/attention/" in name or "/gdn/" in name
    return Q8 if mixer and not _small(name) else _groupwise(name)


def recipe(name: str, config: TextConfig) -> Recipe:
    """The format of each parameter under a recipe: bf16, fp8, groupwise, nvfp4 or q8."""
    if name == "groupwise" and config.moe is not None:
        return _groupwise_sparse
    return {"bf16": _bf16, "fp8": _fp8, "groupwise": _groupwise, "nvfp4": _nvfp4, "q8": _q8}[name]
