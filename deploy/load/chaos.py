"""Kill a worker process every few seconds while a load test runs, and exit as the load test does.

    python chaos.py --url URL [--every 5] [--max-kills 3] -- foveal bench serve --url URL ...

It must see the server's processes: on one machine, or in a container that shares the server's process namespace.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time

import httpx

from foveal_client._http import Network

POLL_SECONDS = 0.2
BACK_SECONDS = 120.0


def parse() -> argparse.Namespace:
    """Flags, then `--`, then the load test's command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between kills (default: %(default)s)")
    parser.add_argument("--max-kills", type=int, default=3, help="default: %(default)s")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def worker_ids(http: httpx.Client) -> list[int]:
    """Process ids of the workers that are ready; none while the server is too busy to say."""
    try:
        workers = http.get("/info").json()["workers"]
        return [worker["pid"] for worker in workers if worker["ready"] and worker["pid"]]
    except (httpx.HTTPError, ValueError, KeyError):
        return []


def kill_one(http: httpx.Client, turn: int) -> int:
    """Kill one worker; how many were killed."""
    found = worker_ids(http)
    if not found:
        return 0
    victim = found[turn % len(found)]
    print(f"chaos: killing worker process {victim}", flush=True)
    os.kill(victim, signal.SIGKILL)
    return 1


def is_back(http: httpx.Client) -> bool:
    """True when the server is ready within a while."""
    end = time.monotonic() + BACK_SECONDS
    while time.monotonic() < end:
        try:
            if http.get("/ready").status_code == 200:
                return True
        except httpx.HTTPError:
            pass
        time.sleep(POLL_SECONDS)
    return False


def main() -> int:
    """The load test's exit code, or 1 when nothing was killed or the server did not come back."""
    args = parse()
    key = os.environ.get("FOVEAL_API_KEY", "").split(",")[0]
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with Network.straight_to([args.url]).client(base_url=args.url, headers=headers, timeout=5.0) as http:
        if not is_back(http):
            print("chaos: the server is not ready", file=sys.stderr)
            return 1
        load = subprocess.Popen(args.command)
        kills, due = 0, time.monotonic() + args.every
        while load.poll() is None:
            time.sleep(POLL_SECONDS)
            if time.monotonic() >= due and kills < args.max_kills:
                kills += kill_one(http, kills)
                due = time.monotonic() + args.every
        came_back = is_back(http)
        print(f"chaos: {kills} workers killed; the server is {'ready again' if came_back else 'not ready'}")
        return load.returncode or int(not (kills and came_back))


if __name__ == "__main__":
    sys.exit(main())
