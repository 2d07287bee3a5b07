"""Content keys: one name for one embedding, in the encoder cache, in answers and in front of an LLM server.

Two embeddings have the same key only if the same bytes were encoded by the same weights, in the same dtype, under the
same wishes. Nothing that a caller says is taken as a name: whoever could choose one could give others a wrong picture.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from foveal import __version__
from foveal.engine.items import Wishes
from foveal.families.spec import ModelSpec
from foveal.types import DType

HASH_OFF_LOOP_BYTES = 1 << 20
"""Above this, hashing goes to a thread (hashlib lets the loop run meanwhile)."""


class Keys:
    """Makes the keys of one served model."""

    def __init__(self, spec: ModelSpec, compute_dtype: DType) -> None:
        # the version too: a later one may cut pixels another way, and files of an earlier run may lie around
        parts = (__version__, spec.family, spec.architecture, spec.revision, spec.dummy_weights, compute_dtype)
        self._model = hashlib.sha256(msgspec.json.encode(parts))

    def of(self, sha256: str, wishes: Wishes, max_image_tokens: int) -> str:
        """64 hex digits for the image of these bytes under these wishes."""
        # the limit on tokens decides pixels only where larger pictures are scaled down to it
        limit = max_image_tokens if wishes.downscale else None
        found = self._model.copy()
        found.update(msgspec.json.encode((sha256, limit, *wishes.key())))
        return found.hexdigest()


async def sha256_of(image: bytes) -> str:
    """The hash of a picture as sent."""
    if len(image) > HASH_OFF_LOOP_BYTES:
        return (await asyncio.to_thread(hashlib.sha256, image)).hexdigest()
    return hashlib.sha256(image).hexdigest()
