"""What the gateway adds to a chat request: the same request sent to a fake LLM server directly, and through it.

    .venv/bin/python -m tests.load.gateway [--requests 200]

Starts a fake LLM server that reads and answers at once, and servers of its own with the built-in model on the CPU.
Sequential requests, alternating between the paths. The medians depend on what else the machine does; the processor
time of the process that answers, a request, does not as much. Compare figures within one run.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import numpy as np
from PIL import Image

from foveal.demo.server import serving
from foveal.handover.outgoing import Outgoing
from foveal_client._torch_archive import torch_archive

CHAT = "/v1/chat/completions"
FLAGS = ["--device", "cpu", "--log-level", "warning", "--token-budgets", "64", "--request-timeout-seconds", "600"]
ROWS_8B, WIDTH_8B = 2040, 16384
"""A picture of 1920 x 1080 as Qwen3-VL-8B has it, with three deepstack levels."""


def picture(side: int) -> bytes:
    sink = io.BytesIO()
    pixels = np.random.default_rng(side).integers(0, 256, (side // 8, side // 8, 3), np.uint8)
    Image.fromarray(pixels).resize((side, side)).save(sink, "JPEG")
    return sink.getvalue()


def body(data: bytes | None) -> bytes:
    content: list[object] = [{"type": "text", "text": "What is in this picture?"}]
    if data is not None:
        url = "data:image/jpeg;base64," + base64.b64encode(data).decode()
        content.append({"type": "image_url", "image_url": {"url": url}})
    return json.dumps({"model": "llm", "messages": [{"role": "user", "content": content}]}).encode()


async def answer_all() -> None:
    """The fake LLM server: reads each request whole, answers with the bytes that its body had."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                lengths = head.split(b"content-length:")[1:]  # none: the gateway's own look
                left = total = int(lengths[0].split(b"\r\n")[0]) if lengths else 0
                while left:
                    left -= len(await reader.read(min(left, 1 << 20)))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Body-Bytes: %d\r\n\r\n{}" % total)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 21)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def fake_llm() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-m", "tests.load.gateway", "--llm"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Path:
    """A way to the LLM server, and the process that answers on it."""

    http: httpx.Client
    pid: int

    def cpu_ms(self) -> float:
        """Processor time of the process so far."""
        with open(f"/proc/{self.pid}/stat") as stat:
            ticks = stat.read().rsplit(")", 1)[1].split()[11:13]
        return sum(map(int, ticks)) * 1000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Figures:
    median_ms: float
    p95_ms: float
    cpu_ms: float
    arrived_bytes: int
    """Of body, at the LLM server."""


def measure(paths: dict[str, Path], content: bytes, count: int) -> dict[str, Figures]:
    """Send the same body on all paths in turn."""
    wall: dict[str, list[float]] = defaultdict(list)
    arrived: dict[str, int] = {}
    before = {name: path.cpu_ms() for name, path in paths.items()}
    for _ in range(count):
        for name, path in paths.items():
            began = time.perf_counter()
            answer = path.http.post(CHAT, content=content)
            wall[name].append((time.perf_counter() - began) * 1000)
            assert answer.status_code == 200, answer.text
            arrived[name] = int(answer.headers["x-body-bytes"])
    cpu = {name: (path.cpu_ms() - before[name]) / count for name, path in paths.items()}
    return {
        name: Figures(statistics.median(ms), statistics.quantiles(ms, n=20)[-1], cpu[name], arrived[name])
        for name, ms in wall.items()
    }


def newest_child() -> int:
    """The process that this one started last."""
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return max(map(int, children.read().split()))


def best_ms(work) -> float:  # type: ignore[no-untyped-def]
    found = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        found.append((time.perf_counter() - began) * 1000)
    return min(found)


def making() -> None:
    """What an embedding of a large model costs on its way into a body, without a network."""
    values = np.random.default_rng(0).bytes(ROWS_8B * WIDTH_8B * 2)
    archive = torch_archive(values, "bfloat16", (ROWS_8B, WIDTH_8B))
    pieces = Outgoing([archive])

    def longest() -> float:
        worst, began = 0.0, time.perf_counter()
        for _ in pieces.pieces():
            now = time.perf_counter()
            worst, began = max(worst, now - began), now
        return worst * 1000

    print(
        f"\n1920 x 1080 of Qwen3-VL-8B: {len(values) / 1e6:.1f} MB of rows, {pieces.num_bytes / 1e6:.1f} MB of base64"
    )
    print(f"checksum (in a thread)     {best_ms(lambda: zlib.crc32(values)):8.1f} ms")
    print(f"all pieces of base64       {best_ms(lambda: [None for _ in pieces.pieces()]):8.1f} ms")
    print(f"longest piece              {min(longest() for _ in range(5)):8.2f} ms (others run between pieces)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--llm", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.llm:
        asyncio.run(answer_all())
        return
    cases = {
        "text only": (body(None), args.requests),
        "64 x 64": (body(picture(64)), args.requests),
        "1024 x 1024": (body(picture(1024)), args.requests // 2),
        "2048 x 2048": (body(picture(2048)), args.requests // 4),
    }
    with contextlib.ExitStack() as stack:
        urls = {"direct": stack.enter_context(fake_llm())}
        pids = {"direct": newest_child()}
        for form in ("parts", "keys"):
            flags = [*FLAGS, "--llm-url", urls["direct"], "--llm-handover", form]
            urls[form] = stack.enter_context(serving(flags))
            pids[form] = newest_child()
        headers = {"Content-Type": "application/json"}
        paths = {}
        for name, url in urls.items():
            client = httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=600)
            paths[name] = Path(stack.enter_context(client), pids[name])
        for name in ("parts", "keys"):
            while paths[name].http.get("/ready").status_code != 200:
                time.sleep(0.1)
        print("pictures are in the cache; load of the machine: {:.1f} {:.1f} {:.1f}".format(*os.getloadavg()))
        print("request      path    median ms   p95 ms  added ms   CPU ms   bytes sent  bytes at LLM")
        for case, (content, count) in cases.items():
            measure(paths, content, 2)  # the first encodes
            found = measure(paths, content, max(count, 10))
            for name, one in found.items():
                added = one.median_ms - found["direct"].median_ms
                figures = f"{one.median_ms:9.2f} {one.p95_ms:8.2f} {added:9.2f} {one.cpu_ms:8.2f}"
                print(f"{case:12} {name:7} {figures} {len(content):12} {one.arrived_bytes:13}")
    making()


if __name__ == "__main__":
    main()
