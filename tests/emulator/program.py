"""A whole CUDA program in host memory: the real verbs and kernels, with NumPy in the place of cuBLAS.

The one thing a reader would get wrong: units run when they are started, so nothing about timing or
ordering of the stream is tested here; the numbers are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from ninfer.artifact.reader import open_artifact
from ninfer.engine.device import Geometry
from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.model.weights import Delta as DeltaLayer
from ninfer.model.weights import load_decoder
from ninfer.ops.cuda_attention import AttentionKernels
from ninfer.ops.cuda_delta import Delta
from ninfer.ops.cuda_experts import Experts
from ninfer.ops.cuda_sampler import LaneMemory, Sampler
from ninfer.ops.cuda_state import (
    DeltaWeights,
    ImagePool,
    PagePool,
    Records,
    Shape,
    image_bytes,
    page_bytes,
)
from ninfer.ops.linear import Linear
from ninfer.ops.numpy_attention import Rotary
from ninfer.ops.on_cuda import CudaVerbs
from ninfer.ops.products import Products
from ninfer.runtime.cuda_program import CudaProgram
from ninfer.runtime.cuda_steps import Packer
from ninfer.settings import EngineOptions
from ninfer.spec.drafter import DRAFTERS
from tests.emulator import EmulatedLibrary
from tests.emulator.loader import EmulatedLoader
from tests.emulator.memory import gemm, on_device, seen, take, zeros


class Passed:
    """A mark that is always behind us."""

    def wait(self) -> None:
        """Nothing to wait for."""


class HostTransfers:
    """Implements ``runtime.cuda_transfers.Transfers`` at once."""

    def send(self, target: DeviceArray, values: Any) -> None:
        """Copy into the first bytes of an array."""
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        assert raw.nbytes <= target.nbytes
        ctypes.memmove(target.ptr, raw.ctypes.data, raw.nbytes)

    def fetch(self, source: DeviceArray) -> tuple[Any, Passed]:
        """Copy results out."""
        return seen(source).copy(), Passed()

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        """Copy between arrays."""
        ctypes.memmove(target.ptr, source.ptr, source.nbytes)

    def fill(self, array: DeviceArray, byte: int = 0) -> None:
        """Set every byte."""
        ctypes.memset(array.ptr, byte, array.nbytes)

    def save(self, arrays: Sequence[DeviceArray]) -> Any:
        """Copy arrays out, end to end."""
        return np.concatenate([seen(array).reshape(-1).view(np.uint8) for array in arrays])

    def load(self, array: DeviceArray, saved: Any, at: int) -> None:
        """Copy back."""
        seen(array).reshape(-1).view(np.uint8)[:] = saved[at : at + array.nbytes]

    def drop(self, saved: Any) -> None:
        """Nothing to give back."""

    def mark(self) -> Passed:
        """Everything has run."""
        return Passed()

    def seconds(self, begin: Passed, end: Passed) -> float:
        """No time passes."""
        return 0.0


def emulated_program(path: Path, options: EngineOptions, order: int = 0, **geometry: Any) -> CudaProgram:
    """Load an artifact into an emulated device."""
    artifact = open_artifact(path)
    c = artifact.text_config
    loader, library = EmulatedLoader(artifact), EmulatedLibrary(order)
    decoder = load_decoder(loader, c)
    drafter = DRAFTERS[options.spec](loader, decoder) if options.spec else None
    shape = Shape(c.hidden, c.heads, c.kv_heads, c.key_heads, c.value_heads, c.eps)
    lanes, slots, drafts = options.max_concurrency, 2 * options.max_concurrency, options.draft_tokens
    pages = -(-options.max_context // 64) * lanes
    layers = c.layer_kinds.count("full_attention") + (drafter is not None)
    pool = PagePool(
        take((pages, page_bytes(options.kv_dtype, layers, c.kv_heads)), "u8"),
        options.kv_dtype,
        layers,
        c.kv_heads,
    )
    deltas = [layer.mixer for layer in decoder.layers if isinstance(layer.mixer, DeltaLayer)]
    images = ImagePool(zeros((slots, image_bytes(shape, len(deltas))), "u8"), shape, len(deltas))
    products = Products(Linear(library, 3, 227 << 10, take, zeros((8192,), "u32")), gemm)
    rotary = Rotary.of(c.rotary_dims, c.rope_theta, c.mrope_section)
    rows = lanes * (1 + drafts)
    attention = AttentionKernels(
        library, take, shape, pool, on_device(rotary.frequencies), on_device(rotary.axes.astype(np.int32)),
        zeros((rows, c.kv_heads), "u32"), splits=min(64, pages), shared_limit=227 << 10,
    )  # fmt: skip
    table = b"".join(
        DeltaWeights(w.convolution, w.a_log, w.dt_bias, w.inner_norm).pack(shape) for w in deltas
    )
    records = Records.take(take, shape, len(deltas), lanes, 1 + drafts) if drafts else None
    delta = Delta(library, take, shape, images, records, on_device(np.frombuffer(table, np.uint8)))
    vocab = geometry.pop("vocab", c.vocab)
    memory = LaneMemory.take(zeros, lanes, vocab, 1 + drafts)
    sampler = Sampler(library, take, memory)
    verbs = CudaVerbs(
        shape, take, products, attention, delta, Experts(library, take, shape, products), sampler
    )
    width = -(-options.max_context // 64)
    return CudaProgram(
        geometry=Geometry(
            lanes, slots, pages, 64, options.max_context, options.prefill_chunk, vocab,
            images.image_bytes, pool.page_bytes, drafts=drafts,
        ),
        verbs=verbs,
        decoder=decoder,
        images=images,
        pages=pool,
        transfers=HostTransfers(),
        packer=Packer(zeros((4 * options.prefill_chunk + 64 * lanes * (width + 64),), "i32"), width),
        results=take((lanes * (3 + drafts),), "i32"),
        drafter=drafter,
    )  # fmt: skip


def emulated(options: dict[str, Any], name: str = "tiny-qwen3_5", order: int = 0) -> CudaProgram:
    """A bundled model on the emulated device."""
    fixtures = Path(__file__).resolve().parent.parent.parent / "fixtures"
    chosen = {"max_context": 512, "kv_dtype": "bf16", "prefill_chunk": 512, **options}
    return emulated_program(fixtures / f"{name}.ninfer", attrs.evolve(EngineOptions(), **chosen), order)
