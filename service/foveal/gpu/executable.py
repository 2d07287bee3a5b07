"""How the forward of a step is started. The runner knows this interface only; graphs are one more class behind it."""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from foveal.gpu.buffers import Buffers
from foveal.gpu.layout import Layout, Step
from foveal.gpu.towers.protocol import Tower


class Executable(Protocol):
    """Something that encodes what lies in one set of buffers."""

    @property
    def mode(self) -> Literal["graph", "static", "eager"]:
        """As told in `PackDone`."""

    @property
    def buffers(self) -> Buffers:
        """Where it reads and writes."""

    def run(self, step: Step) -> None:
        """Encode at a step into the buffers' answers, until the next run. May return before they are there."""


class DirectCall:
    """Calls the forward: static on the shared buffers, eager on buffers of just the needed size."""

    def __init__(self, tower: Tower, buffers: Buffers, mode: Literal["static", "eager"]) -> None:
        self.tower, self.buffers, self.mode = tower, buffers, mode

    def run(self, step: Step) -> None:
        """One forward."""
        encode(self.tower, self.buffers, step)


def eager_call(tower: Tower, layout: Layout, device: torch.device, dtype: torch.dtype) -> tuple[DirectCall, Step]:
    """The same forward on buffers of just this size, which go when the pack is done."""
    step = Step(layout.num_tokens, layout.num_items)
    return DirectCall(tower, Buffers(step, tower.geometry, device, dtype), "eager"), step


@torch.inference_mode()
def encode(tower: Tower, buffers: Buffers, step: Step) -> None:
    """The one thing that is called directly, captured and replayed: token rows, pooled rows, and row maxima.

    A row's maximum is its largest magnitude, in float32; NaN and infinity come through, so that one look at the
    maxima on the host tells which items are good.
    """
    out = buffers.output(step)
    tower.forward(buffers.inputs(step), out)
    tower.ops.row_absmax(out.tokens, buffers.answers.row_absmax[: step.tokens])
