"""Settings of the vLLM connector, out of `ec_connector_extra_config`. Refuses what cannot work with a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foveal_client import _defaults
from foveal_client._servers import urls_of

_KNOWN = ("url", "shared_storage_path", "api_key", "timeout_seconds", "max_bytes", "max_connections")


@dataclass(frozen=True)
class PickupSettings:
    """Where embeddings are picked up, and how patiently."""

    urls: tuple[str, ...]
    """foveal servers; each is asked in turn. Empty when only the folder is looked at."""
    folder: Path | None
    """Shared storage, looked at first."""
    api_key: str | None = field(repr=False)
    timeout_seconds: float
    """From the moment that vLLM first wants an embedding until its request fails."""
    max_bytes: int
    """For embeddings that are fetched, or on their way, and not yet in vLLM's own cache."""
    max_connections: int
    """Transfers at one time, from servers and from the folder each."""

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> PickupSettings:
        """Fill gaps from FOVEAL_URL and FOVEAL_API_KEY, then from the defaults. Raises ValueError."""
        if unknown := sorted(set(extra) - set(_KNOWN)):
            raise ValueError(f"ec_connector_extra_config has {unknown}, which is none of {', '.join(_KNOWN)}")
        environment_url, environment_key = _defaults.from_environment()
        folder = extra.get("shared_storage_path")
        given = extra.get("url") or environment_url or (None if folder else _defaults.URL)
        return cls(
            tuple(urls_of(given)) if given else (),
            Path(folder) if folder else None,
            (extra.get("api_key") or environment_key or "").strip() or None,
            _number(extra, "timeout_seconds", 30.0),
            int(_number(extra, "max_bytes", 2 << 30)),
            int(_number(extra, "max_connections", 8)),
        )


@dataclass(frozen=True)
class RowShape:
    """What the served model takes: columns of a row with all its levels, and patches along the side of a token."""

    width: int
    merge_size: int

    @classmethod
    def of(cls, config: Any, hidden_size: int) -> RowShape:
        """Out of a checkpoint's config: `vision_config` may lie inside `thinker_config`. Raises ValueError."""
        holder = config if hasattr(config, "vision_config") else getattr(config, "thinker_config", None)
        vision = getattr(holder, "vision_config", None)
        merge_size = getattr(vision, "spatial_merge_size", None)
        if not isinstance(merge_size, int) or merge_size < 1:
            kind = getattr(config, "model_type", type(config).__name__)
            raise ValueError(f"{kind} names no spatial_merge_size: the connector serves models of the Qwen-VL kind")
        levels = 1 + len(getattr(vision, "deepstack_visual_indexes", None) or [])
        return cls(hidden_size * levels, merge_size)


def _number(extra: Mapping[str, Any], name: str, default: float) -> float:
    found = extra.get(name, default)
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not (found > 0 and math.isfinite(found)):
        raise ValueError(f"{name} in ec_connector_extra_config must be a positive number, not {found!r}")
    return found
