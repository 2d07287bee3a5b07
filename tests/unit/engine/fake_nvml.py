"""A driver with as many GPUs as a test wants, in the shape of the module pynvml."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pynvml


@dataclass
class Board:
    """What a GPU tells; None: it refuses."""

    uuid: str = "GPU-aaaa"
    name: str = "NVIDIA H200"
    throttling: int = 0
    ecc: int | None = 0
    parent: Board | None = None


@dataclass
class FakeNvml:
    """Constants are the real ones."""

    boards: list[Board] = field(default_factory=lambda: [Board()])
    slices: dict[str, Board] = field(default_factory=dict)
    has_driver: bool = True
    hangs: threading.Event = field(default_factory=threading.Event)
    reads: int = 0

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
    NVML_VOLATILE_ECC, NVML_TEMPERATURE_GPU = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_TEMPERATURE_GPU

    def __getattr__(self, name: str) -> int:
        assert name.startswith("nvmlClocks"), name
        return int(getattr(pynvml, name))

    def nvmlInit(self) -> None:
        if not self.has_driver:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    def nvmlDeviceGetCount(self) -> int:
        self.reads += 1
        while self.hangs.is_set():  # a driver that hangs, until the test ends it
            threading.Event().wait(0.001)
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, i: int) -> Board:
        return self.boards[i]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Board:
        if uuid not in self.slices:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.slices[uuid]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, part: Board) -> Board:
        assert part.parent is not None
        return part.parent

    def nvmlDeviceGetUUID(self, board: Board) -> str:
        return board.uuid

    def nvmlDeviceGetName(self, board: Board) -> str:
        return board.name

    def nvmlDeviceGetUtilizationRates(self, board: Board) -> SimpleNamespace:
        if board.parent is not None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=75, memory=20)

    def nvmlDeviceGetMemoryInfo(self, board: Board) -> SimpleNamespace:
        return SimpleNamespace(used=7 if board.parent else 40 << 30, total=10 if board.parent else 140 << 30, free=0)

    def nvmlDeviceGetClockInfo(self, board: Board, kind: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, board: Board) -> int:
        return board.throttling

    def nvmlDeviceGetTotalEccErrors(self, board: Board, kind: int, since: int) -> int:
        assert (kind, since) == (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        if board.ecc is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return board.ecc

    def nvmlDeviceGetTemperature(self, board: Board, sensor: int) -> int:
        return 61

    def nvmlDeviceGetPowerUsage(self, board: Board) -> int:
        return 512_250
