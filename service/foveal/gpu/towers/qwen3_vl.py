"""The vision tower of Qwen3-VL, dense and MoE, in all sizes.

Reference: transformers' Qwen3VLVisionModel (5.17 to 5.24). Module names are the checkpoint's names. An output row is
[main | deepstack 0 | deepstack 1 | ...], the order in which the language model takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from foveal.errors import ConfigurationError
from foveal.families.checkpoint import Checkpoint
from foveal.families.spec import ModelSpec
from foveal.gpu.inputs import Inputs
from foveal.gpu.ops import Attend, Ops, Positions, choose_ops
from foveal.gpu.positions import PositionTable, rope_frequencies
from foveal.gpu.towers.patch_embed import PatchEmbed
from foveal.gpu.towers.protocol import Geometry

EPSILON = 1e-6
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"gelu": F.gelu, "silu": F.silu}
TANH_GELU = "gelu_pytorch_tanh"
"""The activation of every published checkpoint, which `Ops` has fused."""


@dataclass(frozen=True)
class VisionConfig:
    """`vision_config` of config.json."""

    depth: int
    hidden: int
    heads: int
    intermediate: int
    activation: str
    out_hidden: int
    patch_size: int
    temporal: int
    merge_size: int
    positions: int
    taps: tuple[int, ...]
    theta: float

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> VisionConfig:
        """Read it; raises ConfigurationError where something is missing or is not supported."""
        vision: dict[str, Any] = checkpoint.section("vision_config")
        need = partial(checkpoint.need, vision)
        config = cls(
            depth=need("depth"),
            hidden=need("hidden_size"),
            heads=need("num_heads"),
            intermediate=need("intermediate_size"),
            activation=need("hidden_act"),
            out_hidden=need("out_hidden_size"),
            patch_size=need("patch_size"),
            temporal=need("temporal_patch_size"),
            merge_size=need("spatial_merge_size"),
            positions=need("num_position_embeddings"),
            taps=tuple(need("deepstack_visual_indexes")),
            theta=float((vision.get("rope_parameters") or {}).get("rope_theta", 10000.0)),
        )
        config.check()
        return config

    @property
    def head_dim(self) -> int:
        """Columns of one head."""
        return self.hidden // self.heads

    def check(self) -> None:
        """Refuse what this tower would compute wrongly."""
        complaints = {
            f"hidden_act {self.activation!r} is not known": self.activation not in (TANH_GELU, *ACTIVATIONS),
            "hidden_size is no multiple of 4 x num_heads": self.hidden % (4 * self.heads) != 0,
            "num_position_embeddings is no square": round(self.positions**0.5) ** 2 != self.positions,
            "deepstack_visual_indexes must rise and name blocks": list(self.taps)
            != sorted(set(self.taps) & set(range(self.depth))),
        }
        wrong = [text for text, is_wrong in complaints.items() if is_wrong]
        if wrong:
            raise ConfigurationError(f"config.json, vision_config: {'; '.join(wrong)}")


class SelfAttention(nn.Module):
    """Queries, keys and values from one matrix, rotated by place, mixed within each item."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.split = (3, config.heads, config.head_dim)
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.proj = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: torch.Tensor, step: _Step) -> torch.Tensor:
        """[patches, hidden] to the same."""
        qkv: torch.Tensor = self.qkv(x).view(-1, *self.split)
        step.ops.rotate(qkv, step.cos, step.sin)
        mixed: torch.Tensor = self.proj(step.attend(qkv).flatten(1))
        return mixed


class MLP(nn.Module):
    """Two matrices with an activation between."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS.get(config.activation)
        self.linear_fc1 = nn.Linear(config.hidden, config.intermediate)
        self.linear_fc2 = nn.Linear(config.intermediate, config.hidden)

    def forward(self, x: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[patches, hidden] to the same."""
        inner = self.activation(self.linear_fc1(x)) if self.activation else ops.linear_gelu(x, self.linear_fc1)
        y: torch.Tensor = self.linear_fc2(inner)
        return y


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.hidden, eps=EPSILON)
        self.norm2 = nn.LayerNorm(config.hidden, eps=EPSILON)
        self.attn = SelfAttention(config)
        self.mlp = MLP(config)

    def forward(self, x: torch.Tensor, pending: torch.Tensor | None, step: _Step) -> torch.Tensor:
        """Adds what is pending and its attention to x [patches, hidden], in place; returns what is pending next.

        An addition waits for the norm that follows it, so that both are one pass over the rows.
        """
        mixed = self.attn(step.ops.add_norm(x, pending, self.norm1), step)
        y: torch.Tensor = self.mlp(step.ops.add_norm(x, mixed, self.norm2), step.ops)
        return y


