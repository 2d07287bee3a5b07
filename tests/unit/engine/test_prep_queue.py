"""Which task a prep process takes next: large pictures hold all processes but one, and keep nobody out for ever."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from foveal.engine.prep_queue import HEADERS_IN_A_ROW, LARGE_WORK, PrepQueue

WORKS = st.one_of(st.none(), st.integers(0, LARGE_WORK - 1), st.integers(LARGE_WORK, 20 * LARGE_WORK))
SMALL, LARGE, HUGE = LARGE_WORK // 10, LARGE_WORK, 10 * LARGE_WORK


@dataclass(eq=False)
class Job:
    work: int | None
    caller: str = ""
    is_claimed: bool = True

    def claim(self) -> bool:
        return self.is_claimed

    @property
    def is_large(self) -> bool:
        return self.work is not None and self.work >= LARGE_WORK


def filled(*jobs: Job) -> PrepQueue[Job]:
    queue: PrepQueue[Job] = PrepQueue()
    for job in jobs:
        queue.put(job)
    return queue


def one_by_one(queue: PrepQueue[Job]) -> list[Job]:
    """What a single process takes, one after the other."""
    taken = []
    while (job := queue.take(1)) is not None:
        taken.append(job)
        queue.give_back(job)
    return taken


# what happens next: a task comes, or the process at that place of the busy ones is through
EVENTS = st.lists(st.one_of(st.tuples(WORKS, st.sampled_from("abc")), st.integers(0, 7)), max_size=80)


@given(processes=st.integers(1, 8), events=EVENTS)
def test_large_pictures_never_hold_all_processes_and_no_process_idles_beside_small_ones(
    processes: int, events: list[tuple[int | None, str] | int]
) -> None:
    queue: PrepQueue[Job] = PrepQueue()
    in_hand: list[Job] = []
    for event in events:
        if isinstance(event, tuple):
            job = Job(*event)
            if len(in_hand) < processes and queue.take_at_once(job, processes):
                in_hand.append(job)
            else:
                queue.put(job)
        elif in_hand:
            queue.give_back(in_hand.pop(event % len(in_hand)))
        while len(in_hand) < processes and (job := queue.take(processes)) is not None:
            in_hand.append(job)
        large = sum(job.is_large for job in in_hand)
        assert large <= max(1, processes - 1)
        if len(in_hand) < processes:
            assert all(job.is_large for job in queue.all())
            assert not queue.all() or large == max(1, processes - 1)


@given(jobs=st.lists(st.tuples(WORKS, st.sampled_from("abc")), max_size=60), processes=st.integers(1, 4))
def test_everything_is_taken_once_and_in_turn(jobs: list[tuple[int | None, str]], processes: int) -> None:
    queue = filled(*(Job(*job) for job in jobs))
    assert len(queue) == len(queue.all()) == len(jobs)
    taken = one_by_one(queue)
    assert Counter((job.work, job.caller) for job in taken) == Counter(jobs)
    for caller in "abc":  # those of a lane stay in order
        for is_large in (True, False):
            own = [
                job.work for job in taken if job.work is not None and (job.caller, job.is_large) == (caller, is_large)
            ]
            assert own == [w for w, c in jobs if w is not None and c == caller and (w >= LARGE_WORK) == is_large]


@given(smalls=st.lists(st.integers(1, LARGE_WORK - 1), min_size=1, max_size=60), large=st.integers(LARGE_WORK, HUGE))
def test_between_two_large_ones_small_ones_get_as_much_work_and_not_much_more(smalls: list[int], large: int) -> None:
    taken = one_by_one(filled(Job(large), Job(large), *map(Job, smalls)))
    first, second = (i for i, job in enumerate(taken) if job.is_large)
    between = sum(job.work or 0 for job in taken[first:second])
    behind = taken[second + 1 :]
    assert between - large < LARGE_WORK + large  # the last of them may exceed it, by less than a large one
    assert not behind or between - large >= large


def test_a_small_picture_waits_for_no_more_than_one_of_sixteen_large_ones() -> None:
    for processes, most in ((1, 1), (2, 0), (8, 0)):
        queue = filled(*(Job(HUGE) for _ in range(16)))
        while (job := queue.take(processes)) is not None and processes > 1:
            pass  # until no more large ones may be taken
        small = Job(SMALL)
        queue.put(small)
        if most:
            assert job is not None
            queue.give_back(job)
        assert queue.take(processes) is small


def test_headers_go_first_but_pictures_that_were_admitted_are_not_starved() -> None:
    taken = one_by_one(filled(Job(SMALL), Job(SMALL), *(Job(None) for _ in range(3 * HEADERS_IN_A_ROW))))
    kinds = ["header" if job.work is None else "picture" for job in taken]
    assert kinds[: 2 * (HEADERS_IN_A_ROW + 1)] == [*["header"] * HEADERS_IN_A_ROW, "picture"] * 2


def test_callers_take_turns_with_large_pictures_too() -> None:
    taken = one_by_one(filled(Job(LARGE, "bomber"), Job(LARGE, "bomber"), Job(LARGE, "other")))
    assert [job.caller for job in taken] == ["bomber", "other", "bomber"]


def test_what_is_not_to_be_done_any_more_is_passed_over() -> None:
    wanted = Job(SMALL)
    queue = filled(Job(SMALL, is_claimed=False), Job(LARGE, is_claimed=False), Job(None, is_claimed=False), wanted)
    assert one_by_one(queue) == [wanted]
    assert len(queue) == 0


def test_one_that_was_lost_comes_before_its_callers_others() -> None:
    lost, other = Job(LARGE), Job(LARGE)
    queue = filled(lost, other)
    assert queue.take(2) is lost
    assert queue.take(2) is None
    queue.give_back(lost)
    queue.put_back(lost)
    assert queue.take(2) is lost


def test_a_task_is_taken_at_once_only_where_nothing_else_waits_and_somebody_still_wants_it() -> None:
    queue = filled(Job(SMALL))
    assert not queue.take_at_once(Job(SMALL), 2)
    assert queue.take(2) is not None
    assert not queue.take_at_once(Job(SMALL, is_claimed=False), 2)
    assert queue.take_at_once(Job(None), 2) and not queue
