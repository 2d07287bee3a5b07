"""Spoiled files in worker processes of this program: as many as there are cores, and a crash ends only one."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

import torch
from tqdm import tqdm

from foveal.vision.confine import keep_libraries_quiet
from tests.fuzz.inside import BATCH, Finding, Inside, resident_bytes
from tests.fuzz.through import MAX_GROWTH_BYTES

WARM_BATCHES = 10
_inside: list[Inside] = []


def start_worker(seed: int) -> None:
    """First call in a worker process."""
    keep_libraries_quiet()
    faulthandler.enable(sys.stderr)
    torch.set_num_threads(1)
    _inside.append(Inside(seed))


def run_batch(first: int, count: int) -> tuple[Counter[str], str | None, int, int]:
    """Answers, a finding, process and its memory."""
    try:
        answers, finding = _inside[0].run(first, count), None
    except Finding as error:
        answers, finding = Counter(finding=1), str(error)
    return answers, finding, os.getpid(), resident_bytes()


def run_inside(seed: int, first: int, count: int) -> tuple[Counter[str], list[str]]:
    """Answers and findings of the inputs from `first`."""
    answers, findings = Counter[str](), list[str]()
    memory: dict[int, list[int]] = {}
    spawn = multiprocessing.get_context("spawn")
    workers = len(os.sched_getaffinity(0))
    with (
        ProcessPoolExecutor(workers, spawn, start_worker, (seed,)) as pool,
        tqdm(total=count, desc="in the program", unit=" inputs") as bar,
    ):
        sizes = {n: min(BATCH, first + count - n) for n in range(first, first + count, BATCH)}
        batches = {pool.submit(run_batch, n, size): (n, size) for n, size in sizes.items()}
        for done in as_completed(batches):
            try:
                found, finding, pid, resident = done.result()
            except BrokenProcessPool:
                lost = [batches[b] for b in batches if not b.done() or b.exception() is not None]
                findings.append(f"a process crashed or hung; its input is one of {BATCH} from {lost[0][0]} on, or near")
                break
            answers += found
            memory.setdefault(pid, []).append(resident)
            findings += [finding] if finding else []
            bar.update(batches[done][1])
    for sizes_of_one in memory.values():
        grown = sizes_of_one[-1] - max(sizes_of_one[:WARM_BATCHES])
        if grown > MAX_GROWTH_BYTES:
            findings.append(f"memory grew by {grown >> 20} MiB over {len(sizes_of_one) * BATCH} inputs")
    return answers, findings
