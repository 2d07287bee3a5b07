"""Whether an LLM server serves the model that pictures are encoded for: by names, and by the width where it is known.

Rows of another model are no error that an LLM server would notice: it answers from noise, or its whole engine ends.
Pure, but for `config_beside`, which blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from foveal.errors import ConfigurationError
from foveal.families.language_model import language_width
from foveal.families.spec import ModelSpec
from foveal.settings import Settings

_MAX_CONFIG_BYTES = 4 << 20
_QUANTISED = re.compile(
    r"(-(fp8|fp4|nvfp4|mxfp4|mxfp8|awq|gptq|bnb|w\d+a\d+|int[48]|[48]bit|dynamic|block|bf16|fp16|gguf|marlin))+$"
)
"""What quantised copies of a language model add to its name. The tower's rows are for all of them."""


class Listed(msgspec.Struct):
    """One entry of an LLM server's `/v1/models`. vLLM tells the model's path as `root`, of an adapter its `parent`."""

    id: str
    root: str | None = None
    parent: str | None = None
    owned_by: str | None = None


class ModelList(msgspec.Struct):
    """The answer of `/v1/models`."""

    data: list[Listed]


@dataclass(frozen=True)
class Expected:
    """The language model that this server's rows are for."""

    name: str
    """As messages say it."""
    names: frozenset[str]
    """Any of these is it; normalised."""
    width: int
    """Columns of one level."""
    num_levels: int
    is_told: bool = False
    """By `--llm-model`: then an adapter may be meant."""

    @classmethod
    def of(cls, settings: Settings, spec: ModelSpec) -> Expected:
        """What `--llm-model` says, else the served model under all names that it has here."""
        told = settings.llm_model
        here = [spec.name, settings.model]
        if not settings.model.startswith("builtin:"):  # a folder may be named "." or through a link
            here.append(str(spec.folder))
        names = frozenset(map(normal, [told] if told else here)) - {""}
        first = spec.levels[0]
        return cls(told or spec.name, names, first.stop - first.start, len(spec.levels), told is not None)


@dataclass(frozen=True)
class Match:
    """What a list of models says. `why_not` is empty where pictures may go there."""

    why_not: str = ""
    names: frozenset[str] = frozenset()
    """Ids that take these rows: of the model, and of adapters on it."""
    others: frozenset[str] = frozenset()
    """Ids of other models that are listed beside it."""
    model: str = ""
    """Id of the model itself."""
    root: str = ""
    """Its path or hub id."""
    is_vllm: bool = False


def match(expected: Expected, listed: Sequence[Listed]) -> Match:
    """Compare names. Adapters count by the model that they are on, unless `--llm-model` names one."""
    bases = [entry for entry in listed if entry.parent is None] or list(listed)
    chosen = [entry for entry in (listed if expected.is_told else bases) if _is(expected, entry)]
    if not chosen:
        shown = ", ".join(repr(_shown(entry)) for entry in bases[:4]) + (", ..." if len(bases) > 4 else "")
        return Match(
            f"it serves {shown or 'no model'}, and pictures are encoded for {expected.name!r}: serve the same model on "
            "both sides, or name it with --llm-model where it is the same under another name",
            others=frozenset(entry.id for entry in listed),
        )
    names = {name for entry in chosen for name in (entry.id, entry.root) if name}
    on_it = {entry.id for entry in listed if entry.parent in names or entry.id in names}
    root = next((entry.root for entry in chosen if entry.root), chosen[0].id)
    is_vllm = any(entry.owned_by == "vllm" for entry in chosen)
    others = frozenset(entry.id for entry in listed) - on_it
    return Match("", frozenset(on_it), others, chosen[0].id, root, is_vllm)


def other_width(expected: Expected, config: Mapping[str, Any] | None) -> str:
    """Why the language model of this config.json cannot take the rows; empty where it can, or nobody knows."""
    width = language_width(config) if config is not None else None
    if width is None or width == expected.width:
        return ""
    return f"its language model takes rows of {width} columns a level, and {expected.name!r} gives {expected.width}"


def check_width(settings: Settings, spec: ModelSpec) -> None:
    """Refuse a checkpoint whose own language model takes other rows than its tower gives; raises ConfigurationError."""
    if not settings.llm_url:
        return
    if wrong := other_width(Expected.of(settings, spec), config_beside(str(spec.folder))):
        raise ConfigurationError(f"--model {settings.model} with --llm-url: {wrong}; its files are not of one model")


def config_beside(root: str) -> dict[str, Any] | None:
    """The config.json of a model on this host, by its folder or from the hub's cache; None where it is not here.

    Downloads nothing. Blocks.
    """
    path = Path(root, "config.json") if root.startswith("/") else _cached(root)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_MAX_CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):  # not on this host, or not for us to read: then nobody knows
        return None
    return found if isinstance(found, dict) else None


def normal(name: str) -> str:
    """What is left of a name: the last part of a path or hub id, in lower case, without a mark of quantisation."""
    parts = [part for part in name.strip().split("/") if part]
    cached = next((part for part in parts if part.startswith("models--")), None)  # of the hub's cache
    last = cached.rpartition("--")[2] if cached else (parts[-1] if parts else "")
    return _QUANTISED.sub("", re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-"))


def _is(expected: Expected, entry: Listed) -> bool:
    return any(normal(name) in expected.names for name in (entry.id, entry.root) if name)


def _shown(entry: Listed) -> str:
    return entry.id[:120] if not entry.root or entry.root == entry.id else f"{entry.id[:120]} ({entry.root[:120]})"


def _cached(hub_id: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(hub_id, "config.json")
    except HFValidationError:  # a name that is no hub id
        return None
    return Path(found) if isinstance(found, str) else None
