"""`python -m tests.e2e`: a real vLLM beside foveal on the same tiny weights, every path and fault, and one table.

Exit code 1 on any difference. Takes minutes: a vLLM starts once for each family and each of its configurations.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path as FilePath

from tests.e2e.asking import Said, ask
from tests.e2e.checkpoints import FAMILIES
from tests.e2e.commands import scenes
from tests.e2e.documented import documented
from tests.e2e.environment import python_of
from tests.e2e.faults import Scene, provoke
from tests.e2e.measure import measure, transports
from tests.e2e.paths import Path, Row, by_key, compare, embedded, zeroed
from tests.e2e.pictures import CONVERSATIONS, as_urls, messages
from tests.e2e.servers import Server, foveal, free_port, vllm

CONFIGURATIONS = ("parts", "example", "connector", "documented")
HOLD_SECONDS = 60.0
PICKUP_SECONDS = 30.0


class Run:
    """One family on one configuration of vLLM."""

    def __init__(self, python: FilePath, checkpoint: FilePath, folder: FilePath, name: str) -> None:
        self.python, self.checkpoint, self.name = python, checkpoint, name
        self.shared = folder / f"shared-{name.replace(' ', '-')}"
        self.logs = folder / "logs"
        shutil.rmtree(self.shared, ignore_errors=True)
        self.shared.mkdir()

    def log(self, process: str) -> FilePath:
        return self.logs / f"{self.name.replace(' ', '-')}-{process}.log"

    def foveal(self, stack: ExitStack, vllm_port: int, process: str, *options: str, port: int | None = None) -> Server:
        url = f"http://127.0.0.1:{vllm_port}"
        return stack.enter_context(foveal(self.checkpoint, self.log(process), "--llm-url", url, *options, port=port))

    def parts(self) -> Iterator[Row]:
        """vLLM as it is, with --enable-mm-embeds: rows inside of requests."""
        port = free_port()
        with ExitStack() as stack:
            here = self.foveal(stack, port, "foveal", "--llm-handover", "parts")
            there = stack.enter_context(vllm(self.python, self.checkpoint, self.log("vllm"), port))
            yield from compare(
                self.name,
                there.url,
                [
                    Path("SDK part", there.url, embedded(here.url), counted_at=here.url),
                    *_gateway("gateway, parts", here),
                ],
            )
            yield zeroed(self.name, there.url, here.url)

    def example(self) -> Iterator[Row]:
        """vLLM's ECExampleConnector on a folder that foveal publishes in."""
        port = free_port()
        ec = {
            "ec_connector": "ECExampleConnector",
            "ec_connector_extra_config": {"shared_storage_path": str(self.shared)},
        }
        with ExitStack() as stack:
            here = self.foveal(stack, port, "foveal", "--llm-handover", "keys", "--ec-shared-storage", str(self.shared))
            there = stack.enter_context(vllm(self.python, self.checkpoint, self.log("vllm"), port, ec))
            paths = [Path("key, published file", there.url, by_key(here.url), counted_at=here.url)]
            yield from compare(self.name, there.url, [*paths, *_gateway("gateway, keys in files", here)])

    def connector(self, *, with_faults: bool) -> Iterator[Row]:
        """Our connector: by HTTP from one foveal, by shared storage from another."""
        port, here_port = free_port(), free_port()
        ec = {
            "ec_connector": "FovealConnector",
            "ec_connector_module_path": "foveal_client.vllm_connector",
            "ec_connector_extra_config": {
                "url": f"http://127.0.0.1:{here_port}",
                "shared_storage_path": str(self.shared),
                "timeout_seconds": PICKUP_SECONDS,
            },
        }
        forgetful = ("--llm-handover", "keys", "--handover-seconds", str(HOLD_SECONDS), "--cache-bytes", "0")
        with ExitStack() as stack:
            held = stack.enter_context(ExitStack())
            here = self.foveal(held, port, "foveal-http", *forgetful, port=here_port)
            there = stack.enter_context(vllm(self.python, self.checkpoint, self.log("vllm"), port, ec))
            with ExitStack() as files:
                publishing = ("--llm-handover", "keys", "--ec-shared-storage", str(self.shared))
                other = self.foveal(files, port, "foveal-files", *publishing)
                paths = [
                    Path("SDK part", there.url, embedded(here.url), counted_at=here.url),
                    Path("key, HTTP", there.url, by_key(here.url), counted_at=here.url),
                    Path("key, shared storage", there.url, by_key(other.url), counted_at=other.url),
                    *_gateway("gateway, keys by HTTP", here),
                    *_gateway("gateway, keys in files", other),
                ]
                yield from compare(self.name, there.url, paths)
                yield from measure(self.name, there.url, here.url, other.url)
            if with_faults:

                def restart() -> None:
                    held.close()
                    scene_foveal = self.foveal(held, port, "foveal-http", *forgetful, port=here_port)
                    here.process = scene_foveal.process

                yield from provoke(Scene(self.name, there, here, restart, HOLD_SECONDS, self.shared))

    def documented(self, family: str) -> Iterator[Row]:
        """The command lines of the documents for models of this family, each started as it stands there."""

        @cache
        def tower() -> dict[str, Said]:
            port = free_port()
            with vllm(self.python, self.checkpoint, self.log("vllm"), port) as there:
                return {
                    case: ask(there.url, messages(turns, "direct", as_urls)) for case, turns in CONVERSATIONS.items()
                }

        for scene in scenes():
            if scene.family == family:
                yield from documented(scene, self.python, self.checkpoint, self.shared, self.logs, tower)


