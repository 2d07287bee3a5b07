"""Draws what came out: a line for each picture, with its nearest neighbours and the maps of its patch embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps

from foveal.demo.maps import Colours, Mask
from foveal.files import replacing

MAX_LINES = 14
"""Pictures that are drawn; more are encoded and ranked all the same."""
_BLOCKS = 2
# Pixels of the drawing.
_CELL, _GAP, _BETWEEN, _MARGIN = 168, 8, 40, 32
_TITLE, _HEADING, _CAPTION, _NOTE = 52, 26, 34, 24
_FRAME = 4
_PAPER, _INK, _FAINT, _FOUND = "#ffffff", "#20242a", "#767d87", "#17916a"
_DIM = 0.3
"""Brightness of what does not stand out."""
_OVER = 0.75
"""Weight of colours that are laid over a picture."""


@dataclass(frozen=True)
class Cell:
    """One picture of a line, with what is written under it."""

    image: Image.Image
    caption: str = ""
    is_found_again: bool = False
    """The neighbour is the picture's own variant."""


@dataclass(frozen=True)
class Line:
    """The cells of one picture, left to right."""

    cells: tuple[Cell | None, ...]
    """None where there is nothing to show."""


def draw(lines: Sequence[Line], headings: Sequence[str], title: str, note: str) -> Image.Image:
    """The first lines, in two blocks beside each other. All lines have as many cells as there are headings."""
    drawn = lines[:MAX_LINES]
    num_blocks = min(_BLOCKS, len(drawn))
    num_rows = -(-len(drawn) // num_blocks)
    block = len(headings) * (_CELL + _GAP) + _BETWEEN
    top, row = _MARGIN + _TITLE + _HEADING, _CELL + _CAPTION
    size = 2 * _MARGIN + num_blocks * block - _BETWEEN - _GAP, top + num_rows * row + _NOTE + _MARGIN
    page = Image.new("RGB", size, _PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((_MARGIN, _MARGIN), title, _INK, _font(28))
    pen.text((_MARGIN, size[1] - _MARGIN), note, _FAINT, _font(15), anchor="ls")
    for index, line in enumerate(drawn):
        number, place = divmod(index, num_rows)
        for column, cell in enumerate(line.cells):
            left = _MARGIN + number * block + column * (_CELL + _GAP)
            if place == 0:
                pen.text((left + _CELL // 2, top - 10), headings[column], _FAINT, _font(16), anchor="ms")
            if cell is not None:
                _draw_cell(page, pen, (left, top + place * row), cell)
    return page


def save(page: Image.Image, path: Path) -> None:
    """Write a PNG. Raises OSError, which names `path`."""
    with replacing(path) as file:
        page.save(file, "PNG", optimize=False)


def colour_map(seen: Image.Image, colours: Colours) -> Image.Image:
    """The colours of a picture's tokens, at the picture's size."""
    return Image.fromarray(colours).resize(seen.size, Image.Resampling.BICUBIC)


def laid_over(seen: Image.Image, colours: Colours, mask: Mask) -> Image.Image:
    """The chosen tokens in colour over the grey picture, the rest of it dark."""
    grey = seen.convert("L").convert("RGB")
    dark = ImageEnhance.Brightness(grey).enhance(_DIM)
    # Pillow weighs colours by their opacity when it resizes, so what is left out does not bleed into what stays.
    chosen = Image.fromarray(np.dstack([colours, np.uint8(255) * mask.astype(np.uint8)])).resize(seen.size)
    return Image.composite(Image.blend(grey, chosen.convert("RGB"), _OVER), dark, chosen.getchannel("A"))


def _draw_cell(page: Image.Image, pen: ImageDraw.ImageDraw, corner: tuple[int, int], cell: Cell) -> None:
    fitted = ImageOps.contain(cell.image, (_CELL, _CELL), Image.Resampling.LANCZOS)
    # At the bottom, where the caption is.
    left, top = corner[0] + (_CELL - fitted.width) // 2, corner[1] + _CELL - fitted.height
    page.paste(fitted, (left, top))
    if cell.is_found_again:
        frame = (left, top, left + fitted.width - 1, top + fitted.height - 1)
        pen.rectangle(frame, outline=_FOUND, width=_FRAME)
    colour = _FOUND if cell.is_found_again else _INK
    place = corner[0] + _CELL // 2, corner[1] + _CELL + 20
    pen.text(place, _short(cell.caption, _font(16)), colour, _font(16), anchor="ms")


def _short(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """The text as far as it fits under a cell: its end says more than its middle."""
    if font.getlength(text) <= _CELL:
        return text
    keep = next((n for n in range(len(text) - 1, 1, -1) if font.getlength(_cut(text, n)) <= _CELL), 1)
    return _cut(text, keep)


def _cut(text: str, keep: int) -> str:
    return text[: keep - keep // 2] + "..." + text[len(text) - keep // 2 :]


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
