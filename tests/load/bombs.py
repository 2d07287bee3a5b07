"""Memory of a whole service while bombs and floods arrive at once.

    .venv/bin/python -m tests.load.bombs [--prep-workers 2]

Starts a server of its own with the built-in model on the CPU and sends it, all together, 16 small files that decode
to pictures just below the pixel limit and 50 bodies above the body limit, half of them without a declared length.
Prints how everyone was answered and the largest sum of resident memory over the service's processes. Small pictures
are sent all the while: they must be answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
from PIL import Image
from tqdm import tqdm

from foveal.demo.server import serving

BOMBS, FLOODS = 16, 50
FLOOD_BYTES, PIECE = 65 << 20, bytes(1 << 20)
SAMPLE_SECONDS = 0.05
TIMEOUT_SECONDS = 300.0
URL = "/encode?max_pixels=65536"
"""Few tokens: what counts here is decoding, not the encoder on a CPU."""
OCTETS = {"Content-Type": "application/octet-stream"}


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    sink = io.BytesIO()
    image.save(sink, format, **options)
    return sink.getvalue()


def bombs() -> dict[str, bytes]:
    """A few hundred kilobytes each, some 60 million pixels."""
    return {
        "PNG": saved(Image.new("RGB", (7745, 7745), (200, 30, 30)), "PNG"),
        "PNG with alpha": saved(Image.new("RGBA", (7745, 7745), (200, 30, 30, 90)), "PNG"),
        "GIF": saved(Image.new("P", (8000, 8000), 1), "GIF"),
        "TIFF": saved(Image.new("RGB", (7745, 7745), (9, 9, 9)), "TIFF", compression="tiff_adobe_deflate"),
        "JPEG": saved(Image.new("RGB", (7745, 7745), (9, 9, 9)), "JPEG", progressive=True),
        "WEBP": saved(Image.new("RGB", (7745, 7745), (9, 9, 9)), "WEBP", method=0),
    }


def processes_below(pid: int) -> set[int]:
    """This process's descendants."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def role(pid: int) -> str:
    """What a process is in the service."""
    line = Path(f"/proc/{pid}/cmdline").read_bytes()
    return "prep" if b"foveal.vision" in line else "worker" if b"foveal.gpu" in line else "api"


def resident(pids: set[int]) -> Counter[str]:
    """Bytes that are there, summed: all, and by role those that no other process shares."""
    found: Counter[str] = Counter()
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            found["all"] += int(fields["VmRSS"].split()[0]) << 10
            found[role(pid)] += int(fields["RssAnon"].split()[0]) << 10
    return found


class Watch:
    """Samples the memory of this process's descendants."""

    def __init__(self) -> None:
        self.first: Counter[str] = Counter()
        self.peak: Counter[str] = Counter()

    async def run(self) -> None:
        while True:
            now = resident(processes_below(os.getpid()))
            self.first = self.first or now
            self.peak |= now
            await asyncio.sleep(SAMPLE_SECONDS)


async def flood() -> AsyncIterator[bytes]:
    for _ in range(FLOOD_BYTES // len(PIECE)):
        yield PIECE


async def answer(http: httpx.AsyncClient, content: object, headers: dict[str, str]) -> str:
    try:
        got = await http.post(URL, content=content, headers=OCTETS | headers)  # type: ignore[arg-type]
    except httpx.TransportError as error:
        return type(error).__name__
    return (
        f"200 in {len(got.content)} bytes"
        if got.status_code == 200
        else f"{got.status_code} {got.json()['error']['code']}"
    )


async def small_ones(http: httpx.AsyncClient, times: list[float]) -> None:
    """One after the other until cancelled, each a new picture."""
    rng = np.random.default_rng(0)
    while True:
        body = saved(Image.fromarray(rng.integers(0, 256, (64, 64, 3), np.uint8)), "PNG")
        began = time.perf_counter()
        got = await http.post("/encode", content=body, headers=OCTETS)
        assert got.status_code in (200, 503), got.text
        times.append(time.perf_counter() - began)


async def attack(http: httpx.AsyncClient, told: Callable[[], object]) -> Counter[str]:
    """How bombs and floods were answered."""
    kinds = list(bombs().items())

    async def one(name: str, content: object, headers: dict[str, str]) -> str:
        found = f"{name}: {await answer(http, content, headers)}"
        told()
        return found

    # a byte behind the end makes each of them a picture of its own
    calls = [one(f"bomb, {kinds[i % len(kinds)][0]}", kinds[i % len(kinds)][1] + bytes(i), {}) for i in range(BOMBS)]
    declared = {"Content-Length": str(FLOOD_BYTES)}
    calls += [one("flood, declared", flood(), declared) for _ in range(FLOODS // 2)]
    calls += [one("flood, chunked", flood(), {}) for _ in range(FLOODS - FLOODS // 2)]
    return Counter(await asyncio.gather(*calls))


async def measure(url: str) -> None:
    """Attack and print."""
    watch, times = Watch(), list[float]()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_SECONDS, limits=limits, trust_env=False) as http:
        while (await http.get("/ready")).status_code != 200:
            await asyncio.sleep(0.1)
        background = [asyncio.create_task(job) for job in (watch.run(), small_ones(http, times))]
        with tqdm(total=BOMBS + FLOODS, unit=" requests") as bar:
            found = await attack(http, bar.update)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        info = (await http.get("/info")).json()
    for name, number in sorted(found.items()):
        print(f"{number:4} x {name}")
    print(f"small pictures meanwhile: {len(times)}, the slowest {max(times, default=0.0):.2f} s")
    print(f"prep processes lost: {sum(worker['restarts'] for worker in info['prep_workers'])}")
    for name in ("all", "api", "prep", "worker"):
        what = "resident, all processes" if name == "all" else f"not shared, {name}"
        print(f"{what:24} {watch.first[name] >> 20:5} MiB before, {watch.peak[name] >> 20:5} MiB at most")


@contextlib.contextmanager
def server(prep_workers: int) -> Iterator[str]:
    flags = ["--device", "cpu", "--cpu-threads", "1", "--token-budgets", "64,4096", "--log-level", "error"]
    with serving([*flags, "--prep-workers", str(prep_workers), "--prep-timeout-seconds", "60"]) as url:
        yield url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prep-workers", type=int, default=2)
    args = parser.parse_args()
    with server(args.prep_workers) as url:
        asyncio.run(measure(url))


if __name__ == "__main__":
    main()
