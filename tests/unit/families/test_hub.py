"""From a hub id to a spec with the real client and a hub on this machine: which files, which revision, which words."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import close_session, constants
from huggingface_hub.utils import disable_progress_bars
from safetensors.numpy import load_file, save_file

from foveal.errors import ConfigurationError
from foveal.families import hub_ranges, tower_download
from foveal.families.catalogue import hub_spec
from foveal.families.spec import ModelSpec
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
        monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "assets"))
        point(monkeypatch, hub.url)
        reach(monkeypatch)
        yield hub
        close_session()


def point(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    close_session()
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hub's client, which follows the environment, come to this machine."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    for name in ("ALL_PROXY", "all_proxy", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


def tower_of(spec: ModelSpec) -> dict[str, np.ndarray]:
    places = weight_places(spec.folder, spec.tower.names)
    return {name: load_file(places[name])[name] for name in TOWER}


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are treated as large ones are."""
    monkeypatch.setattr(tower_download, "LARGE_BYTES", 0)


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("has_ranges", [True, False])
def test_only_the_shard_that_holds_the_tower_is_fetched(hub: FakeHub, has_ranges: bool) -> None:
    hub.has_ranges = has_ranges
    spec = hub_spec(MODEL, dummy_weights=False)
    assert hub.files == sorted([*SMALL, "b.safetensors"])
    assert (spec.name, spec.revision) == (MODEL, COMMIT)
    assert all(np.array_equal(found, TOWER[name]) for name, found in tower_of(spec).items())


def big(folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """One file in which the tower lies in pieces among much else; chunks and heads are small. The tower's bytes."""
    monkeypatch.setattr(tower_download, "LARGE_BYTES", 1000)
    monkeypatch.setattr(tower_download, "CHUNK_BYTES", 64)
    monkeypatch.setattr(tower_download, "HEAD_BYTES", 32)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file(
        TOWER | REST | {"model.u": np.zeros(7, np.int8), "model.visual.z": np.ones(3, np.float32)}, folder / WHOLE
    )
    return 3 * 256 + 12


def test_of_one_large_file_the_towers_bytes_alone_are_fetched_once(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = big(folder, monkeypatch)
    spec = hub_spec(MODEL, dummy_weights=False)
    sent = sum(count for name, count in hub.fetched if name == WHOLE)
    assert size < sent < size + 2000 < (folder / WHOLE).stat().st_size / 100
    assert all(np.array_equal(found, TOWER[name]) for name, found in tower_of(spec).items())
    assert set(weight_places(spec.folder, spec.tower.names)) == {*TOWER, "model.visual.z"}
    hub.fetched.clear()
    assert hub_spec(MODEL, dummy_weights=False) == spec
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub_spec(MODEL, dummy_weights=False) == spec
    assert hub.fetched == []


def test_without_a_place_for_extracts_whole_files_are_fetched(
    hub: FakeHub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big(folder, monkeypatch)
    (tmp_path / "assets").write_text("a file")
    spec = hub_spec(MODEL, dummy_weights=False)
    assert (spec.folder / WHOLE).stat().st_size == (folder / WHOLE).stat().st_size


def test_an_extract_that_ended_early_goes_on_where_it_ended(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = big(folder, monkeypatch)
    monkeypatch.setattr(tower_download, "THREADS", 1)
    reads = 0
    real = hub_ranges.reader(MODEL, COMMIT)
    assert real is not None

    def cut(file: str, start: int, stop: int) -> bytes | None:
        nonlocal reads
        reads += 1
        return real(file, start, stop) if reads < 9 else b""

    monkeypatch.setattr("foveal.families.hub.reader", lambda *_: cut)
    with pytest.raises(ConfigurationError, match="start again, it goes on where it ended"):
        hub_spec(MODEL, dummy_weights=False)
    monkeypatch.setattr("foveal.families.hub.reader", lambda *_: real)
    hub.fetched.clear()
    assert all(np.array_equal(found, TOWER[name]) for name, found in tower_of(hub_spec(MODEL, False)).items())
    data = [count for _, count in hub.fetched if count <= 64]
    assert 64 < sum(data) < size - 64


def test_a_file_that_is_mostly_tower_and_one_that_is_there_already_are_taken_whole(
    hub: FakeHub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big(folder, monkeypatch)
    huggingface_hub.snapshot_download(MODEL)  # as another program does
    hub.fetched.clear()
    assert "assets" not in str(hub_spec(MODEL, dummy_weights=False).folder)
    assert hub.fetched == []


@pytest.mark.parametrize("large", [0, 1 << 30])
def test_an_index_that_is_stale_is_read_all_the_same(
    hub: FakeHub, folder: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    monkeypatch.setattr(tower_download, "LARGE_BYTES", large)
    places = json.loads((folder / INDEX).read_text())["weight_map"]
    places |= dict.fromkeys(list(TOWER)[:1], "a.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    spec = hub_spec(MODEL, dummy_weights=False)
    assert all(np.array_equal(found, TOWER[name]) for name, found in tower_of(spec).items())


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_disk_that_takes_no_more_is_said_with_its_place(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, number: int, has_ranges: bool
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    hub.has_ranges = has_ranges
    monkeypatch.setattr("foveal.families.hub.fetch" if has_ranges else "huggingface_hub.snapshot_download", full)
    with pytest.raises(ConfigurationError, match=r"the disk of the cache|the cache .* cannot be written"):
        hub_spec(MODEL, dummy_weights=False)


def test_random_weights_need_the_small_files_alone(hub: FakeHub) -> None:
    hub_spec(MODEL, dummy_weights=True)
    assert hub.files == SMALL


def test_a_whole_file_wins_over_the_shards_beside_it(hub: FakeHub, folder: Path) -> None:
    save_file({name: tensor + 5 for name, tensor in TOWER.items()}, folder / WHOLE)
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
    for name in ("NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        for spelling in (name, name.lower()):
            monkeypatch.delenv(spelling, raising=False)
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
