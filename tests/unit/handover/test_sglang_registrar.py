"""Being known to bootstrap servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import httpx

from foveal.handover.sglang.registrar import Registrar

PUBLIC = "http://foveal-0:8000/sglang"


class Bootstrap:
    """SGLang's register of encoders; fails while `is_up` is False."""

    def __init__(self) -> None:
        self.urls: set[str] = set()
        self.is_up = True
        self.asked = 0
        self.event = asyncio.Event()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        self.event.set()
        if not self.is_up:
            raise httpx.ConnectError("refused")
        url = json.loads(request.content)["url"]
        if (request.method, request.url.path) == ("POST", "/register_encoder_url"):
            self.urls.add(url)
        elif (request.method, request.url.path) == ("DELETE", "/unregister_encoder_url"):
            self.urls.discard(url)
        else:
            return httpx.Response(404)
        return httpx.Response(200, text="OK")

    async def until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.event.clear()
            await self.event.wait()


def registrar(bootstrap: Bootstrap) -> Registrar:
    transport = httpx.MockTransport(bootstrap)
    return Registrar(
        ("http://language:8997",), PUBLIC, transport, renew_seconds=0.001, retry_seconds=0.001, grace_seconds=0
    )


async def test_it_registers_when_ready_again_after_a_restart_and_leaves_at_the_end() -> None:
    bootstrap, is_ready = Bootstrap(), False
    made = registrar(bootstrap)
    running = asyncio.create_task(made.run(lambda: is_ready))
    await asyncio.sleep(0.01)
    assert bootstrap.asked == 0
    is_ready = True
    await bootstrap.until(lambda: bootstrap.urls == {PUBLIC})
    bootstrap.urls.clear()  # the language server was restarted
    await bootstrap.until(lambda: bootstrap.urls == {PUBLIC})
    running.cancel()
    await asyncio.wait((running,))
    await made.leave()
    assert bootstrap.urls == set()


async def test_it_tries_until_the_bootstrap_is_there() -> None:
    bootstrap = Bootstrap()
    bootstrap.is_up = False
    running = asyncio.create_task(registrar(bootstrap).run(lambda: True))
    await bootstrap.until(lambda: bootstrap.asked >= 3)
    bootstrap.is_up = True
    await bootstrap.until(lambda: bootstrap.urls == {PUBLIC})
    running.cancel()
    await asyncio.wait((running,))


async def test_a_bootstrap_that_is_gone_does_not_hold_the_drain_up() -> None:
    bootstrap = Bootstrap()
    bootstrap.is_up = False
    await registrar(bootstrap).leave()
    assert bootstrap.asked == 1
