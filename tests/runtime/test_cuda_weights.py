"""Weights in their stored layout, with host memory in place of the device's."""

from __future__ import annotations

import ctypes
import sys
import threading
import types
from pathlib import Path

import attrs
import numpy as np
import pytest

from ninfer.artifact import layouts
from ninfer.artifact.manifest import Parameter, Part, TensorObject
from ninfer.artifact.reader import open_artifact
from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import KIND_BYTES, DeviceArray
from ninfer.runtime.cuda_weights import (
    PinnedUpload,
    StoredWeights,
    gather_rows,
    objects_of,
    upload,
    weight_bytes,
)

FORMATS = (
    "bf16",
    "fp8_e4m3fn_row_bf16",
    "q8_g32_fp16",
    "q4_g64_fp16",
    "q5_g64_fp16",
    "q6_g64_fp16",
    "nvfp4",
)


def take(shape, kind):
    made = np.full(int(np.prod(shape)) * KIND_BYTES[kind] + 16, 0xFF, np.uint8)
    return DeviceArray(made.ctypes.data + (-made.ctypes.data % 16), shape, kind, made)


class Host:
    """An upload that is a memory copy."""

    def put(self, target, source):
        ctypes.memmove(target, np.frombuffer(source, np.uint8).ctypes.data, len(source))

    def finish(self, tell=None):
        pass


def seen(ptr, nbytes):
    return bytes((ctypes.c_uint8 * nbytes).from_address(ptr))


@pytest.mark.parametrize("form", FORMATS)
def test_gathered_rows_decode_to_the_rows_that_were_asked_for(form):
    values = np.random.default_rng(1).standard_normal((384, 192)).astype(np.float32)
    raw = layouts.encode(values, form).data
    pieces = [(raw, values.shape, span) for span in ((128, 256), (300, 384), (0, 44))]
    joined = gather_rows(form, 192, pieces)
    if form == "bf16":
        assert (
            joined.tobytes()
            == layouts.encode(np.concatenate([values[b:e] for _, _, (b, e) in pieces]), form).tobytes()
        )
        return
    want = np.concatenate([layouts.decode_rows(raw, form, values.shape, b, e) for _, _, (b, e) in pieces])
    assert (layouts.decode_rows(joined.data, form, (256, 192), 0, 256) == want).all()


def test_rows_under_different_divisors_do_not_join():
    raws = [layouts.encode(np.full((128, 64), v, np.float32), "nvfp4").data for v in (1.0, 2.0)]
    with pytest.raises(StartupError, match="divisors"):
        gather_rows("nvfp4", 64, [(raw, (128, 64), (0, 128)) for raw in raws])


@attrs.define(slots=False)
class Scattered:
    """A parameter of two parts, out of order, in one object."""

    values: np.ndarray
    form: str

    def __attrs_post_init__(self):
        self.data = layouts.encode(self.values, self.form)
        layout = layouts.LAYOUT_OF[self.form]
        self.item = TensorObject("w", self.values.shape, self.form, layout, 0, self.data.nbytes)

    def has(self, name):
        return True

    def parameter(self, name):
        k = self.values.shape[1]
        if name == "halves":
            return Parameter(name, (32, k), (Part(self.item, 32 * k, 48 * k), Part(self.item, 0, 16 * k)))
        if name == "ragged":
            return Parameter(name, (1, k), (Part(self.item, 1, k + 1),))
        return Parameter(name, (16, k), (Part(self.item, 16 * k, 32 * k),))

    def raw(self, item):
        return self.data.data

    def decode(self, name):
        return self.values[:1, :4]


def test_parts_become_one_matrix_and_rows_a_view():
    values = np.random.default_rng(2).standard_normal((48, 128)).astype(np.float32)
    artifact = Scattered(values, "q5_g64_fp16")
    objects = objects_of(artifact, ["halves", "middle"])
    assert [item.id for item in objects] == ["w"] and weight_bytes(objects) % 256 == 0
    said = []
    placed = upload(artifact, objects, take, Host(), said.append)
    loader = StoredWeights(artifact, placed, take, Host())
    assert len(said) == 1 and "GB/s" in said[0]
    middle = loader.matrix("middle")
    assert (middle.rows, middle.codes) == (16, placed["w"].ptr + 16 * 64)
    halves = loader.matrix("halves")
    decoded = layouts.decode_rows(
        memoryview(seen(halves.codes, halves.nbytes)), "q5_g64_fp16", (32, 128), 0, 32
    )
    whole = layouts.decode_rows(artifact.data.data, "q5_g64_fp16", values.shape, 0, 48)
    assert (decoded == np.concatenate((whole[32:], whole[:16]))).all()
    with pytest.raises(StartupError, match="whole rows"):
        loader.matrix("ragged")


