"""What NVML tells of the GPUs under the workers. Its calls may block for seconds: a thread of its own makes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from prometheus_client import Gauge

from foveal.metrics import Metrics

log = logging.getLogger(__name__)

MEGA = 1_000_000
THROTTLES = {
    "power_cap": "nvmlClocksEventReasonSwPowerCap",
    "thermal": "nvmlClocksEventReasonSwThermalSlowdown",
    "hardware": "nvmlClocksThrottleReasonHwSlowdown",
    "hardware_thermal": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "power_brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
}
"""Reasons that say something is amiss, and `power_cap`, which is usual at full load. Being idle is not among them."""

Fact = tuple[Gauge, tuple[str, ...]]
"""A series: its family and its labels."""
Facts = dict[Fact, float]


class Gpu(NamedTuple):
    """NVML's handles of one visible device: of itself, and of its board. They differ for a MIG slice."""

    own: Any
    board: Any


class NvmlReader:
    """Reads all facts of some devices. `nvml` is the module pynvml; every call of it blocks."""

    def __init__(self, nvml: Any, devices: Mapping[str, str], is_pci_order: bool, metrics: Metrics) -> None:
        """`devices` are entries of CUDA_VISIBLE_DEVICES by worker; raises NVMLError without a driver."""
        self._nvml, self._devices, self._is_pci_order, self._metrics = nvml, devices, is_pci_order, metrics
        self._said: set[tuple[str, str, str]] = set()
        nvml.nvmlInit()

    def read(self) -> Facts:
        """The facts that could be had. What cannot is left out, and said once."""
        facts: Facts = {}
        for worker, device in self._devices.items():
            try:
                gpu = self._find(device)
            except (self._nvml.NVMLError, LookupError) as error:
                self._say(worker, "all", error)
                continue
            for name, read in _READERS.items():
                try:
                    facts |= {
                        (family, (worker, *labels)): float(value)
                        for family, labels, value in read(self._nvml, gpu, self._metrics)
                    }
                except self._nvml.NVMLError as error:
                    self._say(worker, name, error)
        return facts

    def _find(self, device: str) -> Gpu:
        """The device that an index, a GPU's UUID or the beginning of one, or a MIG slice's UUID names."""
        nvml = self._nvml
        if device.startswith("MIG-"):
            own = nvml.nvmlDeviceGetHandleByUUID(device)
            return Gpu(own, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(own))
        boards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        if device.isdigit():
            if not self._is_pci_order and len({nvml.nvmlDeviceGetName(board) for board in boards}) > 1:
                raise LookupError("CUDA counts different GPUs in another order unless CUDA_DEVICE_ORDER=PCI_BUS_ID")
            return Gpu(boards[int(device)], boards[int(device)])
        named = [board for board in boards if nvml.nvmlDeviceGetUUID(board).startswith(device)]
        if len(named) != 1:
            raise LookupError(f"{len(named)} GPUs are named {device}")
        return Gpu(named[0], named[0])

    def _say(self, worker: str, fact: str, error: Exception) -> None:
        said = (worker, fact, str(error))
        if said not in self._said:
            self._said.add(said)
            log.info("a GPU's fact is not known", extra={"worker": worker, "fact": fact, "reason": str(error)})


Found = list[tuple[Gauge, tuple[str, ...], float]]


def _utilization(nvml: Any, gpu: Gpu, m: Metrics) -> Found:
    return [(m.gpu_utilization_ratio, (), nvml.nvmlDeviceGetUtilizationRates(gpu.own).gpu / 100)]


def _memory(nvml: Any, gpu: Gpu, m: Metrics) -> Found:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu.own)
    return [(m.gpu_device_memory_bytes, (kind,), getattr(memory, kind)) for kind in ("used", "total")]


def _clocks(nvml: Any, gpu: Gpu, m: Metrics) -> Found:
    kinds = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
    return [(m.gpu_clock_hertz, (n,), nvml.nvmlDeviceGetClockInfo(gpu.board, k) * MEGA) for n, k in kinds.items()]


def _throttling(nvml: Any, gpu: Gpu, m: Metrics) -> Found:
    mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu.board)
    return [(m.gpu_throttled, (reason,), bool(mask & getattr(nvml, bit))) for reason, bit in THROTTLES.items()]


def _ecc(nvml: Any, gpu: Gpu, m: Metrics) -> Found:
    kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return [(m.gpu_ecc_uncorrected_errors, (), nvml.nvmlDeviceGetTotalEccErrors(gpu.board, *kinds))]


def _temperature(nvml: Any, gpu: Gpu, m: Metrics) -> Found:
    degrees = nvml.nvmlDeviceGetTemperature(gpu.board, nvml.NVML_TEMPERATURE_GPU)
    return [(m.gpu_temperature_celsius, (), degrees)]


def _power(nvml: Any, gpu: Gpu, m: Metrics) -> Found:
    return [(m.gpu_power_watts, (), nvml.nvmlDeviceGetPowerUsage(gpu.board) / 1000)]


_READERS: dict[str, Callable[[Any, Gpu, Metrics], Found]] = {
    "utilization": _utilization,
    "memory": _memory,
    "clocks": _clocks,
    "throttling": _throttling,
    "ecc": _ecc,
    "temperature": _temperature,
    "power": _power,
}
