"""Which weight files are read: transformers' choice in every mixture of files; refusals that say what is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from transformers.modeling_utils import _get_resolved_checkpoint_files

from foveal.errors import ConfigurationError
from foveal.families.catalogue import local_spec
from foveal.families.weight_files import weight_file
from foveal.families.weights_at_start import weight_places
from tests.unit.families.folders import CONFIG, PROCESSOR, change, copied

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
FILES = [
    WHOLE,
    INDEX,
    "a.safetensors",
    "model.fp16.safetensors",
    "model.safetensors.index.fp16.json",
    "consolidated.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model-00001-of-00002.safetensors",
    "adapter_model.safetensors",
    "model-Q4.gguf",
    "tf_model.h5",
]
TOWER = {f"model.visual.blocks.{i}.attn.qkv.weight": np.full((8, 8), i, np.float32) for i in range(3)}
REST = {"model.language_model.norm.weight": np.zeros(8, np.float32)}


def index(shards: dict[str, dict[str, np.ndarray]]) -> str:
    places = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    return json.dumps({"metadata": {}, "weight_map": places})


def theirs(folder: Path, explicit: str | None = None) -> list[str] | None:
    """The files that transformers loads; None where it finds none."""
    try:
        found, _ = _get_resolved_checkpoint_files(
            str(folder), None, None, None, None, is_remote_code=False, transformers_explicit_filename=explicit
        )
    except OSError:
        return None
    return sorted(Path(file).name for file in found or [])


def ours(folder: Path, explicit: str | None = None) -> list[str] | None:
    config = {"transformers_weights": explicit} if explicit else {}
    try:
        name = weight_file(str(folder), config, {path.name for path in folder.iterdir()})
    except ConfigurationError as error:
        assert "no model.safetensors and no" in str(error)
        return None
    return ["a.safetensors"] if name.endswith(".index.json") else [name]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixtures")


@given(there=st.sets(st.sampled_from(FILES)))
def test_the_files_are_those_that_transformers_loads_but_for_pickles(places: Path, there: set[str]) -> None:
    folder = places / ("-".join(str(FILES.index(name)) for name in sorted(there)) or "none")
    folder.mkdir(exist_ok=True)
    for name in there:
        (folder / name).write_text(index({"a.safetensors": TOWER}) if name.endswith(".json") else "x")
    expected = theirs(folder)
    is_pickle = expected is not None and any(name.startswith("pytorch") or name == "a.safetensors" for name in expected)
    if is_pickle and INDEX not in there:
        expected = None
    assert ours(folder) == expected


def test_a_file_that_config_names_comes_first_as_in_transformers(tmp_path: Path) -> None:
    for name in (WHOLE, "model.fp16.safetensors"):
        (tmp_path / name).write_text("x")
    assert ours(tmp_path, "model.fp16.safetensors") == theirs(tmp_path, "model.fp16.safetensors")
    for wrong in ("pytorch_model.bin", "../model.safetensors", "sub/model.safetensors", 3):
        with pytest.raises(ConfigurationError, match="transformers_weights"):
            weight_file("here", {"transformers_weights": wrong}, {WHOLE})


def folder_with(tmp_path: Path, shards: dict[str, dict[str, np.ndarray]], index_of: Any = None) -> Path:
    folder = copied("tiny", tmp_path)
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    if index_of is not None:
        (folder / INDEX).write_text(index(index_of))
    return folder


def tower_of(folder: Path) -> dict[str, float]:
    """The first value of each of the tower's tensors, as found by our places."""
    spec = local_spec(str(folder), dummy_weights=True)
    places = weight_places(folder, spec.tower.names)
    return {name: float(load_file(places[name])[name].ravel()[0]) for name in TOWER}


NEW = {name: tensor + 10 for name, tensor in TOWER.items()}


