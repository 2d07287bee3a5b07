"""A content key changes with everything that decides an embedding, and with nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveal.engine.items import Wishes
from foveal.engine.keys import Keys
from foveal.types import Output
from tests.fakes import SPEC

DIGEST = "ab" * 32
WISHES = Wishes(Output("pooled", "float32"))
KEY = Keys(SPEC, "float32").of(DIGEST, WISHES, 100)


def test_a_key_is_64_lower_case_hex_digits() -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", KEY)


@pytest.mark.parametrize(
    "change",
    [
        {"output": Output("tokens", "float32")},
        {"output": Output("pooled", "bfloat16")},
        {"output": Output("pooled", "float32", normalize=True)},
        {"min_pixels": 1000},
        {"max_pixels": 1000},
        {"background": (0, 0, 0)},
        {"downscale": True},
    ],
    ids=str,
)
def test_every_wish_that_decides_the_values_is_in_it(change: dict[str, Any]) -> None:
    assert Keys(SPEC, "float32").of(DIGEST, replace(WISHES, **change), 100) != KEY


@pytest.mark.parametrize(
    "change", [{"revision": "other"}, {"dummy_weights": False}, {"architecture": "other"}], ids=str
)
def test_the_weights_are_in_it(change: dict[str, Any]) -> None:
    assert Keys(replace(SPEC, **change), "float32").of(DIGEST, WISHES, 100) != KEY


def test_bytes_and_compute_dtype_are_in_it() -> None:
    assert Keys(SPEC, "float32").of("cd" * 32, WISHES, 100) != KEY
    assert Keys(SPEC, "bfloat16").of(DIGEST, WISHES, 100) != KEY


def test_the_token_limit_is_in_it_only_where_pictures_are_scaled_down_to_it() -> None:
    keys, scaled = Keys(SPEC, "float32"), replace(WISHES, downscale=True)
    assert keys.of(DIGEST, WISHES, 200) == KEY
    assert keys.of(DIGEST, scaled, 200) != keys.of(DIGEST, scaled, 100)


def test_the_served_name_and_the_priority_are_not() -> None:
    assert Keys(replace(SPEC, name="other"), "float32").of(DIGEST, replace(WISHES, priority=9), 100) == KEY


@settings(deadline=None)
@given(st.lists(st.tuples(st.none() | st.integers(1, 99), st.none() | st.integers(1, 99)), min_size=2, unique=True))
def test_no_two_wishes_share_a_key(limits: list[tuple[int | None, int | None]]) -> None:
    keys = Keys(SPEC, "float32")
    found = {keys.of(DIGEST, replace(WISHES, min_pixels=low, max_pixels=high), 100) for low, high in limits}
    assert len(found) == len(limits)
