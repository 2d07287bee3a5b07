"""When each request of a step is due and what it carries, drawn from a seed before anything is sent.

Because all arrivals are known in advance, memory is bounded by their number, and latency can be counted from the
moment a request was *due*: a server that stalls is charged for those who would have come meanwhile.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from foveal.errors import ConfigurationError

Process = Literal["poisson", "constant"]
MAX_REQUESTS = 5_000_000
"""Of one step, all generators together: their samples stay in memory."""
TRACE_COLUMNS = ("seconds", "width", "height")


@dataclass(frozen=True)
class Schedule:
    """One row per request, ascending in time. A copy number tells apart requests that show the same picture."""

    due: npt.NDArray[np.float64]
    """Seconds after the start of the step."""
    pictures: npt.NDArray[np.int32]
    """[requests, images of a request]: index into the pictures."""
    copies: npt.NDArray[np.int64]
    """Same shape. The same picture and copy are the same bytes, which a cache may answer."""

    def share(self, index: int, num_shares: int) -> Schedule:
        """Every num_shares-th request: together the shares are the whole."""
        part = slice(index, None, num_shares)
        return Schedule(self.due[part], self.pictures[part], self.copies[part])


@dataclass(frozen=True)
class Recipe:
    """What every step of a run has in common."""

    process: Process
    num_pictures: int
    images_per_request: int = 1
    duplicates: float = 0.0
    """Share of images whose bytes were sent before in the same step."""
    seed: int = 0
    """Of everything but the copy numbers: two runs differ in bytes, or a cache would answer the second."""


def draw(recipe: Recipe, rate: float, seconds: float, step: int, first_copy: int) -> Schedule:
    """Arrivals at `rate` a second. Copies count up from `first_copy`, so that steps share no bytes."""
    if rate * seconds > MAX_REQUESTS:
        raise ConfigurationError(f"{rate:g}/s for {seconds:g} s are more than {MAX_REQUESTS} requests; ask for less")
    random = np.random.default_rng([recipe.seed, step])
    due = _arrivals(recipe.process, rate, seconds, random)
    shape = (len(due), recipe.images_per_request)
    return carry(recipe, due, random.integers(0, recipe.num_pictures, shape, np.int32), first_copy)


def carry(recipe: Recipe, due: npt.NDArray[np.float64], pictures: npt.NDArray[np.int32], first_copy: int) -> Schedule:
    """Give each image a copy number of its own, or, for the share of duplicates, what an earlier image has."""
    random = np.random.default_rng([recipe.seed, len(due)])
    flat, copies = pictures.reshape(-1).copy(), first_copy + np.arange(pictures.size, dtype=np.int64)
    repeats = np.flatnonzero(random.random(pictures.size) < recipe.duplicates)
    for i in repeats[repeats > 0]:  # in order: an earlier image may itself be a repeat
        earlier = int(random.integers(0, i))
        flat[i], copies[i] = flat[earlier], copies[earlier]
    return Schedule(due, flat.reshape(pictures.shape), copies.reshape(pictures.shape))


def _arrivals(process: Process, rate: float, seconds: float, random: np.random.Generator) -> npt.NDArray[np.float64]:
    if process == "constant":
        return np.arange(max(1, round(rate * seconds)), dtype=np.float64) / rate
    # given their number, the arrivals of a Poisson process are uniform
    return np.sort(random.uniform(0.0, seconds, max(1, int(random.poisson(rate * seconds)))))


@dataclass(frozen=True)
class Trace:
    """Recorded arrivals: the moment of each, from 0 on, and the size of its picture."""

    due: npt.NDArray[np.float64]
    sizes: Sequence[tuple[int, int]]

    @property
    def rate(self) -> float:
        """Arrivals a second, on average."""
        return len(self.due) / max(float(self.due[-1]), 1e-9)


def read_trace(path: Path, speed: float) -> Trace:
    """A CSV file with the columns seconds, width, height; raises ConfigurationError if that is not what it holds."""
    try:
        with path.open(newline="") as lines:
            rows = [tuple(float(row[name]) for name in TRACE_COLUMNS) for row in csv.DictReader(lines)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"--trace {path}: {error!r}; it needs a line of the names {','.join(TRACE_COLUMNS)}, then numbers"
        ) from None
    if not rows or len(rows) > MAX_REQUESTS or any(w < 1 or h < 1 for _, w, h in rows):
        raise ConfigurationError(f"--trace {path}: 1 to {MAX_REQUESTS} lines, with sizes of at least one pixel")
    rows.sort()
    seconds = np.array([row[0] for row in rows])
    return Trace((seconds - seconds[0]) / speed, [(int(w), int(h)) for _, w, h in rows])
