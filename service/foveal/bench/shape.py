"""The shape that GPU benches use: Qwen3-VL-8B's vision tower, as a checkpoint folder without weights."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

QWEN3_VL_8B = Path(str(files("foveal"))) / "bench" / "qwen3_vl_8b"
