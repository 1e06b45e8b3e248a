"""Reading of CUDA sources: signatures, includes, variants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ninfer.kernels_cu import source

TWINS = Path(__file__).parent.parent / "emulator/ptx.cuh"

KERNEL = """
//: variants ROWS 8 16
//: variants DEPTH 1 2
//: spills foo 16
#include "part.cuh"
extern "C" __global__ void __launch_bounds__(256, 2) foo(
    const bf16* __restrict__ x,  // read, not written
    float *y, const void* p, int n, float eps, const Many many) { }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "one.cu").write_text(KERNEL)
    (tmp_path / "part.cuh").write_text(
        '#pragma once\n#include "deep.cuh"\n#include "part.cuh"\nint part;\n'
    )
    (tmp_path / "deep.cuh").write_text("#pragma once\n#include <cuda_bf16.h>\nint deep;\n")
    return tmp_path


def test_signature_is_read_from_the_definition(folder: Path) -> None:
    kinds = [(p.name, p.kind) for p in source.load("one.cu", folder).signatures["foo"]]
    assert kinds == [
        ("x", "bf16*"),
        ("y", "f32*"),
        ("p", "any*"),
        ("n", "i32"),
        ("eps", "f32"),
        ("many", "struct"),
    ]


def test_local_includes_are_inlined_once_and_system_ones_stay(folder: Path) -> None:
    text = source.load("one.cu", folder).text
    assert text.count("int deep;") == text.count("int part;") == 1
    assert "#include <cuda_bf16.h>" in text and '"part.cuh"' not in text


def test_variants_multiply(folder: Path) -> None:
    found = [dict(variant) for variant in source.load("one.cu", folder).variants]
    assert found == [{"ROWS": r, "DEPTH": d} for r in (8, 16) for d in (1, 2)]


def test_digest_follows_included_text(folder: Path) -> None:
    before = source.load("one.cu", folder).digest
    (folder / "deep.cuh").write_text("int deeper;\n")
    source.load.cache_clear()
    assert source.load("one.cu", folder).digest != before


def test_plain_sources_have_one_variant_and_skip_the_hopper_only_target(folder: Path) -> None:
    (folder / "two.cu").write_text("")
    plain = source.load("two.cu", folder)
    assert plain.variants == ((),) and "sm_90a" not in plain.architectures
    assert "sm_120" in plain.architectures


def test_truth_tables_say_what_their_twins_do() -> None:
    wrapper = re.compile(
        r"u32 (\w+)\(u32 (\w+), u32 (\w+), u32 (\w+)\) \{[^}]*?lop3\.b32 %0, %1, %2, %3, (0x\w+);"
    )
    found = wrapper.findall((source.HERE / "ptx.cuh").read_text())
    assert found
    for name, a, b, c, table in found:
        twin = re.search(rf"inline u32 {name}\(.*?\) {{ return (.*); }}", TWINS.read_text())
        assert twin, name
        assert eval(twin[1], {}, {a: 0xF0, b: 0xCC, c: 0xAA}) & 255 == int(table, 16), name
