"""Draws what came out: who resembles whom, and a map of one picture's patch embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image

from foveal.demo.pictures import Picture

matplotlib.use("Agg")
from matplotlib import pyplot

Matrix = npt.NDArray[np.float32]


def similarities(rows: Sequence[Matrix]) -> Matrix:
    """Cosines between embeddings [n, width] after taking out what all have in common."""
    stacked = np.stack(rows).astype(np.float32)
    centred = stacked - stacked.mean(0)
    unit: Matrix = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    return unit @ unit.T


def principal_colours(tokens: Matrix, height: int, width: int) -> npt.NDArray[np.uint8]:
    """The first three principal components of rows [height * width, columns], as an RGB picture."""
    centred = tokens.astype(np.float32) - tokens.astype(np.float32).mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    parts = centred @ axes[:3].T
    low, high = np.percentile(parts, (2, 98), axis=0)
    scaled: Matrix = np.clip((parts - low) / np.maximum(high - low, 1e-9), 0, 1) * 255
    return scaled.astype(np.uint8).reshape(height, width, 3)


def draw(path: Path, pictures: Sequence[Picture], similarity: Matrix, chosen: Picture, colours: Any, note: str) -> None:
    """Write one PNG: the similarity matrix beside the chosen picture, its map, and both laid over each other."""
    figure, axes = pyplot.subplot_mosaic(
        [["matrix", "picture"], ["matrix", "map"], ["matrix", "over"]],
        figsize=(13, 9),
        width_ratios=(2.2, 1),
        layout="constrained",
    )
    _draw_matrix(axes["matrix"], [p.name for p in pictures], similarity)
    smooth = Image.fromarray(colours).resize(chosen.image.size, Image.Resampling.NEAREST)
    over = Image.blend(chosen.image, smooth, 0.55)
    titles = {"picture": (chosen.image, chosen.name), "map": (smooth, "PCA of its tokens"), "over": (over, "both")}
    for name, (image, title) in titles.items():
        axes[name].imshow(image)
        axes[name].set_title(title)
        axes[name].axis("off")
    figure.suptitle(note)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_matrix(axis: Any, names: Sequence[str], similarity: Matrix) -> None:
    shown = axis.imshow(similarity, cmap="RdBu_r", vmin=-1, vmax=1)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axis.set_yticks(range(len(names)), names)
    for y, x in np.ndindex(similarity.shape):
        dark = abs(similarity[y, x]) > 0.6
        axis.text(x, y, f"{similarity[y, x]:.2f}", ha="center", va="center", fontsize=7, color="w" if dark else "k")
    axis.set_title("cosine of pooled embeddings, mean taken out")
    axis.figure.colorbar(shown, ax=axis, shrink=0.7)
