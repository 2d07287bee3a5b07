"""`Watch`: looks at the LLM servers by itself, so that what is down, or serves another model, is known before one pays.

A look is one GET of `/v1/models`. It is taken every ten seconds or so, sooner where a server is away, and before the
first embeddings go to a server that has not been looked at since it was last reached anew.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from foveal.errors import InvalidRequest
from foveal.handover.asking import Header, Silent, ask
from foveal.handover.identity import Expected, Match, ModelList, config_beside, match, other_width
from foveal.handover.upstreams import FIRST_AWAY_SECONDS, Upstream, Upstreams

log = logging.getLogger(__name__)

PERIOD_SECONDS = 10.0
SPREAD = 0.2
"""Of a pause, at random: several gateways before one server shall not ask in step."""
MAX_REFUSED_KEYS = 256
LAST_WITHOUT_DEEPSTACK = (0, 33)
"""Of the versions of vLLM that were looked at, the newest that forgets deepstack where it loads no tower."""
_NO_PICTURE = "data:image/png;base64,AAAA"
"""Is refused before the engine sees it: for the limit where that is 0, else since it is none."""


class Watch:
    """Asks, and tells `Upstreams` what it found."""

    def __init__(
        self,
        upstreams: Upstreams,
        expected: Callable[[], Expected | None],
        api_key: str | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`expected` gives None until the served model is known; then only what can be reached is looked at."""
        self._upstreams, self._expected = upstreams, expected
        self._key: list[Header] = [(b"Authorization", b"Bearer " + api_key.encode())] if api_key else []
        self._sleep, self._chance = sleep, chance
        self._looking: dict[Upstream, asyncio.Lock] = {upstream: asyncio.Lock() for upstream in upstreams.all}

    async def run(self) -> None:
        """Look at all of them, for ever."""
        async with asyncio.TaskGroup() as group:
            for upstream in self._upstreams.all:
                group.create_task(self._watch(upstream))

    async def before_embeddings(self, upstream: Upstream, headers: Sequence[Header], model: str | None = None) -> None:
        """Look, unless that was done; with the caller's own key where this server has none.

        Raises InvalidRequest for a model that is listed beside the one whose pictures are encoded here.
        """
        if not upstream.is_checked:
            await self._look_once(upstream, headers)
        if model in upstream.match.others and not upstream.refusal:
            raise InvalidRequest(
                f"{model!r} is another model than the one that pictures are encoded for here; it takes text alone",
                param="model",
            )

    async def _look_once(self, upstream: Upstream, headers: Sequence[Header]) -> None:
        async with self._looking[upstream]:
            key = self._key or [each for each in headers if each[0].lower() == b"authorization"]
            is_refused = bool(key) and all(value in upstream.refused_keys for _, value in key)
            if not upstream.is_checked and not is_refused:  # another may have looked meanwhile
                await self._look(upstream, key)

    async def _watch(self, upstream: Upstream) -> None:
        while True:
            try:
                async with self._looking[upstream]:
                    await self._look(upstream, self._key)
            except Exception:  # the other servers are looked at all the same, and this one next time
                log.exception("an LLM server could not be looked at: this is a bug", extra={"upstream": upstream.name})
            await self._sleep(self.pause(upstream))

    def pause(self, upstream: Upstream) -> float:
        """Until the next look: when one that is away may be back, else the period."""
        seconds = PERIOD_SECONDS
        if upstream.num_failures:
            seconds = max(upstream.back_at - self._upstreams.now(), FIRST_AWAY_SECONDS)
        return seconds * (1 + SPREAD * (2 * self._chance() - 1))

    async def _look(self, upstream: Upstream, key: Sequence[Header]) -> None:
        try:
            status, body = await ask(self._upstreams, upstream, b"/v1/models", key)
        except OSError as error:
            self._upstreams.unreached(upstream, error)
        except Silent as error:
            self._silent(upstream, str(error))
        else:
            if status >= 500:
                self._silent(upstream, f"it is answered {status}")
                return
            self._upstreams.reached(upstream)
            if (expected := self._expected()) is not None:
                await self._judge(upstream, expected, status, body, key)

    async def _judge(
        self, upstream: Upstream, expected: Expected, status: int, body: bytes, key: Sequence[Header]
    ) -> None:
        """Compare what it serves. What does not say is believed, with a remark: many a proxy has no list."""
        if status in (401, 403):
            # Not looked at: a caller with the right key may come, and what one showed is not forgotten here.
            if len(upstream.refused_keys) >= MAX_REFUSED_KEYS:
                upstream.refused_keys.clear()
            upstream.refused_keys.update(value for _, value in key)
            if not upstream.is_checked:
                upstream.remark = f"GET /v1/models is answered {status}: set --llm-api-key to have its model compared"
            return None
        if status != 200:
            return self._unknown(upstream, f"GET /v1/models is answered {status}")
        try:
            listed = msgspec.json.decode(body, type=ModelList).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return self._unknown(upstream, f"its /v1/models cannot be read: {error}")
        found = match(expected, listed)
        refusal = found.why_not or await self._width(expected, found.root)
        remark = ""
        if not refusal and found.is_vllm and expected.num_levels > 1:
            refusal, remark = await self._deepstack(upstream, found.model, key)
        return self._upstreams.found(upstream, found, refusal, remark)

    def _silent(self, upstream: Upstream, why: str) -> None:
        """No caller waits for it a second time: it counts as one that does not say, until a look says more."""
        self._upstreams.silent(upstream, why)
        if self._expected() is not None:
            self._unknown(upstream, f"GET /v1/models: {why}")

    def _unknown(self, upstream: Upstream, why: str) -> None:
        if not upstream.is_checked:  # what was known stays
            self._upstreams.found(upstream, Match(), "", f"{why}: whether it serves the same model is not known")

    async def _width(self, expected: Expected, root: str) -> str:
        return other_width(expected, await asyncio.to_thread(config_beside, root))

    async def _deepstack(self, upstream: Upstream, model: str, key: Sequence[Header]) -> tuple[str, str]:
        """A refusal or a remark where it loads no vision tower. vLLM then takes the rows for one level's, and ends.

        Asked once for each time that it is reached anew.
        """
        if upstream.is_checked and upstream.match.names:
            return upstream.refusal, upstream.remark
        part = {"type": "image_url", "image_url": {"url": _NO_PICTURE}}
        asked = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": [part]}]}
        try:
            status, said = await ask(
                self._upstreams, upstream, b"/v1/chat/completions", key, json.dumps(asked).encode()
            )
            if status != 400 or b"At most 0 image" not in said:
                return "", ""
            _, version = await ask(self._upstreams, upstream, b"/version", key)
        except (Silent, OSError) as error:
            return "", f"whether it takes rows with deepstack is not known: {error}"
        text = (
            'it was started with "image": 0 in --limit-mm-per-prompt, and so without a vision tower: vLLM then forgets '
            "deepstack, and the first picture ends its engine; leave the limit of images out"
        )
        return (text, "") if _version(version) <= LAST_WITHOUT_DEEPSTACK else ("", text)


def _version(body: bytes) -> tuple[int, int]:
    """Of vLLM's answer; what is no version counts as the oldest, which is known to fail."""
    try:
        major, minor, *_ = str(json.loads(body)["version"]).split(".")
        return int(major), int(minor)
    except (ValueError, LookupError, TypeError):
        return 0, 0
