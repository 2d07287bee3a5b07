"""From uint8 patch rows to embeddings with one matrix: normalisation and the temporal pair are folded into it.

The checkpoint's Conv3d sees two equal frames of normalised pixels, sum over c of w_c (x / 255 - mean_c) / std_c. For a
still image its two time slices add up. Pixels enter as (x - 128) / 128, which bfloat16 and float16 hold exactly; the
factor 128 goes into the weight, where it keeps float16 clear of its subnormal numbers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from foveal.gpu.ops import Ops

CENTRE = 128.0


class PatchEmbed(nn.Module):
    """Holds the checkpoint's tensors until `fold`, the folded ones after."""

    weight: torch.Tensor
    bias: torch.Tensor

    def __init__(self, hidden: int, temporal: int, patch_size: int) -> None:
        super().__init__()
        kernel = (temporal, patch_size, patch_size)
        self.proj = nn.Conv3d(3, hidden, kernel, kernel)

    def fold(self, mean: tuple[float, float, float], std: tuple[float, float, float], dtype: torch.dtype) -> None:
        """Replace the convolution by one matrix in `dtype` and a bias in float32; the convolution must be float32.

        The bias comes from the rounded matrix, so that rounding leaves a mid-grey patch where it was.
        """
        kernel, bias = self.proj.weight, self.proj.bias
        assert bias is not None
        channels = (1, 3, 1, 1)
        per_level = kernel.sum(2) / (255.0 * kernel.new_tensor(std).view(channels))
        weight = (per_level * CENTRE).to(dtype)
        black = (CENTRE - 255.0 * kernel.new_tensor(mean).view(channels)) / CENTRE
        self.register_buffer("bias", bias + (weight.float() * black).sum((1, 2, 3)), persistent=False)
        self.register_buffer("weight", weight.flatten(1), persistent=False)
        del self.proj

    def forward(self, rows: torch.Tensor, ops: Ops) -> torch.Tensor:
        """[patches, hidden] of uint8 [patches, 3 * patch_size²], without the bias, which the positions bring."""
        return F.linear(ops.pixels(rows, CENTRE, self.weight.dtype), self.weight)
