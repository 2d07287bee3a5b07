"""Runs one server: answers at once, brings up model and children behind, drains at the first signal.

`/live` answers before anything heavy has started; `/ready` says what is still missing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from types import FrameType

import uvicorn
import uvloop
from prometheus_client import CollectorRegistry

from foveal import __version__
from foveal.api.app import create_app
from foveal.api.context import Server
from foveal.api.protocol import BoundedProtocol
from foveal.engine.assembly import WORKER, Service, assemble, check
from foveal.engine.devices import worker_places
from foveal.errors import ConfigurationError
from foveal.families.catalogue import hub_spec, is_hub_id, local_spec
from foveal.families.spec import ModelSpec
from foveal.metrics import Metrics
from foveal.settings import Settings, process_environment

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
"""Longer than proxies and our client keep idle connections, so that they close first."""
SHUTDOWN_SECONDS = 2
"""For connections that still read an answer when all work is done or given up."""
LAG_PROBE_SECONDS = 0.25
OK, WRONG_SETTINGS = 0, 2


def serve(settings: Settings, worker: str = WORKER) -> int:
    """Serve until a signal; the process's exit code. Raises ConfigurationError before anything has started.

    `worker` is the module that workers run.
    """
    environment = process_environment()
    spec = _spec_now(settings)
    worker_places(settings, environment)
    server = Server(settings, Metrics(CollectorRegistry()), settings.keys)
    log.info("effective settings", extra={"settings": settings.shown()})
    sock = _listen(settings.host, settings.port)
    host, port = sock.getsockname()[:2]
    print(f"foveal {__version__} listens on http://{host}:{port}", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Run(server, spec, environment, worker).until_stopped(sock))


def _spec_now(settings: Settings) -> ModelSpec | None:
    """The spec of a local or built-in model; None for a hub id, which is fetched while `/live` answers."""
    if is_hub_id(settings.model):
        return None
    spec = local_spec(settings.model, settings.load_format == "dummy", settings.served_model_name)
    check(settings, spec)
    return spec


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=4096)
    except OSError as error:
        raise ConfigurationError(f"--host {host} --port {port}: {error.strerror or error}; choose another") from None


class DrainingServer(uvicorn.Server):
    """At the first signal refuse new work and go on; stop when the work is done or the time is up.

    A second signal means now.
    """

    def __init__(self, config: uvicorn.Config, run: _Run) -> None:
        super().__init__(config)
        self._run = run

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn for SIGTERM and SIGINT."""
        if self._run.start_draining():
            log.info("draining", extra={"signal": signal.Signals(sig).name})
        else:
            log.warning("second signal: stopping now")
            self._run.stop_now()
            self.should_exit = True

    def stop(self) -> None:
        """Close the listening socket and end."""
        self.should_exit = True


class _Run:
    """The life of one server."""

    def __init__(self, server: Server, spec: ModelSpec | None, environment: dict[str, str], worker: str) -> None:
        self._server, self._spec, self._environment, self._worker = server, spec, environment, worker
        self._drain, self._give_up = asyncio.Event(), asyncio.Event()
        self._exit_code = OK

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

    async def until_stopped(self, sock: socket.socket) -> int:
        """Serve on the socket; the exit code."""
        config = uvicorn.Config(
            create_app(self._server),
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            server_header=False,
            lifespan="off",
            http=BoundedProtocol,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        )
        web = DrainingServer(config, self)
        work, lag = asyncio.create_task(self._work(web)), asyncio.create_task(self._watch_lag())
        try:
            await web.serve(sockets=[sock])
        finally:
            lag.cancel()
            if self._server.service is None:
                work.cancel()  # it may be fetching a model for minutes
            self._drain.set()
            self._give_up.set()
            await asyncio.gather(work, lag, return_exceptions=True)
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
            self._exit_code = 1
            web.stop()
            return
        children = asyncio.create_task(service.run())
        failed = asyncio.create_task(service.pool.failed_to_start.wait())
        drained = asyncio.create_task(self._drained(service))
        try:
            done, _ = await asyncio.wait((children, failed, drained), return_when=asyncio.FIRST_COMPLETED)
            if failed in done:
                self._fail(service.pool.failure())
            elif children in done:
                self._exit_code = 1
                log.critical("supervision ended", exc_info=children.exception())
        finally:
            # the web server ends while the children do: neither waits for the other
            self._server.give_up()
            web.stop()
            await service.stop()
            for task in (children, failed, drained):
                task.cancel()

    async def _assemble(self) -> Service:
        if self._spec is None:
            settings = self._server.settings
            self._server.waits_for = f"fetching {settings.model} from the hub"
            log.info("fetching model", extra={"model": settings.model})
            dummy = settings.load_format == "dummy"
            self._spec = await asyncio.to_thread(hub_spec, settings.model, dummy, settings.served_model_name)
        self._server.metrics.build_info.labels(__version__, self._spec.name, self._spec.family).set(1)
        service = assemble(self._server.settings, self._spec, self._server.metrics, self._environment, self._worker)
        self._server.service = service
        return service

    async def _drained(self, service: Service) -> None:
        await self._drain.wait()
        service.engine.gate.is_draining = True
        empty = asyncio.create_task(service.engine.gate.until_empty())
        enough = asyncio.create_task(self._give_up.wait())
        seconds = self._server.settings.drain_seconds
        await asyncio.wait((empty, enough), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        empty.cancel()
        enough.cancel()

    async def _watch_lag(self) -> None:
        """How late the loop runs what is due: everything that a caller waits for is at least that late."""
        while True:
            due = time.monotonic() + LAG_PROBE_SECONDS
            await asyncio.sleep(LAG_PROBE_SECONDS)
            self._server.metrics.loop_lag_seconds.set(max(0.0, time.monotonic() - due))

    def _fail(self, why: str) -> None:
        self._exit_code = WRONG_SETTINGS
        log.critical("cannot serve: %s", why)
