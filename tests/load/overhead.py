"""What a request costs outside decoding and the model: per-stage medians of sequential requests.

    .venv/bin/python -m tests.load.overhead [--requests 300]

Starts a server of its own with the built-in model on the CPU. Figures of one machine; compare them within one run.
"""

from __future__ import annotations

import argparse
import io
import re
import statistics
import time
from collections import defaultdict

import httpx
import numpy as np
from PIL import Image

from foveal.demo.server import serving


def picture(seed: int) -> bytes:
    sink = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(pixels).save(sink, "PNG", compress_level=1)
    return sink.getvalue()


def measure(http: httpx.Client, bodies: list[bytes]) -> dict[str, float]:
    stages: dict[str, list[float]] = defaultdict(list)
    for body in bodies:
        began = time.perf_counter()
        answer = http.post("/encode", content=body, headers={"Accept": "application/vnd.foveal.safetensors"})
        stages["caller"].append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, answer.text
        for name, ms in re.findall(r"(\w+);dur=([0-9.]+)", answer.headers["server-timing"]):
            stages[name].append(float(ms))
    return {name: statistics.median(values) for name, values in stages.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    args = parser.parse_args()
    flags = ["--device", "cpu", "--log-level", "warning", "--token-budgets", "64", "--cpu-threads", "1"]
    headers = {"Content-Type": "image/png"}
    with serving(flags) as url, httpx.Client(base_url=url, headers=headers, trust_env=False) as http:
        while http.get("/ready").status_code != 200:
            time.sleep(0.1)
        bodies = [picture(i) for i in range(args.requests)]
        measure(http, bodies[:20])
        fresh, hits = measure(http, bodies[20:]), measure(http, bodies[20:])
    inside = sum(fresh[name] for name in ("probe", "prep", "copy_in", "encode", "copy_out"))
    print(f"{'stage':10} {'fresh ms':>10} {'hit ms':>10}")
    for name in fresh:
        print(f"{name:10} {fresh[name]:10.3f} {hits.get(name, 0):10.3f}")
    print(
        f"\nin the server outside prep and worker: {fresh['total'] - inside:.3f} ms fresh, {hits['total']:.3f} ms hit"
    )


if __name__ == "__main__":
    main()
