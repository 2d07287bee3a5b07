"""`Gate`: decides at the door, by tokens and bytes, before work is done.

A request is a `Visit`. Its body counts as it arrives, its images count once their headers tell tokens and bytes.
A request that already has images in flight waits for its own to finish rather than being refused half done;
one that would be the straw that breaks the limit is told 503 at once, with a Retry-After from measured speed. The
last eighth of a limit is for callers who hold less than an eighth of it: a crowd of one caller shuts nobody out.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Self

from foveal.engine.shares import Held, limit_for
from foveal.engine.speed import Speed, TypicalSizes
from foveal.engine.stages import Stages
from foveal.errors import Draining, Overloaded, TooLarge
from foveal.ipc.arena import Block
from foveal.ipc.messages import Span
from foveal.metrics import Metrics

MAX_RETRY_AFTER_SECONDS = 60.0


class Gate:
    """Tokens and bytes of all open requests, and whether new ones are let in."""

    def __init__(self, max_tokens: int, max_bytes: int, metrics: Metrics) -> None:
        self.max_tokens, self.max_bytes = max_tokens, max_bytes
        self.is_draining = False
        self.speed = Speed()
        self.seconds_left: Callable[[], float] = lambda: 0.0
        """The least that all admitted images can take, where that is known: tokens of large ones cost more."""
        self._metrics = metrics
        self._tokens = self._bytes = self._items = self._visits = 0
        self.typical = TypicalSizes(max_tokens)
        self._callers: dict[str, Held] = {}
        self._held: Counter[Span] = Counter()
        self._changed = asyncio.Event()
        # asked when somebody looks: these change a dozen times a request
        metrics.inflight_bytes.set_function(lambda: self._bytes)
        metrics.inflight_items.set_function(lambda: self._items)

    def visit(
        self,
        caller: str = "",
        deadline: float | None = None,
        charge: Callable[[int], None] = lambda tokens: None,
        *,
        while_draining: bool = False,
    ) -> Visit:
        """Let a request in; raises Draining, unless it is let in `while_draining`: what was promised before.

        `charge` is told of tokens as they are admitted.
        """
        if self.is_draining and not while_draining:
            self._metrics.admission_rejections.labels("draining").inc()
            raise Draining("this server is shutting down; send the request to another instance or try again")
        return Visit(self, caller, deadline, charge)

    async def until_empty(self) -> None:
        """Wait until no request is open."""
        while self._visits:
            self._changed.clear()
            await self._changed.wait()

    async def until_changed(self) -> None:
        """Wait until something was given back."""
        self._changed.clear()
        await self._changed.wait()

    def fits(self, tokens: int, num_bytes: int, caller: str = "") -> bool:
        """True if this caller may have this much more in flight."""
        return self._fits_tokens(tokens, caller) and self._fits_bytes(num_bytes, caller)

    def _fits_tokens(self, tokens: int, caller: str) -> bool:
        held = self._callers.get(caller, Held()).tokens
        return not tokens or self._tokens + tokens <= limit_for(self.max_tokens, held)

    def _fits_bytes(self, num_bytes: int, caller: str) -> bool:
        held = self._callers.get(caller, Held()).num_bytes
        return not num_bytes or self._bytes + num_bytes <= limit_for(self.max_bytes, held)

    def overloaded(self, tokens: int, caller: str = "") -> Overloaded:
        """The refusal, counted, with the time after which trying again makes sense."""
        reason = "bytes" if self._fits_tokens(tokens, caller) else "tokens"
        self._metrics.admission_rejections.labels(reason).inc()
        setting = "--max-queue-tokens" if reason == "tokens" else "--max-inflight-bytes"
        wait = min(max(self.speed.seconds_for(self._tokens), self.seconds_left(), 1.0), MAX_RETRY_AFTER_SECONDS)
        return Overloaded(
            f"the server holds as many {reason} as {setting} allows; try again in {math.ceil(wait)} s",
            retry_after=wait,
        )

    def hold(self, span: Span) -> None:
        """Count the bytes of a block that an answer needs."""
        self._held[span] += 1
        if self._held[span] == 1:
            self.add(num_bytes=span.length)

    def let_go(self, span: Span) -> None:
        """An answer needs the block no longer."""
        self._held[span] -= 1
        if not self._held[span]:
            del self._held[span]
            self.add(num_bytes=-span.length)

    def add_for(self, caller: str, tokens: int = 0, num_bytes: int = 0, items: int = 0, visits: int = 0) -> None:
        """Take on more of this caller's, or less where numbers are negative."""
        held = self._callers.setdefault(caller, Held())
        held.tokens += tokens
        held.num_bytes += num_bytes
        held.visits += visits
        if not (held.tokens or held.num_bytes or held.visits):
            del self._callers[caller]  # so that there are never more than have something open
        self.add(tokens, num_bytes, items, visits)

    def add(self, tokens: int = 0, num_bytes: int = 0, items: int = 0, visits: int = 0) -> None:
        """Take on more, or less where numbers are negative."""
        self._tokens += tokens
        self._bytes += num_bytes
        self._items += items
        self._visits += visits
        self._changed.set()


