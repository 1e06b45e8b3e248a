"""The output session: what the engine asks about every committed token of one answer.

Composes detokeniser, channels and stop strings into ``engine.job.Judge``.  A stop token is counted
by the engine and shown by nobody; of a stop string no character is ever shown.
The one thing a reader would get wrong: ``Verdict.thinking`` speaks of the state *after* the token,
so the token that completes the close marker already says False.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from ninfer.engine.job import Finish, Verdict
from ninfer.output.channels import Channels
from ninfer.output.deltas import Piece
from ninfer.output.detok import Detokenizer
from ninfer.output.stops import StopFilter

_NOTHING = Piece()
_SILENT = {flag: Verdict(None, flag, _NOTHING) for flag in (False, True)}


class OutputSession:
    """Judges the tokens of one answer.

    ``table[id]`` holds the bytes that a token shows (``Vocabulary.table``), ``stop_tokens`` end the
    answer, ``thinking`` says that the prompt ends inside an open reasoning block.
    """

    def __init__(
        self,
        table: Sequence[bytes],
        stop_tokens: Container[int],
        *,
        thinking: bool,
        stops: Sequence[str] = (),
    ) -> None:
        self._stop_tokens = stop_tokens
        self._detok = Detokenizer(table)
        self._channels = Channels(thinking)
        self._reasoning = StopFilter(stops if thinking else ())
        self._content = StopFilter(stops)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._reasoning.matched or self._content.matched

    def take(self, token: int) -> Verdict:
        """Account for one committed token."""
        if token in self._stop_tokens:
            return Verdict(Finish.STOP_TOKEN, self._channels.open, _NOTHING)
        text = self._detok.take(token)
        if not text:
            return _SILENT[self._channels.open]
        piece = self._show(text)
        if self._stopped():
            thinking = self._reasoning.matched is not None
            return Verdict(Finish.STOP_STRING, thinking or self._channels.open, piece)
        return Verdict(None, self._channels.open, piece)

    def finish(self) -> Piece:
        """Return the text still held; empty after a stop string."""
        if self._stopped():
            return _NOTHING
        last = self._show(self._detok.finish())
        reasoning = last.reasoning + self._reasoning.feed(self._channels.finish())
        if self._stopped():
            return Piece(reasoning, last.content)
        return Piece(reasoning + self._reasoning.flush(), last.content + self._content.flush())

    def _stopped(self) -> bool:
        return self.stop_string is not None

    def _show(self, text: str) -> Piece:
        was_open = self._channels.open
        reasoning, content = self._channels.feed(text)
        if was_open:
            reasoning = self._reasoning.feed(reasoning)
            if self._reasoning.matched is not None:
                return Piece(reasoning)
            if not self._channels.open:
                reasoning += self._reasoning.flush()
        return Piece(reasoning, self._content.feed(content))
