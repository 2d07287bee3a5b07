"""Tiny Qwen-VL checkpoints, tower and language model, from a seed. A script for vLLM's environment: DIR FAMILY."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
VOCABULARY = 320
HIDDEN = 128
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if 'text' in p %}{{ p.text }}\
{% else %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,  # vLLM's attention on the CPU knows no smaller one
    "max_position_embeddings": 8192,
    "bos_token_id": None,
    "eos_token_id": 256,
    "tie_word_embeddings": False,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_vl": {
        "class": "Qwen3VLForConditionalGeneration",
        "text": TEXT
        | {"rope_scaling": {"rope_type": "default", "mrope_section": [12, 10, 10], "mrope_interleaved": True}},
        "vision": {
            "depth": 4,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_heads": 4,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": HIDDEN,
            "deepstack_visual_indexes": [1, 2],
            "num_position_embeddings": 256,
        },
        "preprocessor": {
            "image_processor_type": "Qwen2VLImageProcessorFast",
            "patch_size": 16,
            "mean": 0.5,
            "std": 0.5,
        },
    },
    "qwen2_vl": {
        "class": "Qwen2VLForConditionalGeneration",
        "text": {name: value for name, value in TEXT.items() if name != "head_dim"}
        | {"rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [8, 12, 12]}},
        "vision": {
            "depth": 4,
            "embed_dim": 128,
            "hidden_size": HIDDEN,
            "num_heads": 4,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        "preprocessor": {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14, "mean": 0.5, "std": 0.25},
    },
}


def write(folder: Path, family: str) -> None:
    """A checkpoint that vLLM and foveal both load: config, weights in float32, tokenizer, processors."""
    import torch
    import transformers

    told = FAMILIES[family]
    kind = getattr(transformers, told["class"])
    tokens = {name.strip("<|>"): 256 + place for place, name in enumerate(SPECIAL)}
    config = kind.config_class(
        text_config=told["text"],
        vision_config=told["vision"],
        image_token_id=tokens["image_pad"],
        video_token_id=tokens["video_pad"],
        vision_start_token_id=tokens["vision_start"],
        vision_end_token_id=tokens["vision_end"],
        tie_word_embeddings=False,
    )
    torch.manual_seed(7)
    model = kind(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                # Large enough that what the picture shows decides the answer.
                parameter.normal_(std=1.5 / math.sqrt(parameter[0].numel()))
    model.save_pretrained(folder)
    _write_tokenizer(folder)
    _write_processors(folder, told["preprocessor"], family)


def _write_tokenizer(folder: Path) -> None:
    """One token per byte, and the special ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[0],
            "pad_token": SPECIAL[0],
            "image_token": "<|image_pad|>",
            "video_token": "<|video_pad|>",
            "vision_start_token": "<|vision_start|>",
            "vision_end_token": "<|vision_end|>",
            "vision_bos_token": "<|vision_start|>",
            "vision_eos_token": "<|vision_end|>",
            "extra_special_tokens": {"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
            "model_max_length": 8192,
            "chat_template": TEMPLATE,
        },
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def _write_processors(folder: Path, told: dict[str, Any], family: str) -> None:
    side = 2 * told["patch_size"]
    common = {
        "size": {"shortest_edge": 4 * side**2, "longest_edge": 1024 * side**2},
        "patch_size": told["patch_size"],
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [told["mean"]] * 3,
        "image_std": [told["std"]] * 3,
    }
    name = "Qwen3VL" if family == "qwen3_vl" else "Qwen2VL"
    image = common | {"image_processor_type": told["image_processor_type"], "processor_class": f"{name}Processor"}
    if family == "qwen2_vl":
        image |= {"min_pixels": 4 * side**2, "max_pixels": 1024 * side**2}
    video = common | {"video_processor_type": f"{name}VideoProcessor", "processor_class": f"{name}Processor"}
    _write_json(folder / "preprocessor_config.json", image)
    _write_json(folder / "video_preprocessor_config.json", video)


def _write_json(path: Path, found: dict[str, Any]) -> None:
    path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
