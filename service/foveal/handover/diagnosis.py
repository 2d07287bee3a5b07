"""What an LLM server's refusal of embeddings, or its end over them, says about how it was started. Pure.

Its own words pass to the caller, who can do nothing about them; these are for its operator.
"""

from __future__ import annotations

import re

ENDED = (
    "its engine ended over embeddings: is it the very same checkpoint on both sides, and was it started without "
    '"image": 0 in --limit-mm-per-prompt? vLLM then forgets deepstack (Qwen3-VL, Qwen3-Omni)'
)
_SIGNS: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"EngineDead|EngineCore"), ENDED),
    (re.compile(rb"shape mismatch|cannot be broadcast"), ENDED),
    (
        re.compile(rb"--enable-mm-embeds"),
        "it takes no embeddings: start vLLM with --enable-mm-embeds, or with --ec-transfer-config for --llm-handover "
        "keys",
    ),
    (
        re.compile(rb"At most \d+ image"),
        "it takes no more pictures a prompt, and embeddings count: raise the limit of images in --limit-mm-per-prompt, "
        "or leave it out",
    ),
    (
        re.compile(rb"image_embeds"),
        "it refuses parts of the type image_embeds: vLLM takes them with --enable-mm-embeds, other servers may not at "
        "all",
    ),
)
_BROKEN_EVENT = re.compile(rb'^data: ?{"error"', re.MULTILINE)
"""In a stream that began well. A text that quotes it has its quotes escaped."""


def diagnose(status: int, said: bytes) -> str:
    """What to tell the operator of a server that answered so to embeddings; empty where there is nothing to tell."""
    if status < 400 and _BROKEN_EVENT.search(said) is None:
        return ""
    return next((advice for sign, advice in _SIGNS if sign.search(said)), "")
