"""`FovealConnector`: a vLLM that fetches embeddings from foveal by content key. Named in --ec-transfer-config.

vLLM makes two of them. The scheduler's fetches on a thread of its own, checks, and keeps the bytes in sealed anonymous
memory; the workers', of any number on the same host, only map what was checked. So an embedding travels once per
engine, a batch never waits for the network, and nothing that could fail reaches a worker. The thin part that knows
vLLM; the thinking is in `_ec.pickups` and `_ec.fetch`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

try:
    from vllm.distributed.ec_transfer.ec_connector.base import (
        ECConnectorBase,
        ECConnectorMetadata,
        ECConnectorRole,
        ECConnectorWorkerMetadata,
    )
except ImportError as error:
    raise ImportError(f"FovealConnector needs vLLM 0.32 or newer, and this one is older or none: {error}") from error

from foveal_client._ec.fetch import Need
from foveal_client._ec.memory import read_rows
from foveal_client._ec.pickups import Pickups
from foveal_client._ec.settings import PickupSettings, RowShape
from foveal_client._ec.thread import FetchThread
from foveal_client._handover import InvalidEmbedding, validate_grid, validate_key

GRID = "image_grid_thw"


@dataclass
class FovealMetadata(ECConnectorMetadata):
    """Scheduler → workers: what to load in this step, as key and path."""

    loads: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class FovealWorkerMetadata(ECConnectorWorkerMetadata):
    """Workers → scheduler: what every one of them has loaded. A step ends when all workers have ended it."""

    loaded: set[str] = field(default_factory=set)

    def aggregate(self, other: ECConnectorWorkerMetadata) -> FovealWorkerMetadata:
        """What several workers of one step say together."""
        assert isinstance(other, FovealWorkerMetadata)
        return FovealWorkerMetadata(self.loaded | other.loaded)


class FovealConnector(ECConnectorBase):
    """The scheduler's or a worker's half, as vLLM asks. Raises ValueError for a configuration that cannot work."""

    def __init__(self, vllm_config: Any, role: ECConnectorRole) -> None:
        super().__init__(vllm_config=vllm_config, role=role)
        if self.is_producer:
            raise ValueError('FovealConnector only fetches: set "ec_role" to "ec_consumer"')
        settings = PickupSettings.of(vllm_config.ec_transfer_config.ec_connector_extra_config)
        model = vllm_config.model_config
        self._dtype: torch.dtype = model.dtype
        self._loaded: set[str] = set()
        self._needs: dict[str, dict[int, Need | None]] = {}
        self._asked: dict[str, Need] = {}
        """By key, what the request needs that vLLM asks about at the moment."""
        self._pickups: Pickups | None = None
        self._thread: FetchThread | None = None
        if role == ECConnectorRole.SCHEDULER:
            _refuse_what_cannot_work(vllm_config)
            _log_as_vllm()
            self._shape = RowShape.of(model.hf_config, model.get_inputs_embeds_size())
            self._thread = FetchThread(settings)
            self._pickups = Pickups(self._thread.start, settings.max_bytes)

    def shutdown(self) -> None:
        """Stop fetching and let go of all memory."""
        if self._pickups is not None:
            self._pickups.close()
        if self._thread is not None:
            self._thread.close()

    # Scheduler

    def ensure_cache_available(self, request: Any, num_computed_tokens: int) -> bool:
        """True when all that the request still has to read is here; else it waits, and fetching goes on."""
        needs: list[Need] = []
        self._asked = {}
        for index, feature in enumerate(request.mm_features):
            if feature.mm_position.offset + feature.mm_position.length <= num_computed_tokens:
                continue
            try:
                need = self._need(request, index)
            except InvalidEmbedding as error:
                self._board.fail(request.request_id, str(error))
                return False
            if need is not None:
                needs.append(need)
        # vLLM asks for single keys right after this, without saying for whom. A picture of its own under another's key
        # must not be taken for one that we load.
        self._asked = {need.key: need for need in needs}
        return not needs or self._board.want(request.request_id, needs)

    def take_unavailable_requests(self) -> set[str]:
        """Requests whose embeddings will not come: vLLM ends these, and these alone, with an error."""
        return self._board.take_failed()

    def has_cache_item(self, identifier: str) -> bool:
        """True when the workers can load it in this very step."""
        return identifier in self._asked and self._board.has(self._asked[identifier])

    def update_state_after_alloc(self, request: Any, index: int) -> None:
        """vLLM has made room for one picture of a request that is being scheduled."""
        if (need := self._asked.get(request.mm_features[index].identifier)) is not None:
            self._board.load(request.request_id, need)

    def update_state_after_free(self, request: Any, index: int) -> None:
        """The request has read this picture."""
        # Asked about a request that has ended, nothing is known and nothing held.
        if (need := self._needs.get(request.request_id, {}).get(index)) is not None:
            self._board.release(request.request_id, need)

    def build_connector_meta(self, scheduler_output: Any) -> FovealMetadata:
        """What the workers load in this step."""
        return FovealMetadata(self._board.take_loads())

    def update_connector_output(self, connector_output: Any) -> None:
        """A step has ended on all workers."""
        if isinstance(found := connector_output.ec_connector_worker_meta, FovealWorkerMetadata):
            self._board.loaded(found.loaded)

    def request_finished(self, request: Any) -> tuple[bool, dict[str, Any] | None]:
        """Answered, failed or aborted: nothing is held for it any more."""
        self._needs.pop(request.request_id, None)
        self._board.finish(request.request_id)
        return False, None

    # Worker

    def start_load_caches(self, encoder_cache: dict[str, torch.Tensor], **kwargs: Any) -> None:
        """Put this step's rows on the device, in the model's dtype."""
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, FovealMetadata)
        for key, path in metadata.loads:
            if key not in encoder_cache:
                encoder_cache[key] = _tensor(path).to(_device(), self._dtype, copy=True)
            self._loaded.add(key)

    def build_connector_worker_meta(self) -> FovealWorkerMetadata | None:
        """What was loaded since the last call."""
        loaded, self._loaded = self._loaded, set()
        return FovealWorkerMetadata(loaded) if loaded else None

    def save_caches(self, encoder_cache: dict[str, torch.Tensor], mm_hash: str, **kwargs: Any) -> None:
        """Nothing: foveal encodes, vLLM only reads."""

    @property
    def _board(self) -> Pickups:
        assert self._pickups is not None, "the scheduler's half was asked of a worker: this is a bug"
        return self._pickups

    def _need(self, request: Any, index: int) -> Need | None:
        """What one picture of a request needs; None when vLLM has its data. Raises InvalidEmbedding."""
        known = self._needs.setdefault(request.request_id, {})
        if index not in known:
            known[index] = _need_of(request.mm_features[index], self._shape)
        return known[index]


def _need_of(feature: Any, shape: RowShape) -> Need | None:
    """A picture that came with nothing but its grid is to be fetched; any other is vLLM's own business."""
    data: Mapping[str, Any] | None = feature.data
    if data is None or set(data) != {GRID}:
        return None
    grid = validate_grid(data[GRID].data.flatten().tolist(), shape.merge_size)
    need = Need(validate_key(feature.identifier), grid, shape.width, shape.merge_size)
    if need.num_tokens != (wanted := feature.mm_position.get_num_embeds()):
        raise InvalidEmbedding(f"a grid of {list(grid)} gives {need.num_tokens} tokens, the prompt has {wanted}")
    return need


