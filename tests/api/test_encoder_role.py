"""The encoder of a vLLM-style proxy: pictures of a chat in, names and grids of what is held out."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.settings import Settings
from tests.fakes import FakeService, fake_service, picture

CHAT = "/v1/chat/completions"


def url_of(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def part_of(data: bytes, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url_of(data)}, **more}


def chat_of(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "builtin:tiny", "messages": [{"role": "user", "content": list(parts)}], **more}


def uuid_of(data: bytes) -> str:
    """As vLLM's proxy makes it: of the URL's text."""
    return hashlib.sha256(url_of(data).encode()).hexdigest()


async def test_pictures_are_held_under_their_content_keys(client: httpx.AsyncClient, fake: FakeService) -> None:
    text = {"type": "text", "text": "what is this?"}
    answer = await client.post(CHAT, json=chat_of(text, part_of(picture(300, 200)), part_of(picture())))
    assert answer.status_code == 200, answer.text
    completion = answer.json()
    assert completion["object"] == "chat.completion"
    assert completion["choices"][0]["message"] == {"role": "assistant", "content": ""}
    plain = await client.post("/encode", json={"images": [url_of(picture(300, 200)), url_of(picture())]})
    for i, row in enumerate(plain.json()["data"]):
        held = completion["ec_transfer_params"][row["key"]]
        assert (held["modality"], held["item_indices"]) == ("image", [i])
        assert held["metadata"] == {"image_grid_thw": row["grid_thw"]}
        assert (await client.get(f"/embeddings/{row['key']}")).status_code == 200
    assert completion["usage"] == {
        "prompt_tokens": plain.json()["usage"]["tokens"],
        "completion_tokens": 0,
        "total_tokens": plain.json()["usage"]["tokens"],
    }


async def test_the_proxys_name_for_a_picture_is_where_it_is_held(client: httpx.AsyncClient) -> None:
    uuid = uuid_of(picture())
    held = (await client.post(CHAT, json=chat_of(part_of(picture(), uuid=uuid)))).json()["ec_transfer_params"]
    assert set(held) == {uuid} and held[uuid]["content_key"] != uuid
    fetched = await client.get(f"/embeddings/{uuid}")
    assert f'"key":"{uuid}","content_key":"{held[uuid]["content_key"]}"'.encode() in fetched.content


@pytest.mark.parametrize("uuid", ["../../etc", "0" * 64, 7, ["a"], uuid_of(picture(text="another"))], ids=str)
async def test_a_name_that_says_nothing_of_its_picture_is_refused(client: httpx.AsyncClient, uuid: object) -> None:
    answer = await client.post(CHAT, json=chat_of(part_of(picture(), uuid=uuid)))
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages[0].content[0]"
    assert "sha256" in answer.json()["error"]["message"]


async def test_the_same_picture_twice_is_one_entry_with_two_places(client: httpx.AsyncClient) -> None:
    chat = chat_of(part_of(picture()), part_of(picture(text="b")), part_of(picture()))
    held = (await client.post(CHAT, json=chat)).json()["ec_transfer_params"]
    assert sorted(entry["item_indices"] for entry in held.values()) == [[0, 2], [1]]


async def test_a_bad_picture_is_named_by_its_place_and_nothing_is_held(
    client: httpx.AsyncClient, fake: FakeService
) -> None:
    chat = chat_of({"type": "text", "text": "x"}, part_of(picture()), part_of(b"FAKE BAD"))
    answer = await client.post(CHAT, json=chat)
    assert answer.status_code == 422 and answer.json()["error"]["param"] == "messages[0].content[2]"
    assert len(fake.handover.promises) == 0


@pytest.mark.parametrize(
    ("chat", "status", "words"),
    [
        (chat_of({"type": "text", "text": "hello"}), 400, "--llm-url"),
        (chat_of(part_of(picture()), stream=True), 400, "stream"),
        (chat_of(part_of(picture()), model="other"), 404, "other"),
        (chat_of(part_of(picture()), mm_processor_kwargs={"max_pixels": 4}), 400, "mm_processor_kwargs"),
        (chat_of(part_of(picture()), {"type": "video_url", "video_url": {"url": "x"}}), 400, "no video_url"),
        (chat_of(part_of(picture()), {"type": "image_embeds", "image_embeds": {}}), 400, "no image_embeds"),
        (chat_of(part_of(picture()), priority="high"), 400, "priority"),
        (chat_of(*[part_of(picture())] * 5), 413, "4"),
        ([], 400, "JSON object"),
        ({"messages": 7}, 400, "no picture"),
        (chat_of(part_of(picture()), model=7), 400, "model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_would_be_answered_wrongly_is_refused(
    client: httpx.AsyncClient, chat: object, status: int, words: str
) -> None:
    answer = await client.post(CHAT, json=chat)
    assert answer.status_code == status and words in answer.json()["error"]["message"]


async def test_empty_processor_options_and_what_samples_is_ignored(client: httpx.AsyncClient) -> None:
    chat = chat_of(part_of(picture()), mm_processor_kwargs={}, media_io_kwargs=None, max_tokens=1, temperature=0)
    assert (await client.post(CHAT, json=chat | {"model": None, "priority": -3})).status_code == 200


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(["image_url", url_of(picture())]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "image_url", "url", "uuid", "role", "content"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.fixed_dictionaries({}, optional={name: JSON for name in ("messages", "model", "priority", "stream")}))
async def test_no_chat_whatever_is_a_fault_of_the_server(chat: dict[str, Any]) -> None:
    fake = fake_service()
    server = Server(Settings(), fake.metrics, service=fake.service)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(create_app(server)), base_url="http://f") as client:
        assert (await client.post(CHAT, json=chat)).status_code < 500
