"""OpenAI chat messages with pictures → the same messages with embeddings in their place. Encodes through a client.

For a program that talks to vLLM itself. Parts that are no pictures, and messages without any, pass unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from foveal_client._client import AsyncClient, Client
from foveal_client._types import Embedding, EncodeKeywords, Held

Message = Mapping[str, Any]
_FETCHED = ("http://", "https://", "data:")


def vllm_messages(
    messages: Sequence[Message], client: Client, *, by_key: bool = False, **options: Unpack[EncodeKeywords]
) -> list[dict[str, Any]]:
    """New messages whose `image_url` parts are vLLM's `image_embeds` parts, encoded in one request of `client`.

    With `by_key` the server holds the rows and the messages name them, for a vLLM that fetches (`FovealConnector`).
    A part's url is a data-URI, or http(s), which the foveal server fetches if it may. A part's own `uuid` is dropped:
    vLLM trusts it as the name of the picture, so it must be the content key. Raises ValueError for any other url (a
    path in a message must not read a file here), InvalidEmbedding as `Embedding.to_vllm_part`, and as `encode` does.
    """
    urls = list(_urls(messages))
    if not urls:
        return _replaced(messages, [])
    return _replaced(messages, client.hold(urls, **options) if by_key else client.encode(urls, **options))


async def vllm_messages_async(
    messages: Sequence[Message], client: AsyncClient, *, by_key: bool = False, **options: Unpack[EncodeKeywords]
) -> list[dict[str, Any]]:
    """Awaited twin of `vllm_messages`."""
    urls = list(_urls(messages))
    if not urls:
        return _replaced(messages, [])
    found = await client.hold(urls, **options) if by_key else await client.encode(urls, **options)
    return _replaced(messages, found)


def _urls(messages: Sequence[Message]) -> Iterator[str]:
    """Addresses of all pictures, in order."""
    for place, message in enumerate(messages):
        for part in _parts(message):
            if _is_picture(part):
                yield _url(part, place)


def _replaced(messages: Sequence[Message], embeddings: Sequence[Embedding] | Sequence[Held]) -> list[dict[str, Any]]:
    in_order: Iterator[Embedding | Held] = iter(embeddings)
    return [_replace(message, in_order) for message in messages]


def _replace(message: Message, embeddings: Iterator[Embedding | Held]) -> dict[str, Any]:
    if not any(_is_picture(part) for part in _parts(message)):
        return dict(message)
    content = [next(embeddings).to_vllm_part() if _is_picture(part) else part for part in _parts(message)]
    return {**message, "content": content}


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_picture(part: object) -> bool:
    """As vLLM decides it: by the type, and where there is none by the field."""
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return kind in ("image_url", "input_image") or (kind is None and part.get("image_url") is not None)


def _url(part: Mapping[str, Any], place: int) -> str:
    """The address in a part, in OpenAI's form or as a bare string."""
    found = part.get("image_url")
    url = found.get("url") if isinstance(found, Mapping) else found
    if not isinstance(url, str) or not url[:8].lower().startswith(_FETCHED):
        raise ValueError(f"messages[{place}]: image_url needs a url of http, https or data, not {str(url)[:40]!r}")
    return url
