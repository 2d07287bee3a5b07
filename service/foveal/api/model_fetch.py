"""Fetches a hub's model in a process of its own, so that a server that is told to stop can: threads cannot be ended.

What was fetched so far stays, and the next start goes on from there.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from foveal.errors import ConfigurationError
from foveal.families.catalogue import hub_spec, spec_of
from foveal.families.checkpoint import open_checkpoint
from foveal.families.spec import ModelSpec
from foveal.ipc.child import die_with_parent
from foveal.logs import set_up
from foveal.settings import Settings

REFUSED = 2


async def fetched_spec(settings: Settings, environment: Mapping[str, str], stop: asyncio.Event) -> ModelSpec | None:
    """The spec of a hub id, its files fetched; None if it is told to stop before. Raises ConfigurationError."""
    fetching = asyncio.create_task(_fetched(settings, environment))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((fetching, stopped), return_when=asyncio.FIRST_COMPLETED)
        return fetching.result() if fetching.done() else None
    finally:
        for task in (fetching, stopped):
            task.cancel()
        await asyncio.gather(fetching, stopped, return_exceptions=True)


async def _fetched(settings: Settings, environment: Mapping[str, str]) -> ModelSpec:
    """Have a child fetch it; cancelled, end the child."""
    dummy = settings.load_format == "dummy"
    asked = {"model": settings.model, "dummy_weights": dummy, "revision": settings.revision}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, json.dumps(asked), settings.log_level, settings.log_format),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode not in (0, REFUSED):
        raise RuntimeError(f"the process that fetches {settings.model} ended with {process.returncode}")
    answer = json.loads(said.splitlines()[-1])
    if process.returncode == REFUSED:
        raise ConfigurationError(answer["refused"])
    checkpoint = open_checkpoint(Path(answer["folder"]), dummy, answer["revision"])
    return spec_of(settings.served_model_name or settings.model, checkpoint)


def main(asked: str, log_level: str, log_format: str) -> int:
    """Fetch, and print where it lies or why not; the exit code."""
    die_with_parent()
    set_up(log_level, "json" if log_format == "json" else "text")
    try:
        spec = hub_spec(**json.loads(asked))
    except ConfigurationError as error:
        print(json.dumps({"refused": str(error)}), flush=True)
        return REFUSED
    print(json.dumps({"folder": str(spec.folder), "revision": spec.revision}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
