"""The routes that describe the server: /live, /ready, /health, /info, /v1/models. None waits for work."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from foveal import __version__
from foveal.api.context import Server, context_of, server_of
from foveal.api.errors import error_response
from foveal.api.keys import require_key
from foveal.errors import Draining, ModelNotFound, Unavailable
from foveal.families.spec import ModelSpec
from foveal.handover.service import HandoverService

_STARTED = int(time.time())
MAX_NAMES = 8
"""Of models that a refusal lists."""
_LIMITS = (
    "max_body_bytes",
    "max_images_per_request",
    "max_image_pixels",
    "max_image_tokens",
    "max_queue_tokens",
    "max_inflight_bytes",
    "max_items_per_pack",
    "max_wait_ms",
    "cache_bytes",
    "handover_bytes",
    "handover_seconds",
    "request_timeout_seconds",
    "prep_timeout_seconds",
    "prep_memory_bytes",
    "allow_urls",
    "url_timeout_seconds",
    "drain_seconds",
    "ready_quorum",
)


async def live(request: Request) -> Response:
    """200 while the process runs."""
    return JSONResponse({"status": "live"})


async def ready(request: Request) -> Response:
    """200 when the quorum of workers is warmed and the server is not draining; else 503 with the reason."""
    server = server_of(request)
    context = context_of(request)
    context.body_is_read = True
    if server.is_draining:
        return error_response(context, Draining("shutting down"))
    if server.service is None:
        return error_response(context, Unavailable(f"not ready: {server.waits_for}", retry_after=1.0))
    pool, prep = server.service.pool, server.service.prep
    if not pool.is_ready:
        return error_response(context, Unavailable(f"not ready: {pool.waits_for()}", retry_after=1.0))
    if not prep.num_ready:
        return error_response(context, Unavailable("not ready: no prep process answers yet", retry_after=1.0))
    warnings = warnings_of(server.service.engine.spec)
    return JSONResponse({"status": "ready", "workers": pool.num_ready} | ({"warnings": warnings} if warnings else {}))


async def models(request: Request) -> Response:
    """OpenAI's list, with the one model."""
    server = server_of(request)
    require_key(request, server.keys)
    return JSONResponse({"object": "list", "data": own_models(server)})


async def model(request: Request) -> Response:
    """One model, by its name; raises ModelNotFound."""
    server = server_of(request)
    require_key(request, server.keys)
    return one_model(request, own_models(server))


def one_model(request: Request, entries: Sequence[dict[str, Any]]) -> Response:
    """The entry that the path names, with slashes as they are or escaped; the whole list where it names none."""
    name = request.path_params["model"]
    if not name:
        return JSONResponse({"object": "list", "data": entries})
    if (found := next((entry for entry in entries if entry.get("id") == name), None)) is None:
        names = ", ".join(repr(entry.get("id")) for entry in entries[:MAX_NAMES])
        raise ModelNotFound(f"there is no model {name[:100]!r} here; there is {names}; see /v1/models", param="model")
    return JSONResponse(found)


def own_models(server: Server) -> list[dict[str, Any]]:
    """The one model, as OpenAI lists it; raises Unavailable."""
    name = _known(server).engine.spec.name
    return [{"id": name, "object": "model", "created": _STARTED, "owned_by": "foveal"}]


async def info(request: Request) -> Response:
    """Model, limits, budgets with cost, workers, cache, versions."""
    server = server_of(request)
    require_key(request, server.keys)
    service = _known(server)
    ladder = next((w.ladder.budgets for w in service.pool.workers if w.ready), ())
    budgets = [{"tokens": b.tokens, "items": b.items, "milliseconds": b.milliseconds, "bytes": b.bytes} for b in ladder]
    return JSONResponse(
        {
            **_model(service.engine.spec),
            "limits": {name: getattr(server.settings, name) for name in _LIMITS},
            "budgets": budgets,
            "workers": [worker.shown() for worker in service.pool.workers],
            "prep_workers": service.prep.shown(),
            "cache": service.engine.cache.shown(),
            "handover": service.handover.shown(),
            "llm_servers": server.upstreams.shown() if server.upstreams else [],
            "warnings": warnings_of(service.engine.spec),
            "versions": _versions(),
        }
    )


def warnings_of(spec: ModelSpec) -> list[str]:
    """What whoever uses the answers of this model must know."""
    if not spec.dummy_weights:
        return []
    return [
        f"{spec.name} has random weights: its embeddings mean nothing and are for trying things out; serve a "
        "checkpoint with --model, without --load-format dummy"
    ]


def _known(server: Server) -> HandoverService:
    if server.service is None:
        raise Unavailable(f"the server is starting ({server.waits_for}); try again", retry_after=1.0)
    return server.service


def _model(spec: ModelSpec) -> dict[str, Any]:
    return {
        "model": spec.name,
        "family": spec.family,
        "architecture": spec.architecture,
        "revision": spec.revision,
        "weights": "dummy" if spec.dummy_weights else "checkpoint",
        "dtype": spec.dtype,
        "width": spec.width,
        "pooled_width": spec.pooled_width,
        "levels": [{"name": level.name, "start": level.start, "stop": level.stop} for level in spec.levels],
        "outputs": {kind: spec.row_meaning[kind] for kind in spec.outputs},
        "default_output": spec.default_output,
        "patch_size": spec.tower.patch_size,
        "merge_size": spec.tower.merge_size,
        "prefix_rows": spec.tower.prefix_rows,
        "fixed_size": spec.rule.fixed_size,
        "tokens_per_image": spec.fixed_tokens,
        "min_pixels": spec.rule.min_pixels,
        "max_pixels": spec.rule.max_pixels,
    }


def _versions() -> dict[str, str]:
    names = ("torch", "pillow", "numpy", "fastapi", "uvicorn")
    return {
        "foveal": __version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in names},
    }
