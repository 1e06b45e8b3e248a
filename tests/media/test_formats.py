"""Every form of the four formats becomes the pixels that it shows, upright and on white."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
from PIL import Image, ImageOps

from ninfer.faults import Refused
from ninfer.media.decode import DecodeLimits, decode_picture, measure
from ninfer.media.headers import Malformed, orientation, sketch
from tests.media.pictures import (
    MOVING,
    STILL,
    animated,
    build,
    clear,
    deep_grey,
    exif,
    png,
    saved,
    scene,
)

LIMITS = DecodeLimits()


def shown(data: bytes) -> Image.Image:
    return decode_picture(data, measure(data, "p", LIMITS), "p")


def on_white(picture: Image.Image) -> Image.Image:
    """What a viewer shows on white paper, in arithmetic of our own."""
    layer = np.asarray(picture.convert("RGBA")).astype(np.float64)
    alpha = layer[..., 3:] / 255
    return Image.fromarray(np.rint(layer[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8))


def differ(a: Image.Image, b: Image.Image) -> int:
    assert a.size == b.size and a.mode == b.mode == "RGB"
    return int(np.abs(np.asarray(a).astype(int) - np.asarray(b)).max())


@pytest.mark.parametrize("name", STILL)
def test_a_picture_is_what_it_shows(name: str) -> None:
    data = STILL[name]()
    with Image.open(io.BytesIO(data)) as reference:
        if reference.mode.startswith("I"):
            wanted = Image.fromarray((np.asarray(reference) >> 8).astype(np.uint8)).convert("RGB")
        else:
            wanted = on_white(ImageOps.exif_transpose(reference))
        assert differ(shown(data), wanted) <= 1


@pytest.mark.parametrize("name", STILL)
def test_a_header_tells_the_size_and_frames_that_the_decoder_finds(name: str) -> None:
    data = STILL[name]()
    with Image.open(io.BytesIO(data)) as reference:
        found = sketch(data, frames=100 if name in MOVING else 1)
        assert (found.width, found.height) == reference.size
        assert len(found.delays) == getattr(reference, "n_frames", 1)
        assert found.orientation == reference.getexif().get(0x0112, 1)


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_every_orientation_is_turned_upright(kind: str, turn: int) -> None:
    data = saved(scene(), kind, exif=exif(turn), **({"lossless": True} if kind == "WEBP" else {}))
    with Image.open(io.BytesIO(data)) as reference:
        wanted = ImageOps.exif_transpose(reference).convert("RGB")
    found = shown(data)
    assert differ(found, wanted) == 0
    grid = build(data).grid
    assert (grid[1] > grid[2]) == (found.height > found.width) == (turn > 4)


def test_a_png_tells_its_orientation_before_or_after_the_pixels() -> None:
    plain = saved(scene(), "PNG")
    turned = exif(6).removeprefix(b"Exif\0\0")
    block = png(("eXIf", turned))[8:]
    head, rest = plain[:33], plain[33:]
    assert shown(head + block + rest).size == shown(plain[:-12] + block + plain[-12:]).size == (64, 96)


def test_sixteen_bits_keep_their_high_byte_and_their_clear_value_is_white() -> None:
    dark = Image.fromarray(np.full((40, 40), 200, np.uint16))
    assert np.asarray(shown(saved(dark, "PNG"))).max() == 0
    found = np.asarray(shown(saved(deep_grey(), "PNG", transparency=0)))
    assert found[0, 0].tolist() == [255, 255, 255] and found[0, 1].tolist() == [0, 0, 0]


def test_chunks_that_bear_no_pixels_change_nothing() -> None:
    plain = saved(scene(), "PNG")
    noted = plain[:33] + png(("tEXt", b"a\0b"), ("iCCP", b"x\0\0junk"), ("acTL", bytes(8)))[8:] + plain[33:]
    assert differ(shown(noted), shown(plain)) == 0


def test_a_telephone_picture_with_a_second_one_inside_is_its_first() -> None:
    out = io.BytesIO()
    scene().save(out, "MPO", save_all=True, append_images=[scene(seed=1)])
    assert differ(shown(out.getvalue()), shown(saved(scene(), "JPEG"))) == 0


def test_an_animation_sent_as_an_image_is_its_first_frame() -> None:
    frames = [scene(seed=n) for n in range(3)]
    data = animated("WEBP", frames, lossless=True)
    assert differ(shown(data), frames[0]) == 0 and build(data).grid[0] == 1


@pytest.mark.parametrize("kind", ["GIF", "WEBP"])
def test_an_animation_is_sampled_in_time(kind: str) -> None:
    colours = [(40 * n, 250 - 40 * n, 90) for n in range(6)]
    frames = [Image.new("RGB", (64, 64), colour) for colour in colours]
    options = {"lossless": True} if kind == "WEBP" else {}
    patches = build(animated(kind, frames, 250, **options), "video")
    assert patches.grid == (2, 4, 4)  # 1.5 seconds: 3 frames, but never fewer than 4
    assert patches.seconds == (0.25, 1.0)  # frames 0, 2, 3, 5 at 0, 0.5, 0.75, 1.25 seconds
    first = patches.rows.reshape(2, 16, 3, 2, 256)[:, 0, :, :, 0].transpose(0, 2, 1).reshape(4, 3)
    assert np.abs(first.astype(int) - [colours[n] for n in (0, 2, 3, 5)]).max() <= 3


def test_uneven_delays_are_kept_and_unsaid_ones_are_a_tenth() -> None:
    frames = [scene(seed=n) for n in range(4)]
    assert build(animated("WEBP", frames, [100, 900, 1000, 40]), "video").seconds == (0.05, 1.5)
    assert sketch(animated("GIF", frames, 0), 9).delays == (0.1,) * 4


def test_frames_of_a_gif_paint_over_each_other() -> None:
    frames = [scene(seed=n).quantize(16) for n in range(5)]
    data = animated("GIF", frames, 500, optimize=False, disposal=1)
    patches = build(data, "video")
    with Image.open(io.BytesIO(data)) as reference:
        reference.seek(4)
        last = build(saved(reference.convert("RGB"), "PNG"))
    rows = patches.rows.reshape(3, -1, 3, 2, 256)
    assert (rows[-1, :, :, 1] == last.rows.reshape(-1, 3, 2, 256)[:, :, 1]).all()


@pytest.mark.parametrize("name", ["png", "jpeg"])
def test_a_still_picture_is_no_video(name: str) -> None:
    with pytest.raises(Refused) as caught:
        build(STILL[name](), "video")
    assert caught.value.fault.code == "invalid_media"


def test_orientation_of_anything_is_upright_or_a_turn() -> None:
    chance = random.Random(5)
    good = exif(8).removeprefix(b"Exif\0\0")
    assert orientation(good) == 8
    for _ in range(2000):
        junk = bytearray(good + chance.randbytes(chance.randrange(40)))
        for _ in range(chance.randrange(5)):
            junk[chance.randrange(len(junk))] = chance.randrange(256)
        assert 1 <= orientation(bytes(junk[: chance.randrange(len(junk) + 1)])) <= 8


@pytest.mark.parametrize("name", STILL)
def test_headers_of_anything_are_read_or_malformed(name: str) -> None:
    data, chance = STILL[name](), random.Random(6)
    for _ in range(300):
        junk = bytearray(data[: chance.randrange(len(data))])
        for _ in range(chance.randrange(6) if junk else 0):
            junk[chance.randrange(len(junk))] = chance.randrange(256)
        try:
            found = sketch(bytes(junk), 1)
            assert found.width > 0 and found.height > 0
        except Malformed:
            pass


def test_transparency_is_laid_on_white() -> None:
    nothing = Image.new("RGBA", (40, 40), (10, 20, 30, 0))
    for kind in ("PNG", "WEBP"):
        assert (
            np.asarray(shown(saved(nothing, kind, **({"exact": True} if kind == "WEBP" else {})))).min()
            == 255
        )
    assert differ(shown(saved(clear(scene()), "PNG")), on_white(clear(scene()))) <= 1
