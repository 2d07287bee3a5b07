"""`Bridge`: from encoded images to the sockets of a language server. Made only where `--sglang` is on."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import numpy as np

from foveal.engine.items import Encoded
from foveal.engine.memory import Allocator
from foveal.errors import ConfigurationError, FovealError
from foveal.families.spec import ModelSpec
from foveal.handover.sglang.frame import error_data, head_of
from foveal.handover.sglang.hosts import Endpoint, PushRules
from foveal.handover.sglang.part import Part
from foveal.handover.sglang.receivers import Receivers
from foveal.ipc.arena import Block, Bytes
from foveal.settings import Settings

if TYPE_CHECKING:
    from foveal.handover.sglang.push import Pusher

log = logging.getLogger(__name__)

PATH = "/sglang"
REPORT_SECONDS = 2.0
"""For telling a tokenizer of a failure, which the answer to its post tells as well."""
JOIN_OFF_LOOP_BYTES = 1 << 20
"""Above this, copying goes to a thread (NumPy lets the loop run meanwhile)."""
ARCHITECTURES = frozenset(
    {
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3OmniMoeForConditionalGeneration",
    }
)
"""Of those that SGLang serves with --language-only, the ones that are served here."""


class Bridge:
    """Who waits for a part, and how its rows get there."""

    def __init__(self, rules: PushRules, receivers: Receivers, pusher: Pusher) -> None:
        self.rules, self.receivers, self.pusher = rules, receivers, pusher

    def check(self, part: Part, caller: str) -> None:
        """May the rows go where the part says? `caller` is its address; raises UrlForbidden."""
        if (endpoint := _tokenizer(part)) is not None:
            self.rules.check(endpoint, caller)

    async def deliver(self, part: Part, owner: str, images: Sequence[Encoded], rows: Block) -> None:
        """Push the rows to everyone who waits for them, once all have said where; raises UrlFailed, Overloaded."""
        head = head_of(part, images)
        tokenizer = _tokenizer(part)
        endpoints = [tokenizer] if tokenizer else await self.receivers.of((owner, part.req_id))
        try:
            async with asyncio.TaskGroup() as group:
                for endpoint in endpoints:
                    group.create_task(self._push(endpoint, head, rows.view))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def report(self, part: Part, error: FovealError) -> None:
        """Tell a tokenizer what went wrong. A scheduler is not told: up to 0.5.23 the report ends its server."""
        if (endpoint := _tokenizer(part)) is None:
            return
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                await self._push(endpoint, error_data(part, error.message, error.status), None)
        except (TimeoutError, FovealError) as failure:
            log.warning(
                "the tokenizer could not be told of a failure", extra={"part": part.req_id, "why": str(failure)}
            )

    async def _push(self, endpoint: Endpoint, head: bytes, rows: Bytes | None) -> None:
        address = await self.rules.address_of(endpoint)
        await self.pusher.push(address, endpoint.port, head, rows)

    def close(self) -> None:
        """End all sockets."""
        self.pusher.close()


def _tokenizer(part: Part) -> Endpoint | None:
    if part.embedding_port is None or part.prefill_host is None:
        return None
    return Endpoint(part.prefill_host, part.embedding_port)


async def joined(images: Sequence[Encoded], arena: Allocator) -> Block:
    """The rows of all images behind one another, as the receiver wants them: in one frame. One image is not copied."""
    if len(images) == 1:
        return images[0].embedding
    block = await arena.block(sum(image.num_bytes for image in images))
    parts = [image.embedding.view for image in images]
    if len(block.view) > JOIN_OFF_LOOP_BYTES:
        await asyncio.to_thread(np.concatenate, parts, out=block.view)
    else:
        np.concatenate(parts, out=block.view)
    return block


def check_model(settings: Settings, spec: ModelSpec) -> None:
    """Refuse a model that no language server could be given rows of; raises ConfigurationError."""
    if settings.sglang and spec.architecture not in ARCHITECTURES:
        raise ConfigurationError(
            f"--sglang: SGLang has no --language-only server for {spec.name} ({spec.architecture}); serve one of "
            f"{', '.join(sorted(ARCHITECTURES))}, or leave --sglang out"
        )


def make_bridge(settings: Settings, keys: Sequence[str]) -> Bridge | None:
    """What speaks to SGLang, if it is wanted; raises ConfigurationError."""
    if not settings.sglang:
        if settings.sglang_register_url or settings.sglang_public_url or settings.sglang_allow_host:
            raise ConfigurationError("--sglang-register-url, -public-url and -allow-host do nothing without --sglang")
        return None
    if importlib.util.find_spec("zmq") is None:
        raise ConfigurationError("--sglang needs pyzmq: install foveal[service,sglang]")
    from foveal.handover.sglang.push import Pusher

    _check_registration(settings, keys)
    return Bridge(PushRules(settings.sglang_allow_host), Receivers(), Pusher())


def public_url(settings: Settings, port: int) -> str:
    """What SGLang's --encoder-urls would be for this server."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return settings.sglang_public_url or f"http://{host}:{port}{PATH}"


def _check_registration(settings: Settings, keys: Sequence[str]) -> None:
    if not settings.sglang_register_url:
        return
    if settings.sglang_public_url is None and settings.host in ("0.0.0.0", "::"):
        raise ConfigurationError(
            f"--sglang-register-url: with --host {settings.host} this server does not know under which name it is "
            "reached; give --sglang-public-url http://NAME:PORT/sglang"
        )
    if keys and unquote(urlsplit(settings.sglang_public_url or "").password or "") not in keys:
        raise ConfigurationError(
            "--sglang-register-url: SGLang sends no key unless it is in the URL of the encoder; give "
            "--sglang-public-url http://sglang:KEY@NAME:PORT/sglang, or serve without --api-key"
        )
