"""Settings against a model whose images have one size."""

from __future__ import annotations

from typing import Any

import pytest

from foveal.engine.assembly import check, max_image_tokens
from foveal.errors import ConfigurationError
from foveal.families.catalogue import local_spec
from foveal.settings import Settings

DINO = local_spec("builtin:tiny-dinov2", dummy_weights=True)  # 257 tokens each
QWEN = local_spec("builtin:tiny", dummy_weights=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_image_tokens": 256}, "every image is 257 tokens .* --max-image-tokens is 256"),
        ({"token_budgets": (64, 256)}, "--token-budgets end at 256"),
        ({"max_inflight_bytes": 200_000, "max_body_bytes": 1000}, "257 tokens .* --max-inflight-bytes"),
    ],
    ids=str,
)
def test_settings_that_no_image_fits_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check(Settings(**settings), DINO)


def test_the_largest_image_is_the_only_one_where_all_are_alike() -> None:
    settings = Settings(max_image_tokens=300, token_budgets=(64, 257))
    check(settings, DINO)
    assert (max_image_tokens(settings, DINO), max_image_tokens(settings, QWEN)) == (257, 300)
