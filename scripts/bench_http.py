"""Serve one scripted event stream with this server and with uvicorn + Starlette, and compare.

    python scripts/bench_http.py [--streams 50] [--events 400] [--rate 300] [--peer-python PYTHON]

Each server runs in its own process and streams ``--events`` events to ``--streams`` clients at once,
first as fast as it can, then (to ``--paced`` clients) as one clock hands out an event to every stream
``--rate`` times a second, which is how an engine hands out tokens.  Reported: events per second of the
server's CPU time, and the age of an event at its arrival, from the moment it was handed out.

``--peer-python`` is an interpreter that has uvicorn and starlette; they are never installed here.
Without it only this server is measured.  ``--abuse`` measures something else: the gaps between the events
of 200 good streams, alone and beside 100 dripping heads, 100 idle connections and 100 stuck readers.
"""

from __future__ import annotations

import argparse
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAD = "x" * 180  # an event of the size of a chat chunk

OURS = """
import sys, time, anyio
sys.path.insert(0, {root!r})
from ninfer.engine.channel import Channel
from ninfer.http.exchange import Route
from ninfer.http.routes import build_router
from ninfer.http.server import Server, listen
from ninfer.http.site import Site
from ninfer.http.sse import frame

readers = set()

def open_queue():
    # The channel by which the engine hands tokens to a request.
    channel = Channel(1024)
    return channel.send_nowait, channel.reader.receive

async def stream(request, exchange):
    events, rate = map(int, request.query.split(","))
    put, get = open_queue()
    readers.add(put)
    async with exchange.stream() as sink:
        for _ in range(events):
            stamp = await get() if rate else time.monotonic()
            await sink.send(frame(None, f"{{stamp:.6f}} {pad}"))
        readers.discard(put)

async def tick():
    due = time.monotonic()
    while True:
        due = max(due + 1 / {rate}, time.monotonic())
        await anyio.sleep(max(0, due - time.monotonic()))
        for put in list(readers):
            put(time.monotonic())

async def main():
    site = Site(build_router([Route("GET", "/stream", stream)]), lambda *a: b"", lambda: "id", print)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tick)
        await Server(site).run(await listen("127.0.0.1", int(sys.argv[1])))

anyio.run(main, backend={backend!r})
"""

THEIRS = """
import asyncio, contextlib, sys, time, uvicorn
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Route

readers = set()

async def stream(request):
    events, rate = map(int, request.url.query.split(","))
    queue = asyncio.Queue()
    readers.add(queue)
    async def produce():
        for _ in range(events):
            stamp = await queue.get() if rate else time.monotonic()
            yield f"data: {{stamp:.6f}} {pad}\\n\\n".encode()
        readers.discard(queue)
    return StreamingResponse(produce(), media_type="text/event-stream")

async def tick():
    due = time.monotonic()
    while True:
        due = max(due + 1 / {rate}, time.monotonic())
        await asyncio.sleep(max(0, due - time.monotonic()))
        for queue in list(readers):
            queue.put_nowait(time.monotonic())

@contextlib.asynccontextmanager
async def life(app):
    task = asyncio.create_task(tick())
    yield
    task.cancel()

app = Starlette(routes=[Route("/stream", stream)], lifespan=life)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", http={http!r}, loop={loop!r})
"""