def _gateway(name: str, server: Server) -> list[Path]:
    return [
        Path(f"{name}, whole", server.url, as_urls, counted_at=server.url),
        Path(f"{name}, streamed", server.url, as_urls, stream=True, counted_at=server.url),
    ]


def main() -> int:
    """Run what was asked for and print the table."""
    options = _options()
    folder: FilePath = options.folder.resolve()
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    python = python_of(options.venv.resolve())
    rows: list[Row] = []
    for family in options.families:
        checkpoint = folder / family
        if not (checkpoint / "model.safetensors").exists():
            script = str(FilePath(__file__).with_name("checkpoints.py"))
            subprocess.run([str(python), script, str(checkpoint), family], check=True)
        for configuration in options.configurations:
            name = f"{family} {configuration}"
            for row in _rows(Run(python, checkpoint, folder, name), configuration, family, options.families[0]):
                rows.append(row)
                print(_line(row), flush=True)
    for row in transports():
        rows.append(row)
        print(_line(row), flush=True)
    return _report(rows)


def _rows(run: Run, configuration: str, family: str, first: str) -> Iterator[Row]:
    match configuration:
        case "parts":
            yield from run.parts()
        case "example":
            yield from run.example()
        case "connector":
            yield from run.connector(with_faults=family == first)
        case "documented":
            yield from run.documented(family)


def _report(rows: list[Row]) -> int:
    wrong = [row for row in rows if row.wrong]
    print("\n" + "\n".join(_line(row) for row in rows))
    print(f"\n{len(rows)} checks, {len(wrong)} of them wrong")
    return 1 if wrong or not rows else 0


def _line(row: Row) -> str:
    what = f"WRONG: {row.wrong}" if row.wrong else "ok"
    return f"{row.configuration:22} {row.path:34} {row.case:24} {what:5} {row.note}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e", description=__doc__)
    parser.add_argument("--folder", type=FilePath, default=FilePath(".e2e"), help="for checkpoints, files and logs")
    parser.add_argument("--venv", type=FilePath, default=FilePath(".e2e/venv"), help="vLLM's own; made if missing")
    parser.add_argument("--families", nargs="+", choices=sorted(FAMILIES), default=["qwen3_vl", "qwen2_vl"])
    parser.add_argument("--configurations", nargs="+", choices=CONFIGURATIONS, default=list(CONFIGURATIONS))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
