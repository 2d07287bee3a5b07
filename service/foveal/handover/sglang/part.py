"""What SGLang asks for: the images of one part of a request, and where their rows are to go.

SGLang splits the images of a request over its encoders; each share is a part with an id of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from foveal.engine.items import Encoded
from foveal.errors import InvalidRequest

MAX_ID_LENGTH = 512
MAX_PARTS = 1 << 16
MAX_RECEIVERS = 1024
"""Ranks of one language server."""
_HASH = "sha256:"

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_LENGTH)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Host = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
Backend = Literal["tokenizer", "scheduler"]
Asked = TypeVar("Asked", bound=msgspec.Struct)


class Part(msgspec.Struct, frozen=True):
    """The body of SGLang's `POST /encode`. What else it says is of no use here."""

    req_id: Id
    num_parts: Annotated[int, msgspec.Meta(ge=1, le=MAX_PARTS)]
    part_idx: Annotated[int, msgspec.Meta(ge=0)]
    modality: str
    mm_items: list[Any]
    prefill_host: Host | None = None
    embedding_port: Port | None = None
    """Where the tokenizer listens for this request; None: the ranks of the scheduler say where they do."""

    @property
    def backend(self) -> Backend:
        """SGLang's `--encoder-transfer-backend`, without `zmq_to_`."""
        return "scheduler" if self.embedding_port is None else "tokenizer"


class Receiver(msgspec.Struct, frozen=True):
    """The body of `POST /scheduler_receive_url`: one rank's socket for one part."""

    req_id: Id
    receive_count: Annotated[int, msgspec.Meta(ge=1, le=MAX_RECEIVERS)]
    """Ranks that will each say where they listen."""
    receive_url: Host
    """host:port."""


def read(content: Mapping[str, Any], kind: type[Asked]) -> Asked:
    """Check a body; raises InvalidRequest with what is wrong."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body is none of SGLang's: {error}") from None


def read_part(content: Mapping[str, Any]) -> Part:
    """A part with images; raises InvalidRequest."""
    part = read(content, Part)
    if part.modality.upper() != "IMAGE":
        raise InvalidRequest(
            f"only images are encoded here, not {part.modality[:20].lower()}: this model's tower is served for images "
            "alone; let the language server refuse other media (--limit-mm-data-per-request)",
            param="modality",
        )
    if part.part_idx >= part.num_parts:
        raise InvalidRequest(f"part_idx {part.part_idx} is not below num_parts {part.num_parts}", param="part_idx")
    if part.embedding_port is not None and part.prefill_host is None:
        raise InvalidRequest("embedding_port is given without prefill_host", param="prefill_host")
    return part


def check_hashes(items: Sequence[Any], encoded: Sequence[Encoded]) -> None:
    """Where an item says which content it is, its bytes must be that; raises InvalidRequest."""
    for i, (item, image) in enumerate(zip(items, encoded, strict=True)):
        named = item.get("content_hash") if isinstance(item, dict) else None
        if named is not None and str(named).lower() != _HASH + image.sha256:
            raise InvalidRequest(
                f"the image is {_HASH}{image.sha256}, and content_hash says otherwise", param=f"mm_items[{i}]"
            )
