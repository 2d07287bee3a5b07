"""What goes wrong between foveal and vLLM, provoked: one request may fail, vLLM and everybody else go on."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import select
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save

from foveal_client import Client, InvalidEmbedding
from tests.e2e.asking import SECONDS, Said, ask, body
from tests.e2e.paths import Row, by_key, metric
from tests.e2e.pictures import as_urls, messages, picture
from tests.e2e.servers import Server

STREAMS = 100
STOPPED_SECONDS = 4.0
QUIET_SECONDS = 15.0
"""Half of what the connector waits for an embedding."""
GRID = [1, 8, 10]
"""Of picture 0 in patches of 16 pixels."""
WIDTH = 3 * 128


@dataclass(frozen=True)
class Scene:
    """The servers of one configuration."""

    name: str
    vllm: Server
    foveal: Server
    """Holds, and forgets soon."""
    restart: Callable[[], None]
    """Ends foveal and starts it again at the same address."""
    hold_seconds: float
    folder: FilePath
    """Shared storage that vLLM looks into."""


def provoke(scene: Scene) -> Iterator[Row]:
    """All faults, one after the other; after each, vLLM must still give the right answer."""
    direct = ask(scene.vllm.url, messages([[0]], "direct", as_urls))
    faults = (
        restarted,
        expired,
        stopped,
        client_leaves,
        aborted_while_waiting,
        malformed,
        refused_by_sdk,
        many_streams,
    )
    for fault in faults:
        try:
            wrong, note = fault(scene, direct)
            if not wrong:
                wrong = _still_right(scene, direct)
        except Exception as error:  # whatever it is, it belongs into the report
            wrong, note = f"{type(error).__name__}: {error}", ""
        yield Row(scene.name, "fault", fault.__name__.replace("_", " "), wrong, note)


def _still_right(scene: Scene, direct: Said) -> str:
    if not scene.vllm.is_alive:
        return "vLLM has ended"
    said = ask(scene.vllm.url, messages([[0]], secrets.token_hex(8), by_key(scene.foveal.url)))
    return said.difference(direct)


def restarted(scene: Scene, direct: Said) -> tuple[str, str]:
    """foveal restarts while vLLM holds a key: the key still works, and so do new ones."""
    parts = by_key(scene.foveal.url)([picture(0, "restarted")])
    before = ask(scene.vllm.url, messages([[0]], "", lambda _: parts))
    scene.restart()
    after = ask(scene.vllm.url, messages([[0]], "", lambda _: parts))
    return before.difference(direct) or after.difference(direct), "the key that vLLM had worked on"


def expired(scene: Scene, direct: Said) -> tuple[str, str]:
    """A key that foveal has given up: its request fails alone, one beside it does not."""
    parts = by_key(scene.foveal.url)([picture(0, "expired")])
    time.sleep(scene.hold_seconds + 1)  # the promise must run out
    with ThreadPoolExecutor() as threads:
        begun = time.monotonic()
        lost = threads.submit(_status, scene.vllm.url, parts)
        said = ask(scene.vllm.url, messages([[0]], "beside", by_key(scene.foveal.url)))
        status = lost.result()
    note = f"{status} after {time.monotonic() - begun:.1f} s"
    return said.difference(direct) or ("" if status == 500 else f"the lost one was answered {status}"), note


def stopped(scene: Scene, direct: Said) -> tuple[str, str]:
    """foveal stands still for seconds: the request waits and succeeds, text is answered meanwhile."""
    parts = by_key(scene.foveal.url)([picture(0, "stopped")])
    scene.foveal.signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor() as threads:
            begun = time.monotonic()
            waiting = threads.submit(ask, scene.vllm.url, messages([[0]], "", lambda _: parts))
            ask(scene.vllm.url, [{"role": "user", "content": "Hello?"}])
            text_seconds = time.monotonic() - begun
            time.sleep(max(0.0, STOPPED_SECONDS - text_seconds))  # that long it stands still
            was_early = waiting.done()
            scene.foveal.signal(signal.SIGCONT)
            said = waiting.result()
    finally:
        scene.foveal.signal(signal.SIGCONT)
    note = f"answered after {time.monotonic() - begun:.1f} s, text beside it after {text_seconds:.1f} s"
    return said.difference(direct) or ("it was answered while foveal stood still" if was_early else ""), note


def client_leaves(scene: Scene, direct: Said) -> tuple[str, str]:
    """A caller of the gateway leaves mid-stream: vLLM stops working for it."""
    request = body(messages([[0]], "leaves", as_urls), stream=True, max_tokens=3000)
    with (
        httpx.Client(timeout=SECONDS, trust_env=False) as http,
        http.stream("POST", f"{scene.foveal.url}/v1/chat/completions", json=request) as answer,
    ):
        lines = answer.iter_lines()  # kept: httpx ends the answer with its iterator
        next(lines)  # a token: vLLM works for it
        ended = _ended_by_themselves(scene)
    num_asked = 0
    while True:
        for _ in range(2):  # vLLM counts when it works: the second answer comes after the count of the first one's step
            ask(scene.vllm.url, [{"role": "user", "content": "Hello?"}], max_tokens=1)
            num_asked += 1
        if _requests(scene, "running") == 0:
            break
    ran_on = _ended_by_themselves(scene) - ended - num_asked
    return ("vLLM worked for it to its end" if ran_on > 0 else ""), f"free after {num_asked} short requests"


def aborted_while_waiting(scene: Scene, direct: Said) -> tuple[str, str]:
    """A caller leaves while its embedding is waited for: it is not waited for any more."""
    part = {"type": "image_embeds", "image_embeds": {"image_grid_thw": GRID}, "uuid": secrets.token_hex(32)}
    request = body(messages([[0]], "", lambda _: [part]))
    missed = _missed(scene)
    with contextlib.closing(http.client.HTTPConnection(scene.vllm.url.removeprefix("http://"))) as connection:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(request).encode(), headers)
        while _missed(scene) == missed:
            if select.select([connection.sock], [], [], 0.1)[0]:
                return "it was answered before anybody asked foveal for it", ""
    # Asked for at least twice a second while it was waited for, and that for longer than these seconds.
    seconds = _until(lambda: _is_quiet(lambda: _missed(scene)), QUIET_SECONDS)
    return ("" if seconds is not None else "foveal is still asked for it"), f"quiet after {seconds} s"


def malformed(scene: Scene, direct: Said) -> tuple[str, str]:
    """Files in shared storage that would end the engine: each fails its own request before the engine sees it."""
    good = np.ones((20, WIDTH), np.float32)
    spoiled: dict[str, tuple[Any, dict[str, Any]]] = {
        "one row too few": (good[:19], {}),
        "wrong width": (good[:, :128], {}),
        "rank 3": (good[None], {}),
        "not finite": (np.full_like(good, np.nan), {}),
        "another grid": (good, {"grid": [1, 10, 8]}),
        "another's key": (good, {"key": "ab" * 32}),
        "integers": (good.astype(np.int64), {}),
    }
    wrong = []
    for name, (rows, other) in spoiled.items():
        key = secrets.token_hex(32)
        told = {"key": key, "grid": GRID} | other
        content = save({"ec_cache": rows, "grid_thw": np.array([told["grid"]], np.int64)}, {"key": told["key"]})
        (scene.folder / key).mkdir()
        (scene.folder / key / "encoder_cache.safetensors").write_bytes(content)
        part = {"type": "image_embeds", "image_embeds": {"image_grid_thw": GRID}, "uuid": key}
        if (status := _status(scene.vllm.url, [part])) != 500:
            wrong.append(f"{name}: {status}")
    for name, part in {
        "a path for a key": {"image_grid_thw": GRID, "uuid": "../../etc"},
        "negative grid": {"image_grid_thw": [1, -8, -10], "uuid": secrets.token_hex(32)},
    }.items():
        uuid = part.pop("uuid")
        status = _status(scene.vllm.url, [{"type": "image_embeds", "image_embeds": part, "uuid": uuid}])
        if status not in (400, 500):
            wrong.append(f"{name}: {status}")
    return ", ".join(wrong), f"{len(spoiled) + 2} kinds, each refused alone"


def refused_by_sdk(scene: Scene, direct: Said) -> tuple[str, str]:
    """The SDK builds no part of what is malformed."""
    with Client(scene.foveal.url) as client:
        found = client.encode(picture(0, "sdk"))
    spoiled = [found.values[:-1], found.values[None], np.full_like(found.values, np.inf), found.values[:, :-1]]
    passed = 0
    for values in spoiled:
        try:
            replace(found, values=values).to_vllm_part()
            passed += 1
        except InvalidEmbedding:
            continue
    return (f"{passed} went through" if passed else ""), f"{len(spoiled)} kinds"


def many_streams(scene: Scene, direct: Said) -> tuple[str, str]:
    """A hundred callers of the gateway at once, all streamed, every picture another."""
    begun = time.monotonic()
    with ThreadPoolExecutor(STREAMS) as threads:
        jobs = [
            threads.submit(ask, scene.foveal.url, messages([[0]], f"stream {number}", as_urls), stream=True)
            for number in range(STREAMS)
        ]
        differences = [job.result().difference(direct) for job in jobs]
    wrong = [difference for difference in differences if difference]
    note = f"{STREAMS} in {time.monotonic() - begun:.0f} s"
    return (f"{len(wrong)} of {STREAMS} differ: {wrong[0]}" if wrong else ""), note


def _status(url: str, parts: list[dict[str, Any]]) -> int:
    try:
        ask(url, messages([[0]], "", lambda _: parts))
    except httpx.HTTPStatusError as error:
        return error.response.status_code
    return 200


def _requests(scene: Scene, state: str) -> float:
    return metric(scene.vllm.url, f"vllm:num_requests_{state}{{")


def _ended_by_themselves(scene: Scene) -> float:
    """Requests that vLLM has worked for to their end."""
    return metric(scene.vllm.url, "vllm:request_success_total{")


def _missed(scene: Scene) -> float:
    return metric(scene.foveal.url, 'foveal_handover_total{outcome="missed"}')


def _is_quiet(count: Callable[[], float]) -> bool:
    before = count()
    time.sleep(1.5)  # three times what the connector waits between two tries at most
    return count() == before


def _until(holds: Callable[[], bool], seconds: float) -> float | None:
    """After how long it held; None when it never did."""
    begun = time.monotonic()
    while (passed := time.monotonic() - begun) < seconds:
        if holds():
            return round(passed, 1)
        time.sleep(0.1)  # polls another process
    return None
