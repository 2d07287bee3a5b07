"""The demo's pictures, and a cropped and mirrored variant of each."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from PIL import Image, ImageOps

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
CROP = 0.08


@dataclass(frozen=True)
class Picture:
    """One picture, upright RGB."""

    name: str
    image: Image.Image


def shipped() -> list[Path]:
    """Paths of the pictures that the package brings."""
    folder = Path(str(files("foveal"))) / "demo" / "pictures"
    return sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)


def load(paths: list[Path]) -> list[Picture]:
    """Each picture, followed by its variant."""
    pictures = []
    for path in paths:
        image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        pictures += [Picture(path.stem, image), Picture(f"{path.stem}, varied", _variant(image))]
    return pictures


def _variant(image: Image.Image) -> Image.Image:
    width, height = image.size
    dx, dy = int(width * CROP), int(height * CROP)
    return ImageOps.mirror(image.crop((dx, dy, width - dx, height - dy)))
