"""`Outgoing`: a request's body on its way to an LLM server, in pieces; no whole copy of it is ever made.

It consists of stretches of the caller's own body and, between them, of embeddings: base64 of torch archives whose
values lie in shared memory, encoded piece by piece while the one before is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pybase64

from foveal.handover.chat import ImagePart
from foveal_client._torch_archive import TorchArchive

PIECE_BYTES = 3 << 18
"""A multiple of 3, so that base64 of pieces is base64 of the whole."""

Segment = bytes | memoryview | TorchArchive


class Outgoing:
    """Segments that follow one another; an archive among them is sent as base64. May be sent more than once."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self.num_bytes = sum(_length(segment) for segment in segments)

    def pieces(self) -> Iterator[bytes | memoryview]:
        """The body, in pieces of at most 1 MiB."""
        for segment in self._segments:
            if isinstance(segment, TorchArchive):
                yield from _base64_pieces(segment)
            else:
                view = memoryview(segment)
                for at in range(0, len(view), PIECE_BYTES):
                    yield view[at : at + PIECE_BYTES]


def replaced(body: bytes, parts: Sequence[ImagePart], by: Sequence[Sequence[Segment]]) -> Outgoing:
    """The body with each part's bytes replaced by other segments; `parts` are in order."""
    view = memoryview(body)
    segments: list[Segment] = []
    at = 0
    for part, replacement in zip(parts, by, strict=True):
        segments += (view[at : part.start], *replacement)
        at = part.stop
    return Outgoing([*segments, view[at:]])


def _length(segment: Segment) -> int:
    if isinstance(segment, TorchArchive):
        return -(-segment.num_bytes // 3) * 4
    return len(segment)


def _base64_pieces(archive: TorchArchive) -> Iterator[bytes]:
    values = archive.values
    whole = len(values) - len(values) % 3
    yield pybase64.b64encode(archive.head)  # a multiple of 3 bytes
    for at in range(0, whole, PIECE_BYTES):
        yield pybase64.b64encode(values[at : min(at + PIECE_BYTES, whole)])
    yield pybase64.b64encode(bytes(values[whole:]) + archive.tail)
