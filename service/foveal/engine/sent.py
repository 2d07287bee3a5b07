"""`SentPack`: a pack that a worker has in hand."""

from __future__ import annotations

from dataclasses import dataclass

from foveal.engine.items import Entry
from foveal.engine.pace import Kind, kind_of
from foveal.types import TokenBudget


@dataclass
class SentPack:
    """A pack that a worker has in hand."""

    entries: tuple[Entry, ...]
    num_tokens: int
    budget: TokenBudget | None
    reason: str
    sent: float
    milliseconds: float

    @property
    def kind(self) -> Kind:
        """Packs of one kind cost alike."""
        return kind_of(self.budget.tokens if self.budget else 0, self.num_tokens)

    @property
    def is_wanted(self) -> bool:
        """True while anybody waits for one of its entries."""
        return any(entry.is_wanted for entry in self.entries)
