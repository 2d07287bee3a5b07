"""The gateway through the real processes: turns that hit the cache, a crowd that leaves at random, a drain."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys

import httpx
import numpy as np

from foveal_client import AsyncClient
from tests.api.gateways import CHAT, bits, chat, image_part, rows_of, text
from tests.llm import STREAM_HEAD, Sent, Writer, chunk, fake_llm, listing

from .conftest import Running, serving
from .test_encode import noise

SMALL = ("--prep-workers", "1", "--token-budgets", "64,256")


async def until(running: Running, holds) -> None:  # type: ignore[no-untyped-def]
    """As `Running.until`, while this loop, and the LLM server in it, runs on."""
    await asyncio.to_thread(running.until, holds)


def open_files(running: Running) -> int:
    return len(os.listdir(f"/proc/{running.process.pid}/fd"))


async def test_the_second_turn_of_a_chat_is_a_cache_hit() -> None:
    shot = noise(200, 150, 1)
    first = chat(text("what is this?"), image_part(shot))
    second = {**first, "messages": [*first["messages"], {"role": "assistant", "content": "noise"}, *first["messages"]]}
    async with fake_llm() as llm:
        with serving("--llm-url", llm.url, *SMALL) as running:
            async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=60) as http:
                for turn in (first, second):
                    assert (await http.post(CHAT, json=turn)).status_code == 200
            async with AsyncClient(running.url) as client:
                embedding = await client.encode(shot)
            names = ("foveal_packs_total", "foveal_cache_hits_total")
            metrics = [await asyncio.to_thread(running.metric, name) for name in names]
    parts = [m["content"][1] for sent in llm.requests for m in sent.json["messages"] if m["role"] == "user"]
    assert len(parts) == 3 and len({str(part) for part in parts}) == 1
    assert metrics == [1, 2]
    assert parts[0]["uuid"] == embedding.key and parts[0]["image_embeds"]["image_grid_thw"] == list(embedding.grid_thw)
    assert bits(rows_of(parts[0])) == np.ascontiguousarray(embedding.values).tobytes()


async def test_a_hundred_streams_whose_callers_leave_at_random_mix_nothing_up_and_leave_nothing() -> None:
    shots = [noise(60 + 10 * i, 90, i) for i in range(5)]
    chance = random.Random(7)

    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(STREAM_HEAD)
        for i in range(20):
            writer.write(chunk(f"{sent.json['user']}:{i};".encode()))
            await writer.drain()
            await asyncio.sleep(chance.random() / 100)
        writer.write(chunk(b""))

    async def call(http: httpx.AsyncClient, i: int) -> None:
        stays = i % 3 == 0
        wanted = "".join(f"u{i}:{n};" for n in range(20))
        leaves_after = None if stays else chance.randrange(len(wanted))
        got = ""
        async with http.stream(
            "POST", CHAT, json=chat(image_part(shots[i % 5]), user=f"u{i}", stream=True)
        ) as response:
            async for piece in response.aiter_text():
                got += piece
                if leaves_after is not None and len(got) > leaves_after:
                    break
        assert got == wanted if stays else wanted.startswith(got)

    async with fake_llm(answer) as llm:
        with serving("--llm-url", llm.url, *SMALL) as running:
            await until(running, running.is_empty)
            before = open_files(running)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
            async with httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=60, limits=limits) as http:
                await asyncio.gather(*(call(http, i) for i in range(100)))
            assert len(llm.requests) == 100
            await until(running, lambda: running.is_empty() and not running.metric("foveal_gateway_open_requests"))
            await until(running, lambda: open_files(running) <= before + 2)  # the one that looks
            await until(running, lambda: not llm.num_open)  # one may be the gateway's own look
            shown = {(int(s.json["user"][1:]) % 5, s.json["messages"][0]["content"][0]["uuid"]) for s in llm.requests}
            assert len(shown) == len({uuid for _, uuid in shown}) == 5  # each picture has one key, and its own
            answered = running.gauge("foveal_gateway_requests_total", 'outcome="answered"')
            gone = running.gauge("foveal_gateway_requests_total", 'outcome="gone"')
            assert answered >= 34 and answered + gone == 100


async def test_a_drain_lets_streams_end_and_refuses_new_ones() -> None:
    go = asyncio.Event()

    async def answer(sent: Sent, writer: Writer) -> None:
        writer.write(STREAM_HEAD + chunk(b"one"))
        await go.wait()
        writer.write(chunk(b"two") + chunk(b""))

    async with fake_llm(answer) as llm:
        with serving("--llm-url", llm.url, *SMALL) as running:
            async with (
                httpx.AsyncClient(base_url=running.url, trust_env=False, timeout=60) as http,
                http.stream("POST", CHAT, json=chat("hi")) as response,
            ):
                pieces = response.aiter_text()
                assert await anext(pieces) == "one"
                running.process.send_signal(signal.SIGTERM)
                await until(running, lambda: any("draining" in line for line in running.lines))
                assert (await http.post(CHAT, json=chat("hi"))).json()["error"]["code"] == "draining"
                go.set()
                assert [piece async for piece in pieces] == ["two"]
            assert await asyncio.to_thread(running.process.wait, 30) == 0


async def test_llm_servers_are_looked_at_without_traffic_and_the_look_ends_with_the_server() -> None:
    async def lists_qwen(sent: Sent, writer: Writer) -> None:
        writer.write(listing({"id": "Qwen/Qwen3-VL-8B-Instruct"}))

    async def never(sent: Sent, writer: Writer) -> None:
        await sent.gone.wait()

    async with fake_llm() as dead, fake_llm() as other, fake_llm() as silent:
        await dead.stop()
        other.look, silent.look = lists_qwen, never
        with serving(*(word for llm in (dead, other, silent) for word in ("--llm-url", llm.url)), *SMALL) as running:
            up = "foveal_gateway_upstream_up"
            await until(running, lambda: running.gauge(up, f'upstream="127.0.0.1:{dead.port}"') == 0)
            await until(running, lambda: [one["takes_embeddings"] for one in running.info()["llm_servers"]][1] is False)
            assert running.gauge(up, f'upstream="127.0.0.1:{other.port}"') == 1
            await until(running, lambda: silent.num_open == 1)
            running.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(running.process.wait, 30) == 0
            assert not any("Traceback" in line or "never retrieved" in line for line in running.lines)


def test_a_tower_that_no_llm_takes_rows_of_is_refused_with_exit_code_2() -> None:
    flags = ["--model", "builtin:tiny-clip", "--llm-url", "http://127.0.0.1:1", "--port", "0", "--device", "cpu"]
    command = [sys.executable, "-m", "foveal", "serve", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2 and "--llm-url" in ended.stderr and "Traceback" not in ended.stderr
