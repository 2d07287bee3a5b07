"""Whole-encoder CUDA graphs, one for each step of the ladder. The only file that names them.

All graphs read and write the same static buffers and take their intermediate memory from one pool, laid out by the
largest, which is captured first. A graph keeps the addresses of these exact tensors; only their content changes.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch

from foveal.gpu.buffers import Buffers
from foveal.gpu.executable import encode
from foveal.gpu.layout import Step
from foveal.gpu.towers.protocol import Tower

WARM_RUNS = 2
"""Before a capture: the first run may compile kernels and make workspaces, which no graph can record."""
TIMED_RUNS = 3


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the collector from freeing some old graph or event while another is recorded: CUDA forbids that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class GraphSet:
    """Graphs by step, and the forward called directly for steps that have none."""

    def __init__(self, tower: Tower, buffers: Buffers, stream: torch.cuda.Stream) -> None:
        self.tower, self.buffers, self.stream = tower, buffers, stream
        if tower.geometry.early_width:
            buffers.early = torch.cuda.Event(external=True)  # a node of every graph, which other streams may wait for
        self._graphs: dict[Step, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __contains__(self, step: Step) -> bool:
        return step in self._graphs

    def run(self, step: Step) -> None:
        """Replay, or call directly, on the current stream; the next run overwrites the answers."""
        graph = self._graphs.get(step)
        if graph is None:
            encode(self.tower, self.buffers, step)
        else:
            graph.replay()

    def capture(self, step: Step) -> int:
        """Record a step; the device memory that it took. Nothing else may run on the stream meanwhile."""
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_RUNS):
                encode(self.tower, self.buffers, step)
            self.stream.synchronize()
            free, _ = torch.cuda.mem_get_info()
            graph = torch.cuda.CUDAGraph()
            with no_garbage_collection():
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    encode(self.tower, self.buffers, step)
                finally:
                    graph.capture_end()
            graph.replay()
            self.stream.synchronize()
        self._graphs[step] = graph
        return max(0, free - torch.cuda.mem_get_info()[0])

    def drop(self, step: Step) -> None:
        """Forget a graph."""
        self._graphs.pop(step, None)

    def milliseconds(self, step: Step) -> float:
        """Device time of the fastest of some runs of what the buffers hold now."""
        taken: list[float] = []
        with torch.cuda.stream(self.stream):
            for _ in range(TIMED_RUNS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record(self.stream)
                self.run(step)
                end.record(self.stream)
                end.synchronize()
                taken.append(begin.elapsed_time(end))
        return min(taken)
