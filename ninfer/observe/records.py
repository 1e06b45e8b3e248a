"""Operational records on stderr: ``YYYY-MM-DD HH:MM:SS.mmm LEVEL message``.

Owns formatting, the level filter and the single transient start-up line of a terminal.  Promises
that a record is one line and that redirected output holds no terminal control sequences.

The one thing a reader would get wrong: callers pass facts (counts, codes, ids), never client text,
prompts, generated text or credentials; nothing here could tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TextIO

import attrs

LEVELS = ("trace", "debug", "info", "warning", "error", "critical", "off")


@attrs.define(eq=False)
class Records:
    """Writes records at or above ``level``; ``now`` gives wall-clock seconds since the epoch."""

    stream: TextIO
    level: str
    now: Callable[[], float]
    terminal: bool = False
    _transient: bool = False

    def write(self, level: str, message: str) -> None:
        """Write one record if ``level`` passes the filter; a broken stderr is not an error."""
        if not self.passes(level):
            return
        stamp = datetime.fromtimestamp(self.now()).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        line = " ".join(message.split())
        self._emit(f"{self._erase()}{stamp} {level.upper()} {line}\n")

    def transient(self, message: str) -> None:
        """Show start-up progress on a terminal; it vanishes with the next record."""
        if self.terminal and self.passes("info"):
            self._emit(f"{self._erase()}{message}")
            self._transient = True

    def passes(self, level: str) -> bool:
        """Whether a record of ``level`` would be written."""
        return LEVELS.index(level) >= LEVELS.index(self.level)

    def info(self, message: str) -> None:
        """Write an info record."""
        self.write("info", message)

    def warning(self, message: str) -> None:
        """Write a warning record."""
        self.write("warning", message)

    def error(self, message: str) -> None:
        """Write an error record."""
        self.write("error", message)

    def debug(self, message: str) -> None:
        """Write a debug record."""
        self.write("debug", message)

    def _erase(self) -> str:
        shown, self._transient = self._transient, False
        return "\r\x1b[2K" if shown else ""

    def _emit(self, text: str) -> None:
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):
            self.level = "off"  # stderr is gone; serving goes on


def count(number: int) -> str:
    """Format a count with thousands separators."""
    return f"{number:,}"


def seconds(value: float) -> str:
    """Format a duration with a readable unit."""
    if value < 1.0:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.2f} s" if value < 120 else f"{value / 60:.1f} min"


def size(value: int) -> str:
    """Format bytes with a binary unit."""
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def rate(amount: float, duration: float) -> str:
    """Format tokens over seconds; zero time gives zero."""
    return f"{amount / duration if duration > 0 else 0.0:,.1f} tok/s"
