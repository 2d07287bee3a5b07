"""The modules of a tower, made from its plan, and the tensors that a checkpoint has beside them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from foveal.families.tower_plan import NormKind, TowerPlan
from foveal.gpu.ops import Attend, Ops

Norm = nn.LayerNorm | nn.RMSNorm


def norm_of(kind: NormKind, width: int, epsilon: float) -> Norm:
    """A norm over rows."""
    return nn.LayerNorm(width, eps=epsilon) if kind == "layer" else nn.RMSNorm(width, eps=epsilon)


class Block(nn.Module):
    """Pre-norm transformer block: queries, keys and values from one matrix, mixed within each item; then an MLP."""

    def __init__(self, plan: TowerPlan) -> None:
        super().__init__()
        self.split = (3, plan.heads, plan.hidden // plan.heads)
        self.activation, self.gated = plan.activation, plan.gated
        self.norm1 = norm_of(plan.norm, plan.hidden, plan.epsilon)
        self.qkv = nn.Linear(plan.hidden, 3 * plan.hidden, bias=plan.qkv_bias)
        self.proj = nn.Linear(plan.hidden, plan.hidden)
        self.norm2 = norm_of(plan.norm, plan.hidden, plan.epsilon)
        self.fc1 = nn.Linear(plan.hidden, plan.intermediate * (2 if plan.gated else 1))
        self.fc2 = nn.Linear(plan.intermediate, plan.hidden)

    def forward(self, x: torch.Tensor, branch: torch.Tensor | None, attend: Attend, ops: Ops) -> torch.Tensor:
        """Add the last branch's output and the attention branch to x [rows, hidden], in place; return the MLP's.

        An addition waits for the norm that follows it, so that both are one pass over the rows.
        """
        qkv: torch.Tensor = self.qkv(ops.add_norm(x, branch, self.norm1))
        mixed: torch.Tensor = self.proj(attend(qkv.view(-1, *self.split)).flatten(1))
        normed = ops.add_norm(x, mixed, self.norm2)
        y: torch.Tensor = self.fc2(ops.activated(normed, self.fc1, self.activation, self.gated))
        return y


class Merger(nn.Module):
    """One token from merge_size² patches; deepstack's mergers norm after joining them, the main one before."""

    def __init__(self, plan: TowerPlan, joins_first: bool) -> None:
        super().__init__()
        assert plan.merger is not None
        self.joined = plan.hidden * plan.merge_size**2
        self.width = self.joined if joins_first else plan.hidden
        self.norm = norm_of(plan.merger.norm, self.width, plan.epsilon)
        self.fc1 = nn.Linear(self.joined, self.joined)
        self.fc2 = nn.Linear(self.joined, plan.merger.width)

    def forward(
        self, x: torch.Tensor, branch: torch.Tensor | None, order: torch.Tensor | None, ops: Ops, out: torch.Tensor
    ) -> None:
        """Add the last branch to x [rows, hidden], in place, and write `out` [tokens, width] in the inputs' order.

        `out` is some columns of the answer's rows: the last matrix product writes them where they are sent from.
        """
        added = None if branch is None else branch.view(-1, self.width)
        joined = ops.add_norm(x.view(-1, self.width), added, self.norm).view(-1, self.joined)
        if order is not None:
            joined = joined.index_select(0, order)
        torch.addmm(self.fc2.bias, F.gelu(self.fc1(joined)), self.fc2.weight.t(), out=out)


class Pooler(nn.Module):
    """One row of each item, float32, from its finished rows."""

    query: torch.Tensor
    """[heads, head_dim]: of the attention pool, made by `fold`."""

    def __init__(self, plan: TowerPlan) -> None:
        super().__init__()
        self.plan, self.head_dim = plan, plan.hidden // plan.heads
        if plan.pool.norms or plan.pool.kind == "attention":
            self.norm = norm_of(plan.norm, plan.hidden, plan.epsilon)
        if plan.pool.kind == "attention":
            self.qkv = nn.Linear(plan.hidden, 3 * plan.hidden)
            self.proj = nn.Linear(plan.hidden, plan.hidden)
            self.fc1 = nn.Linear(plan.hidden, plan.intermediate)
            self.fc2 = nn.Linear(plan.intermediate, plan.hidden)
        if plan.pool.projection:
            self.projection = nn.Linear(plan.hidden, plan.pool.projection, bias=False)

    def fold(self, probe: torch.Tensor) -> None:
        """The query is the same for every picture: probe [1, hidden] through its part of the first matrix, once."""
        weight, bias = self.qkv.weight.chunk(3)[0], self.qkv.bias.chunk(3)[0]
        query = F.linear(probe.to(weight), weight, bias)
        self.register_buffer("query", query.view(-1, self.head_dim), persistent=False)

    def forward(self, tokens: torch.Tensor, cu_seqlens: torch.Tensor, ops: Ops, out: torch.Tensor) -> None:
        """Write `out` float32 [items, width] from tokens [rows / merge_area, columns]."""
        kind = self.plan.pool.kind
        if kind == "mean":
            ops.mean_rows(tokens[:, : out.shape[1]], cu_seqlens, self.plan.merge_size**2, out)
            return
        pooled = self._attended(tokens, cu_seqlens, ops) if kind == "attention" else self._first(tokens, cu_seqlens)
        out.copy_(self.projection(pooled) if self.plan.pool.projection else pooled)

    def _first(self, tokens: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        # unused places of cu_seqlens may point behind the last row
        first = tokens.index_select(0, cu_seqlens[:-1].clamp(max=tokens.shape[0] - 1))
        return self.norm(first) if self.plan.pool.norms else first

    def _attended(self, tokens: torch.Tensor, cu_seqlens: torch.Tensor, ops: Ops) -> torch.Tensor:
        hidden = self.plan.hidden
        kv = F.linear(tokens, self.qkv.weight[hidden:], self.qkv.bias[hidden:])
        mixed = ops.pool_attention(self.query, kv.view(-1, 2, *self.query.shape), cu_seqlens)
        x: torch.Tensor = self.proj(mixed.flatten(1))
        inner: torch.Tensor = self.fc2(ops.activated(self.norm(x), self.fc1, self.plan.activation, gated=False))
        return x + inner


def loose_tensors(plan: TowerPlan) -> Iterator[tuple[str, torch.Size]]:
    """Names and shapes of the tensors that no module holds, since they are folded into others when loaded."""
    side = plan.patch_size
    kernels = {"conv2d": (3, side, side), "conv3d": (3, plan.temporal, side, side), "linear": (3 * side**2,)}
    yield "patch_embed.weight", torch.Size((plan.hidden, *kernels[plan.patches]))
    if plan.patch_bias:
        yield "patch_embed.bias", torch.Size((plan.hidden,))
    if plan.positions.table != "none":
        yield "positions", torch.Size((plan.positions.count, plan.hidden))
    if plan.prefix_rows:
        yield "prefix", torch.Size((plan.prefix_rows, plan.hidden))
    if plan.layer_scale:
        for i in range(plan.depth):
            yield from ((f"blocks.{i}.scale{part}", torch.Size((plan.hidden,))) for part in (1, 2))
    if plan.pool.kind == "attention":
        yield "pool.probe", torch.Size((1, plan.hidden))
