"""`VisionTower`: the one vision transformer, switched by a family's `TowerPlan`.

The families' docstrings (`foveal.families`) name the class of transformers that each follows. An output row is
[main | deepstack 0 | deepstack 1 | ...], the order in which the language model takes it; without a merger it is the
hidden state. The tower knows no family by name.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

from foveal.families.spec import ModelSpec
from foveal.gpu.inputs import Inputs, Outputs
from foveal.gpu.ops import Attend, Embedded, choose_ops
from foveal.gpu.towers.folding import CENTRE, fold_scales, patch_matrix, position_tables
from foveal.gpu.towers.parts import Block, Merger, Pooler, loose_tensors, norm_of
from foveal.gpu.towers.protocol import Geometry


class VisionTower(nn.Module):
    """Implements `Tower`. Built without memory; `load` brings the weights."""

    def __init__(self, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        plan = spec.tower
        self.spec, self.plan, self.device, self.dtype = spec, plan, device, dtype
        self.geometry = Geometry(
            row_bytes=3 * plan.patch_size**2,
            merge_area=plan.merge_size**2,
            merge_size=plan.merge_size,
            width=spec.width,
            pooled_width=spec.pooled_width,
            early_width=spec.width - spec.levels[0].stop if spec.levels else 0,
            prefix_rows=plan.prefix_rows,
            fixed_grid=plan.fixed_grid,
        )
        self.ops = choose_ops(device)
        deepstack_layers = plan.merger.deepstack_layers if plan.merger else ()
        with torch.device("meta"):
            self.pre_norm = norm_of(plan.norm, plan.hidden, plan.epsilon) if plan.pre_norm else None
            self.blocks = nn.ModuleList(Block(plan) for _ in range(plan.depth))
            self.final_norm = norm_of(plan.norm, plan.hidden, plan.epsilon) if plan.final_norm else None
            self.merger = Merger(plan, joins_first=False) if plan.merger else None
            self.deepstack = nn.ModuleList(Merger(plan, joins_first=True) for _ in deepstack_layers)
            self.pool = Pooler(plan)
        self.level_of_layer = {block: level for level, block in enumerate(deepstack_layers)}
        self.requires_grad_(False)

    @property
    def weights_bytes(self) -> int:
        """Parameters, and what was folded from others."""
        tables = [t for t in vars(self.tables).values() if isinstance(t, torch.Tensor)]
        held = (*self.parameters(), *self.buffers(), self.patches.weight, self.patches.bias, *tables)
        return sum(t.nbytes for t in held)

    def wanted(self) -> Mapping[str, torch.Size]:
        """Names within the tower, and shapes."""
        return {
            **{name: parameter.shape for name, parameter in self.named_parameters()},
            **dict(loose_tensors(self.plan)),
        }

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Fold in float32, cast, move."""
        loose = dict(tensors)
        matrix = patch_matrix(self.plan, loose, self.spec.image_mean, self.spec.image_std, self.dtype)
        self.patches = type(matrix)(matrix.weight.to(self.device), matrix.bias.to(self.device))
        self.tables = position_tables(self.plan, loose, self.patches.bias)
        fold_scales(self.plan, loose)
        probe = loose.pop("pool.probe", None)
        # copied even where nothing changes: what safetensors gives may be a view of the mapped file
        placed = {name: tensor.to(self.device, self.dtype, copy=True) for name, tensor in loose.items()}
        self.load_state_dict(placed, strict=True, assign=True)
        if probe is not None:
            self.pool.fold(probe)

    def forward(self, inputs: Inputs, out: Outputs) -> None:
        """Encode all rows: tokens, each level in its own columns, and a pooled row for each item."""
        patches = F.linear(self.ops.pixels(inputs.rows, CENTRE, self.dtype), self.patches.weight)
        embedded = self.ops.embed_positions(inputs, patches, self.tables)
        x = embedded.x if self.pre_norm is None else self.ops.add_norm(embedded.x, None, self.pre_norm)
        levels = [out.tokens[:, level.start : level.stop] for level in self.spec.levels]
        attends = self._attends(inputs, embedded)
        branch: torch.Tensor | None = None
        for i, block in enumerate(self.blocks):
            branch = block(x, branch, attends[i], self.ops)
            if i in self.level_of_layer:
                level = self.level_of_layer[i]
                self.deepstack[level](x, branch, embedded.order, self.ops, levels[1 + level])
                branch = None
                if level == len(self.deepstack) - 1:
                    out.early_done()
        self._finish(x, branch, embedded, levels[0])
        self.pool(out.tokens, inputs.cu_seqlens, self.ops, out.pooled)

    def _attends(self, inputs: Inputs, embedded: Embedded) -> list[Attend]:
        """How each block attends: over whole pictures, or within windows."""
        whole = self.ops.attention(inputs.cu_seqlens, embedded)
        positions = self.plan.positions
        if not positions.window:
            return [whole] * self.plan.depth
        within = self.ops.window_attention(embedded)
        return [whole if i in positions.full_blocks else within for i in range(self.plan.depth)]

    def _finish(self, x: torch.Tensor, branch: torch.Tensor | None, embedded: Embedded, main: torch.Tensor) -> None:
        """Write the main level."""
        if self.merger is not None:
            self.merger(x, branch, embedded.order, self.ops, main)
        elif self.final_norm is not None:
            main.copy_(self.ops.add_norm(x, branch, self.final_norm))
        elif branch is None:
            main.copy_(x)
        else:
            torch.add(x, branch, out=main)
