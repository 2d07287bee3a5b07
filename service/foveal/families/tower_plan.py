"""`TowerPlan`: what tells one vision tower from another, as plain data that a family reads from config.json.

There is one tower (`foveal.gpu.towers.vision`); these are its switches, and where the checkpoint keeps its tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
"""gelu is the exact form (erf), gelu_tanh its approximation, quick_gelu x * sigmoid(1.702 x)."""
NormKind = Literal["layer", "rms"]
Sources = dict[str, tuple[str, ...]]
"""From a tower's names to a file's."""


@dataclass(frozen=True)
class Positions:
    """Where a tower's knowledge of positions comes from; every part may be missing."""

    table: Literal["none", "fixed", "interpolated", "antialiased"] = "none"
    """Learned position embeddings. fixed: one for each row of an item, brought to `fixed_grid` once at load
    (bicubic, as in DINOv2). interpolated: a square, sampled bilinearly for each picture, corners coincide (Qwen3-VL).
    antialiased: a square, resized for each picture by antialiased bilinear interpolation (SigLIP 2 NaFlex)."""
    count: int = 0
    """Rows of the table: a square for patches, after those of the prefix that have one."""
    antialias: bool = False
    """How a fixed table is brought to its size: DINOv2 with registers, unlike DINOv2, filters when it shrinks."""
    rope_theta: float | None = None
    """Base of the two-dimensional rotation of queries and keys; None: not rotated."""
    window: int = 0
    """Side in tokens of the windows that attention stays within; 0: none."""
    full_blocks: tuple[int, ...] = ()
    """Blocks that attend over the whole picture all the same."""


@dataclass(frozen=True)
class Merger:
    """From merge_size² patches to a token of the language model: norm, matrix, GELU (exact), matrix."""

    width: int
    """Of the language model."""
    norm: NormKind = "layer"
    deepstack_layers: tuple[int, ...] = ()
    """Blocks whose output goes through a merger of its own (deepstack), which norms after joining the patches."""


@dataclass(frozen=True)
class Pool:
    """How one row is made of a picture's."""

    kind: Literal["mean", "class", "attention"] = "mean"
    """mean: of the first `Geometry.pooled_width` columns of the tokens; class: the first row; attention: a learned
    query over all rows, then matrix, and norm and MLP with a residual (SigLIP)."""
    norms: bool = False
    """The class row passes a norm of its own, which the tokens do not (CLIP)."""
    projection: int = 0
    """Columns after a last matrix without bias; 0: there is none."""


@dataclass(frozen=True)
class Names:
    """Where a checkpoint keeps the tower's tensors."""

    prefixes: tuple[str, ...]
    """What the tower's tensors begin with in a file, the first that any tensor has; "" for a file of a tower alone."""
    sources: Sources
    """From a module or parameter of the tower, `{i}` for a number, to the same in the file without the prefix.

    Several are joined along their first dimension. Names of modules stand for weight and bias. A source that starts
    with "/" lies outside the prefix.
    """
    ignored: tuple[str, ...] = ()
    """Ends of names under the prefix that are no weights of the tower: constants, a mask token, another head."""


@dataclass(frozen=True)
class TowerPlan:
    """Patch embedding, rows in front, blocks, and what comes out. Sizes are numbers of columns."""

    names: Names
    depth: int
    hidden: int
    heads: int
    intermediate: int
    patch_size: int
    patches: Literal["conv2d", "conv3d", "linear"]
    """Shape of the patch embedding in the file: [hidden, 3, p, p]; [hidden, 3, temporal, p, p]; [hidden, p * p * 3]."""
    activation: Activation
    positions: Positions
    pool: Pool
    temporal: int = 2
    merge_size: int = 1
    patch_bias: bool = True
    qkv_bias: bool = True
    norm: NormKind = "layer"
    epsilon: float = 1e-6
    gated: bool = False
    """The MLP multiplies the activation of one half of its first matrix with the other half."""
    layer_scale: bool = False
    """A factor for each column of what attention and MLP add."""
    prefix_rows: int = 0
    """Rows before each picture's patches: the class row, then registers."""
    fixed_grid: tuple[int, int] | None = None
    """Height and width in patches, for a tower that takes one size of picture."""
    pre_norm: bool = False
    """A norm between embeddings and blocks (CLIP)."""
    final_norm: bool = False
    """A norm after the blocks, which the tokens pass."""
    merger: Merger | None = None
