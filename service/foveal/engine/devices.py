"""From `--device` to worker places: which processes, which variables each, without importing torch.

A worker is pinned by CUDA_VISIBLE_DEVICES before its process imports torch. Indices count within what the
variable already allows; identifiers (GPU-..., MIG-...) pass as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Literal

from foveal.engine.pool import Place
from foveal.errors import ConfigurationError
from foveal.settings import Settings

GPU_DEPTH = 2
"""A GPU worker copies its next pack in while it runs the present one."""
CPU_DEPTH = 1
"""A CPU worker has nothing to overlap, and a later choice of pack is a better one."""
NVIDIA_SMI_SECONDS = 10
PCI_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
"""The variable with which CUDA counts GPUs as nvidia-smi and NVML do."""


@dataclass(frozen=True)
class Placement:
    """All worker places of one server."""

    device: Literal["cpu", "cuda"]
    places: tuple[Place, ...]
    threads: int
    """torch threads of each worker; 0 leaves torch's choice."""

    @property
    def gpus(self) -> dict[str, str]:
        """The GPU of each worker, as CUDA_VISIBLE_DEVICES names it."""
        if self.device == "cpu":
            return {}
        return {place.name: place.environment["CUDA_VISIBLE_DEVICES"] for place in self.places}

    @property
    def is_pci_order(self) -> bool:
        """True if an index means to CUDA what it means to NVML."""
        return all(PCI_ORDER in place.environment.items() for place in self.places)


def worker_places(settings: Settings, environment: dict[str, str]) -> Placement:
    """What `--device` means on this machine; raises ConfigurationError when it cannot be had."""
    wanted = settings.device.strip()
    if wanted == "cpu":
        return _on_cpu(settings, environment)
    gpus = visible_gpus(environment)
    if wanted == "auto":
        return _on_gpus(gpus, environment) if gpus else _on_cpu(settings, environment)
    if wanted == "cuda":
        if not gpus:
            raise ConfigurationError("--device cuda: no GPU is visible; use --device cpu or check CUDA_VISIBLE_DEVICES")
        return _on_gpus(gpus, environment)
    match = re.fullmatch(r"cuda:(.+)", wanted)
    if match is None:
        raise ConfigurationError(f"--device {wanted}: say auto, cpu, cuda, or a list such as cuda:0,1")
    return _on_gpus([_pick(name.strip(), gpus) for name in match[1].split(",")], environment)


def visible_gpus(environment: dict[str, str]) -> list[str]:
    """Values for CUDA_VISIBLE_DEVICES, one for each GPU that this process may use."""
    limited = environment.get("CUDA_VISIBLE_DEVICES")
    if limited is not None:
        return [part.strip() for part in limited.split(",") if part.strip() not in ("", "-1")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    listed = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS, check=False)
    return re.findall(r"^GPU (\d+):", listed.stdout, re.MULTILINE) if listed.returncode == 0 else []


def _pick(name: str, gpus: list[str]) -> str:
    if not name.isdigit():
        return name
    if int(name) >= len(gpus):
        raise ConfigurationError(f"--device cuda:{name}: {len(gpus)} GPUs are visible, counted from 0")
    return gpus[int(name)]


def _on_gpus(gpus: list[str], environment: dict[str, str]) -> Placement:
    if "CUDA_VISIBLE_DEVICES" not in environment:  # these are nvidia-smi's indices, and CUDA's own order may differ
        environment = {**environment, PCI_ORDER[0]: PCI_ORDER[1]}
    places = tuple(
        Place(f"cuda-{i}", {**environment, "CUDA_VISIBLE_DEVICES": gpu}, GPU_DEPTH) for i, gpu in enumerate(gpus)
    )
    return Placement("cuda", places, 0)


def _on_cpu(settings: Settings, environment: dict[str, str]) -> Placement:
    cores = len(os.sched_getaffinity(0))
    threads = settings.cpu_threads or max(1, cores // settings.cpu_workers)
    hidden = {**environment, "CUDA_VISIBLE_DEVICES": ""}
    places = tuple(Place(f"cpu-{i}", hidden, CPU_DEPTH) for i in range(settings.cpu_workers))
    return Placement("cpu", places, threads)