class Visit:
    """One open request; a context manager that gives everything back at its end."""

    def __init__(self, gate: Gate, caller: str, deadline: float | None, charge: Callable[[int], None]) -> None:
        self._gate = gate
        self.caller, self.deadline, self._charge = caller, deadline, charge
        self._held_bytes = 0
        self._answers: list[Span] = []
        self._answer_bytes = 0
        self._running = 0
        self._expected = 0
        """Tokens held since `expect`, until the first image tells its own."""
        self.stages: dict[int, Stages] = {}
        """How far its images have come, by their place: those that were begun and not found in the cache."""

    def __enter__(self) -> Self:
        self._gate.add_for(self.caller, visits=1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()
        self._gate.add_for(self.caller, visits=-1)

    def give_back(self) -> None:
        """Hold nothing any more, and stay open: a drain waits on. For answers that others go on to write."""
        for span in self._answers:
            self._gate.let_go(span)
        self._gate.add_for(self.caller, -self._expected, -self._held_bytes)
        self._held_bytes, self._expected, self._answers = 0, 0, []

    def hold_body(self, num_bytes: int) -> None:
        """Count body bytes as they arrive; raises Overloaded."""
        if not self._gate.fits(0, num_bytes, self.caller):
            raise self._gate.overloaded(0, self.caller)
        self._hold(num_bytes)

    def may_expect(self) -> bool:
        """True if an image as its caller's were of late would be let in."""
        return self._gate.fits(self._gate.typical.expected(self.caller), 1, self.caller)

    def expect(self) -> bool:
        """Hold what its caller's images had of late until this request's first is known; False where that would not be
        let in. Else all who come between two answers would be let in to be read, and most refused
        after it.
        """
        if self._running or self._expected:
            return True
        if not self.may_expect():
            return False
        self._expected = self._gate.typical.expected(self.caller)
        self._gate.add_for(self.caller, self._expected)
        return True

    def expect_no_more(self) -> None:
        """The first image is known: it counts with its own tokens, or needs none."""
        self._gate.add_for(self.caller, -self._expected)
        self._expected = 0

    def hold_answer(self, block: Block) -> None:
        """Count an embedding until the answer is sent: once, however many answers hold it."""
        self._answers.append(block.span)
        self._gate.hold(block.span)

    async def admit(self, tokens: int, work_bytes: int, answer_bytes: int) -> Place:
        """Wait for or be refused a place for one image; raises Overloaded or TooLarge."""
        total = work_bytes + answer_bytes
        self._answer_bytes += answer_bytes
        self.expect_no_more()
        self._gate.typical.note(self.caller, tokens)
        if self._held_bytes + max(total, self._answer_bytes) > self._gate.max_bytes:
            raise TooLarge(
                f"encoding this request takes more than the {self._gate.max_bytes} bytes of --max-inflight-bytes; "
                "send fewer or smaller images"
            )
        while not self._gate.fits(tokens, total, self.caller):
            if not self._running:
                raise self._gate.overloaded(tokens, self.caller)
            await self._gate.until_changed()
        self._running += 1
        self._charge(tokens)
        return Place(self._gate, self, tokens, total)

    def left(self) -> None:
        """One of this request's images is no longer in flight."""
        self._running -= 1

    def _hold(self, num_bytes: int) -> None:
        self._held_bytes += num_bytes
        self._gate.add_for(self.caller, num_bytes=num_bytes)


class Place:
    """One admitted image: counted until `leave`, which may be called again without effect."""

    def __init__(self, gate: Gate, visit: Visit, tokens: int, num_bytes: int) -> None:
        self._gate, self._visit = gate, visit
        self._tokens, self._bytes = tokens, num_bytes
        self._is_left = False
        gate.add_for(visit.caller, tokens, num_bytes, items=1)

    def leave(self) -> None:
        """Give the tokens and bytes back."""
        if not self._is_left:
            self._is_left = True
            self._visit.left()
            self._gate.add_for(self._visit.caller, -self._tokens, -self._bytes, items=-1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
