"""Options against the model that is served."""

from __future__ import annotations

import pytest

from foveal.api.options import read_options, wishes_of
from foveal.errors import InvalidRequest
from foveal.families.catalogue import local_spec


@pytest.mark.parametrize("name", ["tiny-clip", "tiny-siglip", "tiny-dinov2"])
@pytest.mark.parametrize("option", ["min_pixels", "max_pixels"])
def test_a_limit_that_a_model_of_one_size_cannot_follow_is_refused(name: str, option: str) -> None:
    spec = local_spec(f"builtin:{name}", dummy_weights=True)
    with pytest.raises(InvalidRequest, match=r"resizes every picture to .* drop it") as caught:
        wishes_of(read_options({option: 50_000}), spec)
    assert caught.value.param == option
    assert wishes_of(read_options({"oversize": "downscale"}), spec).output.kind == "pooled"


def test_naflex_takes_a_largest_area_and_no_least() -> None:
    spec = local_spec("builtin:tiny-naflex", dummy_weights=True)
    assert wishes_of(read_options({"max_pixels": 50_000}), spec).max_pixels == 50_000
    with pytest.raises(InvalidRequest, match="send max_pixels"):
        wishes_of(read_options({"min_pixels": 50_000}), spec)
