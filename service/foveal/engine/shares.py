"""How far one caller may fill what all callers share."""

from __future__ import annotations

from dataclasses import dataclass

KEPT_SHARE = 1 / 8
"""Of each limit, kept for callers who hold less than that much."""


@dataclass
class Held:
    """What one caller's open requests hold."""

    tokens: int = 0
    num_bytes: int = 0
    visits: int = 0


def limit_for(most: int, held: int) -> int:
    """How far a caller may fill a limit of which it holds so much."""
    kept = int(most * KEPT_SHARE)
    return most if held < kept else most - kept
