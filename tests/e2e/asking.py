"""One question to an OpenAI server, and the tokens with their log probabilities that came back, streamed or not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx

from tests.e2e.servers import MODEL

SECONDS = 120.0
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Said:
    """A greedy answer."""

    tokens: list[str]
    logprobs: list[float]

    def difference(self, other: Said) -> str:
        """Empty when both say the same within the tolerance."""
        if self.tokens != other.tokens:
            place = next((i for i, (a, b) in enumerate(zip(self.tokens, other.tokens, strict=False)) if a != b), -1)
            return f"other tokens from place {place} on"
        worst = self.distance(other)
        return "" if worst <= TOLERANCE else f"log probabilities differ by {worst:.1e}"

    def distance(self, other: Said) -> float:
        return max((abs(a - b) for a, b in zip(self.logprobs, other.logprobs, strict=True)), default=0.0)


def body(
    messages: list[dict[str, Any]], *, stream: bool = False, max_tokens: int = 16, model: str = MODEL
) -> dict[str, Any]:
    """The request's JSON: greedy, to the full length, with token numbers in place of texts that may not be UTF-8."""
    return {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 1,
        "ignore_eos": True,
        "return_tokens_as_token_ids": True,
        "stream": stream,
    }


def ask(
    url: str, messages: list[dict[str, Any]], *, stream: bool = False, max_tokens: int = 16, model: str = MODEL
) -> Said:
    """The answer. Raises httpx.HTTPStatusError for a refusal, ValueError for a stream that ends early."""
    request = body(messages, stream=stream, max_tokens=max_tokens, model=model)
    with httpx.Client(timeout=SECONDS, trust_env=False) as http:
        if not stream:
            answer = http.post(f"{url}/v1/chat/completions", json=request)
            answer.raise_for_status()
            return _said([answer.json()])
        with http.stream("POST", f"{url}/v1/chat/completions", json=request) as answer:
            if answer.status_code != 200:
                answer.read()
            answer.raise_for_status()
            return _said(_events(answer))


def _events(answer: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    if not lines or lines[-1] != "[DONE]":
        raise ValueError("the stream ended without [DONE]")
    return [json.loads(line) for line in lines[:-1]]


def _said(chunks: list[dict[str, Any]]) -> Said:
    if errors := [chunk for chunk in chunks if "choices" not in chunk]:
        raise ValueError(f"an error came in place of tokens: {errors[0]}")
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice.get("logprobs")]
    found = [entry for choice in choices for entry in choice["logprobs"]["content"]]
    return Said([entry["token"] for entry in found], [entry["logprob"] for entry in found])
