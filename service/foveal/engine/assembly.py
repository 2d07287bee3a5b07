"""Builds the engine of one server from its settings: arenas, child programs, ladder, limits."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from functools import partial

from foveal.engine.admission import Gate
from foveal.engine.batcher import Batcher
from foveal.engine.cache import EncoderCache
from foveal.engine.child import Program
from foveal.engine.devices import Placement, worker_places
from foveal.engine.engine import Engine, Memory
from foveal.engine.gpu_watch import GpuWatch
from foveal.engine.ladder import inferred_budgets
from foveal.engine.lateness import Patience
from foveal.engine.memory import Allocator
from foveal.engine.pool import Place, Pool
from foveal.engine.prep import PrepPool
from foveal.errors import ConfigurationError
from foveal.families.spec import ModelSpec
from foveal.ipc.arena import Arena
from foveal.ipc.messages import Configure
from foveal.metrics import Metrics
from foveal.settings import Settings
from foveal.types import Output

MIN_PREP_WORKERS, MAX_PREP_WORKERS = 2, 16
"""Of those that are not named: with one alone, a large picture would hold up all others."""
WORKER = "foveal.gpu"
"""The program of a worker; tests put one here that speaks the same protocol."""


@dataclass(frozen=True)
class Service:
    """The running parts of one server."""

    engine: Engine
    pool: Pool
    prep: PrepPool

    async def run(self) -> None:
        """Keep all children running until `stop`."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pool.run())
            group.create_task(self.prep.run())

    async def stop(self) -> None:
        """End all children."""
        await asyncio.gather(self.pool.stop(), self.prep.stop())


def check(settings: Settings, spec: ModelSpec) -> None:
    """Refuse settings that this model cannot work with; raises ConfigurationError."""
    tokens = max_image_tokens(settings, spec)
    _check_fixed(settings, spec)
    if settings.llm_url and spec.default_output != "tokens":
        raise ConfigurationError(
            f"--llm-url: no LLM server takes rows of {spec.name}, a {spec.family} tower without a projector; serve the "
            "tower of a vision-language model (foveal models), or leave --llm-url out"
        )
    largest = spec.embedding_bytes(Output("tokens", "float32"), tokens)
    largest += tokens * spec.tower.merge_size**2 * 3 * spec.tower.patch_size**2
    if largest > settings.max_inflight_bytes:
        raise ConfigurationError(
            f"an image of {tokens} tokens (--max-image-tokens) takes {largest} bytes with {spec.name}, more than "
            f"--max-inflight-bytes {settings.max_inflight_bytes}; raise the latter or lower the former"
        )


def max_image_tokens(settings: Settings, spec: ModelSpec) -> int:
    """Tokens of the largest image that may come."""
    return spec.fixed_tokens or settings.max_image_tokens


def _check_fixed(settings: Settings, spec: ModelSpec) -> None:
    """Where all images are of one size, it must fit."""
    tokens = spec.fixed_tokens or 0
    if tokens > settings.max_image_tokens:
        raise ConfigurationError(
            f"every image is {tokens} tokens with {spec.name}, and --max-image-tokens is {settings.max_image_tokens}: "
            f"nothing could be encoded; allow {tokens} or more"
        )
    if settings.token_budgets and tokens > settings.token_budgets[-1]:
        raise ConfigurationError(
            f"every image is {tokens} tokens with {spec.name}, and --token-budgets end at "
            f"{settings.token_budgets[-1]}: none would be used; add multiples of {tokens}, or leave the setting out"
        )