class Stream:
    """One client connection that keeps when each event came and how old it was."""

    def __init__(self, port: int, target: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        self.sock.setblocking(False)
        self.ages: list[float] = []
        self.arrivals: list[float] = []
        self.tail = b""

    def read(self) -> bool:
        """Take what is there; False at the end."""
        data = self.sock.recv(262_144)
        now = time.monotonic()
        *events, self.tail = (self.tail + data).split(b"\n\n")
        for event in events:
            stamp = event.rpartition(b"data: ")[2].partition(b" ")[0]
            if stamp.replace(b".", b"").isdigit():
                self.ages.append(now - float(stamp))
                self.arrivals.append(now)
        return bool(data)


def load(port: int, streams: int, target: str) -> list[Stream]:
    """Open ``streams`` connections and read them all to the end."""
    open_streams = [Stream(port, target) for _ in range(streams)]
    selector = selectors.DefaultSelector()
    for stream in open_streams:
        selector.register(stream.sock, selectors.EVENT_READ, stream)
    while selector.get_map():
        for key, _ in selector.select():
            if not key.data.read():
                selector.unregister(key.fileobj)
    for stream in open_streams:
        stream.sock.close()
    return open_streams


def cpu_seconds(pid: int) -> float:
    """Time on a CPU of a process's main thread, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Running:
    """A server process, up when the ``with`` block begins."""

    def __init__(self, python: str, source: str) -> None:
        self.port = free_port()
        self.process = subprocess.Popen([python, "-c", source, str(self.port)])

    def __enter__(self) -> Running:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return self
            except OSError:
                time.sleep(0.05)
        raise SystemExit("the server did not start")

    def __exit__(self, *exc: object) -> None:
        self.process.terminate()
        self.process.wait()


def quantile(values: list[float], share: float) -> float:
    """The value below which ``share`` of them lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(name: str, python: str, source: str, args: argparse.Namespace) -> None:
    """Run both loads against one server and print a line for each."""
    with Running(python, source) as server:
        load(server.port, 4, "/stream?50,0")
        for rate in (0, args.rate):
            before = cpu_seconds(server.process.pid)
            streams = load(
                server.port, args.streams if not rate else args.paced, f"/stream?{args.events},{rate}"
            )
            spent = cpu_seconds(server.process.pid) - before
            ages = [age * 1e3 for stream in streams for age in stream.ages]
            pace = f"{rate}/s each" if rate else "flat out"
            line = f"{name:28} {pace:12} {len(ages) / spent:9,.0f} events/CPU s"
            print(
                f"{line}   age ms: median {statistics.median(ages):7.2f}  p99 {quantile(ages, 0.99):7.2f}"
            )


def servers(peer: str | None, rate: int) -> Iterator[tuple[str, str, str]]:
    """(name, interpreter, source) of each contender."""
    filled = {"pad": PAD, "rate": rate}
    for backend in ("trio", "asyncio"):
        yield f"ours ({backend})", sys.executable, OURS.format(root=str(ROOT), backend=backend, **filled)
    if peer:
        for http, loop in (("h11", "asyncio"), ("httptools", "uvloop")):
            yield f"uvicorn ({http}, {loop})", peer, THEIRS.format(http=http, loop=loop, **filled)


# Abuse


class Drip:
    """A head that arrives a byte at a time, for ever again."""

    def __init__(self, port: int) -> None:
        self.port, self.closed = port, 0
        self.open()

    def open(self) -> None:
        """Connect anew."""
        self.sock = socket.create_connection(("127.0.0.1", self.port))
        self.sock.setblocking(False)

    def drip(self) -> None:
        """Send one more byte; begin again when the server has had enough."""
        try:
            self.sock.send(b"G")
            if self.sock.recv(4_096) is not None:
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            self.closed += 1
            self.sock.close()
            self.open()


def drip_all(peers: list[Drip]) -> None:
    """Let every dripping peer send its byte."""
    for peer in peers:
        peer.drip()


def stuck(port: int, target: str) -> socket.socket:
    """A reader that stops before it has begun."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.connect(("127.0.0.1", port))
    sock.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    return sock


def gaps(streams: list[Stream], skip: int = 20) -> list[float]:
    """Milliseconds between events of one stream, beginnings left out."""
    return [
        (later - sooner) * 1e3
        for stream in streams
        for sooner, later in zip(stream.arrivals[skip:], stream.arrivals[skip + 1 :], strict=False)
    ]


def abuse(args: argparse.Namespace) -> None:
    """Good streams alone, then beside three hundred bad peers."""
    source = OURS.format(root=str(ROOT), backend="trio", pad=PAD, rate=args.rate)
    good = f"/stream?{args.rate * args.seconds},{args.rate}"
    for bad in (0, 100):
        with Running(sys.executable, source) as server:
            peers = [Drip(server.port) for _ in range(bad)]
            idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(bad)]
            readers = [stuck(server.port, "/stream?9999999,0") for _ in range(bad)]
            time.sleep(1)
            with threaded(partial(drip_all, peers)):
                streams = load(server.port, 200, good)
            found = gaps(streams)
            given_up = sum(peer.closed for peer in peers)
            print(
                f"{3 * bad:4} bad peers: {len(found):,} gaps of {1e3 / args.rate:.0f} ms;"
                f" median {statistics.median(found):.1f}, p99 {quantile(found, 0.99):.1f},"
                f" worst {max(found):.1f} ms; {given_up} heads given up, server {rss_mib(server):.0f} MiB"
            )
            for sock in (*idle, *readers):
                sock.close()


@contextmanager
def threaded(step: Callable[[], object]) -> Iterator[None]:
    """Repeat ``step`` twice a second beside the body."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.5):
            step()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def rss_mib(server: Running) -> float:
    """Resident memory of a server."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def compare(args: argparse.Namespace) -> None:
    """Measure every contender, twice, in turn."""
    for _ in range(args.rounds):
        for name, python, source in servers(args.peer_python, args.rate):
            measure(name, python, source, args)


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--paced", type=int, default=8)
    parser.add_argument("--events", type=int, default=400)
    parser.add_argument("--rate", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peer-python")
    parser.add_argument("--abuse", action="store_true")
    parser.add_argument("--seconds", type=int, default=20, help="length of each abuse run")
    args = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4_096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    if args.abuse:
        args.rate = min(args.rate, 20)
        abuse(args)
    else:
        compare(args)


if __name__ == "__main__":
    main()
