"""`GpuWatch`: shows what NVML tells as metrics, and nothing once it tells nothing any more."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import threading
from collections.abc import Mapping
from typing import Any

from foveal.engine.nvml import Facts, NvmlReader
from foveal.metrics import Metrics

log = logging.getLogger(__name__)

READ_SECONDS = 5.0
STALE_SECONDS = 4 * READ_SECONDS
"""Facts that are older are not shown: a driver that hangs must not look well."""


class GpuWatch:
    """Reads in a thread that nobody waits for, shows on the loop. Lives as long as `run` does."""

    def __init__(
        self,
        devices: Mapping[str, str],
        is_pci_order: bool,
        metrics: Metrics,
        nvml: Any = None,
        read_seconds: float = READ_SECONDS,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        """`devices` are entries of CUDA_VISIBLE_DEVICES by worker; `nvml` defaults to the module pynvml."""
        self._devices, self._is_pci_order, self._metrics = devices, is_pci_order, metrics
        self._nvml, self._read_seconds, self._stale_seconds = nvml, read_seconds, stale_seconds
        self._shown: Facts = {}
        self._news: asyncio.Queue[Facts | None] = asyncio.Queue()
        self._ended = threading.Event()

    async def run(self) -> None:
        """Until `stop`; at once over where there is no NVML."""
        thread = threading.Thread(target=self._read, args=(asyncio.get_running_loop(),), name="nvml", daemon=True)
        thread.start()
        while True:
            try:
                async with asyncio.timeout(self._stale_seconds if self._shown else None):
                    facts = await self._news.get()
            except TimeoutError:
                log.error("NVML does not answer: the driver may hang", extra={"seconds": self._stale_seconds})
                facts = {}
            if facts is None:
                return
            self.show(facts)

    def stop(self) -> None:
        """End `run`, and the thread once NVML lets it."""
        self._ended.set()
        self._news.put_nowait(None)

    def show(self, facts: Facts) -> None:
        """Set what is known, and take back what no longer is."""
        for (family, labels), value in facts.items():
            family.labels(*labels).set(value)
        for family, labels in self._shown.keys() - facts.keys():
            family.remove(*labels)
        self._shown = facts

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """The thread."""
        reader = self._reader()
        if reader is None:
            self._tell(loop, None)
            return
        while not self._ended.is_set():
            self._tell(loop, reader.read())
            self._ended.wait(self._read_seconds)

    def _tell(self, loop: asyncio.AbstractEventLoop, facts: Facts | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended while NVML was asked: nobody waits
            loop.call_soon_threadsafe(self._news.put_nowait, facts)

    def _reader(self) -> NvmlReader | None:
        try:
            nvml = self._nvml or importlib.import_module("pynvml")
        except ModuleNotFoundError as error:
            log.info("facts of GPUs are not known", extra={"reason": str(error)})
            return None
        try:
            return NvmlReader(nvml, self._devices, self._is_pci_order, self._metrics)
        except nvml.NVMLError as error:
            log.info("facts of GPUs are not known", extra={"reason": str(error)})
            return None
