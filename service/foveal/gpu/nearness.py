"""The worker's place on the host: on the cores of the socket that its GPU hangs on.

From another socket, every launch and every copy crosses the link between the two.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch

log = logging.getLogger(__name__)

PCI_DEVICES = Path("/sys/bus/pci/devices")


def stay_near(device: torch.device) -> None:
    """Bind this thread, and those that it will start, to the allowed cores near a CUDA device, if that is known."""
    try:
        near = near_cores(pci_address(device))
    except (AttributeError, OSError, ValueError) as error:  # an older torch, no sysfs, a system that does not say
        log.info("the cores near the GPU are not known", extra={"reason": f"{type(error).__name__}: {error}"})
        return
    allowed = os.sched_getaffinity(0)
    chosen = near & allowed
    if chosen:
        os.sched_setaffinity(0, chosen)
    log.info("cores near the GPU", extra={"near": len(near), "allowed": len(allowed), "chosen": sorted(chosen)})


def pci_address(device: torch.device) -> str:
    """As sysfs writes it; raises AttributeError where torch does not tell."""
    properties = torch.cuda.get_device_properties(device)
    domain, bus, slot = (int(getattr(properties, f"pci_{part}_id")) for part in ("domain", "bus", "device"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def near_cores(address: str, root: Path = PCI_DEVICES) -> set[int]:
    """The cores that the kernel calls local to a PCI device; raises OSError or ValueError where it does not say."""
    return parse_cores((root / address / "local_cpulist").read_text())


def parse_cores(text: str) -> set[int]:
    """Numbers from the kernel's notation, such as "0-3,8,10-11"; raises ValueError."""
    cores: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
