"""`Section`: the part of config.json that describes a vision tower, read as transformers reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint
from foveal.families.tower_plan import Activation

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
}
"""transformers' names of what the tower computes."""
_ALONE = ("_vision", "_vision_model", "_vision_encoder")
"""How the types of towers that are saved alone end; older files have the whole model's type there."""
_CHANNEL_KEYS = ("num_channels", "in_channels", "in_chans")


MAX_NUMBER = 1e12
MAX_INTEGER = 1 << 24
"""Above any size of a tower, and far below what would take all memory to look at."""


@dataclass(frozen=True)
class Section:
    """Typed access; every method raises ConfigurationError where a value is missing or is none of its kind."""

    where: str
    """File and place, for messages."""
    values: Mapping[str, Any]
    defaults: Mapping[str, Any]
    """Of transformers' config class: older versions saved only what differs from it."""

    def need(self, key: str) -> Any:
        """A value of any kind; null counts as missing."""
        found = self.values.get(key)
        if found is None:
            found = self.defaults.get(key)
        if found is None:
            raise ConfigurationError(f"{self.where} has no {key!r}")
        return found

    def integer(self, key: str) -> int:
        """A whole number above 0; a list of equal ones counts as one (sides of a square)."""
        found = self.need(key)
        if isinstance(found, list) and found and all(part == found[0] for part in found):
            found = found[0]
        if not isinstance(found, int) or isinstance(found, bool) or not 0 < found <= MAX_INTEGER:
            raise ConfigurationError(f"{self.where}: {key} is {found!r}, not a whole number from 1 to {MAX_INTEGER}")
        return found

    def number(self, key: str) -> float:
        """A number above 0."""
        found = self.need(key)
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found <= MAX_NUMBER:
            raise ConfigurationError(f"{self.where}: {key} is {found!r}, not a number above 0 and up to {MAX_NUMBER:g}")
        return float(found)

    def flag(self, key: str) -> bool:
        """True or false."""
        found = self.need(key)
        if not isinstance(found, bool):
            raise ConfigurationError(f"{self.where}: {key} is {found!r}, neither true nor false")
        return found

    def indexes(self, key: str) -> tuple[int, ...]:
        """Numbers of blocks, maybe none."""
        found = self.need(key)
        if not isinstance(found, list | tuple) or not all(isinstance(part, int) for part in found):
            raise ConfigurationError(f"{self.where}: {key} is {found!r}, no list of whole numbers")
        return tuple(found)

    def activation(self, key: str = "hidden_act") -> Activation:
        """What stands between the matrices of an MLP."""
        found = self.need(key)
        if not isinstance(found, str) or found not in ACTIVATIONS:
            raise ConfigurationError(f"{self.where}: {key} {found!r} is not known; known: {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[found]


def vision_section(checkpoint: Checkpoint, defaults: Mapping[str, Any], alone: str) -> Section:
    """The nested `vision_config`, or the whole config of a tower saved alone, told by its key `alone` or its type.

    One that is left out has its class's defaults throughout, as in transformers. Raises ConfigurationError for a value
    of another kind, and for pictures without three channels.
    """
    where = f"{checkpoint.folder}/config.json"
    config = checkpoint.config
    owner = config.get("thinker_config") or config
    values, place = owner.get("vision_config"), f"{where}, vision_config"
    if values is None and (alone in config or str(config.get("model_type")).endswith(_ALONE)):
        values, place = config, where
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigurationError(f"{place} is {values!r}, no JSON object")
    section = Section(place, values, defaults)
    channels = {key: values[key] for key in _CHANNEL_KEYS if values.get(key, 3) != 3}
    if channels:
        raise ConfigurationError(f"{place} has {channels}: only pictures of three channels are served")
    return section
