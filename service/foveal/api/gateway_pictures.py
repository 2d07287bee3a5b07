"""From a chat request to the body for the LLM server: pictures are encoded, and their parts replaced."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson
from starlette.requests import Request

from foveal.api.context import context_of
from foveal.api.intake import source_of_text
from foveal.api.multipart import too_many_images
from foveal.api.options import read_options, wishes_of
from foveal.api.serving import Entered, body_of, fetched, timing, unless_gone
from foveal.engine.items import Encoded
from foveal.errors import FovealError
from foveal.families.spec import ModelSpec
from foveal.fetch.images import Source
from foveal.handover.chat import ImagePart, find_images, model_of
from foveal.handover.outgoing import Outgoing, Segment, replaced
from foveal.handover.service import hold
from foveal_client._handover import InvalidEmbedding, validate_grid
from foveal_client._torch_archive import torch_archive
from foveal_client._vllm import grid_part

OFF_LOOP_BYTES = 1 << 20
"""Above this, a body is searched and a checksum made in a thread."""


@dataclass(frozen=True)
class ToSend:
    """A request as an LLM server gets it."""

    body: Outgoing | None
    has_embeddings: bool = False
    model: str | None = None
    """That it names; only looked for where it has embeddings."""
    times: str | None = None
    """The Server-Timing of what was encoded for it."""


async def with_embeddings(request: Request, entered: Entered) -> ToSend:
    """The body with embeddings for pictures, and the times of encoding; one without pictures as it is."""
    body = await body_of(request, entered.server, entered.visit)
    parts = await asyncio.to_thread(find_images, body) if len(body) > OFF_LOOP_BYTES else find_images(body)
    if not parts:
        return ToSend(Outgoing([body]))
    assert entered.server.upstreams is not None, "pictures for an LLM server without --llm-url: this is a bug"
    entered.server.upstreams.refuse_unless_usable()
    if len(parts) > entered.server.settings.max_images_per_request:
        raise too_many_images(entered.server.settings.max_images_per_request)
    encoded = await unless_gone(request.receive, _encoded(request, entered, parts))
    context_of(request).stages.current = "handover"
    replacements = await _replacements(entered, encoded)
    times = timing(request, entered.server, encoded)
    return ToSend(replaced(body, parts, replacements), True, model_of(body), times)


async def _encoded(request: Request, entered: Entered, parts: Sequence[ImagePart]) -> list[Encoded]:
    """The embeddings of all parts, in order; pictures that are sent twice are read, fetched and encoded once."""
    sources = _sources(parts, entered)
    places = {source: part.path for source, part in zip(reversed(sources), reversed(parts), strict=True)}
    engine = entered.service.engine
    once = list(dict.fromkeys(sources))
    with _named([places[source] for source in once]):
        images = await fetched(request, once, "images", entered.visit)
        found = await engine.encode(images, wishes_of(read_options({}), engine.spec), entered.visit)
    of_source = dict(zip(once, found, strict=True))
    return [of_source[source] for source in sources]


def _sources(parts: Sequence[ImagePart], entered: Entered) -> list[Source]:
    found = []
    for part in parts:
        try:
            found.append(source_of_text(part.text, entered.server.url_rules))
        except FovealError as error:
            raise error.at(part.path) from None
    return found


@contextlib.contextmanager
def _named(paths: Sequence[str]) -> Iterator[None]:
    """Errors that name an image by its number name its place in the chat instead."""
    try:
        yield
    except FovealError as error:
        number = re.fullmatch(r"images\[(\d+)\]", error.param or "")
        raise (error.at(paths[int(number[1])]) if number else error) from None


async def _replacements(entered: Entered, encoded: Sequence[Encoded]) -> list[list[Segment]]:
    """What stands for each picture. In the form `keys` the LLM server fetches: it must be there before it is told."""
    for one in encoded:
        _check(entered.service.engine.spec, one)
    if entered.server.settings.llm_handover == "keys":
        await hold(entered.service, encoded)
        return [[orjson.dumps(grid_part(one.grid, one.key))] for one in encoded]
    once = {one.key: one for one in encoded}
    whole = {key: await _whole_part(one) for key, one in once.items()}
    return [whole[one.key] for one in encoded]


async def _whole_part(one: Encoded) -> list[Segment]:
    values = one.embedding.view.data
    if one.num_bytes > OFF_LOOP_BYTES:
        archive = await asyncio.to_thread(torch_archive, values, one.output.dtype, one.shape)
    else:
        archive = torch_archive(values, one.output.dtype, one.shape)
    part = grid_part(one.grid, one.key)
    part["image_embeds"] = {"image_embeds": "", **part["image_embeds"]}
    head, tail = orjson.dumps(part).split(b'""')
    return [head + b'"', archive, b'"' + tail]


def _check(spec: ModelSpec, one: Encoded) -> None:
    """What must hold before an LLM server sees it: one wrong side has been seen to end a whole engine.

    That all values are finite was checked by the worker, row by row, in the dtype asked for (`gpu/copy_out.py`): an
    image of which one is not has failed before it came here.
    """
    try:
        validate_grid(one.grid, spec.tower.merge_size)
    except InvalidEmbedding as error:
        raise FovealError(f"an embedding has no possible grid, {error}: this is a bug") from None
    if one.shape != (one.grid.num_patches // spec.tower.merge_size**2, spec.width):
        raise FovealError(f"an embedding of shape {one.shape} does not belong to the grid {one.grid}: this is a bug")
