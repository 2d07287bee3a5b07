"""`PrepQueue`: which task a free prep process takes next. Decides by counts alone, without clocks or processes.

Three lanes, in each of which callers have fair shares: of headers by their number, of pictures by their work. *Headers*
go first, so that refusals do not wait for decoding, but not for ever. *Large* pictures, by the work that their headers
tell, hold all processes but one: what must be decoded to be known can then hold up its own kind only. Where small and
large ones wait, small ones go first until they have had as much work as the last large one took; then it is the turn of
a large one. So neither keeps the other out, and with a single process, which cannot be kept free, a small one waits for
one large one at most.
"""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from foveal.engine.fairness import TurnQueue

LARGE_WORK = 48_000_000
"""In pixels of a plain JPEG (vision/work.py): a third of a second of a processor."""

HEADERS_IN_A_ROW = 8
"""A header takes a fraction of a picture's time and tells whether to refuse, so headers go first; but where they come
faster than they are read, pictures that were admitted must not wait behind all of them."""

MAX_LEAD_HEADERS = 64.0
"""How many headers more than its share a caller may have had read and have it remembered."""
MAX_LEAD_WORK = 64_000_000.0
"""The same for the work of decoding."""


class Task(Protocol):
    """What the queue looks at."""

    @property
    def caller(self) -> str:
        """Whose turn it takes."""

    @property
    def work(self) -> int | None:
        """Of decoding a picture; None for a header, which is read and no more."""

    def claim(self) -> bool:
        """True if it is still to be done. Whoever waits for one that would come too late is told so."""


T = TypeVar("T", bound=Task)


class PrepQueue(Generic[T]):
    """Tasks that wait, and how many large ones are in hand. Whoever takes one tells when it is no longer in hand."""

    def __init__(self) -> None:
        self._headers: TurnQueue[T] = TurnQueue(MAX_LEAD_HEADERS)
        self._small: TurnQueue[T] = TurnQueue(MAX_LEAD_WORK)
        self._large: TurnQueue[T] = TurnQueue(MAX_LEAD_WORK)
        self._large_in_hand = self._headers_taken = self._small_first = 0

    def __len__(self) -> int:
        return len(self._headers) + len(self._small) + len(self._large)

    def put(self, task: T) -> None:
        """Queue a task behind its caller's others of the lane."""
        self._lane(task).put(task.caller, task, task.work or 1)

    def take_at_once(self, task: T, processes: int) -> bool:
        """True if one of so many processes may take a task that was never queued: nobody else's turn is passed over."""
        may_start = not self and not (_is_large(task) and self._large_in_hand >= _most_large(processes))
        if may_start and task.claim():
            self._took(task)
            return True
        return False

    def put_back(self, task: T) -> None:
        """Queue one that was in hand before its caller's others."""
        self._lane(task).put_back(task.caller, task, task.work or 1)

    def discard(self, task: T) -> None:
        """Forget one that nobody wants any more; without effect on one that was taken."""
        self._lane(task).discard(task.caller, task)

    def all(self) -> list[T]:
        """Everything that waits."""
        return [*self._headers.all(), *self._small.all(), *self._large.all()]

    def take(self, processes: int) -> T | None:
        """The next task that is still to be done, now in hand of one of so many processes that are there."""
        for lane in self._order(_most_large(processes)):
            while (task := lane.take()) is not None:
                if task.claim():
                    self._took(task)
                    return task
        return None

    def give_back(self, task: T) -> None:
        """A process is through with this one, or was lost with it."""
        self._large_in_hand -= _is_large(task)

    def _order(self, max_large: int) -> list[TurnQueue[T]]:
        pictures = [self._small]
        if self._large_in_hand < max_large:
            pictures.insert(1 if self._small_first > 0 else 0, self._large)
        if self._headers_taken < HEADERS_IN_A_ROW:
            return [self._headers, *pictures]
        return [*pictures, self._headers]

    def _took(self, task: T) -> None:
        if task.work is None:
            self._headers_taken += 1
            return
        self._headers_taken = 0
        if _is_large(task):
            self._large_in_hand += 1
            self._small_first = task.work
        else:
            self._small_first -= task.work

    def _lane(self, task: T) -> TurnQueue[T]:
        if task.work is None:
            return self._headers
        return self._large if _is_large(task) else self._small


def _most_large(processes: int) -> int:
    """Processes that may have large pictures in hand: all but one."""
    return max(1, processes - 1)


def _is_large(task: Task) -> bool:
    return task.work is not None and task.work >= LARGE_WORK
