"""The size that an image is resized to, within the limit on its tokens."""

from __future__ import annotations

from foveal.engine.items import Wishes
from foveal.errors import TooLarge
from foveal.families.spec import ModelSpec
from foveal.ipc.messages import Probed
from foveal.types import PixelPlan


def plan_within(spec: ModelSpec, probed: Probed, wishes: Wishes, max_tokens: int) -> PixelPlan:
    """The resized size and grid; raises AspectRatio, and TooLarge where it has too many tokens all the same."""
    rule = spec.rule
    plan = rule.plan(probed.width, probed.height, wishes.min_pixels, wishes.max_pixels)
    if plan.num_tokens <= max_tokens:
        return plan
    if wishes.downscale:
        most = rule.pixels_for_tokens(max_tokens)
        least = wishes.min_pixels or rule.min_pixels
        plan = rule.plan(probed.width, probed.height, least and min(least, most), most)
        if plan.num_tokens > max_tokens:  # a long strip, enlarged to whole tokens, gets too large again
            plan = rule.plan(probed.width, probed.height, least and 1, most)
    if plan.num_tokens > max_tokens:
        raise TooLarge(
            f"the image is {plan.num_tokens} tokens at {plan.width} x {plan.height}, the limit is "
            f"{max_tokens} (--max-image-tokens); send max_pixels or oversize=downscale"
        )
    return plan
