"""`Client` and `AsyncClient`: the same calls, blocking or awaited. All decisions are in the pure modules beside."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self, Unpack, overload

import httpx

from foveal_client import _defaults
from foveal_client._answers import Answer, check_status, mapped_errors
from foveal_client._errors import DeadlineExceeded, FovealError
from foveal_client._files import ReadingThreads
from foveal_client._images import ImageInput, ImageT, is_ready_to_send, read_images
from foveal_client._requests import Call, encode_call
from foveal_client._retry import Clock, Tries
from foveal_client._session import READY, Session, not_ready_or_raise
from foveal_client._types import Embedding, EncodeKeywords, Held, ServerInfo
from foveal_client._wire import read_answer, read_held, read_info, read_models


class Client:
    """Blocking client of one server, or of several equal ones. Threads may share it; close it, or use it in `with`.

    `base_url` is `$FOVEAL_URL` or http://127.0.0.1:8000; with a list, calls take turns, and one whose server is down,
    draining or full goes to another at once. `api_key` is `$FOVEAL_API_KEY` or none. `timeout` is the total of a call
    in seconds, retries and reading of files included. Servers elsewhere are asked through the environment's proxies.
    `transport` replaces the network (httpx.MockTransport), `http_client` the whole httpx client, which stays the
    caller's to close; `clock` is for tests. Every call raises FovealError: see the tree in `foveal_client._errors`.
    """

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        timeout: float = _defaults.TIMEOUT_SECONDS,
        max_retries: int = _defaults.MAX_RETRIES,
        transport: httpx.BaseTransport | None = None,
        http_client: httpx.Client | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._session = Session.of(base_url, api_key, timeout, max_retries, clock)
        self._owns_http = http_client is None
        self._http = http_client or self._session.network(transport).client(transport)

    @overload
    def encode(self, image: ImageInput, **options: Unpack[EncodeKeywords]) -> Embedding: ...
    @overload
    def encode(
        self, image: list[ImageT] | tuple[ImageT, ...], **options: Unpack[EncodeKeywords]
    ) -> list[Embedding]: ...
    def encode(
        self, image: ImageInput | list[ImageT] | tuple[ImageT, ...], **options: Unpack[EncodeKeywords]
    ) -> Embedding | list[Embedding]:
        """The embedding of one image, or those of a list in its order, all in one request.

        Raises FovealError; TypeError, ValueError or OSError for an image or an option that cannot be sent.
        """
        images = image if isinstance(image, (list, tuple)) else [image]
        found = read_answer(self._encode(images, options), len(images))
        return found if isinstance(image, (list, tuple)) else found[0]

    @overload
    def hold(self, image: ImageInput, **options: Unpack[EncodeKeywords]) -> Held: ...
    @overload
    def hold(self, image: list[ImageT] | tuple[ImageT, ...], **options: Unpack[EncodeKeywords]) -> list[Held]: ...
    def hold(
        self, image: ImageInput | list[ImageT] | tuple[ImageT, ...], **options: Unpack[EncodeKeywords]
    ) -> Held | list[Held]:
        """As `encode`, but the server that took the call keeps the rows, of all images or none, to be fetched there."""
        images = image if isinstance(image, (list, tuple)) else [image]
        found = read_held(self._encode(images, options, hold=True), len(images))
        return found if isinstance(image, (list, tuple)) else found[0]

    def info(self) -> ServerInfo:
        """What the server says of its model, limits and workers."""
        return read_info(self._send(Call("GET", "/info"), self._session.tries()))

    def models(self) -> list[str]:
        """Names of the served models."""
        return read_models(self._send(Call("GET", "/v1/models"), self._session.tries()))

    def is_ready(self) -> bool:
        """True when the server would take work now; False as well when it cannot be reached. Never retries."""
        try:
            self._send(READY, self._session.tries(_defaults.PROBE_SECONDS, max_retries=0))
        except FovealError as error:
            return not_ready_or_raise(error)
        return True

    def close(self) -> None:
        """Close the connections; an `http_client` of the caller's stays open."""
        if self._owns_http:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _encode(self, images: Sequence[ImageInput], options: EncodeKeywords, *, hold: bool = False) -> Answer:
        tries = self._session.tries(options.pop("timeout", None), options.pop("max_retries", None))
        request_id = options.pop("request_id", None)
        return self._send(encode_call(read_images(images, tries.seconds_left), options, request_id, hold=hold), tries)

    def _send(self, call: Call, tries: Tries) -> Answer:
        """A 200, after as many tries as the rules allow."""
        while True:
            url = self._session.servers.pick()
            try:
                return check_status(self._try_once(url, call, tries))
            except FovealError as error:
                wait = self._session.wait_after(url, error, tries)
            self._session.clock.sleep(wait)

    def _try_once(self, url: str, call: Call, tries: Tries) -> Answer:
        """One answer, whatever its status. The deadline is looked at between reads, each of which has its own limit."""
        request = self._session.build(self._http, url, call, tries)
        with mapped_errors(url):
            response = self._http.send(request, stream=True)
        body = bytearray()
        try:
            with mapped_errors(url, answering=True):
                for chunk in response.iter_bytes():
                    tries.seconds_left()
                    body += chunk
        finally:
            response.close()
        return Answer.of(response, body)


