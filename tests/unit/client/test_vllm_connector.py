"""The connector between vLLM's calls and our decisions. vLLM's parent classes are replaced by bare ones here; the real
ones are used by `make e2e`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from foveal_client._ec.fetch import Need, PickupFailed
from foveal_client._ec.memory import MemoryFile

torch = pytest.importorskip("torch")
BASE = "vllm.distributed.ec_transfer.ec_connector.base"
KEY = "ab" * 32
OTHER = "cd" * 32


class Role(Enum):
    SCHEDULER = 0
    WORKER = 1


class Parent:
    """What ECConnectorBase does for its children."""

    def __init__(self, vllm_config: Any, role: Role) -> None:
        self._bound: Any = None
        self.is_producer = vllm_config.ec_transfer_config.is_ec_producer

    def bind_connector_metadata(self, metadata: Any) -> None:
        self._bound = metadata

    def _get_connector_metadata(self) -> Any:
        return self._bound


class FakeThread:
    """Fetches that end when told."""

    def __init__(self, settings: Any) -> None:
        self.futures: dict[Need, Future[MemoryFile]] = {}
        self.is_closed = False

    def start(self, need: Need) -> Future[MemoryFile]:
        return self.futures.setdefault(need, Future())

    def come(self) -> None:
        for need, future in self.futures.items():
            file = MemoryFile(100_000)
            file.write(save({"ec_cache": np.full((need.num_tokens, need.width), 0.5, ml_dtypes.bfloat16)}))
            file.seal()
            future.set_result(file)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    base = ModuleType(BASE)
    vars(base).update(
        ECConnectorBase=Parent,
        ECConnectorMetadata=type("Metadata", (), {}),
        ECConnectorWorkerMetadata=type("WorkerMetadata", (), {}),
        ECConnectorRole=Role,
    )
    platforms = ModuleType("vllm.platforms")
    vars(platforms)["current_platform"] = SimpleNamespace(device_type="cpu", is_cuda_alike=lambda: False)
    names = [BASE.rsplit(".", count)[0] for count in range(4, 0, -1)]
    for name, stub in [*((name, ModuleType(name)) for name in names), (BASE, base), ("vllm.platforms", platforms)]:
        monkeypatch.setitem(sys.modules, name, stub)
    monkeypatch.delitem(sys.modules, "foveal_client.vllm_connector", raising=False)
    found = importlib.import_module("foveal_client.vllm_connector")
    monkeypatch.setattr(found, "FetchThread", FakeThread)
    yield found
    sys.modules.pop("foveal_client.vllm_connector", None)
    vars(sys.modules["foveal_client"]).pop("vllm_connector", None)


def test_an_older_vllm_is_refused_with_a_sentence(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules[BASE], "ECConnectorWorkerMetadata")
    with pytest.raises(ImportError, match=r"needs vLLM 0\.32 or newer"):
        importlib.reload(module)


def config(*, is_producer: bool = False, extra: dict[str, Any] | None = None, **parallel: Any) -> Any:
    vision = SimpleNamespace(spatial_merge_size=2, deepstack_visual_indexes=[1])
    model = SimpleNamespace(
        dtype=torch.float32,
        hf_config=SimpleNamespace(vision_config=vision),
        get_inputs_embeds_size=lambda: 4,
        multimodal_config=SimpleNamespace(mm_processor_cache_type="lru"),
    )
    transfer = SimpleNamespace(is_ec_producer=is_producer, ec_connector_extra_config=extra or {})
    return SimpleNamespace(
        model_config=model, ec_transfer_config=transfer, parallel_config=SimpleNamespace(**{"nnodes": 1} | parallel)
    )


@dataclass
class Request:
    """A request of vLLM's, as far as it is looked at."""

    request_id: str
    mm_features: list[Any] = field(default_factory=list)


def feature(identifier: str = KEY, at: int = 0, data: dict[str, Any] | None = None, tokens: int = 6) -> Any:
    data = {"image_grid_thw": SimpleNamespace(data=torch.tensor([1, 4, 6]))} if data is None else data
    position = SimpleNamespace(offset=at, length=tokens, get_num_embeds=lambda: tokens)
    return SimpleNamespace(identifier=identifier, modality="image", data=data, mm_position=position)


def pixels(identifier: str = OTHER, at: int = 0) -> Any:
    return feature(identifier, at, {"pixel_values": object(), "image_grid_thw": object()})


@pytest.fixture
def scheduler(module: Any) -> Any:
    return module.FovealConnector(config(), Role.SCHEDULER)


@pytest.fixture
def worker(module: Any) -> Any:
    return module.FovealConnector(config(), Role.WORKER)


def run_step(scheduler: Any, worker: Any, cache: dict[str, Any]) -> None:
    """One step of the engine: load, report."""
    worker.bind_connector_metadata(scheduler.build_connector_meta(object()))
    worker.start_load_caches(cache)
    scheduler.update_connector_output(SimpleNamespace(ec_connector_worker_meta=worker.build_connector_worker_meta()))


