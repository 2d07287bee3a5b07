"""A model from a hub, in real processes: what is fetched and told, and how a start ends that cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import certifi
import pytest
import torch
from safetensors.torch import save_file

from foveal.gpu.dummy import dummy_weights
from foveal.gpu.towers.vision import VisionTower
from foveal.gpu.weights import sources_of
from tests.system.conftest import serving, start
from tests.unit.families.fake_hub import COMMIT, MODEL, FakeHub
from tests.unit.families.fake_hub import serving as hub_of
from tests.unit.families.folders import copied, read

PREFIX = "model.visual."


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in tower with its weights in one shard, and a language model's in another."""
    folder = copied("tiny", tmp_path_factory.mktemp("repository"))
    spec = read(folder)
    drawn = dummy_weights(VisionTower(spec, torch.device("cpu"), torch.float32).wanted())
    tower = {PREFIX + sources_of(name, spec.tower.names)[0]: tensor for name, tensor in drawn.items()}
    rest = {"model.language_model.norm.weight": torch.zeros(1000)}
    save_file(tower, folder / "tower.safetensors")
    save_file(rest, folder / "rest.safetensors")
    places = dict.fromkeys(tower, "tower.safetensors") | dict.fromkeys(rest, "rest.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def variables(url: str, home: Path) -> dict[str, str]:
    reachable = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "SSL_CERT_FILE": certifi.where()}
    reachable |= dict.fromkeys(("ALL_PROXY", "all_proxy"), "")
    return {"HF_ENDPOINT": url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"} | reachable


def test_a_revision_is_fetched_served_and_told(repository: Path, tmp_path: Path) -> None:
    with hub_of(FakeHub({COMMIT: repository}, {"main": COMMIT, "v1": COMMIT})) as hub:
        environment = variables(hub.url, tmp_path)
        with serving("--model", MODEL, variables=environment | {"FOVEAL_REVISION": "v1"}) as server:
            assert (server.info()["revision"], server.info()["model"]) == (COMMIT, MODEL)
        assert "tower.safetensors" in hub.files and "rest.safetensors" not in hub.files


def test_a_server_that_is_told_to_stop_while_it_fetches_stops(repository: Path, tmp_path: Path) -> None:
    with hub_of(FakeHub({COMMIT: repository}, stalls_at="tower.safetensors")) as hub:
        running = start("--model", MODEL, variables=variables(hub.url, tmp_path))
        assert hub.has_stalled.wait(60)
        running.process.terminate()
        assert running.process.wait(30) == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", MODEL], "cannot be reached"),
        (["--model", "builtin:tiny", "--revision", "v1"], "--revision v1 is for models of a hub"),
        (["--model", ".", "--revision", "v1"], "--revision v1 is for models of a hub"),
        (["--revision", ""], "revision"),
    ],
    ids=["unreachable", "built-in", "folder", "empty"],
)
def test_a_start_that_cannot_be_ends_with_exit_code_2_and_a_sentence(
    tmp_path: Path, flags: list[str], words: str
) -> None:
    running = start(*flags, variables=variables("http://127.0.0.1:9", tmp_path))
    assert running.process.wait(60) == 2
    running.until(lambda: words in "".join(running.lines))
    assert "Traceback" not in "".join(running.lines)