class AsyncClient:
    """Awaited twin of `Client`, for asyncio: same arguments, calls and errors. Use it in an `async with` block."""

    def __init__(
        self,
        base_url: str | Sequence[str] | None = None,
        *,
        api_key: str | None = None,
        timeout: float = _defaults.TIMEOUT_SECONDS,
        max_retries: int = _defaults.MAX_RETRIES,
        transport: httpx.AsyncBaseTransport | None = None,
        http_client: httpx.AsyncClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._session = Session.of(base_url, api_key, timeout, max_retries, clock)
        self._owns_http = http_client is None
        self._threads = ReadingThreads()
        self._http = http_client or self._session.network(transport).async_client(transport)

    @overload
    async def encode(self, image: ImageInput, **options: Unpack[EncodeKeywords]) -> Embedding: ...
    @overload
    async def encode(
        self, image: list[ImageT] | tuple[ImageT, ...], **options: Unpack[EncodeKeywords]
    ) -> list[Embedding]: ...
    async def encode(
        self, image: ImageInput | list[ImageT] | tuple[ImageT, ...], **options: Unpack[EncodeKeywords]
    ) -> Embedding | list[Embedding]:
        """As `Client.encode`. Files are read, and pixels compressed, in a thread."""
        images = image if isinstance(image, (list, tuple)) else [image]
        found = read_answer(await self._encode(images, options), len(images))
        return found if isinstance(image, (list, tuple)) else found[0]

    @overload
    async def hold(self, image: ImageInput, **options: Unpack[EncodeKeywords]) -> Held: ...
    @overload
    async def hold(self, image: list[ImageT] | tuple[ImageT, ...], **options: Unpack[EncodeKeywords]) -> list[Held]: ...
    async def hold(
        self, image: ImageInput | list[ImageT] | tuple[ImageT, ...], **options: Unpack[EncodeKeywords]
    ) -> Held | list[Held]:
        """As `Client.hold`."""
        images = image if isinstance(image, (list, tuple)) else [image]
        found = read_held(await self._encode(images, options, hold=True), len(images))
        return found if isinstance(image, (list, tuple)) else found[0]

    async def info(self) -> ServerInfo:
        """What the server says of its model, limits and workers."""
        return read_info(await self._send(Call("GET", "/info"), self._session.tries()))

    async def models(self) -> list[str]:
        """Names of the served models."""
        return read_models(await self._send(Call("GET", "/v1/models"), self._session.tries()))

    async def is_ready(self) -> bool:
        """True when the server would take work now; False as well when it cannot be reached. Never retries."""
        try:
            await self._send(READY, self._session.tries(_defaults.PROBE_SECONDS, max_retries=0))
        except FovealError as error:
            return not_ready_or_raise(error)
        return True

    async def aclose(self) -> None:
        """Close the connections; an `http_client` of the caller's stays open."""
        if self._owns_http:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _encode(self, images: Sequence[ImageInput], options: EncodeKeywords, *, hold: bool = False) -> Answer:
        tries = self._session.tries(options.pop("timeout", None), options.pop("max_retries", None))
        request_id = options.pop("request_id", None)
        is_cheap = all(is_ready_to_send(each) for each in images)
        read = partial(read_images, images, tries.seconds_left)
        sources = read() if is_cheap else await self._threads.run(read, tries.seconds_left())
        return await self._send(encode_call(sources, options, request_id, hold=hold), tries)

    async def _send(self, call: Call, tries: Tries) -> Answer:
        """A 200, after as many tries as the rules allow."""
        while True:
            url = self._session.servers.pick()
            try:
                return check_status(await self._try_once(url, call, tries))
            except FovealError as error:
                wait = self._session.wait_after(url, error, tries)
            await self._session.clock.sleep_async(wait)

    async def _try_once(self, url: str, call: Call, tries: Tries) -> Answer:
        """One answer, whatever its status, or DeadlineExceeded at the deadline to the moment."""
        request = self._session.build(self._http, url, call, tries)
        try:
            async with asyncio.timeout(tries.seconds_left()):
                return await self._exchange(url, request)
        except TimeoutError as error:
            raise DeadlineExceeded(f"{url} did not finish within the timeout") from error

    async def _exchange(self, url: str, request: httpx.Request) -> Answer:
        with mapped_errors(url):
            response = await self._http.send(request, stream=True)
        body = bytearray()
        try:
            with mapped_errors(url, answering=True):
                async for chunk in response.aiter_bytes():
                    body += chunk
        finally:
            await response.aclose()
        return Answer.of(response, body)
