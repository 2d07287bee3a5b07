"""The vision towers, by family. A new one is a file here, a line below, and a spec in `foveal.families`."""

from __future__ import annotations

from foveal.gpu.towers.protocol import TowerFactory
from foveal.gpu.towers.qwen3_vl import Qwen3VLTower

TOWERS: dict[str, TowerFactory] = {"qwen3_vl": Qwen3VLTower}