def test_a_whole_file_saved_over_old_shards_is_the_one(tmp_path: Path) -> None:
    shards = {"old-1.safetensors": TOWER, "old-2.safetensors": REST}
    folder = folder_with(tmp_path, shards | {WHOLE: NEW | REST}, shards)
    assert set(tower_of(folder).values()) == {10.0, 11.0, 12.0}
    for path in folder.glob("old-*"):  # its index may be all that is left
        path.unlink()
    assert set(tower_of(folder).values()) == {10.0, 11.0, 12.0}
    assert theirs(folder) == [WHOLE]


def test_the_shards_are_believed_where_the_index_is_stale(tmp_path: Path) -> None:
    first, *others = TOWER
    shards = {"a.safetensors": {first: TOWER[first]}, "b.safetensors": {n: TOWER[n] for n in others}}
    swapped = {"a.safetensors": shards["b.safetensors"], "b.safetensors": shards["a.safetensors"]}
    assert set(tower_of(folder_with(tmp_path, shards, swapped)).values()) == {0.0, 1.0, 2.0}


def test_shards_of_the_language_model_may_be_missing_but_not_the_towers(tmp_path: Path) -> None:
    shards = {"a.safetensors": TOWER, "b.safetensors": REST}
    folder = folder_with(tmp_path, {"a.safetensors": TOWER}, shards)
    assert len(tower_of(folder)) == 3
    (folder / "a.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"lacks a\.safetensors, which its index names"):
        local_spec(str(folder), dummy_weights=False)


REFUSED: list[tuple[list[str], str]] = [
    (["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"], "2-of-00003.*without their index"),
    (["model.fp16.safetensors"], r"model\.fp16\.safetensors: a variant"),
    (["model.safetensors.index.fp16.json", "model.fp16-00001-of-00002.safetensors"], "a variant"),
    (["pytorch_model.bin"], "a pickle"),
    (["pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json"], "a pickle"),
    (["model.pt"], "a pickle"),
    (["adapter_model.safetensors"], "an adapter"),
    (["model-Q4_K_M.gguf"], "GGUF"),
    (["consolidated.safetensors", "params.json"], "maker's own format"),
    (["weights.safetensors"], "rename it to"),
    (["tf_model.h5"], "another framework"),
    ([], "no weights at all.*--load-format dummy"),
]


@pytest.mark.parametrize(("files", "words"), REFUSED, ids=str)
def test_weights_that_are_not_read_are_refused_at_start_with_what_is_there(
    tmp_path: Path, files: list[str], words: str
) -> None:
    folder = copied("tiny", tmp_path)
    for name in files:
        (folder / name).write_bytes(b"x")
    with pytest.raises(ConfigurationError, match=rf"no model\.safetensors.*{words}"):
        local_spec(str(folder), dummy_weights=False)
    assert local_spec(str(folder), dummy_weights=True).dummy_weights


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 5\n"


@pytest.mark.parametrize("name", [WHOLE, INDEX, "a.safetensors", CONFIG, PROCESSOR, "processor_config.json"])
def test_a_pointer_of_git_lfs_is_known_in_every_place(tmp_path: Path, name: str) -> None:
    shards = {"a.safetensors": TOWER}
    folder = folder_with(tmp_path, shards, shards)
    (folder / name).write_text(POINTER)
    with pytest.raises(ConfigurationError, match=rf"{name} is a Git LFS pointer.*git lfs pull"):
        local_spec(str(folder), dummy_weights=False)


DAMAGE = {
    "empty": b"",
    "short": b"\x05\x00",
    "no head": b"\xff" * 64,
    "no JSON": b"\x04" + bytes(7) + b"[1,]",
    "no offsets": b"\x1b" + bytes(7) + b'{"model.visual.a": {"x":1}}',
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    folder = copied("tiny", tmp_path)
    (folder / WHOLE).write_bytes(DAMAGE[kind])
    with pytest.raises(ConfigurationError, match=rf"{WHOLE} cannot be read: .*fetch it again"):
        local_spec(str(folder), dummy_weights=False)


def test_a_file_cut_short_says_how_much_is_there(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {WHOLE: TOWER})
    whole = (folder / WHOLE).read_bytes()
    (folder / WHOLE).write_bytes(whole[:-100])
    with pytest.raises(ConfigurationError, match=rf"cut short, {len(whole) - 100} bytes of {len(whole)}"):
        local_spec(str(folder), dummy_weights=False)


STEM = "model.visual.blocks.0.attn.qkv"
EIGHT, SCALE = np.zeros((8, 8), np.uint8), np.ones(8, np.float32)
QUANTISED: dict[str, dict[str, np.ndarray]] = {
    "bitsandbytes": {f"{STEM}.weight": EIGHT, f"{STEM}.weight.absmax": SCALE, f"{STEM}.weight.quant_map": SCALE},
    "gptq": {f"{STEM}.qweight": EIGHT.astype(np.int32), f"{STEM}.scales": SCALE, f"{STEM}.g_idx": SCALE},
    "awq": {f"{STEM}.qweight": EIGHT.astype(np.int32), f"{STEM}.qzeros": EIGHT, f"{STEM}.scales": SCALE},
    "fp8": {f"{STEM}.weight": EIGHT.astype(np.float32), f"{STEM}.weight_scale_inv": SCALE},
    "compressed-tensors": {f"{STEM}.weight_packed": EIGHT.astype(np.int32), f"{STEM}.weight_scale": SCALE},
    "a cast": {f"{STEM}.weight": EIGHT.astype(np.int8)},
}


@pytest.mark.parametrize("method", QUANTISED)
@pytest.mark.parametrize("place", ["quantization_config", "compression_config", None])
def test_a_quantised_tower_is_refused_by_its_method(tmp_path: Path, method: str, place: str | None) -> None:
    folder = folder_with(tmp_path, {WHOLE: TOWER | QUANTISED[method] | REST})
    if place:
        change(folder / CONFIG, **{place: {"quant_method": method}})
    said = f" by {method}" if place else ""
    with pytest.raises(ConfigurationError, match=f"vision tower in .* is quantised{said}, as {STEM}"):
        local_spec(str(folder), dummy_weights=False)


def test_a_quantised_language_model_beside_a_whole_tower_is_no_matter(tmp_path: Path) -> None:
    rest = {"model.language_model.layers.0.mlp.qweight": EIGHT, "model.language_model.layers.0.mlp.scales": SCALE}
    folder = folder_with(tmp_path, {WHOLE: TOWER | rest})
    change(folder / CONFIG, quantization_config={"quant_method": "gptq"})
    assert local_spec(str(folder), dummy_weights=False).family == "qwen3_vl"


@pytest.mark.parametrize("part", ["visual.blocks.0.attn.qkv", "language_model.layers.0.self_attn.q_proj"])
def test_an_adapter_beside_whole_weights_is_refused_where_it_changes_the_tower(tmp_path: Path, part: str) -> None:
    adapter = {f"base_model.model.model.{part}.lora_A.weight": np.ones((2, 8), np.float32)}
    folder = folder_with(tmp_path, {WHOLE: TOWER, "adapter_model.safetensors": adapter})
    (folder / "adapter_config.json").write_text("{}")
    if "visual" not in part:
        assert local_spec(str(folder), dummy_weights=False).family == "qwen3_vl"
        return
    with pytest.raises(ConfigurationError, match=r"an adapter for the vision tower.*merge"):
        local_spec(str(folder), dummy_weights=False)


def test_weights_without_a_tower_say_what_they_begin_with(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {WHOLE: {"lm_head.weight": SCALE, **REST}})
    with pytest.raises(ConfigurationError, match=r"hold no vision tower.*they begin with lm_head, model\)"):
        local_spec(str(folder), dummy_weights=False)


def test_all_words_are_of_one_line_and_end_without_a_full_stop() -> None:
    for files, _ in REFUSED:
        with pytest.raises(ConfigurationError) as told:
            weight_file("folder", {}, files)
        assert "\n" not in str(told.value) and not str(told.value).endswith(".")
