"""What the demo says about its results: two tables in the terminal, and the lines of the drawing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from foveal.demo.drawing import Cell, Line, colour_map, laid_over
from foveal.demo.maps import Matrix, basis_within, common_basis, token_grid, what_stands_out
from foveal.demo.neighbours import Neighbour, nearest, num_found_again
from foveal.demo.pictures import Picture
from foveal_client import Embedding

STAGES = ("prep", "queue", "encode", "total")
NUM_PRINTED = 3
NUM_DRAWN = 3
"""Neighbours of each picture."""
HEADINGS = ("picture", "nearest", "second", "third", "PCA of its tokens", "laid over it")
_LIKE = 0.99
"""Where all cosines are above this, two digits would all look the same."""


@dataclass(frozen=True)
class Results:
    """All that the server gave, in the order of the pictures."""

    pictures: Sequence[Picture]
    seen: Sequence[Image.Image]
    similarity: Matrix
    tokens: Sequence[Embedding]
    """Of the pictures that are no variants."""

    def nearest(self, index: int) -> list[Neighbour]:
        """Neighbours of one picture."""
        return nearest(self.similarity, self.pictures, index)

    @property
    def originals(self) -> list[int]:
        """Where the pictures that are no variants stand."""
        return [index for index, picture in enumerate(self.pictures) if not picture.is_variant]


def print_costs(results: Results) -> None:
    """Sizes and stage times of each picture."""
    heads = f"{'picture':20} {'pixels':>11} {'grid':>10} {'tokens':>7} {'shape':>12}"
    print(heads + "".join(f"{stage:>9}" for stage in STAGES))
    for index, e in zip(results.originals, results.tokens, strict=True):
        picture = results.pictures[index]
        size, grid = "{}x{}".format(*picture.image.size), "{}x{}x{}".format(*e.grid_thw)
        shape = "x".join(map(str, e.values.shape))
        times = "".join(f"{e.timings.get(stage, 0.0):9.1f}" for stage in STAGES)
        print(f"{picture.name:20.20} {size:>11} {grid:>10} {e.tokens:>7} {shape:>12}{times}")
    print("(stages in milliseconds, from the Server-Timing header)\n")


def print_neighbours(results: Results) -> None:
    """The nearest of each picture, and how often that was its own variant."""
    print(f"{'picture':20} nearest by cosine of the pooled embeddings")
    digits = _digits(results)
    for index in results.originals:
        found = results.nearest(index)[:NUM_PRINTED]
        shown = "".join(f"{results.pictures[n.place].name:>22.22} {n.cosine:.{digits}f}" for n in found)
        print(f"{results.pictures[index].name:20.20}{shown}")
    num_found = num_found_again(results.similarity, results.pictures)
    print(f"\n{num_found} of {len(results.pictures)} pictures and variants are nearest to their own other version")


def lines_of(results: Results, merge_size: int, has_background: bool) -> Iterator[Line]:
    """One for each picture: itself, its neighbours, its maps.

    With a background, colours over the picture are those of what stands out only, in a basis of their own.
    """
    grids = [token_grid(embedding, merge_size) for embedding in results.tokens]
    basis = common_basis(grids)
    masks = what_stands_out(grids, basis) if has_background else [np.ones(grid.shape[:2], bool) for grid in grids]
    within = basis_within(grids, masks) if has_background else basis
    for index, grid, mask in zip(results.originals, grids, masks, strict=True):
        seen = results.seen[index]
        maps = colour_map(seen, basis.paint(grid)), laid_over(seen, within.paint(grid), mask)
        yield Line(
            (
                Cell(seen, results.pictures[index].name),
                *_neighbours(results, index),
                *(Cell(shown, "") for shown in maps),
            )
        )


def _neighbours(results: Results, index: int) -> Iterator[Cell | None]:
    digits = _digits(results)
    ranked = results.nearest(index)[:NUM_DRAWN]
    for found in ranked:
        picture = results.pictures[found.place]
        is_own = picture.group == results.pictures[index].group
        name = "found again" if is_own else picture.base
        yield Cell(results.seen[found.place], f"{name} {found.cosine:.{digits}f}", is_own)
    yield from [None] * (NUM_DRAWN - len(ranked))


def _digits(results: Results) -> int:
    return 4 if results.similarity.mean() > _LIKE else 2
