"""One CUDA source: its text with local includes inlined, its kernels' signatures, its variants.

Owns the reading of ``.cu`` files.  A signature is read from the ``extern "C" __global__`` definition
itself, so Python and CUDA cannot disagree about it.  Directives are comment lines that begin ``//:``

    //: variants ROWS 8 16        compile once per value, as -DROWS=8 and -DROWS=16 (lines multiply)
    //: arch sm_90a               exists for these architectures alone
    //: spills NAME BYTES         spill allowance of a kernel

The one thing a reader would get wrong: a pointer parameter must be written ``const bf16* x``, type
first, one parameter between commas; a struct by value is passed as bytes of exactly its size.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import attrs

HERE = Path(__file__).resolve().parent
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120")

SCALARS = {
    "int": "i32",
    "unsigned": "u32",
    "unsigned int": "u32",
    "u32": "u32",
    "float": "f32",
    "u64": "u64",
    "long long": "i64",
    "i64": "i64",
    "unsigned long long": "u64",
}
ELEMENTS = {
    **SCALARS,
    "bf16": "bf16",
    "__nv_bfloat16": "bf16",
    "__nv_bfloat162": "bf16",
    "half": "f16",
    "__half": "f16",
    "f16": "f16",
    "u16": "bf16",
    "u8": "u8",
    "unsigned char": "u8",
    "uint8_t": "u8",
    "i8": "i8",
    "signed char": "i8",
    "int8_t": "i8",
    "double": "f64",
    "void": "any",
}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([\w./]+)"[ \t]*$', re.M)
_KERNEL = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+(?:__(?:launch_bounds|cluster_dims)__\s*\([^()]*\)\s*)*(\w+)\s*\('
)
_DIRECTIVE = re.compile(r"^//:[ \t]*(\w+)[ \t]+(.+)$", re.M)


@attrs.frozen
class Parameter:
    """One kernel parameter.  ``kind`` is ``f32``, ``bf16*``, ``any*``, or ``struct`` (bytes by value)."""

    name: str
    kind: str
    type: str


@attrs.frozen
class Source:
    """A ``.cu`` file, ready to compile."""

    name: str
    text: str
    signatures: Mapping[str, tuple[Parameter, ...]]
    variants: tuple[tuple[tuple[str, int], ...], ...]
    architectures: tuple[str, ...]
    spill_allowance: Mapping[str, int]

    @property
    def digest(self) -> str:
        """Hash of the text with every local include in it."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:24]


@functools.cache
def load(name: str, root: Path = HERE) -> Source:
    """Read ``name`` (such as ``linear.cu``) from ``root``; raises ValueError on a type it does not know."""
    text = _inline(root / name, root, set())
    notes = [(match[1], match[2].split()) for match in _DIRECTIVE.finditer(text)]
    axes = [[(words[0], int(value)) for value in words[1:]] for key, words in notes if key == "variants"]
    only = [words for key, words in notes if key == "arch"]
    return Source(
        name,
        text,
        dict(_signatures(text)),
        tuple(itertools.product(*axes)),
        tuple(only[0]) if only else tuple(arch for arch in ARCHITECTURES if arch != "sm_90a"),
        {words[0]: int(words[1]) for key, words in notes if key == "spills"},
    )


def names(root: Path = HERE) -> tuple[str, ...]:
    """Every source there is."""
    return tuple(sorted(path.name for path in root.glob("*.cu")))


def _inline(path: Path, root: Path, seen: set[Path]) -> str:
    if path in seen:
        return ""
    seen.add(path)
    text = path.read_text().replace("#pragma once\n", "")
    return _INCLUDE.sub(lambda match: _inline(root / match[1], root, seen), text)


def _signatures(text: str) -> Iterator[tuple[str, tuple[Parameter, ...]]]:
    bare = re.sub(r"//[^\n]*", "", text)
    for match in _KERNEL.finditer(bare):
        end = _closing(bare, match.end())
        if bare[end + 1 :].lstrip().startswith(";"):
            continue  # a declaration
        parts = [part for part in bare[match.end() : end].split(",") if part.strip()]
        yield match[1], tuple(_parameter(part) for part in parts)


def _closing(text: str, begin: int) -> int:
    depth = 1
    for index in range(begin, len(text)):
        depth += {"(": 1, ")": -1}.get(text[index], 0)
        if depth == 0:
            return index
    raise ValueError("a kernel's parameter list does not end")


def _parameter(text: str) -> Parameter:
    cleaned = re.sub(r"\b(const|__restrict__|__grid_constant__|volatile)\b", " ", text)
    head, _, name = cleaned.strip().rpartition("*" if "*" in cleaned else " ")
    ctype = " ".join(head.replace("*", " ").split())
    if "*" in cleaned:
        if ctype not in ELEMENTS:
            return Parameter(name.strip(), "any*", ctype)
        return Parameter(name.strip(), f"{ELEMENTS[ctype]}*", ctype)
    return Parameter(name.strip(), SCALARS.get(ctype, "struct"), ctype)
