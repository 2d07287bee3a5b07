"""What a checkpoint's config.json says of the language model that takes the tower's rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def language_width(config: Mapping[str, Any]) -> int | None:
    """Columns that the language model takes; None where the config describes none, or not in a way that is known.

    Newer files nest it (`text_config`, also inside of `thinker_config`), older ones have it at the top beside a
    `vision_config`.
    """
    owner = config.get("thinker_config")
    owner = owner if isinstance(owner, Mapping) else config
    text = owner.get("text_config")
    if isinstance(text, Mapping):
        found = text.get("hidden_size")
    else:
        found = owner.get("hidden_size") if isinstance(owner.get("vision_config"), Mapping) else None
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None
