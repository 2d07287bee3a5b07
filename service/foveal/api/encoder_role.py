"""`POST /v1/chat/completions` of a server without LLM behind it: the encoder of a vLLM-style proxy.

The proxy sends the pictures of a chat, and is told under which names their embeddings are held and what their grids
are. It then asks an LLM server with these instead of pictures (docs/handover.md).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from foveal.api.context import Server, context_of
from foveal.api.encode import Answer, fetch_and_encode, serve
from foveal.api.intake import images_of, parsed_object
from foveal.api.options import Options, wishes_of
from foveal.api.serving import pictures_of, unless_gone
from foveal.engine.admission import Visit
from foveal.engine.items import Encoded
from foveal.errors import FovealError, InvalidRequest
from foveal.families.spec import ModelSpec
from foveal.handover.chat import ImagePart, find_images
from foveal.handover.service import NOTHING_HELD, HandoverService, hold

MAX_PRIORITY = 10**6
_OTHER_MEDIA = ("audio_url", "input_audio", "video_url", "image_embeds", "audio_embeds", "video_embeds")


async def chat_completions(request: Request) -> Response:
    """Pictures of a chat in, names and grids of their embeddings out, as an empty completion."""
    return await serve(request, _answer)


async def _answer(request: Request, server: Server, service: HandoverService, visit: Visit) -> Answer:
    body = await pictures_of(request, server, service, visit)
    spec = service.engine.spec
    parts, names, options = read_chat(body, spec, service.handover.is_on)
    del body
    work = _encode_and_hold(request, server, service, visit, parts, names, options)
    encoded = await unless_gone(request.receive, work)
    completion = completion_of(context_of(request).request_id, spec, encoded, names)
    return "application/json", [orjson.dumps(completion)], encoded


async def _encode_and_hold(
    request: Request,
    server: Server,
    service: HandoverService,
    visit: Visit,
    parts: Sequence[ImagePart],
    names: list[str | None],
    options: Options,
) -> list[Encoded]:
    try:
        texts = [part.text for part in parts]
        sources = images_of(texts, "images", server.settings.max_images_per_request, server.url_rules)
        wishes = wishes_of(options, service.engine.spec)
        encoded = await fetch_and_encode(request, service, sources, "images", wishes, visit)
    except FovealError as error:
        paths = {f"images[{i}]": part.path for i, part in enumerate(parts)}
        raise (error.at(paths[error.param]) if error.param in paths else error) from None
    await hold(service, encoded, [name or one.key for name, one in zip(names, encoded, strict=True)])
    return encoded


def read_chat(body: bytes, spec: ModelSpec, is_on: bool) -> tuple[list[ImagePart], list[str | None], Options]:
    """The pictures, the name that the proxy gave each, and the options of a chat; raises InvalidRequest.

    Text, and what only matters to a language model, is ignored.
    """
    parts = find_images(body)
    chat = parsed_object(body, '{"messages": [...]}')
    _refuse(chat, parts, spec, is_on)
    names = [_name(part, orjson.loads(body[part.start : part.stop])) for part in parts]
    priority = chat.get("priority") or 0
    if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > MAX_PRIORITY:
        raise InvalidRequest(f"priority: send a whole number within {MAX_PRIORITY}", param="priority")
    return parts, names, Options(model=chat.get("model"), output="tokens", priority=-priority)  # theirs: smaller first


def _refuse(chat: Mapping[str, Any], parts: Sequence[ImagePart], spec: ModelSpec, is_on: bool) -> None:
    """Raise InvalidRequest for what would be answered wrongly."""
    if not is_on:
        raise InvalidRequest(NOTHING_HELD)
    if spec.default_output != "tokens":
        raise InvalidRequest(f"{spec.name} feeds no language model; use /encode")
    for path, kind in _kinds(chat.get("messages")):
        if kind in _OTHER_MEDIA:
            raise InvalidRequest(f"this server encodes pictures, no {kind}", param=path)
    if not parts:
        raise InvalidRequest(
            "there is no picture to encode, and this server has no language model to answer; set --llm-url to put one "
            "behind it",
            param="messages",
        )
    if chat.get("stream"):
        raise InvalidRequest("stream: an encoder answers once; leave it out", param="stream")
    if not isinstance(chat.get("model"), str | None):
        raise InvalidRequest("model: send the served model's name", param="model")


def _kinds(messages: object) -> Iterator[tuple[str, object]]:
    """Where each part of a chat is, and what it says that it is."""
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict):
                yield f"messages[{i}].content[{j}]", part.get("type")


def _name(part: ImagePart, content: Mapping[str, Any]) -> str | None:
    """The `uuid` that a proxy gave a picture, under which it will tell the LLM server to look; None without one.

    Only a digest of what the part itself says is taken: a name of free choice could be that of another picture.
    """
    uuid = content.get("uuid")
    if uuid is None:
        return None
    if uuid != hashlib.sha256(part.text.encode()).hexdigest():
        raise InvalidRequest(
            "uuid: only the sha256 of the part's URL is taken as a name, as vLLM's proxy makes it; leave it out to "
            "have the picture held under the key that is answered",
            param=part.path,
        )
    return str(uuid)


def completion_of(
    request_id: str, spec: ModelSpec, encoded: Sequence[Encoded], names: Sequence[str | None]
) -> dict[str, Any]:
    """An empty completion; `ec_transfer_params` has the name and grid of each picture, and its places."""
    held: dict[str, dict[str, Any]] = {}
    for i, (one, name) in enumerate(zip(encoded, names, strict=True)):
        metadata = {"image_grid_thw": list(one.grid)}
        place = {"modality": "image", "item_indices": [], "metadata": metadata, "content_key": one.key}
        held.setdefault(name or one.key, place)["item_indices"].append(i)
    tokens = sum(one.num_tokens for one in encoded)
    return {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": spec.name,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens},
        "ec_transfer_params": held,
    }
