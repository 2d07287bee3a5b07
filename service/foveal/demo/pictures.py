"""The demo's pictures, each with a mirrored and cropped variant that a good model should find again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from PIL import Image, ImageOps

from foveal.errors import ConfigurationError
from foveal.types import PixelPlan

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"})
MAX_SIDE = 1024
"""Pictures are scaled down to this: a demo on a CPU should take seconds, also with a camera's pictures."""
CROP = 0.08


@dataclass(frozen=True)
class Picture:
    """One picture, upright RGB."""

    base: str
    """Its file's name; a picture and its variant share it and the group."""
    image: Image.Image
    group: int
    is_variant: bool = False

    @property
    def name(self) -> str:
        """A name of its own."""
        return f"{self.base} mirrored" if self.is_variant else self.base


def shipped() -> Path:
    """The folder of pictures that the package brings."""
    return Path(str(files("foveal"))) / "demo" / "pictures"


def find(paths: Sequence[Path]) -> list[Path]:
    """Files as they are, and the pictures of folders and all folders below. Raises ConfigurationError for none."""
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise ConfigurationError(f"no such picture or folder: {', '.join(missing)}")
    found = [file for path in paths for file in (_in_folder(path) if path.is_dir() else [path])]
    if not found:
        raise ConfigurationError(f"no pictures in {', '.join(map(str, paths))}")
    return found


def load(paths: Sequence[Path], leave_out: Callable[[str], None]) -> list[Picture]:
    """Each picture, followed by its variant; `leave_out` is told of each file that is no picture.

    Raises ConfigurationError if all are none.
    """
    pictures = []
    for group, path in enumerate(paths):
        try:
            image = _read(path)
        except ConfigurationError as error:
            leave_out(str(error))
            continue
        pictures += [
            Picture(path.stem, image, group),
            Picture(path.stem, _variant(image), group, is_variant=True),
        ]
    if not pictures:
        raise ConfigurationError("none of these files can be read as a picture")
    return pictures


def seen(image: Image.Image, plan: PixelPlan) -> Image.Image:
    """The part of a picture that reaches the model, at the model's size: some models look at the middle only."""
    height, width = plan.resized or (plan.height, plan.width)
    left, top = (width - plan.width) // 2, (height - plan.height) // 2
    resized = image.resize((width, height), Image.Resampling.BICUBIC)
    return resized.crop((left, top, left + plan.width, top + plan.height))


def _in_folder(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _read(path: Path) -> Image.Image:
    try:
        with Image.open(path) as file:
            image = _on_white(ImageOps.exif_transpose(file))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ConfigurationError(f"{path} cannot be read as a picture: {error}") from None
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return image


def _on_white(image: Image.Image) -> Image.Image:
    """RGB; transparent parts become white, as the server makes them."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    paper = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(paper, image.convert("RGBA")).convert("RGB")


def _variant(image: Image.Image) -> Image.Image:
    width, height = image.size
    dx, dy = int(width * CROP), int(height * CROP)
    return ImageOps.mirror(image.crop((dx, dy, width - dx, height - dy)))
