"""Spoiled files against the answer function of the prep program, in this process: fast, and sees what it touches."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from foveal.ipc.arena import Arena
from foveal.ipc.messages import Prepare, Prepared, Probe, Probed, Refused
from foveal.types import PixelPlan
from foveal.vision.__main__ import Prep
from foveal.vision.warm_up import warm_up
from tests.fuzz.mutate import spoiled
from tests.fuzz.seeds import seeds

CALLERS_FAULTS = {"undecodable", "unsupported_type", "too_large"}
MAX_PIXELS = 1 << 20
HANG_SECONDS = 60
"""A hundred inputs that take longer hang: the watchdog prints where, and ends the process."""
BATCH = 100
PLAN = PixelPlan(64, 64, 16, 2)
WHITE = (255, 255, 255)
_TOUCHES = re.compile(
    r"open$|import$|socket\.|subprocess\.|os\.(system|exec|fork|spawn|posix_spawn|remove|rename)|ctypes\."
)

touched: list[str] = []
"""What decoding opened, connected to, started or imported, while `watching`."""
_is_watching = False


class Finding(Exception):
    """An input that was not answered as it should."""


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _is_watching and _TOUCHES.match(event):
        touched.append(f"{event} {arguments}"[:200])


@contextlib.contextmanager
def watching() -> Iterator[None]:
    """Note every file, socket, process and import, and log nothing."""
    global _is_watching
    _is_watching = True
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        _is_watching = False


class Inside:
    """The answer function over arenas of its own."""

    def __init__(self, seed: int) -> None:
        self._seed, self._files = seed, list(seeds().values())
        self._images, self._rows = Arena("images", 1 << 20), Arena("rows", 1 << 20)
        self._prep = Prep(self._images, self._rows)
        sys.addaudithook(_note)  # stays for good, and is quiet when nobody watches
        warm_up()

    def run(self, first: int, count: int) -> Counter[str]:
        """Answers by kind; raises Finding."""
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        try:
            with watching():
                answers = Counter(
                    self.answer(spoiled(self._files, self._seed, n), n) for n in range(first, first + count)
                )
        finally:
            faulthandler.cancel_dump_traceback_later()
        if touched:
            raise Finding(f"inputs {first} to {first + count - 1} made decoding touch {touched[0]}")
        return answers

    def answer(self, data: bytes, number: int) -> str:
        """What one input is answered; raises Finding."""
        block, rows = self._images.allocate(len(data)), self._rows.allocate(PLAN.num_patches * PLAN.row_bytes)
        block.view[:] = np.frombuffer(data, np.uint8)
        probed = self._prep.answer(Probe(1, block.span, MAX_PIXELS))
        if isinstance(probed, Probed) and not 0 < probed.width * probed.height <= MAX_PIXELS:
            raise Finding(f"input {number} was probed as {probed}")
        prepared = self._prep.answer(Prepare(2, block.span, rows.span, PLAN, WHITE, MAX_PIXELS))
        if isinstance(probed, Refused) and isinstance(prepared, Prepared):
            raise Finding(f"input {number} was refused by its header ({probed.code}) and decoded all the same")
        for found in (probed, prepared):
            if isinstance(found, Refused) and found.code not in CALLERS_FAULTS:
                raise Finding(f"input {number} was answered {found.code}: {found.message}")
        return prepared.code if isinstance(prepared, Refused) else "prepared"


def resident_bytes() -> int:
    """Memory of this process that is there."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
