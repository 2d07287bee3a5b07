"""Stop a server while requests are open, and tell what became of each: all must be answered, or refused by name.

    python stop_with_open_requests.py URL KEY COMMAND ...

Exit code 0 where every request that was open got an answer and the first of them an embedding.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx
from PIL import Image

NUM_REQUESTS = 40
SIDE = 448
BEGIN_SECONDS = 30.0
ANSWERED = ("200", "503 draining")


def picture() -> bytes:
    """Noise that no cache has seen."""
    file = io.BytesIO()
    Image.frombytes("RGB", (SIDE, SIDE), os.urandom(3 * SIDE * SIDE)).save(file, "PNG", compress_level=0)
    return file.getvalue()


def ask(http: httpx.Client, together: threading.Barrier, told: list[str]) -> None:
    """One request, on a connection that the server has accepted before; its status and code."""
    body = picture()
    http.get("/live").raise_for_status()
    together.wait()
    try:
        answer = http.post("/encode", content=body, headers={"Content-Type": "image/png"})
    except httpx.HTTPError as error:
        told.append(type(error).__name__)
        return
    told.append("200" if answer.status_code == 200 else f"{answer.status_code} {answer.json()['error']['code']}")


def wait_until_it_works(http: httpx.Client) -> None:
    """Return when something is admitted and not yet encoded; raises TimeoutError."""
    end = time.monotonic() + BEGIN_SECONDS
    while time.monotonic() < end:
        lines = http.get("/metrics").text.splitlines()
        if any(line.startswith("foveal_inflight_items ") and float(line.split()[1]) > 0 for line in lines):
            return
    raise TimeoutError("no request was admitted")


def main() -> int:
    """Ask, stop, count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("key")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    told: list[str] = []
    together = threading.Barrier(NUM_REQUESTS)
    headers = {"Authorization": f"Bearer {args.key}"}
    limits = httpx.Limits(max_connections=None)

    def client() -> httpx.Client:
        return httpx.Client(base_url=args.url, headers=headers, timeout=120.0, trust_env=False, limits=limits)

    clients = [client() for _ in range(NUM_REQUESTS)]
    threads = [threading.Thread(target=ask, args=(http, together, told)) for http in clients]
    for thread in threads:
        thread.start()
    with client() as http:
        wait_until_it_works(http)
    stopped = subprocess.run(args.command).returncode
    for thread in threads:
        thread.join()
    for http in clients:
        http.close()
    counted = Counter(told)
    print(f"  a stop with {NUM_REQUESTS} requests open: {dict(counted)}")
    return int(stopped != 0 or set(counted) - set(ANSWERED) != set() or not counted["200"])


if __name__ == "__main__":
    sys.exit(main())
