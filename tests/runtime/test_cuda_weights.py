"""Weights in their stored layout, with host memory in place of the device's."""

from __future__ import annotations

import ctypes
from pathlib import Path

import attrs
import numpy as np
import pytest

from ninfer.artifact import layouts
from ninfer.artifact.manifest import Parameter, Part, TensorObject
from ninfer.artifact.reader import open_artifact
from ninfer.faults import StartupError
from ninfer.kernels_cu.arrays import KIND_BYTES, DeviceArray
from ninfer.runtime.cuda_weights import StoredWeights, gather_rows, objects_of, slices, upload, weight_bytes

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

    def finish(self):
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


def test_copies_are_cut_for_every_thread_and_cover_everything(monkeypatch):
    monkeypatch.setattr("ninfer.runtime.cuda_weights.COPIERS", 8)
    source = np.arange(5 << 20, dtype=np.uint8)
    target = np.zeros_like(source)
    cut = list(slices(target, source))
    for pair in cut:
        np.copyto(*pair)
    assert len(cut) == 5 and (target == source).all()
