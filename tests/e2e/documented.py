"""Every command line of the documents, run word for word: pictures through the gateway, and past it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests.e2e.asking import Said, ask
from tests.e2e.commands import Here, Scene
from tests.e2e.paths import Row, metric
from tests.e2e.pictures import CONVERSATIONS, as_urls, messages
from tests.e2e.servers import ROOT, VLLM_VARIABLES, Server, free_port, started

Tower = Callable[[], dict[str, Said]]
"""What vLLM's own tower gives for each conversation, started as it always was."""
PROGRAM = ROOT / ".venv" / "bin" / "foveal"


def documented(scene: Scene, python: Path, checkpoint: Path, folder: Path, logs: Path, tower: Tower) -> Iterator[Row]:
    """Start both servers as the document says, and ask."""
    here = Here(checkpoint, free_port(), free_port(), folder)
    name = "".join(letter if letter.isalnum() else "-" for letter in scene.place)
    with ExitStack() as stack:
        command = scene.vllm_command(python, here)
        log = logs / f"documented-{name}-vllm.log"
        llm = stack.enter_context(started("vllm", command, here.vllm_port, log, "/health", VLLM_VARIABLES))
        command = scene.foveal_command(PROGRAM, here)
        log = logs / f"documented-{name}-foveal.log"
        gateway = stack.enter_context(
            started("foveal", command, here.foveal_port, log, "/ready", {"OMP_NUM_THREADS": "1"})
        )
        yield from _rows(scene, llm, gateway, tower())


def _rows(scene: Scene, llm: Server, gateway: Server, expected: dict[str, Said]) -> Iterator[Row]:
    model = httpx.get(f"{gateway.url}/v1/models", trust_env=False).json()["data"][0]["id"]
    for case, turns in CONVERSATIONS.items():
        before = metric(gateway.url, 'foveal_images_total{outcome="encoded"}')
        try:
            asked = messages(turns, f"{scene.place}, {case}", as_urls)
            wrong = ask(gateway.url, asked, model=model).difference(expected[case])
        except (httpx.HTTPError, ValueError) as error:
            wrong = f"{type(error).__name__}: {error}; /info: {_problem(gateway)}"
        if not wrong and metric(gateway.url, 'foveal_images_total{outcome="encoded"}') == before:
            wrong = "foveal encoded nothing for it: the answer is vLLM's own"
        yield Row(scene.place, "documented, gateway", case, wrong)
    yield Row(scene.place, "documented", "vLLM lives", "" if llm.is_alive else "it has ended")
    yield Row(scene.place, "documented", "past the gateway", _past_the_gateway(scene, llm, model, expected))


def _past_the_gateway(scene: Scene, llm: Server, model: str, expected: dict[str, Said]) -> str:
    """A vLLM with a limit of 0 refuses pictures themselves, as the documents say; any other answers."""
    case = "one image"
    is_shut = any('"image":0' in word.replace(" ", "") for word in scene.vllm.words)
    try:
        said = ask(llm.url, messages(CONVERSATIONS[case], f"{scene.place}, past", as_urls), model=model)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        return "" if is_shut and status == 400 else f"{status}: {error.response.text[:200]}"
    return "a picture slipped past the gateway" if is_shut else said.difference(expected[case])


def _problem(gateway: Server) -> object:
    return httpx.get(f"{gateway.url}/info", trust_env=False).json()["llm_servers"]
