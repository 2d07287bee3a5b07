"""Pictures and conversations to ask about. Every way of handing over sends other bytes of the same pixels."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image, PngImagePlugin

Replace = Callable[[list[bytes]], list[dict[str, Any]]]
"""Encoded pictures → their parts in a message."""

SIZES = ((160, 128), (96, 192), (256, 96), (64, 64), (320, 240))


def picture(number: int, mark: str, size: tuple[int, int] | None = None) -> bytes:
    """A PNG of blots. Pixels depend on `number` alone; `mark` makes the bytes, and so every cache's key, another's."""
    width, height = size or SIZES[number % len(SIZES)]
    blots = np.random.default_rng(number).integers(0, 255, (height // 16, width // 16, 3), np.uint8)
    told = PngImagePlugin.PngInfo()
    told.add_text("mark", mark)
    buffer = io.BytesIO()
    Image.fromarray(blots).resize((width, height), Image.Resampling.NEAREST).save(buffer, "PNG", pnginfo=told)
    return buffer.getvalue()


CONVERSATIONS: dict[str, list[list[int]]] = {
    "one image": [[0]],
    "two images": [[1, 2]],
    "five images": [[0, 1, 2, 3, 4]],
    "same twice": [[3, 3]],
    "two turns": [[4], [2]],
}
"""Numbers of the pictures in each turn of the user's."""


def messages(turns: list[list[int]], mark: str, replace: Replace) -> list[dict[str, Any]]:
    """A conversation, its pictures put in by `replace`, which is asked once for all of them."""
    pictures = [picture(number, mark) for turn in turns for number in turn]
    parts = iter(replace(pictures))
    found: list[dict[str, Any]] = []
    for place, turn in enumerate(turns):
        if place:
            found.append({"role": "assistant", "content": "I see."})
        text = {"type": "text", "text": f"What is on them, in {len(turn)} words?"}
        found.append({"role": "user", "content": [*(next(parts) for _ in turn), text]})
    return found


def as_urls(pictures: list[bytes]) -> list[dict[str, Any]]:
    """OpenAI's own form."""
    return [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(each).decode()}}
        for each in pictures
    ]
