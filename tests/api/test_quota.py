"""A key's own quota, through the api."""

from __future__ import annotations

import httpx

from foveal.api.context import Server
from foveal.api.quotas import Quotas
from tests.fakes import picture


async def test_a_key_that_used_up_its_quota_is_told_when_to_come_back(
    client: httpx.AsyncClient, server: Server
) -> None:
    server.keys, server.quotas = ("a", "b"), Quotas(2, 0)

    async def ask(key: str) -> httpx.Response:
        headers = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {key}"}
        return await client.post("/encode", content=picture(), headers=headers)

    assert [(await ask("a")).status_code for _ in range(2)] == [200, 200]
    answer = await ask("a")
    assert answer.status_code == 429 and answer.json()["error"]["code"] == "rate_limited"
    assert 1 <= int(answer.headers["retry-after"]) <= 30
    assert (await ask("b")).status_code == 200


async def test_admitted_tokens_are_charged(client: httpx.AsyncClient, server: Server) -> None:
    server.keys, server.quotas = ("a",), Quotas(0, 1)
    headers = {"Content-Type": "application/octet-stream", "Authorization": "Bearer a"}
    answers = [await client.post("/encode", content=picture(text=str(i)), headers=headers) for i in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
