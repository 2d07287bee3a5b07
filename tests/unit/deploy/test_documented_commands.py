"""Command lines of the documents: all are known to e2e, which runs them, and none is one that is known to fail."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from foveal.families.catalogue import FAMILIES
from foveal.settings import Settings, add_flags
from tests.e2e.__main__ import CONFIGURATIONS
from tests.e2e.checkpoints import FAMILIES as CHECKPOINTS
from tests.e2e.commands import COMPOSE, ROOT, VLLM_ON_CPU, Here, Line, Scene, blocks, compose_line, scenes

HERE = Here(Path("/checkpoint"), 1001, 1002, Path("/shared"))
LINES = [line for block in [*blocks(), [compose_line()]] for line in block]
STARTS = re.compile(r"\bvllm serve\b|vllm\.entrypoints|\bsglang\.launch_server\b")
SHOWN_IN = ("README.md", "CHANGELOG.md", COMPOSE, "docs", "examples", "deploy", "client", "service")


def texts() -> Iterator[tuple[str, str]]:
    for name in SHOWN_IN:
        paths = sorted((ROOT / name).rglob("*")) if (ROOT / name).is_dir() else [ROOT / name]
        for path in paths:
            if path.is_file() and path.suffix in (".md", ".py", ".sh", ".yml", ".yaml", ".txt", ".toml"):
                yield str(path.relative_to(ROOT)), path.read_text()


def test_every_command_that_starts_an_llm_server_stands_where_e2e_finds_it() -> None:
    shown = {(name, len(STARTS.findall(text))) for name, text in texts() if STARTS.search(text)}
    found: dict[str, int] = {}
    for line in LINES:
        if line.program != "foveal":
            name = line.place.partition(":")[0]
            found[name] = found.get(name, 0) + 1
    assert shown == set(found.items())


def test_e2e_runs_each_of_them() -> None:
    assert "documented" in CONFIGURATIONS
    run = {scene.vllm.words for scene in scenes()}
    assert run == {line.words for line in LINES if line.program == "vllm"} and len(run) > 3


@pytest.mark.parametrize("scene", scenes(), ids=lambda scene: scene.place)
def test_a_command_is_run_word_for_word_but_for_what_this_host_has_elsewhere(scene: Scene) -> None:
    assert scene.family in CHECKPOINTS
    elsewhere = {
        scene.vllm.model: "/checkpoint",
        "8001": "1001",
        "//foveal:8000": "//127.0.0.1:1002",
        "/mnt/ec": "/shared",
    }
    shown = list(scene.vllm.words[2:] if "serve" in scene.vllm.words else scene.vllm.words[4:])
    for there, here in elsewhere.items():
        shown = [word.replace(there, here) for word in shown]
    port = [] if "--port" in shown else ["--port", "1001"]
    command = scene.vllm_command(Path("python"), HERE)
    assert command == ["python", *command[1:3], "--model", *shown, *port, *VLLM_ON_CPU]
    for word in scene.foveal_command(Path("foveal"), HERE):
        assert not re.search(r"Qwen/|/mnt/|:800\d", word)


@pytest.mark.parametrize("line", [line for line in LINES if line.program == "vllm"], ids=lambda line: line.place)
def test_no_document_takes_the_tower_from_a_model_with_deepstack(line: Line) -> None:
    """vLLM forgets deepstack without one: the first picture ends its engine."""
    has_deepstack = re.search(r"Qwen3-(VL|Omni)", line.model) is not None
    words = list(line.words)
    limit = json.loads(words[words.index("--limit-mm-per-prompt") + 1]) if "--limit-mm-per-prompt" in words else {}
    assert limit.get("image") != 0 or not has_deepstack
    assert limit.get("image", 99) in (0, 99), "embeddings count to a limit above 0: leave it out, or say how many"


@pytest.mark.parametrize("line", [line for line in LINES if line.program == "foveal"], ids=lambda line: line.place)
def test_every_command_of_ours_has_flags_that_there_are(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    words = line.words[line.words.index("serve") + 1 :]
    given = vars(parser.parse_args(words))
    given.pop("config")
    if "ec_shared_storage" in given:
        given["ec_shared_storage"] = "/tmp"
    Settings(**given)


BLOCK = "Text.\n\n    vllm serve {model} {rest}\n    foveal serve --model {model} --llm-url http://127.0.0.1:8001\n"


@pytest.mark.parametrize(
    ("model", "rest", "why"),
    [
        ("Qwen/Qwen9-VL", "--port 8001", "no checkpoint for Qwen/Qwen9-VL"),
        ("Qwen/Qwen3-VL-8B-Instruct", "--download-dir /data/models", "nothing stands for '/data/models'"),
        ("Qwen/Qwen3-VL-8B-Instruct", '--config \'{"url": "http://other:1"}\'', "nothing stands for"),
    ],
)
def test_a_new_line_that_e2e_cannot_run_is_refused(model: str, rest: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "new.md").write_text(BLOCK.format(model=model, rest=rest))
    (block,) = blocks(["new.md"], tmp_path)
    with pytest.raises(ValueError, match=why):
        scene = Scene(*block)
        assert scene.family and scene.vllm_command(Path("python"), HERE)


SPREAD = "    vllm serve a --x '{\n      \"y\": 1}'\n    foveal serve\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("    vllm serve a \\\n        --b 'c d'\n", [("vllm", "serve", "a", "--b", "c d")]),
        ("```sh\nvllm serve a  # why\n```\n", [("vllm", "serve", "a")]),
        (SPREAD, [("vllm", "serve", "a", "--x", '{ "y": 1}'), ("foveal", "serve")]),
        ("    A=1 foveal serve --x\n", [("A=1", "foveal", "serve", "--x")]),
        ("vllm serve in a text\n", []),
        ("```python\nprint('vllm serve')\n```\n", []),
    ],
)
def test_lines_are_read_as_a_shell_reads_them(text: str, words: list[tuple[str, ...]], tmp_path: Path) -> None:
    (tmp_path / "new.md").write_text(text)
    assert [line.words for block in blocks(["new.md"], tmp_path) for line in block] == words


def test_a_command_that_does_not_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "new.md").write_text("    vllm serve a 'b\n\ntext\n")
    with pytest.raises(ValueError, match="does not end"):
        list(blocks(["new.md"], tmp_path))


def test_the_families_that_e2e_has_are_served() -> None:
    assert set(CHECKPOINTS) <= set(FAMILIES)