def _tensor(path: str) -> torch.Tensor:
    rows = read_rows(path)
    if rows.dtype.name == "bfloat16":
        return torch.from_numpy(rows.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(rows)


def _device() -> str:
    from vllm.platforms import current_platform

    kind = str(current_platform.device_type)
    # Without an index it would be the first device, whichever worker this is.
    return f"{kind}:{current_platform.current_device()}" if current_platform.is_cuda_alike() else kind


def _refuse_what_cannot_work(vllm_config: Any) -> None:
    parallel, multimodal = vllm_config.parallel_config, vllm_config.model_config.multimodal_config
    if getattr(parallel, "nnodes", 1) > 1 or getattr(parallel, "distributed_executor_backend", None) == "ray":
        raise ValueError("FovealConnector needs scheduler and workers on one host: no --nnodes, no ray executor")
    if getattr(multimodal, "mm_processor_cache_type", None) == "shm":
        raise ValueError("FovealConnector cannot see grids in shared memory: set --mm-processor-cache-type lru")


def _log_as_vllm() -> None:
    """vLLM sets up its own logger only; ours say why a request failed and shall be heard too."""
    own, theirs = logging.getLogger("foveal_client"), logging.getLogger("vllm")
    if not own.handlers:
        own.handlers, own.propagate = list(theirs.handlers), theirs.propagate
        own.setLevel(theirs.level or logging.INFO)
