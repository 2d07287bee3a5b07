"""The server's table of errors, the client's, and the golden bodies say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foveal.errors import BY_CODE as SERVER
from foveal_client._errors import BY_CODE as CLIENT

ERRORS = Path(__file__).parent / "golden" / "errors"


def test_both_sides_know_the_same_codes() -> None:
    assert set(SERVER) == set(CLIENT)


@pytest.mark.parametrize("code", sorted(SERVER))
def test_status_and_retryable_are_the_same_on_both_sides(code: str) -> None:
    server, client = SERVER[code], CLIENT[code]
    assert (server.code, server.status, server.retryable) == (client.code, client.status, client.default_retryable)


@pytest.mark.parametrize("code", sorted(SERVER))
def test_the_golden_body_is_the_servers(code: str) -> None:
    golden = json.loads((ERRORS / f"{code}.json").read_text())
    told, server = golden["body"]["error"], SERVER[code]
    assert golden["status"] == server.status
    assert (told["code"], told["type"], told["retryable"]) == (server.code, server.type, server.retryable)
