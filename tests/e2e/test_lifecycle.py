"""The life of real server processes: how they start, what ends them, and with which exit code."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ninfer.cli import main
from tests.e2e.losing import LANES, SIZES, check_log, check_loss
from tests.e2e.server import MODEL, ROOT, Live, running
from tests.observe.schema import audit

pytestmark = pytest.mark.slow
STRANGE = "tests.e2e.strange"
STORY = "Tell me a long story about everything that you know."


def body(content: str = "What is 12 + 30?", **members: Any) -> bytes:
    asked = {
        "model": "tiny-qwen3_5",
        "messages": [{"role": "user", "content": content}],
        "temperature": 0,
        **members,
    }
    return json.dumps(asked).encode()


def raw(content: bytes) -> bytes:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def address(live: Live) -> tuple[str, int]:
    return "127.0.0.1", int(live.url.rpartition(":")[2])


def post(live: Live, content: bytes) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(*address(live), timeout=20)) as client:
        client.request("POST", "/v1/chat/completions", content)
        answer = client.getresponse()
        return answer.status, answer.read()


def get(live: Live, path: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(*address(live), timeout=20)) as client:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, answer.read()


def open_stream(live: Live, **members: Any) -> socket.socket:
    """Begin a stream and return once its first tokens have come."""
    peer = socket.create_connection(address(live), timeout=20)
    peer.sendall(raw(body(STORY, stream=True, **members)))
    seen = b""
    while seen.count(b"data:") < 3:
        seen += peer.recv(65_536)
    return peer


def read_all(peer: socket.socket) -> bytes:
    seen = b""
    while (more := peer.recv(65_536)) != b"":
        seen += more
    return seen


def reset(peer: socket.socket) -> None:
    """Close with a RST."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def start_process(*argv: str, **popen: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", *argv]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **popen.pop("env", {})}
    return subprocess.Popen(command, text=True, env=env, cwd=ROOT, **popen)


# Start


def test_a_taken_port_is_said_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start_process("ninfer", "serve", str(MODEL), "--port", port, stderr=subprocess.PIPE)
        _, error = process.communicate(timeout=20)
    assert process.returncode == 2
    assert re.fullmatch(r"ninfer: cannot listen on 127\.0\.0\.1:\d+: the port is taken; .*\n", error)


