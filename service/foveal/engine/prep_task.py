"""`PrepTask`: a header to read or a picture to prepare, with who waits for it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from foveal.engine.decode_rate import DecodeRate
from foveal.engine.demand import Demand
from foveal.errors import DeadlineExceeded
from foveal.ipc.arena import Block
from foveal.ipc.messages import Prepare, Prepared, Probe, Probed


@dataclass(eq=False)
class PrepTask:
    """Something to do. Holds the blocks that the process reads and writes until it has answered."""

    message: Probe | Prepare
    blocks: tuple[Block, ...]
    demand: Demand
    decode_rate: DecodeRate
    work: int | None = None
    """Of decoding and resizing; None for a header."""
    done: asyncio.Future[Probed | Prepared] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    caller: str = field(init=False)
    lost_with: int = 0
    """Processes that ended with it in hand."""

    def __post_init__(self) -> None:
        self.caller = self.demand.caller

    def claim(self) -> bool:
        """False once nobody waits. Who waits and could not be answered in time, even if it began now, is told so."""
        if self.done.done():
            return False
        if not self.demand.is_late(time.monotonic() + self.decode_rate.least_seconds(self.work or 0)):
            return True
        self.done.set_exception(DeadlineExceeded("the deadline comes before this image could be decoded"))
        return False