class Merger(nn.Module):
    """One token from merge_size² patches; deepstack's mergers normalise after joining, the main one before."""

    def __init__(self, config: VisionConfig, joins_first: bool) -> None:
        super().__init__()
        self.joined = config.hidden * config.merge_size**2
        self.width = self.joined if joins_first else config.hidden
        self.norm = nn.LayerNorm(self.width, eps=EPSILON)
        self.linear_fc1 = nn.Linear(self.joined, self.joined)
        self.linear_fc2 = nn.Linear(self.joined, config.out_hidden)

    def forward(self, x: torch.Tensor, pending: torch.Tensor, ops: Ops, out: torch.Tensor) -> None:
        """Add what is pending to x [patches, hidden], in place, and write `out` [tokens, out_hidden].

        `out` is some columns of the answer's rows: the last matrix product writes them where they are sent from.
        """
        normed = ops.add_norm(x.view(-1, self.width), pending.view(-1, self.width), self.norm)
        inner = F.gelu(self.linear_fc1(normed.view(-1, self.joined)))
        torch.addmm(self.linear_fc2.bias, inner, self.linear_fc2.weight.t(), out=out)


class _Step(NamedTuple):
    """What all blocks of one forward share."""

    ops: Ops
    attend: Attend
    cos: torch.Tensor
    sin: torch.Tensor


class Qwen3VLTower(nn.Module):
    """Implements `Tower`. Built without memory; `load` brings the weights."""

    frequencies: torch.Tensor

    def __init__(self, checkpoint: Checkpoint, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        config = VisionConfig.read(checkpoint)
        self.config, self.spec, self.device, self.dtype = config, spec, device, dtype
        area = config.merge_size**2
        self.geometry = Geometry(3 * config.patch_size**2, area, config.merge_size, spec.width, spec.pooled_width)
        self.ops = choose_ops(device)
        with torch.device("meta"):
            self.patch_embed = PatchEmbed(config.hidden, config.temporal, config.patch_size)
            self.pos_embed = PositionTable(config.positions, config.hidden)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
            self.merger = Merger(config, joins_first=False)
            self.deepstack_merger_list = nn.ModuleList(Merger(config, joins_first=True) for _ in config.taps)
        self.requires_grad_(False)

    @property
    def weights_bytes(self) -> int:
        """Parameters, and the buffers that were folded from some."""
        return sum(t.nbytes for t in (*self.parameters(), *self.buffers()))

    def wanted(self) -> Mapping[str, torch.Size]:
        """Names and shapes as in the checkpoint."""
        return {name: parameter.shape for name, parameter in self.named_parameters()}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Cast and move; what meets pixels and positions is kept or folded in float32."""
        exact = ("patch_embed.", "pos_embed.")
        placed = {
            # copied even where nothing changes: what safetensors gives may be a view of the mapped file
            name: tensor.to(self.device, torch.float32 if name.startswith(exact) else self.dtype, copy=True)
            for name, tensor in tensors.items()
        }
        self.load_state_dict(placed, strict=True, assign=True)
        self.patch_embed.fold(self.spec.image_mean, self.spec.image_std, self.dtype)
        self.frequencies = rope_frequencies(self.config.head_dim, self.config.theta, self.device)

    def forward(self, inputs: Inputs, out: torch.Tensor) -> None:
        """Encode all rows; each level is written to its own columns of `out`."""
        patches = self.patch_embed(inputs.rows, self.ops)
        positions = Positions(self.patch_embed.bias, self.pos_embed.weight, self.frequencies)
        x, cos, sin = self.ops.placed(inputs, self.config.merge_size, patches, positions)
        step = _Step(self.ops, self.ops.attention(inputs.cu_seqlens, inputs.rows.shape[0]), cos, sin)
        main, *deepstack = (out[:, level.start : level.stop] for level in self.spec.levels)
        taps = dict(zip(self.config.taps, zip(deepstack, self.deepstack_merger_list, strict=True), strict=True))
        pending: torch.Tensor | None = None
        for i, block in enumerate(self.blocks):
            pending = block(x, pending, step)
            if i in taps:
                level, merger = taps[i]
                merger(x, pending, self.ops, level)
                pending = None
        if pending is None:
            pending = torch.zeros_like(x)
        self.merger(x, pending, self.ops, main)