def damage() -> dict[str, Callable[[bytes], bytes]]:
    """Ways in which a file can be broken."""
    whole = MODEL.stat().st_size
    cuts = {f"cut at {at}": (lambda data, at=at: data[:at]) for at in (1, 64, 4096, whole // 2, whole - 1)}
    flips = {
        f"bit {bit} flipped": (
            lambda data, bit=bit: (
                data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
            )
        )
        for bit in (0, 70, 300, 3000)
    }
    return {**cuts, **flips}


@pytest.mark.parametrize("kind", damage())
def test_a_damaged_artifact_is_refused_in_one_sentence(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.ninfer"
    path.write_bytes(damage()[kind](MODEL.read_bytes()))
    assert main(["serve", str(path), "--port", "0", "--log-level", "off"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ninfer: {path}") and len(error.splitlines()) == 1


def test_an_unreadable_artifact_and_a_log_that_is_the_artifact_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "log.jsonl"
    link.symlink_to(MODEL)
    cases = {
        "this is the model artifact": [str(MODEL), "--request-log-jsonl", str(link)],
        "its folder does not exist": [str(MODEL), "--request-log-jsonl", str(tmp_path / "no" / "log")],
        "cannot be opened": [str(MODEL), "--request-log-jsonl", str(tmp_path)],
        "absent.ninfer": [str(tmp_path / "absent.ninfer")],
    }
    os.mkfifo(tmp_path / "pipe")
    cases["cannot be opened "] = [str(MODEL), "--request-log-jsonl", str(tmp_path / "pipe")]
    for complaint, argv in cases.items():
        assert main(["serve", *argv, "--port", "0", "--log-level", "off"]) == 2
        assert complaint.strip() in capsys.readouterr().err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_loading_stops_at_once(number: signal.Signals, code: int) -> None:
    process = start_process(
        STRANGE, "serve", str(MODEL), "--port", "0", stderr=subprocess.PIPE, env={"SLOW_START": "30"}
    )
    assert process.stderr is not None
    with process.stderr as lines:
        while "loading" not in lines.readline():
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(timeout=20) == code
        assert "during start-up" in lines.read()


# Serve and stop


def test_sigterm_lets_open_answers_finish_and_the_log_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with running("--max-concurrency", "2", "--request-log-jsonl", str(path)) as live:
        peer = open_stream(live, max_tokens=120)
        live.process.send_signal(signal.SIGTERM)
        rest = read_all(peer)
        peer.close()
        assert b'"finish_reason":"' in rest and rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        assert live.process.wait(timeout=20) == 0
    log = logged(path)
    audit(log)
    names = [event["event"] for event in log]
    assert names[0] == "server_start" and names[-1] == "throughput"
    assert log[-1]["final_interval"]
    assert log[0]["argv"][-1] == str(path) and log[0]["environment"]["backend"] == "numpy"
    assert "final_interval" in log[-1] and "stopped" in "".join(live.log)


def test_a_second_signal_cuts_and_a_cut_request_is_told(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with running("--request-log-jsonl", str(path)) as live:
        peer = open_stream(live, max_tokens=8000)
        live.process.send_signal(signal.SIGTERM)
        while not any("no new requests" in line for line in live.log):
            pass_time()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address(live)).close()
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(timeout=20) == 0
        assert b"[DONE]" not in read_all(peer)
        peer.close()
    log = logged(path)
    audit(log)
    ends = [event for event in log if event["event"] in ("request_done", "request_error")]
    assert len(ends) == 1


def test_a_drain_ends_at_its_deadline() -> None:
    with running("--drain-seconds", "0.2") as live:
        peer = open_stream(live, max_tokens=8000)
        live.process.send_signal(signal.SIGTERM)
        assert live.process.wait(timeout=20) == 0
        assert b"[DONE]" not in read_all(peer)
        peer.close()


def test_resets_in_every_phase_free_the_lane_for_the_next_request(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with running("--request-log-jsonl", str(path), "--log-stats-interval-ms", "0") as live:
        whole = raw(body(STORY, max_tokens=4000, stream=True))
        for sent in (b"", whole[:20], whole[:-30], whole):
            peer = socket.create_connection(address(live), timeout=20)
            peer.sendall(sent)
            reset(peer)
        reset(open_stream(live, max_tokens=4000))
        resident = open_stream(live, max_tokens=4000)
        queued = socket.create_connection(address(live), timeout=20)
        queued.sendall(whole)
        reset(queued)
        reset(resident)
        status, answer = post(live, body(max_tokens=4))
        assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] == 4
        page = get(live, "/metrics")[1].decode()
        for gauge in ("running", "waiting", "paused"):
            assert f"ninfer_requests_{gauge} 0.0" in page
        assert 'ninfer_requests_total{outcome="completed"} 1.0' in page
    log = logged(path)
    audit(log)
    assert not [event for event in log if event["event"] == "throughput"]


def pass_time() -> None:
    """Give the threads that read logs a turn."""
    threading.Event().wait(0.01)


def test_a_full_disk_costs_the_log_and_nothing_else() -> None:
    with running("--request-log-jsonl", "/dev/full") as live:
        for _ in range(2):
            assert post(live, body(max_tokens=2))[0] == 200
    assert "".join(live.log).count("No space left on device") == 1


# The device


def test_a_lost_device_is_told_to_everyone_and_the_process_stays_to_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIL_AFTER", "40")
    with running(module=STRANGE, code=3) as live:
        status, answer = post(live, body(STORY, max_tokens=500))
        assert (status, json.loads(answer)["error"]["code"]) == (500, "engine_failed")
        assert get(live, "/health") == (503, b'{"status": "unavailable"}')
        assert b"ninfer_engine_ready 0.0" in get(live, "/metrics")[1]
        assert post(live, body())[0] == 503
    assert any("CRITICAL engine failed" in line and "illegal memory access" in line for line in live.log)


def test_a_device_lost_under_load_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL_AFTER", "10")
    monkeypatch.setenv("FAIL_ROWS", str(LANES))
    with running(*SIZES, module=STRANGE, code=3) as live:
        check_loss(live)
    check_log(live, "illegal memory access")


def test_a_device_that_hangs_is_lost_and_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIL_AFTER", "40")
    monkeypatch.setenv("HANGS", "1")
    with running("--device-patience-seconds", "1", module=STRANGE, code=3) as live:
        status, answer = post(live, body(STORY, max_tokens=500))
        assert (status, json.loads(answer)["error"]["code"]) == (500, "engine_failed")
        assert get(live, "/health") == (503, b'{"status": "unavailable"}')
        assert b"ninfer_engine_ready 0.0" in get(live, "/metrics")[1]
        assert post(live, body())[0] == 503
    (critical,) = [line for line in live.log if "CRITICAL engine failed" in line]
    assert "has ended nothing for 1 s" in critical and "--device-patience-seconds" in critical
    assert "the process ends without it" in live.log[-1]


def test_with_exit_on_engine_failure_the_answers_go_out_and_the_process_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAIL_AFTER", "40")
    with running("--exit-on-engine-failure", module=STRANGE, code=3) as live:
        peer = open_stream(live, max_tokens=500)
        assert b"engine_failed" in read_all(peer)
        peer.close()
        assert live.process.wait(timeout=20) == 3


def test_a_device_that_fails_the_warm_up_is_a_problem_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = start_process(
        STRANGE, "serve", str(MODEL), "--port", "0", stderr=subprocess.PIPE, env={"FAIL_AFTER": "3"}
    )
    _, error = process.communicate(timeout=20)
    assert process.returncode != 0 and "the warm-up generation failed" in error


# Standard streams


def serve_silently(options: list[str], close: list[int]) -> tuple[int, bytes]:
    """Serve with some standard streams closed; ask once, stop, and return the exit code and the answer."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    def shut() -> None:
        for number in close:
            os.close(number)

    process = start_process("ninfer", "serve", str(MODEL), "--port", str(port), *options, preexec_fn=shut)
    try:
        return _ask_when_ready(process, port), process.wait(timeout=20).to_bytes(1, "big")
    finally:
        process.kill()
        process.wait()


def _ask_when_ready(process: subprocess.Popen[str], port: int) -> int:
    while True:
        assert process.poll() is None
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as client:
                client.request("POST", "/v1/chat/completions", body(max_tokens=2))
                status = client.getresponse().status
        except ConnectionRefusedError:
            pass_time()
        else:
            process.send_signal(signal.SIGTERM)
            return status


def test_closed_standard_streams_are_no_reason_to_fail(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    status, code = serve_silently(["--request-log-jsonl", str(log)], [0, 1, 2])
    assert (status, code) == (200, b"\0")
    audit(logged(log))


def test_a_reader_of_stderr_that_leaves_is_no_reason_to_fail() -> None:
    process = start_process("ninfer", "serve", str(MODEL), "--port", "0", stderr=subprocess.PIPE)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
            break
    process.stderr.close()
    assert found is not None
    assert _ask_when_ready(process, int(found[1])) == 200
    assert process.wait(timeout=20) == 0
