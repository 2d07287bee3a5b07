"""A picture in, its embedding out, through the real processes and the SDK."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveal_client import AsyncClient, Client, Undecodable

from .conftest import Running

PICTURES = sorted((Path(__file__).parents[2] / "service/foveal/demo/pictures").glob("*.[jpw][pne][gb]*"))


def noise(width: int, height: int, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels).save(sink, "PNG")
    return sink.getvalue()


def test_every_intake_gives_the_same_bits(server: Running) -> None:
    path = next(p for p in PICTURES if p.name == "cat.jpg")
    with Client(server.url) as client:
        by_path = client.encode(path)
        by_bytes = client.encode(path.read_bytes())
        by_pixels = client.encode(np.asarray(Image.open(path).convert("RGB")))
        several = client.encode([path.read_bytes(), noise(64, 64, 1)])
    for other in (by_bytes, by_pixels, several[0]):
        assert other.values.tobytes() == by_path.values.tobytes()
        assert other.grid_thw == by_path.grid_thw
    assert by_path.values.shape == (by_path.tokens, 192)


def test_a_picture_has_the_same_embedding_alone_and_in_company(server: Running) -> None:
    shots = [noise(40 + 30 * i, 200 - 20 * i, i) for i in range(8)]
    with Client(server.url) as client:
        alone = [client.encode(shot, dtype="float32", background="#000001") for shot in shots]
        together = client.encode(shots, dtype="float32", background="#000002")
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a.values, b.values, rtol=1e-4, atol=1e-4)


async def test_many_callers_at_once_get_their_own(server: Running) -> None:
    shots = [noise(33 + i, 50 + 2 * i, 100 + i) for i in range(24)]
    async with AsyncClient(server.url) as client:
        found = await asyncio.gather(*(client.encode(shot, dtype="float32") for shot in shots))
        again = [await client.encode(shot, dtype="float32", background="black") for shot in shots]
    for a, b in zip(found, again, strict=True):
        np.testing.assert_allclose(a.values, b.values, rtol=1e-4, atol=1e-4)
    assert server.metric("foveal_inflight_items") == 0


def test_a_damaged_picture_is_refused_and_the_next_one_works(server: Running) -> None:
    path = next(p for p in PICTURES if p.name == "cat.jpg")
    with Client(server.url) as client:
        with pytest.raises(Undecodable) as refusal:
            client.encode(path.read_bytes()[:5000])
        assert refusal.value.param == "images[0]"
        assert client.encode(path).tokens > 0


def test_nothing_stays_in_the_arenas_beside_the_cache(server: Running) -> None:
    assert server.metric("foveal_inflight_bytes") == 0
    assert server.metric("foveal_queue_items") == 0
