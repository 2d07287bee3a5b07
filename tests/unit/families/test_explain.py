"""Folders and files that are no checkpoint of ours: each is refused with what it is and what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from foveal.errors import ConfigurationError
from foveal.families.catalogue import local_spec
from tests.unit.families.folders import CONFIG, PROCESSOR, copied

LAYOUTS: list[tuple[dict[str, str], str]] = [
    ({}, "it is empty"),
    ({"modules.json": "[]", "0_CLIPModel/config.json": "{}"}, r"sentence-transformers .*--model {folder}/0_CLIPModel"),
    (
        {"model_index.json": "{}", "unet/config.json": "{}", "image_encoder/config.json": "{}"},
        r"diffusers pipeline .*--model {folder}/image_encoder",
    ),
    ({"checkpoint-500/config.json": "{}", "trainer.txt": ""}, r"--model {folder}/checkpoint-500"),
    ({"tokenizer.json": "{}", "tokenizer_config.json": "{}"}, "a tokenizer only"),
    ({"adapter_config.json": "{}", "adapter_model.safetensors": ""}, "an adapter .*merge it"),
    ({"model-Q4.gguf": ""}, r"model-Q4\.gguf is llama\.cpp's"),
    ({"open_clip_config.json": "{}", "open_clip_model.safetensors": ""}, "open_clip's format"),
    ({"params.json": "{}", "consolidated.safetensors": ""}, "maker's own format"),
    ({"model.safetensors": "", "README.md": ""}, r"there is README\.md, model\.safetensors"),
]


@pytest.mark.parametrize(("files", "words"), LAYOUTS, ids=lambda value: str(value)[:60])
def test_a_folder_that_is_no_checkpoint_is_described(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    expected = words.replace("{folder}", re.escape(str(tmp_path)))
    with pytest.raises(ConfigurationError, match=rf"config\.json is missing: .*{expected}"):
        local_spec(str(tmp_path), dummy_weights=True)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("", "no such folder"),
        ("./no/such", "no such folder"),
        ("https://huggingface.co/Qwen/Qwen3-VL-2B-Instruct", "--model Qwen/Qwen3-VL-2B-Instruct"),
        ("https://huggingface.co/Qwen/Qwen3-VL-2B-Instruct/tree/main", "--model Qwen/Qwen3-VL-2B-Instruct$"),
        ("hf://Qwen/Qwen3-VL-2B-Instruct", "--model Qwen/Qwen3-VL-2B-Instruct"),
        ("Qwen/Qwen3-VL-2B-Instruct@v1", "--model Qwen/Qwen3-VL-2B-Instruct --revision v1"),
    ],
)
def test_a_name_that_is_none_says_which_is(model: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        local_spec(model, dummy_weights=True)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = copied("tiny", tmp_path) / CONFIG
    with pytest.raises(ConfigurationError, match=f"this is a file: .*--model {re.escape(str(tmp_path))}$"):
        local_spec(str(path), dummy_weights=True)


CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, r"'llama'.*LlamaForCausalLM.*text only"),
    ({"model_type": "qwen3_vl_text"}, "text only"),
    ({"model_type": "clip_text_model"}, "text only"),
    ({"model_type": "llava", "vision_config": {}}, "a vision model of a family that is not served"),
    ({"model_type": "vit", "image_size": 224}, "a vision model of a family that is not served"),
    ({"_class_name": "UNet2DConditionModel"}, "a diffusers 'UNet2DConditionModel'"),
    ({"hidden_size": 5}, "has no model_type"),
]


@pytest.mark.parametrize(("config", "words"), CONFIGS, ids=lambda value: str(value)[:60])
def test_a_model_that_is_not_served_is_told_apart_and_the_families_come_last(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    (copied("tiny", tmp_path) / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ConfigurationError, match=words) as told:
        local_spec(str(tmp_path), dummy_weights=True)
    listed = str(told.value).partition("known families: ")[2]
    assert listed.endswith("(`foveal models` says more)") and listed.count(",") < 10


def test_a_missing_processor_file_says_what_is_there_and_where_to_get_one(tmp_path: Path) -> None:
    folder = copied("tiny", tmp_path)
    (folder / PROCESSOR).unlink()
    with pytest.raises(ConfigurationError, match=r"there is no processor_config\.json either.*AutoImageProcessor"):
        local_spec(str(folder), dummy_weights=True)
    (folder / "processor_config.json").write_text('{"processor_class": "X"}')
    with pytest.raises(ConfigurationError, match=r"processor_config\.json has no image_processor"):
        local_spec(str(folder), dummy_weights=True)


@pytest.mark.parametrize("name", [CONFIG, PROCESSOR])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is empty: was a download cut"),
        ("<!doctype html>", "a web page: was a login needed"),
        ('{"a": ', "fetch it again"),
        ("[1]", "no JSON object"),
        ("[" * 100_000, "cannot be read"),
    ],
    ids=["empty", "page", "cut", "list", "deep"],
)
def test_a_file_that_is_no_json_says_what_it_seems_to_be(tmp_path: Path, name: str, text: str, words: str) -> None:
    folder = copied("tiny", tmp_path)
    (folder / name).write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        local_spec(str(folder), dummy_weights=True)
