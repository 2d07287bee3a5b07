"""Whether an LLM server serves the model whose pictures are encoded here: names, adapters, widths, and what it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foveal.errors import ConfigurationError
from foveal.families.catalogue import local_spec
from foveal.families.language_model import language_width
from foveal.handover.diagnosis import diagnose
from foveal.handover.identity import Expected, Listed, check_width, config_beside, match, normal, other_width
from foveal.settings import Settings
from tests.unit.families.folders import change, copied, read

QWEN = "Qwen/Qwen3-VL-8B-Instruct"


def expected(name: str = QWEN, width: int = 4096) -> Expected:
    return Expected(name, frozenset({normal(name)}), width, 4)


@pytest.mark.parametrize(
    "entry",
    [
        {"id": QWEN},
        {"id": "Qwen3-VL-8B-Instruct"},
        {"id": "qwen3_vl_8b_instruct"},
        {"id": "llm", "root": QWEN},
        {"id": "llm", "root": "/models/Qwen3-VL-8B-Instruct/"},
        {"id": "llm", "root": "/root/.cache/hub/models--Qwen--Qwen3-VL-8B-Instruct/snapshots/0123abcd"},
        {"id": f"{QWEN}-FP8"},
        {"id": "cyankiwi/Qwen3-VL-8B-Instruct-AWQ-4bit"},
    ],
    ids=lambda entry: entry.get("root") or entry["id"],
)
def test_one_model_has_many_names(entry: dict[str, str]) -> None:
    assert not match(expected(), [Listed(**entry)]).why_not


@pytest.mark.parametrize(
    "name",
    ["Qwen/Qwen3-VL-4B-Instruct", "Qwen/Qwen3-VL-8B-Thinking", "Qwen/Qwen2.5-VL-7B-Instruct", "8B-Instruct", "", "/"],
)
def test_another_model_is_refused_with_both_names_and_the_setting(name: str) -> None:
    found = match(expected(), [Listed(name)])
    assert repr(name) in found.why_not and QWEN in found.why_not and "--llm-model" in found.why_not


def test_the_built_in_model_is_not_one_from_the_hub() -> None:
    tiny = Expected.of(Settings(), local_spec("builtin:tiny", dummy_weights=True))
    assert match(tiny, [Listed(QWEN, QWEN)]).why_not and not match(tiny, [Listed("x", "builtin:tiny")]).why_not


def test_a_list_without_models_is_refused() -> None:
    assert "no model" in match(expected(), []).why_not


def test_adapters_count_by_the_model_that_they_are_on() -> None:
    adapters = [Listed("pirate", "/loras/pirate", QWEN), Listed("poet", "/loras/poet", "llm")]
    found = match(expected(), [Listed("llm", QWEN), *adapters])
    assert found.names == {"llm", "pirate", "poet"} and not found.others
    listed = [Listed("meta/llama"), Listed(QWEN, "/loras/x", "meta/llama")]
    assert match(expected(), listed).why_not
    assert not match(replace(expected(), is_told=True), listed).why_not
    other = match(expected(), [Listed("meta/llama", "meta/llama"), Listed("x", "/loras/x", "meta/llama")])
    assert other.why_not and "'x'" not in other.why_not


def test_other_models_beside_it_are_known_as_such() -> None:
    found = match(expected(), [Listed(QWEN), Listed("meta/llama"), Listed("x", parent="meta/llama")])
    assert (found.names, found.others) == ({QWEN}, {"meta/llama", "x"})


def test_what_llm_model_says_is_what_is_compared() -> None:
    spec = local_spec("builtin:tiny", dummy_weights=True)
    told = Expected.of(Settings(llm_url=("http://x",), llm_model="our-llm"), spec)
    assert not match(told, [Listed("our-llm", QWEN)]).why_not
    assert match(told, [Listed("builtin:tiny")]).why_not


@given(st.text(max_size=60))
def test_a_name_matches_itself_in_any_case_and_behind_any_folder(name: str) -> None:
    assert normal(name.upper()) == normal(name.upper().lower())
    assert normal(f"/some/where/{name.strip('/')}/") == normal(name) or not name.strip("/ ")


@pytest.mark.parametrize(
    ("config", "width"),
    [
        ({"text_config": {"hidden_size": 4096}, "vision_config": {}}, 4096),
        ({"thinker_config": {"text_config": {"hidden_size": 2048}}}, 2048),
        ({"hidden_size": 3584, "vision_config": {}}, 3584),
        ({"hidden_size": 64}, None),
        ({"text_config": {"hidden_size": True}}, None),
        ({"text_config": {"hidden_size": "4096"}}, None),
        ({"text_config": [], "vision_config": None}, None),
        ({}, None),
    ],
)
def test_the_width_of_the_language_model_is_read_where_it_stands(config: dict[str, Any], width: int | None) -> None:
    assert language_width(config) == width


def test_a_model_on_this_host_that_takes_other_rows_is_found_out(tmp_path: Path) -> None:
    config = {"vision_config": {}, "text_config": {"hidden_size": 2560}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "2560" in other_width(expected(), config_beside(str(tmp_path)))
    assert not other_width(expected(width=2560), config_beside(str(tmp_path)))


@pytest.mark.parametrize("content", [None, b"", b"[]", b"{", b"[" * 100_000], ids=repr)
def test_a_config_that_cannot_be_read_says_nothing(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    assert other_width(expected(), config_beside(str(tmp_path))) == ""


@pytest.mark.parametrize("root", ["", "no/such", "a/b/c", "..", "x" * 300, "a\0b"])
def test_a_root_that_is_no_model_says_nothing(root: str) -> None:
    assert config_beside(root) is None


def test_a_folder_whose_language_model_takes_other_rows_is_refused_at_start(tmp_path: Path) -> None:
    change(copied("tiny", tmp_path) / "config.json", text_config={"hidden_size": 128})
    with pytest.raises(ConfigurationError, match=r"128 columns .* gives 64; its files"):
        check_width(Settings(model=str(tmp_path), llm_url=("http://llm",)), read(tmp_path))
    check_width(Settings(model=str(tmp_path)), read(tmp_path))  # nothing is given to an LLM
    change(tmp_path / "config.json", text_config={"hidden_size": 64})
    check_width(Settings(model=str(tmp_path), llm_url=("http://llm",)), read(tmp_path))


@pytest.mark.parametrize(
    ("status", "said", "advice"),
    [
        (500, b'{"error":{"message":"EngineCore encountered an issue. See stack trace (above)"}}', "engine ended"),
        (
            200,
            b'data: {"id":1}\n\ndata: {"error": {"message": "EngineCore encountered an issue."}}\n\n',
            "engine ended",
        ),
        (400, b'{"error":{"message":"You must set `--enable-mm-embeds` to input `image_embeds`"}}', "takes no embed"),
        (400, b'{"error":{"message":"At most 1 image(s) may be provided in one prompt."}}', "--limit-mm-per-prompt"),
        (400, b'{"error":{"message":"Unknown part type: image_embeds"}}', "refuses parts"),
        (400, b'{"error":{"message":"max_tokens is too large"}}', ""),
        (200, b'{"choices":[{"message":{"content":"EngineCore: {\\"error\\": 1}"}}]}', ""),
        (200, b'data: {"choices":[{"delta":{"content":"\\ndata: {\\"error\\": \\"EngineDead\\"}"}}]}\n\n', ""),
    ],
)
def test_a_refusal_tells_its_operator_which_flag_to_look_at(status: int, said: bytes, advice: str) -> None:
    assert advice in diagnose(status, said) and bool(advice) == bool(diagnose(status, said))
