"""Where a bench writes what it found: complete or not at all, and nothing that would only fail at the end."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from foveal.files import replacing, write_text

_PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")


def plot_path(text: str) -> Path:
    """The value of a --plot; an ending that nothing can be drawn for is refused before anything is measured."""
    path = Path(text)
    if path.suffix.lower() not in _PICTURES:
        raise argparse.ArgumentTypeError(f"{text} must end in one of {', '.join(_PICTURES)}")
    return path


def write_figures(path: Path, figures: Any, indent: int = 1) -> None:
    """JSON of what was measured. Raises OSError, which names `path`."""
    write_text(path, json.dumps(figures, indent=indent) + "\n")


def save_plot(path: Path, figure: Any, dpi: int = 110) -> None:
    """A matplotlib figure, in the format of the path's ending. Raises OSError, which names `path`."""
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower(), dpi=dpi)