def test_a_picture_by_key_waits_is_loaded_and_is_let_go(scheduler: Any, worker: Any) -> None:
    request, cache = Request("r", [feature()]), {}
    assert not scheduler.ensure_cache_available(request, 0)
    assert not scheduler.has_cache_item(KEY)
    scheduler._thread.come()
    assert scheduler.ensure_cache_available(request, 0)
    assert scheduler.has_cache_item(KEY)
    scheduler.update_state_after_alloc(request, 0)
    run_step(scheduler, worker, cache)
    assert (cache[KEY].shape, cache[KEY].dtype, cache[KEY][5, 7].item()) == ((6, 8), torch.float32, 0.5)
    scheduler.update_state_after_free(request, 0)
    assert scheduler.request_finished(request) == (False, None)
    assert worker.build_connector_worker_meta() is None


def test_what_has_been_computed_is_not_fetched(scheduler: Any) -> None:
    assert scheduler.ensure_cache_available(Request("r", [feature(at=0)]), 6)
    assert not scheduler.ensure_cache_available(Request("r", [feature(at=0)]), 5)


def test_a_picture_that_vllm_has_is_left_to_vllm(scheduler: Any, worker: Any) -> None:
    request = Request("r", [pixels(), feature(OTHER, data={})])
    assert scheduler.ensure_cache_available(request, 0)
    assert not scheduler.has_cache_item(OTHER)
    scheduler.update_state_after_alloc(request, 0)
    assert scheduler.build_connector_meta(object()).loads == []


def test_pixels_under_anothers_key_are_not_taken_for_the_embedding_of_that_key(scheduler: Any) -> None:
    by_key, spoof = Request("r", [feature()]), Request("s", [pixels(KEY)])
    scheduler.ensure_cache_available(by_key, 0)
    scheduler._thread.come()
    assert scheduler.ensure_cache_available(by_key, 0)
    assert scheduler.ensure_cache_available(spoof, 0)
    assert not scheduler.has_cache_item(KEY)


@pytest.mark.parametrize(
    "spoiled",
    [
        feature("../../etc/passwd"),
        feature(KEY.upper()),
        feature(f"lora:{KEY}"),
        feature(tokens=7),
        feature(data={"image_grid_thw": SimpleNamespace(data=torch.tensor([1, -4, -6]))}),
        feature(data={"image_grid_thw": SimpleNamespace(data=torch.tensor([1, 3, 8]))}),
        feature(data={"image_grid_thw": SimpleNamespace(data=torch.tensor([4, 6]))}),
    ],
)
def test_a_spoiled_request_fails_alone_and_nothing_is_fetched_for_it(scheduler: Any, spoiled: Any) -> None:
    good = Request("good", [feature()])
    scheduler.ensure_cache_available(good, 0)
    assert not scheduler.ensure_cache_available(Request("bad", [spoiled]), 0)
    assert scheduler.take_unavailable_requests() == {"bad"}
    assert len(scheduler._thread.futures) == 1
    scheduler._thread.come()
    assert scheduler.ensure_cache_available(good, 0)


def test_one_that_never_comes_fails_its_request(scheduler: Any) -> None:
    request = Request("r", [feature()])
    scheduler.ensure_cache_available(request, 0)
    next(iter(scheduler._thread.futures.values())).set_exception(PickupFailed("never came"))
    assert scheduler.take_unavailable_requests() == {"r"}
    assert scheduler.take_unavailable_requests() == set()


def test_calls_about_a_request_that_has_ended_leave_nothing_behind(scheduler: Any) -> None:
    request = Request("r", [feature()])
    scheduler.ensure_cache_available(request, 0)
    scheduler.request_finished(request)
    scheduler.update_state_after_free(request, 0)
    assert scheduler._needs == {}
    assert scheduler._pickups.num_bytes == 0


def test_what_several_workers_loaded_is_said_once(module: Any) -> None:
    one, two = module.FovealWorkerMetadata({"a"}), module.FovealWorkerMetadata({"a"})
    assert one.aggregate(two).loaded == {"a"}


def test_shutting_down_ends_the_thread(scheduler: Any, worker: Any) -> None:
    thread = scheduler._thread
    scheduler.shutdown()
    worker.shutdown()
    assert thread.is_closed


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"is_producer": True}, "ec_consumer"),
        ({"nnodes": 2}, "one host"),
        ({"distributed_executor_backend": "ray"}, "one host"),
        ({"extra": {"adress": "http://x"}}, "adress"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_at_start(module: Any, wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        module.FovealConnector(config(**wrong), Role.SCHEDULER)


def test_grids_in_shared_memory_are_refused_at_start(module: Any) -> None:
    told = config()
    told.model_config.multimodal_config.mm_processor_cache_type = "shm"
    with pytest.raises(ValueError, match="mm-processor-cache-type"):
        module.FovealConnector(told, Role.SCHEDULER)
