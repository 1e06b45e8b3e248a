"""Device memory of the NumPy backend: StateImages and KV pages.

Every slot is one contiguous row and every page one contiguous row of bytes, so pausing, sharing and
copying are one copy each.  Pages keep the codes of their KV format (what is saved and counted) and,
beside them, the float32 values that those codes decode to (what attention reads).  The one thing a
reader would get wrong: ``page_bytes`` counts the codes alone.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from ninfer.model.config import TextConfig
from ninfer.ops.numpy_state import Floats, Ints, Slots
from ninfer.runtime.kvformat import KVFormat

Image = tuple[Floats, Ints, Ints]  # a row of the block, its last position, its frontier
EDGE = 16  # bytes of three positions and a frontier, int32


@attrs.define(eq=False)
class StateImages:
    """``slots`` images of everything of fixed size at one frontier, and what they are images of."""

    block: Floats
    views: Slots
    edges: Ints  # (slots, 3) rotary position of the last token
    frontiers: Ints  # (slots,) tokens behind the image

    @property
    def image_bytes(self) -> int:
        """Bytes of one image."""
        return int(self.block[0].nbytes + self.edges[0].nbytes + self.frontiers[0].nbytes)

    def clear(self, slot: int) -> None:
        """Make a slot the empty state."""
        self.block[slot] = 0
        self.edges[slot] = 0
        self.frontiers[slot] = 0

    def copy(self, source: int, target: int) -> None:
        """Copy a whole image."""
        self.block[target] = self.block[source]
        self.edges[target] = self.edges[source]
        self.frontiers[target] = self.frontiers[source]

    def save(self, slot: int) -> Image:
        """Copy an image out."""
        return self.block[slot].copy(), self.edges[slot].copy(), self.frontiers[slot].copy()

    def load(self, slot: int, image: Image) -> None:
        """Copy an image back."""
        self.block[slot], self.edges[slot], self.frontiers[slot] = image


def pack_image(image: Image) -> bytes:
    """Lay out an image in ``image_bytes`` bytes."""
    block, edge, frontier = image
    return block.tobytes() + edge.tobytes() + frontier.tobytes()


def image_in(raw: NDArray[np.uint8]) -> Image:
    """See what ``pack_image`` wrote, or will have written, in ``raw``."""
    edge = raw[-EDGE:].view(np.int32)
    return raw[:-EDGE].view(np.float32), edge[:3], edge[3:].reshape(())


def new_images(config: TextConfig, slots: int) -> StateImages:
    """Allocate empty images."""
    layers = config.layer_kinds.count("linear_attention")
    shapes: tuple[tuple[int, ...], ...] = (
        (layers, config.value_heads, config.key_dim, config.value_dim),
        (layers, config.conv_taps - 1, config.conv_channels),
        (config.hidden,),
    )
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes]).tolist()
    block = np.zeros((slots, ends[-1]), np.float32)
    begins = [0, *ends[:-1]]
    recurrent, history, hidden = (
        block[:, begin:end].reshape(slots, *shape)
        for begin, end, shape in zip(begins, ends, shapes, strict=True)
    )
    edges, frontiers = np.zeros((slots, 3), np.int32), np.zeros(slots, np.int32)
    return StateImages(block, Slots(recurrent, history, hidden), edges, frontiers)


@attrs.define(eq=False)
class KVPages:
    """A pool of pages; implements ``ops.numpy_state.Pages``."""

    format: KVFormat
    page_tokens: int
    codes: NDArray[np.uint8]  # (pages, page_bytes)
    values: Floats  # (pages, layers, 2, kv_heads, page_tokens, head_dim)
    _planes: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]

    @property
    def page_bytes(self) -> int:
        """Bytes of one page in its format."""
        return int(self.codes[0].nbytes)

    def append(self, layer: int, table: Ints, start: int, keys: Floats, values: Floats) -> None:
        """Store (rows, kv_heads, head_dim) keys and values at token indices ``start`` and on."""
        rows, done = len(keys), 0
        while done < rows:
            place, at = divmod(start + done, self.page_tokens)
            count = min(rows - done, self.page_tokens - at)
            page = table[place]
            for kind, codec, part in ((0, self.format.key, keys), (1, self.format.value, values)):
                code = codec.encode(part[done : done + count].swapaxes(0, 1))
                self._planes[layer][kind][page, :, at : at + count] = code
                self.values[page, layer, kind, :, at : at + count] = codec.decode(code)
            done += count

    def span(self, layer: int, table: Ints, begin: int, end: int) -> tuple[Floats, Floats]:
        """Return keys and values of tokens ``begin .. end - 1``, each (kv_heads, tokens, head_dim)."""
        first, last = begin // self.page_tokens, (end - 1) // self.page_tokens
        if first == last:
            at = first * self.page_tokens
            both = self.values[table[first], layer, :, :, begin - at : end - at]
            return both[0], both[1]
        pages = self.values[table[first : last + 1], layer]  # (n, 2, kv_heads, page_tokens, dim)
        joined = pages.transpose(1, 2, 0, 3, 4).reshape(2, pages.shape[2], -1, pages.shape[4])
        at = first * self.page_tokens
        return joined[0, :, begin - at : end - at], joined[1, :, begin - at : end - at]

    def copy(self, source: int, target: int) -> None:
        """Copy a page."""
        self.codes[target] = self.codes[source]
        self.values[target] = self.values[source]

    def save(self, pages: tuple[int, ...]) -> NDArray[np.uint8]:
        """Copy the codes of pages out."""
        return self.codes[list(pages)]

    def load(self, pages: tuple[int, ...], codes: NDArray[np.uint8]) -> None:
        """Copy codes back and decode them."""
        for page, row in zip(pages, codes, strict=True):
            self.codes[page] = row
            for layer, planes in enumerate(self._planes):
                for kind, codec in enumerate((self.format.key, self.format.value)):
                    self.values[page, layer, kind] = codec.decode(planes[kind][page])


def new_pages(config: TextConfig, layers: int, form: KVFormat, pages: int, page_tokens: int) -> KVPages:
    """Allocate pages for ``layers`` attention layers."""
    dim, heads = config.head_dim, config.kv_heads
    rows = heads * page_tokens
    widths = (form.key.row_bytes(dim), form.value.row_bytes(dim))
    codes = np.zeros((pages, layers * rows * sum(widths)), np.uint8)
    planes: list[Any] = []
    at = 0
    for _ in range(layers):
        pair = []
        for width in widths:
            pair.append(codes[:, at : at + rows * width].reshape(pages, heads, page_tokens, width))
            at += rows * width
        planes.append(tuple(pair))
    values = np.zeros((pages, layers, 2, heads, page_tokens, dim), np.float32)
    return KVPages(form, page_tokens, codes, values, planes)
