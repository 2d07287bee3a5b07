"""Callers that stall, flood or leave; children that hang: all bounded, and everyone else is served."""

from __future__ import annotations

import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from foveal_client import Client

from .conftest import Running, serving, start
from .test_encode import noise


def connect(running: Running) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def head(length: int, *more: str, path: str = "/encode", kind: str = "image/png") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: foveal", f"Content-Type: {kind}", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def read_all(sock: socket.socket) -> bytes:
    received = b""
    try:
        while block := sock.recv(1 << 16):
            received += block
    except ConnectionResetError:
        pass
    return received


def test_a_head_without_an_end_is_refused_early(server: Running) -> None:
    with connect(server) as sock:
        sock.sendall(b"POST /encode HTTP/1.1\r\nHost: foveal\r\n")
        try:
            for i in range(100):
                sock.sendall(b"X-%d: " % i + b"a" * 4000 + b"\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 431") or answer == b""
    assert httpx.get(server.url + "/live", trust_env=False).status_code == 200


FORM_PATH = "/encode?min_pixels=4000000&dtype=float32"


def test_a_reader_that_stalls_is_dropped_at_its_deadline_and_holds_nothing(server: Running) -> None:
    data = noise(900, 900, 77)
    with Client(server.url) as client:  # now it lies in the cache, and the answer comes at once
        client.encode(data, min_pixels=4_000_000, dtype="float32")
    with connect(server) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # the same picture many times over: more than a kernel's buffers hold, and none of it is encoded again
        form = httpx.Request("POST", server.url, files=[("images", ("a.png", data, "image/png"))] * 16)
        body, kind = form.read(), form.headers["content-type"]
        asks = head(len(body), "X-Request-Timeout-Ms: 2000", path=FORM_PATH, kind=kind)
        sock.sendall(asks + body)
        server.until(lambda: server.metric("foveal_inflight_bytes") > 0)
        server.until(lambda: server.metric("foveal_inflight_bytes") == 0)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
        server.until(lambda: any("status=200 code=deadline_exceeded" in line for line in server.lines))


def test_who_sends_all_of_a_body_that_is_too_large_still_reads_why_it_was_refused(server: Running) -> None:
    block, blocks = bytes(1 << 20), 80
    with connect(server) as sock:
        sock.sendall(head(blocks * len(block)))
        for _ in range(blocks):
            sock.sendall(block)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 413") and b"--max-body-bytes" in answer


def test_a_hung_worker_is_replaced_and_its_items_run_again() -> None:
    with serving("--prep-workers", "1", "--token-budgets", "64") as running:
        os.kill(int(running.info()["workers"][0]["pid"]), signal.SIGSTOP)
        with Client(running.url, max_retries=0, timeout=60) as client:
            assert client.encode(noise(50, 50, 1)).tokens == 64
        assert running.metric("foveal_worker_restarts_total") == 1


def test_work_that_outlasts_the_drain_is_told_and_the_server_ends() -> None:
    running = start("--prep-workers", "1", "--drain-seconds", "0.2")
    running.wait_ready()
    os.kill(int(running.info()["workers"][0]["pid"]), signal.SIGSTOP)
    with httpx.Client(base_url=running.url, trust_env=False, timeout=60) as http, ThreadPoolExecutor(1) as pool:
        call = pool.submit(http.post, "/encode", content=noise(60, 60, 1), headers={"Content-Type": "image/png"})
        running.until(lambda: running.metric("foveal_inflight_items") == 1)
        running.process.send_signal(signal.SIGTERM)
        answer = call.result()
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "draining"
    assert running.process.wait(20) == 0


def test_connections_that_stall_do_not_keep_the_server_from_ending() -> None:
    running = start("--prep-workers", "1", "--drain-seconds", "1")
    running.wait_ready()
    with connect(running) as half, connect(running) as idle:
        half.sendall(head(1000) + b"abc")
        idle.sendall(b"GET /live HTTP/1.1\r\nHost: foveal\r\n\r\n")
        assert idle.recv(100).startswith(b"HTTP/1.1 200")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0
        answer = read_all(half)
    assert answer.startswith(b"HTTP/1.1 503") and b'"draining"' in answer


def test_more_memory_than_the_machine_can_name_is_a_sentence() -> None:
    running = start("--max-inflight-bytes", "99999999TiB")
    assert running.process.wait(60) == 2


def rss_mib(running: Running) -> float:
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def test_trailers_without_an_end_take_no_memory(server: Running) -> None:
    before = rss_mib(server)
    with connect(server) as sock:
        chunked = b"POST /encode HTTP/1.1\r\nHost: f\r\nContent-Type: image/png\r\nTransfer-Encoding: chunked\r\n\r\n"
        sock.sendall(chunked + b"3\r\nabc\r\n0\r\n")
        try:
            for i in range(4000):
                sock.sendall(b"".join(b"x%d: vvvvvvvvvv\r\n" % (1000 * i + n) for n in range(1000)))
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            pytest.fail("64 MiB of trailers were taken")
    assert rss_mib(server) - before < 50


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_head_whose_end_is_cut_between_reads_is_a_good_head(server: Running, cut: int) -> None:
    data = noise(700, 700, cut)
    start_of = head(len(data))
    with connect(server) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(start_of[:-cut])
        server.until(lambda: True)
        sock.sendall(start_of[-cut:] + data)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_a_long_head_with_a_body_behind_it_is_read(server: Running) -> None:
    data = noise(700, 700, 9)
    with connect(server) as sock:
        sock.sendall(head(len(data), "X-Long: " + "a" * 50_000) + data)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"
    with connect(server) as sock:
        sock.sendall(head(len(data), "X-Long: " + "a" * 100_000) + data)
        assert sock.recv(12) in (b"HTTP/1.1 431", b"HTTP/1.1 400")


def test_a_wish_to_upgrade_is_ignored_and_the_body_is_read(server: Running) -> None:
    data = noise(60, 60, 5)
    wish = ("Connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    with connect(server) as sock:
        sock.sendall(head(len(data), *wish) + data)
        assert sock.recv(15) == b"HTTP/1.1 200 OK"


def test_readers_who_leave_a_little_unread_do_not_hold_memory_for_ever() -> None:
    flags = ("--max-inflight-bytes", "64MiB", "--max-body-bytes", "8MiB", "--max-image-tokens", "4096")
    with serving("--prep-workers", "1", "--cache-bytes", "0", *flags) as running:
        data = noise(900, 900, 3)
        sockets = []
        for _ in range(16):
            sock = connect(running)
            asks = head(len(data), "X-Request-Timeout-Ms: 4000", path="/encode?min_pixels=4000000&dtype=float32")
            sock.sendall(asks + data)
            sockets.append(sock)
        running.until(lambda: running.metric("foveal_inflight_bytes") == 0, 60)
        with Client(running.url, max_retries=3, timeout=30) as client:
            assert client.encode(noise(900, 900, 4), min_pixels=4_000_000, dtype="float32").tokens > 3900
        for sock in sockets:
            sock.close()