def assemble(
    settings: Settings, spec: ModelSpec, metrics: Metrics, environment: dict[str, str], worker: str = WORKER
) -> Service:
    """All parts, not yet running; `worker` is the module that workers run.

    Must be called on the loop; raises ConfigurationError.
    """
    check(settings, spec)
    images, rows, embeddings = _arenas(settings)
    for arena in (images, rows, embeddings):
        metrics.arena_bytes.labels(arena.name).set_function(partial(getattr, arena, "used"))
        metrics.arena_size_bytes.labels(arena.name).set(arena.size)
    cache = EncoderCache(settings.cache_bytes, metrics)
    memory = Memory(Allocator(images), Allocator(rows), Allocator(embeddings, cache.evict))
    gate = Gate(settings.max_queue_tokens, settings.max_inflight_bytes, metrics)
    prep = _prep_pool(settings, {"images": images, "rows": rows}, metrics, environment)
    placement = worker_places(settings, environment)
    programs = _programs(settings, placement, {"rows": rows, "embeddings": embeddings}, worker)
    pool = _worker_pool(settings, spec, placement, programs, metrics)
    dtype = spec.compute_dtype(settings.dtype, placement.device)
    gate.seconds_left = partial(getattr, pool.forecast, "seconds_left")
    engine = Engine(spec, max_image_tokens(settings, spec), gate, cache, memory, prep, pool, metrics, dtype)
    return Service(engine, pool, prep)


def _arenas(settings: Settings) -> list[Arena]:
    sizes = {"images": 0, "rows": 0, "embeddings": settings.cache_bytes + settings.handover_bytes}
    try:
        return [Arena(name, settings.max_inflight_bytes + more) for name, more in sizes.items()]
    except (OSError, OverflowError, ValueError, MemoryError) as error:
        raise ConfigurationError(
            f"shared memory of --max-inflight-bytes {settings.max_inflight_bytes}, --cache-bytes "
            f"{settings.cache_bytes} and --handover-bytes {settings.handover_bytes} cannot be had: {error}; lower them"
        ) from None


def _prep_pool(settings: Settings, arenas: dict[str, Arena], metrics: Metrics, environment: dict[str, str]) -> PrepPool:
    cores = len(os.sched_getaffinity(0))
    size = settings.prep_workers or min(max(cores, MIN_PREP_WORKERS), MAX_PREP_WORKERS)
    program = Program(
        "foveal.vision",
        arenas,
        environment,
        settings.log_level,
        settings.log_format,
        memory_bytes=settings.prep_memory_bytes,
    )
    return PrepPool(size, program, settings.max_image_pixels, settings.prep_timeout_seconds, metrics)


def _programs(
    settings: Settings, placement: Placement, arenas: dict[str, Arena], worker: str
) -> list[tuple[Place, Program]]:
    return [
        (place, Program(worker, arenas, place.environment, settings.log_level, settings.log_format))
        for place in placement.places
    ]


def _worker_pool(
    settings: Settings,
    spec: ModelSpec,
    placement: Placement,
    programs: list[tuple[Place, Program]],
    metrics: Metrics,
) -> Pool:
    if settings.ready_quorum > len(placement.places):
        raise ConfigurationError(
            f"--ready-quorum {settings.ready_quorum} can never be reached with {len(placement.places)} workers"
        )
    configure = Configure(
        folder=str(spec.folder),
        load_format="dummy" if spec.dummy_weights else "auto",
        device=placement.device,
        dtype=settings.dtype,
        token_budgets=settings.token_budgets or inferred_budgets(settings.max_image_tokens, spec.fixed_tokens),
        max_items=settings.max_items_per_pack,
        threads=placement.threads,
        capture=settings.capture,
        max_image_tokens=max_image_tokens(settings, spec),
        reserve_bytes=settings.graph_reserve_bytes,
        item_tokens=spec.fixed_tokens or 1,
    )
    batcher = Batcher(settings.max_wait_ms / 1000, metrics)
    return Pool(
        programs,
        configure,
        spec.tower.merge_size**2,
        settings.ready_quorum,
        Patience(settings.worker_start_seconds, settings.worker_timeout_seconds),
        settings.request_timeout_seconds,
        batcher,
        metrics,
        GpuWatch(placement.gpus, placement.is_pci_order, metrics) if placement.gpus else None,
    )
