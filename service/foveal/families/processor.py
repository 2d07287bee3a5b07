"""What an image processor's file says, in its older forms too, and the resize rule that follows from it.

Mean, deviation, sizes and interpolation come from the file; what it lacks is an error. Only switches that older files
do not know (do_resize, do_rescale, rescale_factor, do_normalize, do_center_crop) are read as transformers reads their
absence: by the processor class that the file names, the classes agreeing on all but the crop. Null is not absence: it
means off, as there.
"""

from __future__ import annotations

import re
from typing import Any

from foveal.families.checkpoint import Checkpoint
from foveal.families.fixed_size import FixedRule, FixedSize, ShortestEdgeCrop
from foveal.types import Interpolation

Channels = tuple[float, float, float]
INTERPOLATIONS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}
"""By Pillow's numbers, which the files use."""
CROPS = {"CLIP": True, "Bit": True, "Siglip": False, "ViT": False}
"""Processors of one-size towers, and whether they cut out the middle where a file does not say."""
_SQUARE = 224
"""What `use_square_size` stands for, whatever `size` says."""
_PIXELS_IN_ONE = 255.0
MAX_WHOLE = 1 << 31
"""More pixels than any picture has."""
MAX_EDGE = 1 << 14
"""Pixels of a side that every picture is resized to."""
MAX_NUMBER = 1e6


def processor_class(checkpoint: Checkpoint, known: tuple[str, ...]) -> str:
    """The stem of the processor's class, as in CLIPFeatureExtractor or BitImageProcessorFast.

    The first of `known` where the file names none; raises ConfigurationError for a class that is not known.
    """
    processor = checkpoint.processor
    named = processor.get("image_processor_type") or processor.get("feature_extractor_type") or known[0]
    stem = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(named))
    if stem not in known:
        raise checkpoint.refuse_processor(f"names {named}; this family's are {', '.join(known)}ImageProcessor")
    return stem


def normalisation(checkpoint: Checkpoint) -> tuple[Channels, Channels]:
    """Mean and deviation of each channel, for pixels between 0 and 1 whatever the file rescales by."""
    factor = _number(checkpoint, "rescale_factor", 1 / _PIXELS_IN_ONE) if _flag(checkpoint, "do_rescale", True) else 1.0
    mean, deviation = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if _flag(checkpoint, "do_normalize", True):
        mean, deviation = _channels(checkpoint, "image_mean"), _channels(checkpoint, "image_std")
    # (factor * x - m) / d = (x / 255 - m / (255 * factor)) / (d / (255 * factor))
    scale = _PIXELS_IN_ONE * factor
    return _divided(mean, scale), _divided(deviation, scale)


def interpolation(checkpoint: Checkpoint, default: Interpolation | None = None) -> Interpolation:
    """What resizes pictures; raises ConfigurationError for others than bilinear and bicubic."""
    found = checkpoint.processor.get("resample")
    if "resample" not in checkpoint.processor and default is not None:
        return default
    if found is None:
        raise checkpoint.refuse_processor("has no 'resample'")
    if not isinstance(found, int) or found not in INTERPOLATIONS:
        raise checkpoint.refuse_processor(f"has resample {found!r}; served are 2 (bilinear) and 3 (bicubic)")
    return INTERPOLATIONS[found]


def needs_resize(checkpoint: Checkpoint) -> None:
    """Refuse a processor that leaves pictures as large as they come."""
    if not _flag(checkpoint, "do_resize", True):
        raise checkpoint.refuse_processor("has do_resize false: pictures would keep their sizes; set it to true")


def fixed_rule(checkpoint: Checkpoint, stem: str, patch_size: int, prefix_rows: int) -> FixedRule:
    """The rule of a tower that takes one size; raises ConfigurationError where pictures would differ in size."""
    needs_resize(checkpoint)
    smooth = interpolation(checkpoint)
    crops = _flag(checkpoint, "do_center_crop", CROPS[stem])
    crop = _sides(checkpoint, "crop_size", _without_nulls(checkpoint.processor.get("crop_size"))) if crops else None
    size = _without_nulls(checkpoint.processor.get("size"))
    if stem == "CLIP" and _flag(checkpoint, "use_square_size", False):
        size = {"height": _SQUARE, "width": _SQUARE}
    if _flag(checkpoint, "do_pad", False) and checkpoint.processor.get("pad_size") is not None:
        raise checkpoint.refuse_processor("pads pictures to pad_size, which is not served; set do_pad to false")
    if isinstance(size, int) and not _flag(checkpoint, "default_to_square", stem == "ViT"):
        size = {"shortest_edge": size}
    if isinstance(size, dict) and size.keys() == {"shortest_edge"}:
        edge = _whole(checkpoint, "size.shortest_edge", size["shortest_edge"], MAX_EDGE)
        if crop is None:
            raise checkpoint.refuse_processor(
                f"resizes the shorter side to {edge} and cuts nothing out, so pictures would differ in size; "
                "set do_center_crop and crop_size, or give size a height and a width"
            )
        return ShortestEdgeCrop(*crop, patch_size, smooth, prefix_rows, shortest_edge=edge)
    sides = _sides(checkpoint, "size", size)
    if crop in (None, sides):
        return FixedSize(*sides, patch_size, smooth, prefix_rows)
    return FixedSize(*crop, patch_size, smooth, prefix_rows, resized=sides)


