"""Fuzz the HTTP room at length: mutants of valid requests against whole connections.

    python scripts/fuzz_http.py [--mutants 200000] [--seed 1]

Every answer must be HTTP or a close, no handler may crash unexpectedly, a valid request must be served
after each batch, and memory must stay flat once warm.  A failure prints the mutant; the same seed finds
it again.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from pathlib import Path

import trio
import trio.testing

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.fuzz.http_session import play

BATCH = 2_000
WARM = 5  # batches before memory is compared
GROWTH = 2 << 20  # bytes that may be held more than then


def held_bytes() -> int:
    """Resident memory once garbage is collected."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def main() -> int:
    """Run the batches and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutants", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    begun, played, answers, refusals, warm, held = time.monotonic(), 0, 0, 0, 0, 0
    for batch in range(-(-args.mutants // BATCH)):
        clock = trio.testing.MockClock(autojump_threshold=0)
        tally = trio.run(play, args.seed * 1_000_000 + batch, BATCH, clock=clock)
        played += tally.mutants
        answers += tally.answers
        refusals += tally.refusals
        held = held_bytes()
        warm = held if batch <= WARM else warm
    grown = held - warm
    seconds = time.monotonic() - begun
    print(f"{played:,} mutants in {seconds:.0f} s ({played / seconds:,.0f}/s): {answers:,} answers,")
    print(f"{refusals:,} of them refusals; {held >> 20} MiB held, {grown >> 10} KiB more than warm")
    return 1 if grown > GROWTH else 0


if __name__ == "__main__":
    raise SystemExit(main())
