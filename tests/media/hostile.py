"""Thousands of hostile media files, and a process that measures what they cost.

``python -m tests.media.hostile FILE`` reads the cases that ``write_cases`` left there, sends each through
the media room on real threads and a real clock and prints one JSON object: how many files, which codes,
what went wrong, how much memory the process grew by, and the longest time that its event loop stood still.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
import resource
import struct
import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import anyio.to_thread
import attrs
from PIL import Image

from ninfer.faults import Refused
from ninfer.frontend import build_media
from ninfer.media.room import MediaRoom
from ninfer.prompt.conversation import Conversation, MediaPart, Message
from ninfer.prompt.prepared import Preparation
from ninfer.settings import MediaOptions
from tests.media.pictures import MOVING, STILL, build, exif, png, saved, scene

Kind = Literal["image", "video"]
INVALID, BUDGET, FINE = "invalid_media", "media_budget_exceeded", "fine"
OURS = {"PNG", "JPEG", "WEBP", "GIF", "MPO"}  # an MPO is a JPEG that names a second picture


@attrs.frozen
class Case:
    """A file and the outcomes that are right for it."""

    name: str
    data: bytes = attrs.field(repr=False)
    right: frozenset[str]
    kind: Kind = "image"


def cases() -> Iterator[Case]:
    """All files, every family in turn."""
    for family in (huge, inflating, many_frames, junk_notes, truncated, flipped, foreign, nonsense):
        yield from family()


def only(*codes: str) -> frozenset[str]:
    return frozenset(codes)


def huge() -> Iterator[Case]:
    """Headers that promise more pixels than are decoded, with nothing behind them."""
    for side in (9_000, 16_383, 30_000, 65_535):
        if side < 16_384:
            canvas = struct.pack("<I", side - 1)[:3] * 2
            yield Case(f"webp-{side}", riff(("VP8X", b"\x10\0\0\0" + canvas)), only(BUDGET))
            bits = side - 1 | (side - 1) << 14
            yield Case(f"webp-l-{side}", riff(("VP8L", b"\x2f" + struct.pack("<I", bits))), only(BUDGET))
        yield Case(f"gif-{side}", gif(side, side, []) + frame(1, 1), only(BUDGET))
        yield Case(f"gif-frame-{side}", gif(1, 1, []) + frame(side, side), only(BUDGET))
        head = (
            b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", side, side) + b"\x03\x01\x11\0\x02\x11\0\x03\x11\0"
        )
        yield Case(f"jpeg-{side}", b"\xff\xd8" + head + b"\xff\xd9", only(BUDGET))
    for width, height in (
        (8_001, 8_000),
        (1 << 30, 1 << 30),
        (0x7FFFFFFF, 1),
        (0xFFFFFFFF, 1),
        (0, 0),
        (1, 0),
    ):
        for depth, colour in ((1, 0), (8, 2), (16, 6), (8, 3)):
            header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
            data = png(("IHDR", header), ("IDAT", zlib.compress(b"\0")), ("IEND", b""))
            yield Case(f"png-{width}x{height}-{depth}", data, only(BUDGET, INVALID))
    for width, height in ((3_900, 3_900), (63_000_000, 1), (30_000, 500)):
        header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
        yield Case(f"png-empty-{width}", png(("IHDR", header), ("IDAT", b""), ("IEND", b"")), only(INVALID))


def inflating() -> Iterator[Case]:
    """Small files that would inflate to hundreds of megabytes."""
    press = zlib.compressobj(9)
    bomb = b"".join(press.compress(bytes(1 << 20)) for _ in range(100)) + press.flush()
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    pixels = ("IDAT", zlib.compress(bytes(64 * (64 * 3 + 1))))
    yield Case("png-idat", png(("IHDR", header), ("IDAT", bomb), ("IEND", b"")), only(FINE, INVALID))
    for name, body in (
        ("zTXt", b"k\0\0" + bomb),
        ("iTXt", b"k\0\1\0\0\0" + bomb),
        ("iCCP", b"k\0\0" + bomb),
    ):
        noted = [("IHDR", header), *[(name, body)] * 20, pixels, ("IEND", b"")]
        yield Case(f"png-{name}", png(*noted), only(FINE))
    scans = saved(scene(1000, 1000), "JPEG", progressive=True)
    at = scans.index(b"\xff\xda")
    yield Case(
        "jpeg-scans", scans[:at] + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00\x00" * 5000, only(INVALID)
    )
    for length in (0, 1, 2, 65_535):
        yield Case(f"jpeg-segment-{length}", b"\xff\xd8\xff\xe1" + struct.pack(">H", length), only(INVALID))
    yield Case("jpeg-fill", b"\xff\xd8" + b"\xff" * (2 << 20), only(INVALID))


def many_frames() -> Iterator[Case]:
    """Animations that never end."""
    dot = b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02\x44\x01\0"
    endless = gif(8, 8, []) + dot * 100_000 + b";"
    yield Case("gif-100k-image", endless, only(FINE))
    yield Case("gif-100k-video", endless, only(BUDGET), "video")
    blocks = gif(8, 8, []) + b"!\xfe" + b"\x01a" * 310_000 + b"\0" + frame(8, 8)
    for kind in ("image", "video"):
        yield Case(f"gif-blocks-{kind}", blocks, only(INVALID), kind)
    wide = gif(2_000, 2_000, []) + frame(2_000, 2_000) * 300 + b";"
    yield Case("gif-wide", wide, only(BUDGET), "video")
    shots = [("VP8X", b"\x02\0\0\0" + b"\x07\0\0" * 2), ("ANIM", bytes(6))]
    yield Case("webp-100k", riff(*shots, *[("ANMF", bytes(16))] * 100_000), only(BUDGET), "video")
    yield Case("webp-hollow", riff(*shots, *[("ANMF", bytes(16))] * 5), only(INVALID), "video")
    yield Case("webp-chunks", riff(*[("JUNK", b"")] * 310_000), only(INVALID))


def junk_notes() -> Iterator[Case]:
    """Pictures whose EXIF block is nested, endless or random; the picture itself is whole."""
    chance = random.Random(3)
    loop = b"Exif\0\0MM\0*\0\0\0\x08" + b"\xff\xff" + struct.pack(">HHII", 0x8769, 4, 1, 8) * 5_000
    for n in range(120):
        body = bytearray(loop if n % 2 else exif(6) + chance.randbytes(200))
        for _ in range(chance.randrange(12)):
            body[chance.randrange(6, len(body))] = chance.randrange(256)
        kind = ("JPEG", "PNG", "WEBP")[n % 3]
        yield Case(f"exif-{n}", saved(scene(), kind, exif=bytes(body[:65_000])), only(FINE))


def truncated() -> Iterator[Case]:
    """Every whole file cut at every 64th of its length."""
    for name, make in STILL.items():
        data = make()
        first_of_many = name in ("gif-animated", "webp-animated")  # its first frame may be whole
        for part in range(64):
            cut = data[: len(data) * part // 64]
            right = only(INVALID, FINE) if first_of_many or whole(cut, data) else only(INVALID)
            yield Case(f"{name}-{part}/64", cut, right)
            if name in MOVING:
                yield Case(f"{name}-{part}/64-video", cut, only(INVALID, FINE), "video")


def whole(cut: bytes, data: bytes) -> bool:
    """Whether only what follows the last pixel is missing."""
    if len(cut) < len(data) * 7 // 8:
        return False
    try:
        return bool((build(cut).rows == build(data).rows).all())
    except Refused:
        return False


def flipped() -> Iterator[Case]:
    """Every whole file with a few bits turned."""
    chance = random.Random(4)
    for name, make in STILL.items():
        data = make()
        for n in range(40):
            bad = bytearray(data)
            for _ in range(chance.choice((1, 1, 2, 8, 64))):
                bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
            kind: Kind = "video" if name in MOVING and n % 2 else "image"
            yield Case(f"{name}-flip-{n}", bytes(bad), only(FINE, INVALID, BUDGET), kind)


def foreign() -> Iterator[Case]:
    """Every format that the library can write or recognise, as image and as video."""
    Image.init()
    for name in sorted(Image.OPEN):
        data = written(name) or magic(name)
        yield Case(f"format-{name}", data, only(FINE) if name in OURS else only(INVALID))
        if name not in OURS:
            yield Case(f"format-{name}-video", data, only(INVALID), "video")


def written(kind: str) -> bytes | None:
    for mode in ("RGB", "L", "P", "1", "RGBA"):
        out = io.BytesIO()
        try:
            with warnings.catch_warnings(action="ignore"):  # the library means to drop some of them
                scene().convert(mode).save(out, kind)
            return out.getvalue()
        except (OSError, ValueError, KeyError, AttributeError):
            continue
    return None


def magic(kind: str) -> bytes:
    """Bytes that the library would take for this format by their beginning."""
    known = {
        "FITS": b"SIMPLE  =                    T",
        "FLI": b"\0" * 4 + b"\x11\xaf" + b"\0" * 30,
        "WMF": b"\xd7\xcd\xc6\x9a\0\0",
        "EPS": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9000 9000\n",
        "PSD": b"8BPS\0\1",
        "XPM": b"/* XPM */",
        "DCX": b"\xb1\x68\xde\x3a",
    }
    return known.get(kind, kind.encode()) + bytes(300)


def nonsense() -> Iterator[Case]:
    """What is no picture at all."""
    chance = random.Random(7)
    for n, text in enumerate(
        (b"hello", b"{}", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"\0")
    ):
        yield Case(f"text-{n}", text * 50, only(INVALID))
        yield Case(f"text-{n}-video", text * 50, only(INVALID), "video")
    heads = [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF89a",
        b"RIFF\0\0\0\0WEBP",
        b"\0\0\0\x18ftypmp42",
    ]
    for n in range(360):
        body = heads[n % 6] + chance.randbytes(chance.randrange(1, 3000))
        kind: Kind = "video" if n % 5 == 0 else "image"
        yield Case(f"random-{n}", body, only(INVALID, BUDGET), kind)


def riff(*chunks: tuple[str, bytes]) -> bytes:
    """A WebP of the given chunks."""
    parts = (
        kind.encode() + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)
        for kind, body in chunks
    )
    whole = b"WEBP" + b"".join(parts)
    return b"RIFF" + struct.pack("<I", len(whole)) + whole


def gif(width: int, height: int, table: list[int]) -> bytes:
    """A GIF up to its first block."""
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0xF0, 0, 0) + b"\0\0\0\xff\xff\xff"


def frame(width: int, height: int) -> bytes:
    """A GIF frame of one colour; its data end early."""
    pixels = b"\x02\x16\x8c\x2d\x99\x87\x2a\x1c\xdc\x33\xa0\x02\x75\xec\x95"
    pixels += b"\xfa\xa8\xde\x60\x8c\x04\x91\x4c\x01\0"
    return b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + pixels


async def outcome(room: MediaRoom, case: Case) -> str:
    """Send one file through the room."""
    source = "data:;base64," + await anyio.to_thread.run_sync(encoded, case.data)
    part = MediaPart(case.kind, source, "messages[0].content[0]")
    try:
        async with room.items(Conversation((Message("user", (part,)),)), Preparation()):
            return FINE
    except Refused as refused:
        fault = refused.fault
        return str(fault.code) if fault.param == part.param else f"{fault.code} naming {fault.param}"


def encoded(data: bytes) -> str:
    """Base64 in steps that leave the event loop its turns."""
    return b"".join(
        base64.b64encode(data[at : at + 786_432]) for at in range(0, len(data), 786_432)
    ).decode()


class Ticker:
    """Measures how long the event loop lets a task wait beyond the millisecond that it asked for.

    Time in which the whole process did not run is not the process's doing and does not count.
    """

    longest = 0.0

    async def run(self) -> None:
        while True:
            began, worked = time.perf_counter(), time.process_time()
            await anyio.sleep(0.001)
            waited = min(time.perf_counter() - began - 0.001, time.process_time() - worked)
            self.longest = max(self.longest, waited)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@attrs.frozen
class Configs:
    """The processor configs of a small model."""

    def has_resource(self, role: str) -> bool:
        return True

    def resource(self, role: str) -> bytes:
        return json.dumps({"size": {"shortest_edge": 4096, "longest_edge": 262144}}).encode()


def write_cases(path: Path) -> None:
    """Write all cases to a file, so that making them does not count."""
    with path.open("wb") as out:
        for case in cases():
            pickle.dump(case, out)


def read_cases(path: Path) -> Iterator[Case]:
    """Read them one by one."""
    with path.open("rb") as written:
        while written.peek(1):
            yield pickle.load(written)


async def measure(files: Iterator[Case]) -> dict[str, Any]:
    """Run all files, two at a time, after whole ones have warmed everything up."""
    room = build_media(Configs(), MediaOptions(threads=2, cache_bytes=0))
    for name, make in STILL.items():
        assert await outcome(room, Case(name, make(), only(FINE))) == FINE
    codes: Counter[str] = Counter()
    wrong: list[str] = []
    before, ticker = peak_bytes(), Ticker()

    async def labour() -> None:
        for case in files:
            found = await outcome(room, case)
            codes[found] += 1
            if found not in case.right:
                wrong.append(f"{case.name}: {found}")

    async with anyio.create_task_group() as clock:
        clock.start_soon(ticker.run)
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(labour)
        clock.cancel_scope.cancel()
    room.account.check()
    assert room.account.live == 0
    told = {"files": sum(codes.values()), "codes": codes, "wrong": wrong, "stall": ticker.longest}
    return {**told, "before": before, "grown": peak_bytes() - before}


if __name__ == "__main__":
    print(json.dumps(anyio.run(measure, read_cases(Path(sys.argv[1])), backend="trio")))