def pixel_bounds(checkpoint: Checkpoint) -> tuple[int, int]:
    """Smallest and largest area in pixels, as any generation of the Qwen-VL processors' files names them.

    As in transformers, `min_pixels` and `max_pixels` outside of `size` win over what is in it.
    """
    least, most = _bound(checkpoint, "min_pixels", "shortest_edge"), _bound(checkpoint, "max_pixels", "longest_edge")
    if least > most:
        raise checkpoint.refuse_processor(f"has pixel limits from {least} to {most}: the lower one is above the other")
    return least, most


def _bound(checkpoint: Checkpoint, older: str, newer: str) -> int:
    processor = checkpoint.processor
    if processor.get(older) is not None:
        return _whole(checkpoint, older, processor[older])
    size = processor.get("size")
    inside = {key: size[key] for key in (newer, older) if size.get(key) is not None} if isinstance(size, dict) else {}
    if not inside:
        raise checkpoint.refuse_processor(
            f"names no pixel limits, or not both: {older} is missing, also as size.{newer} and size.{older}; write it "
            "in (transformers takes its class's own, which other versions may change)"
        )
    if len(set(map(str, inside.values()))) > 1:
        raise checkpoint.refuse_processor(f"contradicts itself in size: {inside}; take one away")
    return _whole(checkpoint, f"size.{next(iter(inside))}", next(iter(inside.values())))


def max_patches(checkpoint: Checkpoint) -> int:
    """Patches of the largest picture of a NaFlex tower."""
    return _whole(checkpoint, "max_num_patches", checkpoint.processor.get("max_num_patches"))


def _sides(checkpoint: Checkpoint, key: str, value: Any) -> tuple[int, int]:
    """Height and width, of a whole number (a square), a pair or an object."""
    if isinstance(value, int):
        value = {"height": value, "width": value}
    if isinstance(value, list) and len(value) == 2:
        value = {"height": value[0], "width": value[1]}
    if value is None:
        raise checkpoint.refuse_processor(f"has no {key!r}")
    if not isinstance(value, dict) or value.keys() != {"height", "width"}:
        raise checkpoint.refuse_processor(f"has {key} {value!r}; served are height and width, or shortest_edge")
    sides = [_whole(checkpoint, f"{key}.{side}", value[side], MAX_EDGE) for side in ("height", "width")]
    return sides[0], sides[1]


def _without_nulls(value: Any) -> Any:
    return {key: part for key, part in value.items() if part is not None} if isinstance(value, dict) else value


def _whole(checkpoint: Checkpoint, key: str, value: Any, most: int = MAX_WHOLE) -> int:
    if value is None:
        raise checkpoint.refuse_processor(f"has no {key!r}")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        raise checkpoint.refuse_processor(f"has {key} {value!r}, not a whole number from 1 to {most}")
    return value


def _flag(checkpoint: Checkpoint, key: str, default: bool) -> bool:
    """A switch; the default is for absence: null means off, in transformers too."""
    found = checkpoint.processor.get(key, default)
    if not isinstance(found, bool | None):
        raise checkpoint.refuse_processor(f"has {key} {found!r}, neither true nor false")
    return bool(found)


def _number(checkpoint: Checkpoint, key: str, default: float) -> float:
    return _finite(checkpoint, key, checkpoint.processor.get(key, default), above=0.0)


def _channels(checkpoint: Checkpoint, key: str) -> Channels:
    values = checkpoint.processor.get(key)
    if isinstance(values, int | float):
        values = [values] * 3  # one for all channels
    if not isinstance(values, list) or len(values) != 3:
        raise checkpoint.refuse_processor(
            f"has no {key!r} of three numbers, which decides all embeddings: copy it from the model that this one was "
            "made of"
        )
    above = 0.0 if key == "image_std" else -MAX_NUMBER
    numbers = [_finite(checkpoint, key, value, above) for value in values]
    return numbers[0], numbers[1], numbers[2]


def _finite(checkpoint: Checkpoint, key: str, value: Any, above: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not above < value <= MAX_NUMBER:
        raise checkpoint.refuse_processor(f"has {key} {value!r}, not a number above {above:g}")
    return float(value)


def _divided(values: Channels, scale: float) -> Channels:
    return values[0] / scale, values[1] / scale, values[2] / scale
