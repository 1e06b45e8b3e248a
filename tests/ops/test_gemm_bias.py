"""Products between planes, with a cuBLAS made of paper: what a product names still exists."""

from __future__ import annotations

from typing import Any

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.ops.gemm import Layouts
from ninfer.ops.gemm_bias import Plane, PlanesLt


@attrs.define(eq=False)
class Paper:
    """Numbers what it makes; fails on a product of layouts that were given back."""

    workspace: DeviceArray = attrs.field(factory=lambda: DeviceArray(4096, (1 << 20,), "u8"))
    stream: int = 0
    made: int = 0
    products: int = 0
    alive: set[int] = attrs.field(factory=set)
    _handle: Any = None
    layouts: Layouts = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.layouts = Layouts(self._do)

    def _do(self, call: str, *arguments: Any) -> None:
        if call.endswith("Create"):
            self.made += 1
            arguments[0]._obj.value = self.made
        if call == "MatrixLayoutCreate":
            self.alive.add(self.made)
        if call == "MatrixLayoutDestroy":
            self.alive.remove(arguments[0].value)
        if call == "MatmulAlgoGetHeuristic":
            assert {one.value for one in arguments[2:6]} <= self.alive
            arguments[-1]._obj.value = 1
        if call == "Matmul":
            self.products += 1
            assert {arguments[at].value for at in (4, 6, 9, 11)} <= self.alive


def test_no_product_loses_its_layouts_however_many_sizes_there_are() -> None:
    paper: Any = Paper()
    multiply, w = PlanesLt(paper), DeviceArray(1 << 20, (256, 128), "bf16")
    for rows in range(1, 1500):
        x = Plane.of(DeviceArray(1 << 24, (rows, 128), "bf16"))
        multiply(x, w, Plane.of(DeviceArray(1 << 28, (rows, 256), "bf16")))
    assert paper.products == 1499 and len(paper.alive) < 600
