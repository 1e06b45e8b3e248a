"""How quickly /health answers while every lane is busy: starts a server, loads it, prints percentiles.

    .venv/bin/python scripts/probe_health.py [ARTIFACT] [--lanes 8] [--seconds 15]

Needs httpx (part of the dev extra).  The probe and the load run in this process, the server in another.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import httpx
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.e2e.server import MODEL, Live, running


async def load(client: httpx.AsyncClient, live: Live, counts: list[int]) -> None:
    """Stream stories for ever, counting frames."""
    body = {
        "model": live.model,
        "messages": [{"role": "user", "content": "Tell me a short story."}],
        "stream": True,
        "max_tokens": 400,
        "temperature": 1,
    }
    while True:
        async with client.stream("POST", f"{live.url}/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                counts[0] += line.startswith("data: {")


async def probe(live: Live, lanes: int, seconds: float) -> None:
    """Ask for health every 20 ms while ``lanes`` streams run."""
    counts, waits = [0], []
    limits = httpx.Limits(max_connections=lanes + 4)
    async with httpx.AsyncClient(timeout=60, limits=limits) as client, trio.open_nursery() as nursery:
        for _ in range(lanes):
            nursery.start_soon(load, client, live, counts)
        await trio.sleep(1)
        end, counts[0] = trio.current_time() + seconds, 0
        while trio.current_time() < end:
            begun = time.perf_counter()
            (await client.get(f"{live.url}/health")).raise_for_status()
            waits.append(time.perf_counter() - begun)
            await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    waits.sort()
    p50, p99 = statistics.median(waits), waits[int(len(waits) * 0.99)]
    print(f"{lanes} streams, {counts[0] / seconds:.0f} events/s: /health p50 {p50 * 1e3:.1f} ms, ", end="")
    print(f"p99 {p99 * 1e3:.1f} ms, worst {waits[-1] * 1e3:.1f} ms over {len(waits)} probes")


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("artifact", nargs="?", type=Path, default=MODEL)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=15)
    args = parser.parse_args()
    with running(
        "--max-concurrency", str(args.lanes), "--kv-capacity", "65536", model=args.artifact
    ) as live:
        trio.run(probe, live, args.lanes, args.seconds)


if __name__ == "__main__":
    main()
