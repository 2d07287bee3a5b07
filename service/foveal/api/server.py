"""Runs one server: answers at once, brings up model and children behind, drains at the first signal.

`/live` answers before anything heavy has started; `/ready` says what is still missing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from foveal import __version__
from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.api.describe import warnings_of
from foveal.api.draining import DrainingServer
from foveal.api.lag import watch_lag
from foveal.api.listening import listen, url_of
from foveal.api.model_fetch import fetched_spec
from foveal.api.protocol import BoundedProtocol
from foveal.engine.assembly import WORKER, check
from foveal.engine.devices import worker_places
from foveal.engine.pool import MAX_STARTS, Pool
from foveal.errors import ConfigurationError
from foveal.families.catalogue import is_hub_id, local_spec
from foveal.families.spec import ModelSpec
from foveal.handover.folder import check_folder
from foveal.handover.identity import check_width
from foveal.handover.service import HandoverService, make
from foveal.handover.sglang.bridge import check_model, public_url
from foveal.handover.sglang.registrar import Registrar
from foveal.logs import announce
from foveal.metrics import Metrics
from foveal.settings import Settings, process_environment

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
"""Longer than proxies and our client keep idle connections, so that they close first."""
ACCEPTS_A_TURN = 16
"""Connections taken in one turn of the loop. libuv takes one for each descriptor that listens, however many wait: on a
busy loop, whose turns are long, whoever comes with a new connection would wait for seconds before being refused."""
SHUTDOWN_SECONDS = 2
"""For connections that still read an answer when all work is done or given up."""
OK, FAILED, WRONG_SETTINGS = 0, 1, 2


def serve(settings: Settings, worker: str = WORKER) -> int:
    """Serve until a signal; the process's exit code. Raises ConfigurationError before anything has started.

    `worker` is the module that workers run.
    """
    environment = process_environment()
    spec = _spec_now(settings)
    worker_places(settings, environment)
    if settings.ec_shared_storage is not None:
        check_folder(settings.ec_shared_storage)
    server = Server(settings, Metrics(CollectorRegistry()), settings.keys)
    log.info("effective settings", extra={"settings": settings.shown()})
    sockets = listen(settings.host, settings.port)
    url = url_of(settings.host, sockets[0].getsockname()[1])
    announce(f"foveal {__version__} listens on {url} and starts; /ready says when it serves", url=url)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Run(server, spec, environment, worker).until_stopped(sockets))


def _spec_now(settings: Settings) -> ModelSpec | None:
    """The spec of a local or built-in model; None for a hub id, which is fetched while `/live` answers."""
    if is_hub_id(settings.model):
        return None
    if settings.revision is not None:
        raise ConfigurationError(
            f"--revision {settings.revision} is for models of a hub, and --model {settings.model} is none: leave it out"
        )
    spec = local_spec(settings.model, settings.load_format == "dummy", settings.served_model_name)
    check(settings, spec)
    check_model(settings, spec)
    check_width(settings, spec)
    return spec


class _Run:
    """The life of one server."""

    def __init__(self, server: Server, spec: ModelSpec | None, environment: dict[str, str], worker: str) -> None:
        self._server, self._spec, self._environment, self._worker = server, spec, environment, worker
        self._drain, self._give_up = asyncio.Event(), asyncio.Event()
        self._registrar: Registrar | None = None
        self._exit_code, self._failure = OK, ""

    def start_draining(self) -> bool:
        """Refuse new work from now on; False if that was already so."""
        if self._server.is_draining:
            return False
        self._server.is_draining = True
        if self._server.service is not None:
            self._server.service.engine.gate.is_draining = True
        self._drain.set()
        return True

    def stop_now(self) -> None:
        """Do not wait for accepted work: tell its callers."""
        self._give_up.set()

    async def until_stopped(self, sockets: Sequence[socket.socket]) -> int:
        """Serve on the sockets; the exit code."""
        config = uvicorn.Config(
            create_app(self._server),
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            server_header=False,
            lifespan="off",
            http=BoundedProtocol,
            ws="none",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        web = DrainingServer(config, self)
        if urls := self._server.settings.sglang_register_url:
            self._registrar = Registrar(urls, public_url(self._server.settings, sockets[0].getsockname()[1]))
        watch = asyncio.create_task(self._server.watch.run()) if self._server.watch else None
        lag = asyncio.create_task(watch_lag(self._server.metrics.loop_lag_seconds))
        work = asyncio.create_task(self._work(web))
        try:
            await web.serve([*sockets, *(sock.dup() for sock in sockets for _ in range(ACCEPTS_A_TURN - 1))])
        finally:
            lag.cancel()
            if watch is not None:
                watch.cancel()
                await asyncio.wait((watch,))
            if self._server.service is None:
                work.cancel()  # it may be fetching a model for minutes
            self._drain.set()
            self._give_up.set()
            await asyncio.gather(work, lag, return_exceptions=True)
            if self._server.tracing is not None:
                await self._server.tracing.stop()
            if self._server.sglang is not None:
                self._server.sglang.close()
        if self._failure:  # as the last line, where whoever looks why a container ended sees it
            log.critical("cannot serve: %s", self._failure)
        return self._exit_code

    async def _work(self, web: DrainingServer) -> None:
        """Bring the service up, keep it up, take it down after draining, then stop the web server."""
        try:
            service = await self._assemble()
        except ConfigurationError as error:
            self._fail(str(error))
            web.stop()
            return
        except Exception:
            log.critical("the server could not be assembled: this is a bug", exc_info=True)
            self._exit_code = FAILED
            web.stop()
            return
        if service is None:
            web.stop()
            return
        children = asyncio.create_task(service.run())
        failed = asyncio.create_task(service.pool.failed_to_start.wait())
        drained = asyncio.create_task(self._drained(service))
        try:
            done, _ = await asyncio.wait((children, failed, drained), return_when=asyncio.FIRST_COMPLETED)
            if failed in done:
                self._fail_to_start(service.pool)
            elif children in done:
                self._exit_code = FAILED
                log.critical("supervision ended", exc_info=children.exception())
        finally:
            # the web server ends while the children do: neither waits for the other
            self._server.give_up()
            web.stop()
            await service.stop()
            for task in (children, failed, drained):
                task.cancel()

    async def _assemble(self) -> HandoverService | None:
        """The service; None where the server is told to stop before its model is there."""
        if self._spec is None:
            settings = self._server.settings
            self._server.waits_for = f"fetching {settings.model} from the hub"
            log.info("fetching model", extra={"model": settings.model})
            self._spec = await fetched_spec(settings, self._environment, self._drain)
            if self._spec is None:
                return None
        self._server.metrics.build_info.labels(__version__, self._spec.name, self._spec.family).set(1)
        check_model(self._server.settings, self._spec)
        for warning in warnings_of(self._spec):
            log.warning(warning)
        check_width(self._server.settings, self._spec)
        service = await make(self._server.settings, self._spec, self._server.metrics, self._environment, self._worker)
        self._server.service = service
        return service

    async def _registered(self, registrar: Registrar, service: HandoverService) -> None:
        """Be known to SGLang's language servers until the drain begins, then to none."""
        joining = asyncio.create_task(registrar.run(lambda: bool(service.pool.is_ready and service.prep.num_ready)))
        try:
            await self._drain.wait()
        finally:
            joining.cancel()
        await registrar.leave()

    async def _drained(self, service: HandoverService) -> None:
        if self._registrar is not None:
            await self._registered(self._registrar, service)
        await self._drain.wait()
        service.engine.gate.is_draining = True
        empty = asyncio.create_task(service.until_idle())
        enough = asyncio.create_task(self._give_up.wait())
        seconds = self._server.settings.drain_seconds
        await asyncio.wait((empty, enough), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        empty.cancel()
        enough.cancel()

    def _fail_to_start(self, pool: Pool) -> None:
        if pool.refusal is not None:
            self._fail(pool.refusal)
        else:
            again = f"each was started {MAX_STARTS} times and ended before it was ready, last with {pool.ends}"
            self._fail(f"no worker starts: {again}; what it wrote is in the log above", FAILED)

    def _fail(self, why: str, exit_code: int = WRONG_SETTINGS) -> None:
        self._exit_code, self._failure = exit_code, self._server.settings.explain(why)
