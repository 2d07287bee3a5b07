"""From a hub id to a spec with the real client and a hub on this machine: which files, which revision, which words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import close_session, constants
from huggingface_hub.utils import disable_progress_bars
from safetensors.numpy import save_file

from foveal.errors import ConfigurationError
from foveal.families.catalogue import hub_spec
from foveal.families.weights_at_start import weight_places
from tests.unit.families.fake_hub import COMMIT, MODEL, OLDER, FakeHub, serving
from tests.unit.families.folders import PROCESSOR, change, copied

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SMALL = ["config.json", INDEX, PROCESSOR]
TOWER = {f"model.visual.blocks.{i}.attn.qkv.weight": np.full((8, 8), i, np.float32) for i in range(3)}
REST = {f"model.language_model.layers.{i}.weight": np.zeros((400, 400), np.float32) for i in range(3)}


def sharded(folder: Path, shards: dict[str, dict[str, np.ndarray]]) -> Path:
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    places = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of three shards; the tower is in the second."""
    made = tmp_path / "repository"
    made.mkdir()
    one, two, three = ({name: tensor} for name, tensor in REST.items())
    return sharded(copied("tiny", made), {"a.safetensors": one, "b.safetensors": two | TOWER, "c.safetensors": three})


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    disable_progress_bars()
    with serving(FakeHub({COMMIT: folder})) as hub:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        point(monkeypatch, hub.url)
        yield hub
        close_session()


def point(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    close_session()
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def test_only_the_shard_that_holds_the_tower_is_fetched(hub: FakeHub) -> None:
    spec = hub_spec(MODEL, dummy_weights=False)
    assert hub.files == sorted([*SMALL, "b.safetensors"])
    assert (spec.name, spec.revision) == (MODEL, COMMIT)
    assert TOWER.keys() <= weight_places(spec.folder, spec.tower.names).keys()


def test_random_weights_need_the_small_files_alone(hub: FakeHub) -> None:
    hub_spec(MODEL, dummy_weights=True)
    assert hub.files == SMALL


def test_a_whole_file_wins_over_the_shards_beside_it(hub: FakeHub, folder: Path) -> None:
    save_file(TOWER, folder / WHOLE)
    hub_spec(MODEL, dummy_weights=False)
    assert hub.files == sorted([*SMALL, WHOLE])


def test_a_second_start_fetches_nothing_with_and_without_the_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = hub_spec(MODEL, dummy_weights=False)
    hub.fetched.clear()
    assert hub_spec(MODEL, dummy_weights=False) == first
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_spec(MODEL, dummy_weights=False) == first
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    point(monkeypatch, "http://127.0.0.1:9")
    assert hub_spec(MODEL, dummy_weights=False) == first
    assert hub.fetched == []


@pytest.mark.parametrize("revision", ["v1", OLDER])
def test_a_revision_is_served_and_told(hub: FakeHub, folder: Path, tmp_path: Path, revision: str) -> None:
    older = tmp_path / "older"
    older.mkdir()
    sharded(copied("tiny", older), {"x.safetensors": TOWER})
    change(older / PROCESSOR, image_mean=[0.1, 0.2, 0.3])
    hub.revisions[OLDER] = older
    hub.refs["v1"] = OLDER
    spec = hub_spec(MODEL, dummy_weights=False, revision=revision)
    assert (spec.revision, spec.image_mean) == (OLDER, (0.1, 0.2, 0.3))
    assert hub_spec(MODEL, dummy_weights=False).revision == COMMIT


REFUSALS: list[tuple[tuple[int, dict[str, str]], str]] = [
    ((404, {"X-Error-Code": "RepoNotFound"}), "no such model.*slip in the name"),
    ((401, {}), "no such model.*slip in the name.*HF_TOKEN"),
    ((403, {"X-Error-Code": "GatedRepo"}), "accept them at .*HF_TOKEN"),
    ((404, {"X-Error-Code": "RevisionNotFound"}), "no revision 'main'"),
    ((403, {}), "403: the token in HF_TOKEN may not read"),
]


@pytest.mark.parametrize(("says", "words"), REFUSALS, ids=lambda value: str(value)[:40])
def test_a_hub_that_says_no_is_quoted_with_what_to_do(
    hub: FakeHub, says: tuple[int, dict[str, str]], words: str
) -> None:
    hub.says = says
    with pytest.raises(ConfigurationError, match=f"--model {MODEL}: .*{words}"):
        hub_spec(MODEL, dummy_weights=False)


def test_a_revision_that_is_none_is_named(hub: FakeHub) -> None:
    with pytest.raises(ConfigurationError, match="no revision 'v9'"):
        hub_spec(MODEL, dummy_weights=False, revision="v9")


def test_a_hub_out_of_reach_is_the_networks_fault(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    point(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(ConfigurationError, match=r"127\.0\.0\.1:9 cannot be reached .* name was not looked at"):
        hub_spec(MODEL, dummy_weights=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigurationError, match="HF_HUB_OFFLINE is set"):
        hub_spec(MODEL, dummy_weights=False)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("HTTP_PROXY", "http://127.0.0.1:9", "cannot be reached"),
        ("ALL_PROXY", "socks5://127.0.0.1:9", "HTTPS_PROXY, ALL_PROXY"),
        ("HTTP_PROXY", "ftp://127.0.0.1:9", "HTTPS_PROXY, ALL_PROXY"),
        ("SSL_CERT_FILE", "/no/such.pem", "SSL_CERT_FILE"),
    ],
)
def test_a_proxy_or_certificate_of_the_environment_is_named(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv(variable, value)
    close_session()
    with pytest.raises(ConfigurationError, match=words):
        hub_spec(MODEL, dummy_weights=False)


def test_a_repository_without_weights_of_ours_says_what_it_has(hub: FakeHub, folder: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ConfigurationError, match=r"it has pytorch_model\.bin: a pickle.*convert"):
        hub_spec(MODEL, dummy_weights=False)
    assert hub.files == [name for name in SMALL if name != INDEX]


def test_a_repository_of_folders_says_which_to_fetch(hub: FakeHub, folder: Path) -> None:
    for path in list(folder.iterdir()):
        path.unlink()
    (folder / "modules.json").write_text("[]")
    (folder / "0_CLIPModel").mkdir()
    (folder / "0_CLIPModel/config.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"sentence-transformers .*hf download people/model .*0_CLIPModel"):
        hub_spec(MODEL, dummy_weights=False)


def test_an_index_without_the_tower_fetches_no_shard(hub: FakeHub, folder: Path) -> None:
    sharded(folder, {"a.safetensors": REST})
    with pytest.raises(ConfigurationError, match="hold no vision tower"):
        hub_spec(MODEL, dummy_weights=False)
    assert hub.files == SMALL
