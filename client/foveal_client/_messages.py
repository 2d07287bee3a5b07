"""OpenAI chat messages with pictures → the same messages with embeddings in their place. Encodes through a client.

For a program that talks to vLLM itself. Parts that are no pictures, and messages without any, pass unchanged. Errors
name the place: `messages[0].content[1]`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from foveal_client._client import AsyncClient, Client
from foveal_client._errors import APIStatusError
from foveal_client._handover import InvalidEmbedding
from foveal_client._images import Url, read_image
from foveal_client._types import Embedding, EncodeKeywords, Held

Message = Mapping[str, Any]
_FETCHED = ("http://", "https://", "data:")
_PARAM = re.compile(r"images\[([0-9]+)\]")


def vllm_messages(
    messages: Iterable[Message], client: Client, *, by_key: bool = False, **options: Unpack[EncodeKeywords]
) -> list[dict[str, Any]]:
    """New messages whose `image_url` parts are vLLM's `image_embeds` parts, encoded in one request of `client`.

    With `by_key` the server holds the rows and the messages name them, for a vLLM that fetches (`FovealConnector`).
    A part's url is a data-URI, or http(s), which the foveal server fetches if it may. A part's own `uuid` is dropped:
    vLLM trusts it as the name of the picture, so it must be the content key. Raises ValueError for any other url (a
    path in a message must not read a file here), TypeError for messages, parts or a client that are none,
    InvalidEmbedding as `Embedding.to_vllm_part`, and as `encode` does.
    """
    if not isinstance(client, Client):
        raise TypeError(f"vllm_messages takes a Client, not {_kind(client)}; an AsyncClient: vllm_messages_async")
    chat = _Chat.read(messages)
    if not chat.places:
        return chat.replaced([])
    images = chat.images()
    with _naming(chat.places):
        return chat.replaced(client.hold(images, **options) if by_key else client.encode(images, **options))


async def vllm_messages_async(
    messages: Iterable[Message], client: AsyncClient, *, by_key: bool = False, **options: Unpack[EncodeKeywords]
) -> list[dict[str, Any]]:
    """Awaited twin of `vllm_messages`."""
    if not isinstance(client, AsyncClient):
        raise TypeError(f"vllm_messages_async takes an AsyncClient, not {_kind(client)}; a Client: vllm_messages")
    chat = _Chat.read(messages)
    if not chat.places:
        return chat.replaced([])
    images = await asyncio.to_thread(chat.images)
    with _naming(chat.places):
        found = await client.hold(images, **options) if by_key else await client.encode(images, **options)
        return chat.replaced(found)


@dataclass(frozen=True)
class _Chat:
    """Messages that were read once, so that iterators may be among them."""

    messages: list[Message]
    contents: list[list[Any]]
    """Parts of each message; none where its content is text."""
    places: list[tuple[int, int]]
    """Message and part of each picture, in order."""

    @classmethod
    def read(cls, messages: Iterable[Message]) -> _Chat:
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
            raise TypeError(f"messages must be a list of dicts, not {_kind(messages)}")
        chat = cls(list(messages), [], [])
        for i, message in enumerate(chat.messages):
            if not isinstance(message, Mapping):
                raise TypeError(f"messages[{i}] must be a dict, not {_kind(message)} (pydantic has .model_dump())")
            chat.contents.append(_parts(message.get("content"), i))
            chat.places.extend((i, j) for j, part in enumerate(chat.contents[i]) if _is_picture(part))
        return chat

    def images(self) -> list[bytes | str]:
        """What is to be encoded: a file's bytes, or a URL."""
        return [_image(self.contents[i][j], _name((i, j))) for i, j in self.places]

    def replaced(self, embeddings: Sequence[Embedding | Held]) -> list[dict[str, Any]]:
        """The messages with `embeddings` at the pictures' places."""
        new = [list(parts) for parts in self.contents]
        for (i, j), embedding in zip(self.places, embeddings, strict=True):
            try:
                new[i][j] = embedding.to_vllm_part()
            except InvalidEmbedding as error:
                raise InvalidEmbedding(f"{_name((i, j))}: {error}") from error
        changed = {i for i, _ in self.places}
        return [
            {**message, "content": new[i]}
            if i in changed or isinstance(message.get("content"), Iterator)
            else {**message}
            for i, message in enumerate(self.messages)
        ]


def _parts(content: object, i: int) -> list[Any]:
    """The parts of one message. Raises TypeError where a picture could stand that is not seen here."""
    if content is None or isinstance(content, str):
        return []
    if isinstance(content, (bytes, Mapping)) or not isinstance(content, Iterable):
        raise TypeError(f"messages[{i}].content must be a text or a list of parts, not {_kind(content)}")
    parts = list(content)
    for j, part in enumerate(parts):
        if not isinstance(part, (str, Mapping)):
            raise TypeError(f"{_name((i, j))} must be a dict, not {_kind(part)} (pydantic has .model_dump())")
    return parts


def _is_picture(part: str | Mapping[str, Any]) -> bool:
    """As vLLM decides it: by the type, and where there is none by the field."""
    if isinstance(part, str):
        return False
    kind = part.get("type")
    return kind in ("image_url", "input_image") or (kind is None and part.get("image_url") is not None)


def _image(part: Mapping[str, Any], name: str) -> bytes | str:
    """The picture of a part whose address is in OpenAI's form or a bare string. Raises ValueError."""
    found = part.get("image_url")
    url = found.get("url") if isinstance(found, Mapping) else found
    if not isinstance(url, str) or not url[:8].lower().startswith(_FETCHED):
        raise ValueError(f"{name}: image_url needs a url of http, https or data, not {str(url)[:40]!r}")
    try:
        source = read_image(url)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return source.address if isinstance(source, Url) else source


@contextlib.contextmanager
def _naming(places: Sequence[tuple[int, int]]) -> Iterator[None]:
    """An error that the server has of its `images[1]` names the place in the messages."""
    try:
        yield
    except APIStatusError as error:
        if (match := _PARAM.fullmatch(error.param or "")) and int(match[1]) < len(places):
            error.param = _name(places[int(match[1])])
        raise


def _name(place: tuple[int, int]) -> str:
    return f"messages[{place[0]}].content[{place[1]}]"


def _kind(found: object) -> str:
    return f"a {type(found).__name__}"