def test_a_format_without_a_kernel_is_named():
    artifact = Scattered(np.ones((48, 128), np.float32), "fp32")
    placed = upload(artifact, objects_of(artifact, ["middle"]), take, Host(), lambda text: None)
    loader = StoredWeights(artifact, placed, take, Host())
    with pytest.raises(
        StartupError, match="middle: a matrix in fp32 has no kernel: convert the model again"
    ):
        loader.weights("middle")


def test_bundled_model_loads_as_the_model_asks(fixtures: Path):
    from ninfer.model.weights import load_decoder

    for name in ("tiny-qwen3_5.ninfer", "tiny-qwen3_5_moe.ninfer"):
        with open_artifact(fixtures / name) as artifact:
            names = list(artifact.inventory("text").names())
            placed = upload(artifact, objects_of(artifact, names), take, Host(), lambda text: None)
            loader = StoredWeights(artifact, placed, take, Host())
            decoder = load_decoder(loader, artifact.text_config)
            head = artifact.parameter("text/output_head").parts[0].object
            assert decoder.head.rows == head.shape[0]
            assert seen(decoder.head.data.codes, 64) == bytes(artifact.raw(head)[:64])
            norm = artifact.decode("text/final_norm")
            assert decoder.final_norm.kind == "bf16" and decoder.final_norm.shape == norm.shape


# The upload, with host memory on both sides of a made-up CuPy


class Pinned:
    """Memory that counts as pinned."""

    def __init__(self, nbytes):
        self.room = np.zeros(nbytes, np.uint8)
        self.ptr = self.room.ctypes.data


class Passed:
    """An event that has always happened."""

    def __init__(self, **options):
        pass

    def record(self, stream):
        pass

    def synchronize(self):
        pass


@attrs.define
class Bus:
    """Copies, and breaks down after so many."""

    left: float = float("inf")
    devices: set[int] = attrs.field(factory=set)
    slow: float = 0.0  # seconds a copy

    def copy(self, target, source, nbytes, kind, stream):
        threading.Event().wait(self.slow)
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("the bus broke down")
        ctypes.memmove(target, source, nbytes)


@pytest.fixture
def bus(monkeypatch):
    made = Bus()
    runtime = types.SimpleNamespace(memcpyAsync=made.copy, setDevice=made.devices.add, getDevice=lambda: 3)
    cuda = types.SimpleNamespace(runtime=runtime, PinnedMemory=Pinned, Event=Passed)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return made


STREAM = types.SimpleNamespace(ptr=0, synchronize=lambda: None)


def test_threads_copy_everything_once_and_end(bus):
    sources = [np.random.default_rng(n).integers(0, 256, n, np.uint8) for n in (1, 5000, 64_000, 4096)]
    targets = [np.zeros_like(source) for source in sources]
    before, told, bus.slow = threading.active_count(), [], 0.002
    copies = PinnedUpload(STREAM, piece=1000, copiers=3, patience=0.005)
    for source, target in zip(sources, targets, strict=True):
        copies.put(target.ctypes.data, source.data)
    copies.finish(told.append)
    assert all((target == source).all() for source, target in zip(sources, targets, strict=True))
    assert told == sorted(told) and 0 < told[-1] <= sum(source.nbytes for source in sources)
    copies.put(targets[0].ctypes.data, np.full(1, 7, np.uint8).data)
    copies.finish()
    assert targets[0][0] == 7 and threading.active_count() == before and bus.devices == {3}
    assert 1 <= len(copies._buffers) <= 3
    copies.close()
    assert not copies._buffers


def test_a_fault_of_a_thread_reaches_whoever_waits(bus):
    bus.left = 4
    source = np.ones(1 << 16, np.uint8)
    target = np.zeros_like(source)
    copies = PinnedUpload(STREAM, piece=1024, copiers=3)
    copies.put(target.ctypes.data, source.data)
    with pytest.raises(RuntimeError, match="broke down"):
        copies.finish()
    copies.close()
    assert target.sum() == 4 * 1024


def test_a_host_without_pinned_memory_is_told(bus, monkeypatch):
    def refuse(nbytes):
        raise RuntimeError("no memory to pin")

    monkeypatch.setattr(sys.modules["cupy"].cuda, "PinnedMemory", refuse)
    copies = PinnedUpload(STREAM, piece=1024, copiers=2)
    copies.put(0, np.ones(1 << 16, np.uint8).data)
    with pytest.raises(RuntimeError, match="no memory to pin"):
        copies.finish()
