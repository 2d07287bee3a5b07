"""Colours for patch embeddings: principal components in one basis for all pictures, so that like things look alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from foveal_client import Embedding

Matrix = npt.NDArray[np.float32]
Colours = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_MAX_ROWS = 1000
"""Rows that a basis is fitted to, evenly spread; more would take long and change little."""
_PERCENTILES = (1, 99)


def token_grid(embedding: Embedding, merge_size: int) -> Matrix:
    """Token rows of a picture as [height, width, columns] of the main level, without class and register rows."""
    height, width = embedding.grid_thw.h // merge_size, embedding.grid_thw.w // merge_size
    rows = embedding.level(0) if embedding.levels else embedding.values
    num_leading = embedding.tokens - height * width
    return rows[num_leading:].astype(np.float32).reshape(height, width, -1)


@dataclass(frozen=True)
class Basis:
    """Three directions in the space of embeddings, and the range that becomes black to full colour along each."""

    mean: Matrix
    axes: Matrix
    low: Matrix
    high: Matrix

    @classmethod
    def fit(cls, rows: Matrix) -> Self:
        """The three directions in which these rows [n, columns] differ most."""
        some = rows[:: -(-len(rows) // _MAX_ROWS)]
        mean = some.mean(0)
        axes: Matrix = np.zeros((3, rows.shape[1]), np.float32)
        found = np.linalg.svd(some - mean, full_matrices=False)[2][:3]
        axes[: len(found)] = found
        low, high = np.percentile((some - mean) @ axes.T, _PERCENTILES, axis=0).astype(np.float32)
        return cls(mean, axes, low, high)

    def components(self, grid: Matrix) -> Matrix:
        """[..., columns] → [..., 3]"""
        values: Matrix = np.matmul(grid - self.mean, self.axes.T, dtype=np.float32)
        return values

    def paint(self, grid: Matrix) -> Colours:
        """[height, width, columns] → RGB."""
        scaled = (self.components(grid) - self.low) / np.maximum(self.high - self.low, 1e-9)
        colours: Colours = np.clip(scaled * 255, 0, 255).astype(np.uint8)
        return colours


def common_basis(grids: Sequence[Matrix]) -> Basis:
    """One for the tokens of all pictures."""
    return Basis.fit(np.concatenate([grid.reshape(-1, grid.shape[-1]) for grid in grids]))


def what_stands_out(grids: Sequence[Matrix], basis: Basis) -> list[Mask]:
    """For each picture, the tokens on the one side of the first component: that with fewer of the borders' tokens.

    In DINOv2's embeddings this parts things from their background. Not all models have such a direction.
    """
    first = [basis.components(grid)[..., 0] for grid in grids]
    lean = sum(float(((values - values.mean()) * _from_border(values.shape)).sum()) for values in first)
    return [values > 0 if lean >= 0 else values < 0 for values in first]


def basis_within(grids: Sequence[Matrix], masks: Sequence[Mask]) -> Basis:
    """One for the chosen tokens of all pictures; for all tokens when none is chosen."""
    rows = np.concatenate([grid[mask] for grid, mask in zip(grids, masks, strict=True)])
    return Basis.fit(rows) if len(rows) else common_basis(grids)


def _from_border(shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """How many tokens away the nearest border is: where the background of most pictures is."""
    y, x = (np.minimum(np.arange(side), np.arange(side)[::-1]) for side in shape)
    return np.minimum.outer(y, x)
