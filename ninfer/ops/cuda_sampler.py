"""Launches of the sampler: tokens drawn on the device, counts and pending tokens kept there.

Owns what every lane keeps on the device between rounds.  The one thing a reader would get wrong: a drawn
token is published at once (it becomes the lane's pending token and is counted); a verification waits for
``judge``, and ``settle`` takes back what the engine did not keep.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from ninfer.kernels_cu.arrays import DeviceArray
from ninfer.kernels_cu.pack import Library
from ninfer.ops.cuda_state import Take, pack_sequences
from ninfer.ops.verbs import Step

TOP, CHUNK = 20, 4096
MAX_CHUNKS = 8 * 256 // TOP
SAMPLER_BYTES = 32
MAX_DRAFTS = 16
NOBODY = struct.pack("QQQQii", 0, 0, 0, 0, 0, 0)


@attrs.frozen(eq=False)
class LaneMemory:
    """Per lane on the device.

    samplers   (lanes, 32) u8: ``Sampler`` of sample.cu
    counts     (lanes, vocab) i32: how often each id was generated
    pending    (lanes,) i32: the token to feed next
    published  (lanes, width) i32: tokens of the last verification
    """

    samplers: DeviceArray
    counts: DeviceArray
    pending: DeviceArray
    published: DeviceArray

    @classmethod
    def take(cls, take: Take, lanes: int, vocab: int, width: int) -> LaneMemory:
        """Place it; ``width`` is the most tokens that a verification publishes."""
        return cls(
            take((lanes, SAMPLER_BYTES), "u8"),
            take((lanes, vocab), "i32"),
            take((lanes,), "i32"),
            take((lanes, width), "i32"),
        )

    @property
    def vocab(self) -> int:
        """Ids below this may be sampled."""
        return self.counts.shape[1]

    @property
    def width(self) -> int:
        """The most tokens that a verification publishes."""
        return self.published.shape[1]

    def pack(self) -> bytes:
        """The ``Lanes`` struct of sample.cu."""
        parts = (self.samplers, self.counts, self.pending, self.published)
        return struct.pack("QQQQii", *(part.ptr for part in parts), self.vocab, self.width)


def pack_sampler(
    temperature: float, top_p: float, min_p: float, presence: float, frequency: float, top_k: int, seed: int
) -> bytes:
    """One ``Sampler`` of sample.cu."""
    return struct.pack("q5fi", seed, temperature, top_p, min_p, presence, frequency, top_k)


@attrs.define(eq=False)
class Sampler:
    """Draws tokens for the lanes of ``memory``."""

    library: Library
    take: Take
    memory: LaneMemory
    dependent: bool = True

    def _launch(
        self,
        name: str,
        grid: int | tuple[int, ...],
        block: int,
        *arguments: DeviceArray | int | bytes | None,
    ) -> None:
        self.library.get("sample.cu", name).launch(grid, block, *arguments, dependent=self.dependent)

    def _scan(
        self,
        logits: DeviceArray,
        vocab: int,
        lanes: bytes,
        sequences: bytes,
        lane_of: DeviceArray | None,
        ids: DeviceArray | None,
    ) -> tuple[DeviceArray, int]:
        rows, stride = logits.shape
        chunks = -(-vocab // CHUNK)
        if chunks > MAX_CHUNKS:
            raise ValueError(f"sample: {vocab} ids are more than {MAX_CHUNKS * CHUNK}")
        keys = self.take((rows, chunks, TOP), "u64")
        arguments = (keys, logits, stride, vocab, lanes, sequences, lane_of, ids)
        self._launch("sample_scan", (chunks, rows), 256, *arguments)
        return keys, chunks

    def draw(
        self, logits: DeviceArray, step: Step, positions: DeviceArray, purpose: int, out: DeviceArray
    ) -> None:
        """Draw and publish one token for each sequence: out (S,) i32 (-1 where a row is not finite).

        logits (S, V) float32, one row a sequence; ``step`` numbers them: its offsets are 0 .. S.
        """
        memory, sequences = self.memory.pack(), pack_sequences(step)
        keys, chunks = self._scan(logits, self.memory.vocab, memory, sequences, step.lanes, None)
        arguments = (out, None, keys, chunks, memory, sequences, step.lanes, positions, None, purpose)
        self._launch("sample_choose", logits.shape[0], 256, *arguments)

    def judge(self, logits: DeviceArray, step: Step, out: DeviceArray) -> None:
        """Accept drafts and publish: out (S, 1 + width) i32 = how many tokens, then the tokens.

        logits (T, V); row i of a sequence judges the token fed by its row i + 1.
        """
        memory, sequences = self.memory.pack(), pack_sequences(step)
        keys, chunks = self._scan(logits, self.memory.vocab, memory, sequences, step.lanes, step.ids)
        tokens, stands = self.take((step.rows,), "i32"), self.take((step.rows,), "i32")
        arguments = (
            tokens,
            stands,
            keys,
            chunks,
            memory,
            sequences,
            step.lanes,
            step.frontiers,
            step.ids,
            0,
        )
        self._launch("sample_choose", step.rows, 256, *arguments)
        self._launch(
            "sample_judge", step.sequences, 32, out, tokens, stands, step.ids, memory, sequences, step.lanes
        )

    def settle(self, lanes: DeviceArray, keeps: DeviceArray, totals: DeviceArray) -> None:
        """Take back what lanes (S,) published beyond ``keeps`` of ``totals`` tokens."""
        self._launch("sample_settle", lanes.shape[0], 32, self.memory.pack(), lanes, keeps, totals)

    def feed(self, ids: DeviceArray, forced: DeviceArray, lanes: DeviceArray) -> None:
        """ids (S,) = forced, or the lanes' pending tokens where that is negative."""
        count = lanes.shape[0]
        self._launch("sample_feed", -(-count // 128), 128, ids, forced, lanes, self.memory.pending, count)

    def line(
        self, ids: DeviceArray, fed: DeviceArray, proposals: Sequence[DeviceArray], step: Step
    ) -> None:
        """Lay each sequence's fed token and its proposals end to end into ids (T,).

        ``proposals[d]`` holds the proposals of depth d for the first of the sequences.
        """
        if len(proposals) > MAX_DRAFTS:
            raise ValueError(f"{len(proposals)} drafts are more than {MAX_DRAFTS}")
        pointers = [part.ptr for part in proposals] + [0] * (MAX_DRAFTS - len(proposals))
        packed = struct.pack(f"{MAX_DRAFTS}Q", *pointers)
        self._launch("sample_line", step.sequences, 32, ids, fed, packed, step.offsets)

    def clear_counts(self, lane: int) -> None:
        """Forget what a lane has generated."""
        counts, vocab = self.memory.counts.rows(lane, lane + 1), self.memory.vocab
        self._launch("sample_recount", -(-vocab // 256), 256, counts, counts, 0, vocab, 0)

    def add_counts(self, lane: int, generated: DeviceArray) -> None:
        """Count generated ids (n,) i32 of a lane."""
        counts, vocab = self.memory.counts.rows(lane, lane + 1), self.memory.vocab
        count = generated.shape[0]
        self._launch("sample_recount", -(-count // 256), 256, counts, generated, count, vocab, 1)

    def best(self, logits: DeviceArray, ids: DeviceArray | None) -> DeviceArray:
        """Argmax of each row, ties to the lower index, mapped through ``ids``.  -> (T,) i32."""
        keys, chunks = self._scan(logits, logits.shape[1], NOBODY, bytes(32), None, None)
        out = self.take((logits.shape[0],), "i32")
        self._launch("sample_best", logits.shape[0], 256, out, keys, chunks, ids)
        return out
