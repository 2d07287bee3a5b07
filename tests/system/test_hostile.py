"""Callers that stall, flood or leave; children that hang: all bounded, and everyone else is served."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from foveal_client import Client, Undecodable

from .conftest import Running, serving, start
from .test_encode import noise


def connect(running: Running) -> socket.socket:
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def head(length: int, *more: str, path: str = "/encode") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: foveal", "Content-Type: image/png", f"Content-Length: {length}", *more]
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


def test_a_reader_that_stalls_is_dropped_at_its_deadline_and_holds_nothing(server: Running) -> None:
    data = noise(900, 900, 77)
    with Client(server.url) as client:  # now it lies in the cache, and the answer comes at once
        tokens = client.encode(data, min_pixels=4_000_000, dtype="float32").tokens
    with connect(server) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asks = head(len(data), "X-Request-Timeout-Ms: 2000", path="/encode?min_pixels=4000000&dtype=float32")
        sock.sendall(asks + data)
        server.until(lambda: server.metric("foveal_inflight_bytes") > 0)
        server.until(lambda: server.metric("foveal_inflight_bytes") == 0)
        received = read_all(sock)
    assert b"200 OK" in received[:20]
    assert len(received) < tokens * 192 * 4 * 4 / 3, "the whole answer came, so nothing was tested"


def test_a_hung_prep_process_costs_one_caller_and_is_replaced() -> None:
    with serving("--prep-workers", "1", "--prep-timeout-seconds", "1") as running:
        hung = int(running.info()["prep_workers"][0]["pid"])
        os.kill(hung, signal.SIGSTOP)
        with Client(running.url, max_retries=0) as client:
            with pytest.raises(Undecodable, match="too long"):
                client.encode(noise(50, 50, 1))
            running.until(lambda: running.info()["prep_workers"][0]["ready"])
            assert client.encode(noise(50, 50, 2)).tokens > 0


def test_a_hung_worker_is_replaced_and_its_items_run_again() -> None:
    flags = ("--prep-workers", "1", "--worker-timeout-seconds", "1", "--token-budgets", "64")
    with serving(*flags) as running:
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


def test_more_memory_than_the_machine_can_name_is_a_sentence() -> None:
    running = start("--max-inflight-bytes", "99999999TiB")
    assert running.process.wait(60) == 2
