"""The shapes that GPU benches use: published towers as checkpoint folders without weights."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

SHAPES = Path(str(files("foveal"))) / "bench" / "shapes"
QWEN3_VL_8B = SHAPES / "qwen3_vl_8b"
