"""A mixture of image sizes as a multimodal chat service sees them, drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from foveal.families.smart_resize import SmartResize
from foveal.types import PixelPlan

QWEN3_VL = SmartResize(patch_size=16, merge_size=2, min_pixels=65_536, max_pixels=16_777_216)

KINDS = {"thumbnail": 0.25, "photo": 0.45, "screenshot": 0.20, "page": 0.10}
"""What comes, and how often."""
THUMBNAIL_SIDES = (224, 256, 336, 384, 448)
PHOTO_WIDTHS = (480, 1100)
PHOTO_RATIOS = ((4, 3), (3, 2), (16, 9), (1, 1), (3, 4), (2, 3), (9, 16))
SCREENS = ((1280, 720), (1920, 1080), (828, 1792), (1080, 2400))
PAGES = {(1240, 1754): 0.45, (1275, 1650): 0.30, (1654, 2339): 0.20, (2480, 3508): 0.05}
"""A4 and Letter at 150 dpi, A4 at 200 and 300 dpi; the last is larger than the largest budget."""


def sizes(seed: int) -> Iterator[tuple[int, int]]:
    """Width and height in pixels of one image after the other, without end."""
    random = Random(seed)
    kinds, shares = tuple(KINDS), tuple(KINDS.values())
    while True:
        match random.choices(kinds, shares)[0]:
            case "thumbnail":
                side = random.choice(THUMBNAIL_SIDES)
                yield side, side
            case "photo":
                width, (across, down) = random.randint(*PHOTO_WIDTHS), random.choice(PHOTO_RATIOS)
                yield width, round(width * down / across)
            case "screenshot":
                yield random.choice(SCREENS)
            case _:
                yield random.choices(tuple(PAGES), tuple(PAGES.values()))[0]


def plans(seed: int, resize: SmartResize = QWEN3_VL) -> Iterator[PixelPlan]:
    """The same images after the resize rule."""
    return (resize.plan(width, height) for width, height in sizes(seed))
