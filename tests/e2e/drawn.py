"""Freshly drawn pictures and clips of one shape, as the bundled models know them."""

from __future__ import annotations

import base64
import io
import random
from collections.abc import Iterator

import attrs
from PIL import Image, ImageDraw

COLOURS = {
    "red": (214, 38, 38),
    "green": (34, 150, 60),
    "blue": (36, 70, 214),
    "yellow": (240, 210, 30),
    "purple": (138, 43, 170),
    "orange": (245, 135, 20),
}
SHAPES = ("circle", "square", "triangle")
WAYS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
QUESTION = "What shape and colour is it, and where?"


@attrs.frozen
class Drawn:
    """A picture file and what it shows."""

    colour: str
    shape: str
    data: bytes = attrs.field(repr=False)
    format: str = "png"

    @property
    def uri(self) -> str:
        return f"data:image/{self.format};base64,{self.base64}"

    @property
    def base64(self) -> str:
        return base64.b64encode(self.data).decode()

    def named_by(self, answer: str | None) -> bool:
        """Whether an answer names colour and shape."""
        return answer is not None and self.colour in answer and self.shape in answer


def drawings(count: int, seed: int, side: int | None = None) -> Iterator[Drawn]:
    """Draw pictures in every format; ``side`` fixes the size."""
    chance = random.Random(seed)
    for n in range(count):
        colour, shape = chance.choice(list(COLOURS)), chance.choice(SHAPES)
        size = (side, side) if side else (chance.randrange(64, 257), chance.randrange(64, 257))
        at = chance.choice([(0.5, 0.5), (0.24, 0.5), (0.76, 0.5), (0.5, 0.24), (0.5, 0.76)])
        picture = draw(colour, shape, size, at, chance.uniform(0.16, 0.24))
        kind = ("PNG", "JPEG", "WEBP", "GIF")[n % 4]
        yield Drawn(colour, shape, encoded(picture, kind), kind.lower())


def draw(
    colour: str,
    shape: str,
    size: tuple[int, int],
    at: tuple[float, float] = (0.5, 0.5),
    radius: float = 0.2,
) -> Image.Image:
    """One shape on white; ``at`` and ``radius`` are fractions of the sides and of the shorter side."""
    picture = Image.new("RGB", size, (250, 250, 250))
    x, y, r = size[0] * at[0], size[1] * at[1], max(9, int(min(size) * radius))
    pen, box = ImageDraw.Draw(picture), (x - r, y - r, x + r, y + r)
    if shape == "circle":
        pen.ellipse(box, fill=COLOURS[colour])
    elif shape == "square":
        pen.rectangle(box, fill=COLOURS[colour])
    else:
        pen.polygon([(x, y - r), (x - r, y + r), (x + r, y + r)], fill=COLOURS[colour])
    return picture


def encoded(picture: Image.Image, kind: str) -> bytes:
    """A picture's file."""
    out = io.BytesIO()
    picture.save(out, kind, **({"quality": 92} if kind == "JPEG" else {}))
    return out.getvalue()


def clip(way: str, kind: str = "WEBP") -> str:
    """A data URI of a clip in which a shape moves: four frames, two a second."""
    across, down = WAYS[way]
    shots = []
    for n in range(4):
        step = -0.28 + 0.56 * n / 3
        shots.append(draw("red", "circle", (96, 96), (0.5 + across * step, 0.5 + down * step), 0.17))
    out = io.BytesIO()
    lossless = {"lossless": True} if kind == "WEBP" else {}
    shots[0].save(out, kind, save_all=True, append_images=shots[1:], duration=500, **lossless)
    return f"data:image/{kind.lower()};base64," + base64.b64encode(out.getvalue()).decode()
