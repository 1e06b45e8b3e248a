"""How many patches an item will make, from its header alone.

The one thing a reader would get wrong: EXIF may turn a picture on its side; the plan turns it too.
"""

from __future__ import annotations

from typing import Literal

from PIL import Image

from ninfer.media.decode import BROKEN, DecodeLimits, bad, open_picture
from ninfer.media.resize import Geometry, Unfit, picture_size, video_size
from ninfer.media.video import measure_video

_TURNED = (5, 6, 7, 8)  # EXIF orientations that exchange the sides


def plan_patches(
    kind: Literal["image", "video"], data: bytes, param: str, g: Geometry, limits: DecodeLimits
) -> int:
    """Count the patches of an item.  Raises ``Refused`` for what cannot be read or is too large."""
    try:
        if kind == "image":
            return _picture(data, param, g, limits)
        frames, height, width = measure_video(data, param, g, limits)
        h, w = video_size(frames, height, width, g)
        return -(-frames // g.temporal) * (h // g.patch) * (w // g.patch)
    except Unfit as problem:
        raise bad(param, f"does not fit: {problem}") from None


def _picture(data: bytes, param: str, g: Geometry, limits: DecodeLimits) -> int:
    picture = open_picture(data, param, limits)
    height, width = picture.height, picture.width
    if _orientation(picture) in _TURNED:
        height, width = width, height
    h, w = picture_size(height, width, g)
    return (h // g.patch) * (w // g.patch)


def _orientation(picture: Image.Image) -> int:
    try:
        return int(picture.getexif().get(0x0112, 1))
    except BROKEN:
        return 1  # the decoder meets the same damage and refuses
