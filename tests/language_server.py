"""A language server as an encoder sees it: SGLang's receiver in small, with its allow-list and its checks.

Written after what SGLang 0.5.23 does; it imports nothing of it.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import io
import pickle
import uuid
from collections.abc import Sequence
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import zmq
import zmq.asyncio


class EmbeddingData:
    """Filled by the pickle alone: no constructor runs."""

    req_id: str
    num_parts: int
    part_idx: int
    grid_dim: list[list[int]] | None
    modality: Modality
    embedding: Any
    send_time: None
    dtype: Any
    shape: list[int] | None
    error_msg: str | None
    error_code: int | None


class Modality(enum.Enum):
    IMAGE = 1
    VIDEO = 2
    AUDIO = 3


ALLOWED = {
    ("sglang.srt.disaggregation.encoder.receiver", "EmbeddingData"): EmbeddingData,
    ("sglang.srt.managers.schedule_batch", "Modality"): Modality,
    ("torch", "bfloat16"): ml_dtypes.bfloat16,
    ("torch", "float16"): np.float16,
    ("torch", "float32"): np.float32,
}


class SafeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise RuntimeError(f"blocked: {module}.{name}")
        return ALLOWED[module, name]


def unpickled(data: bytes) -> EmbeddingData:
    found = SafeUnpickler(io.BytesIO(data)).load()
    assert type(found) is EmbeddingData
    return found


def data_uri(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


class Failed(Exception):
    """An error frame arrived."""

    def __init__(self, told: EmbeddingData) -> None:
        super().__init__(told.error_msg)
        self.told = told


class LanguageServer:
    """One request's life: parts are posted to the encoders, rows arrive at sockets, and are put in order."""

    def __init__(self, encoders: Sequence[httpx.AsyncClient], ranks: int = 0, path: str = "/sglang") -> None:
        """`ranks` of a scheduler wait for rows; 0: the tokenizer does."""
        self.encoders, self.ranks, self._path = encoders, ranks, path
        self._context = zmq.asyncio.Context()
        self.sockets = [self._context.socket(zmq.PULL) for _ in range(max(1, ranks))]
        self.ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in self.sockets]
        self.rid = uuid.uuid4().hex

    def close(self) -> None:
        self._context.destroy(linger=0)

    def parts(self, pictures: Sequence[Any]) -> list[dict[str, Any]]:
        """The bodies of all parts, the pictures divided evenly among the encoders."""
        shares = [share.tolist() for share in np.array_split(np.array(pictures, object), len(self.encoders))]
        return [
            {
                "encoder_idx": i,
                "encoder_url": f"http://encoder-{i}",
                "mm_items": share,
                "num_parts": len(shares),
                "part_idx": i,
                "req_id": f"{self.rid}_local_part_{i}",
                "modality": "IMAGE",
                "prefill_host": "127.0.0.1",
                "embedding_port": None if self.ranks else self.ports[0],
                "time_stats_json": None,
            }
            for i, share in enumerate(shares)
        ]

    async def encode(self, part: dict[str, Any]) -> httpx.Response:
        return await self.encoders[part["encoder_idx"]].post(f"{self._path}/encode", json=part)

    async def receive_url(self, part: dict[str, Any], rank: int, **other: Any) -> httpx.Response:
        body = {
            "req_id": part["req_id"],
            "receive_count": self.ranks,
            "receive_url": f"127.0.0.1:{self.ports[rank]}",
            "modality": "IMAGE",
        }
        return await self.encoders[part["encoder_idx"]].post(f"{self._path}/scheduler_receive_url", json=body | other)

    async def received(self, rank: int = 0, num_parts: int = 1) -> tuple[np.ndarray[Any, Any], list[list[int]]]:
        """The rows and grids of all parts in order, with the receiver's checks; raises Failed."""
        rows: dict[int, np.ndarray[Any, Any]] = {}
        grids: dict[int, list[list[int]]] = {}
        while len(rows) < num_parts:
            head, *frames = await self.sockets[rank].recv_multipart()
            data = unpickled(head)
            assert data.req_id == f"{self.rid}_local_part_{data.part_idx}" and data.num_parts == num_parts
            assert data.modality is Modality.IMAGE and data.embedding is None and data.send_time is None
            if data.error_msg is not None:
                raise Failed(data)
            assert data.part_idx not in rows and data.shape is not None and data.grid_dim is not None
            rows[data.part_idx] = np.frombuffer(frames[0], data.dtype).reshape(data.shape)
            grids[data.part_idx] = data.grid_dim
            assert sum(t * h * w // 4 for t, h, w in data.grid_dim) == data.shape[0]
        order = range(num_parts)
        return np.concatenate([rows[i] for i in order]), [grid for i in order for grid in grids[i]]

    async def ask(self, pictures: Sequence[Any]) -> list[tuple[np.ndarray[Any, Any], list[list[int]]]]:
        """What each rank has in the end."""
        parts = self.parts(pictures)
        posts = [self.encode(part) for part in parts]
        posts += [self.receive_url(part, rank) for part in parts for rank in range(self.ranks)]
        takes = [self.received(rank, len(parts)) for rank in range(len(self.sockets))]
        answers, taken = await asyncio.gather(asyncio.gather(*posts), asyncio.gather(*takes))
        for answer in answers:
            assert answer.status_code == 200 and answer.json() is None, answer.text
        return list(taken)
