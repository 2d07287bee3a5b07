"""How the forward of a step is started. The runner knows this interface only; graphs are one more class behind it."""

from __future__ import annotations

from typing import Literal, Protocol

import torch

from foveal.gpu.buffers import Buffers
from foveal.gpu.layout import Step
from foveal.gpu.towers.protocol import Tower


class Executable(Protocol):
    """Something that encodes what lies in one set of buffers."""

    @property
    def mode(self) -> Literal["graph", "static", "eager"]:
        """As told in `PackDone`."""

    @property
    def buffers(self) -> Buffers:
        """Where it reads and writes."""

    def run(self, step: Step) -> torch.Tensor:
        """Encode at a step: its rows of output, which the next run overwrites. May return before they are there."""


class DirectCall:
    """Calls the forward: static on the shared buffers, eager on buffers of just the needed size."""

    def __init__(self, tower: Tower, buffers: Buffers, mode: Literal["static", "eager"]) -> None:
        self.tower, self.buffers, self.mode = tower, buffers, mode

    def run(self, step: Step) -> torch.Tensor:
        """One forward."""
        encode(self.tower, self.buffers, step)
        return self.buffers.output(step)


def encode(tower: Tower, buffers: Buffers, step: Step) -> None:
    """The one thing that is called directly, captured and replayed: rows of output, and the peak of each row.

    A peak is the largest magnitude of a row, in float32; NaN and infinity come through, so that one look at the peaks
    on the host tells which items are good.
    """
    output = buffers.output(step)
    tower.forward(buffers.inputs(step), output)
    tower.ops.peaks(output, buffers.peaks[: step.tokens])
