"""Who resembles whom: cosines of pooled embeddings, ranked. A rank means something with any model, a value need not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from foveal.demo.pictures import Picture

Matrix = npt.NDArray[np.float32]


class Neighbour(NamedTuple):
    """Another picture's place in the list, and how near it is."""

    place: int
    cosine: float


def cosines(rows: Sequence[Matrix]) -> Matrix:
    """Of each pooled row with each."""
    stacked = np.stack(rows).astype(np.float32)
    unit: Matrix = stacked / np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T


def nearest(similarity: Matrix, pictures: Sequence[Picture], index: int) -> list[Neighbour]:
    """All others, nearest first. A picture and its variant count once, by the nearer of the two."""
    ranked: dict[int, Neighbour] = {}
    for other in np.argsort(-similarity[index], kind="stable").tolist():
        if other != index:
            ranked.setdefault(pictures[other].group, Neighbour(other, float(similarity[index, other])))
    return list(ranked.values())


def num_found_again(similarity: Matrix, pictures: Sequence[Picture]) -> int:
    """How many pictures, variants included, have their own other version as nearest neighbour."""
    ranked = (nearest(similarity, pictures, index)[0].place for index in range(len(pictures)))
    return sum(pictures[found].group == picture.group for found, picture in zip(ranked, pictures, strict=True))
