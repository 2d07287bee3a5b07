"""A set in order: what is put and discarded in any order comes out sorted, first put first among equals."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foveal.engine.sorted_items import SortedItems

steps = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers(0, 4)), max_size=60)


@given(steps)
def test_things_come_in_the_order_of_their_keys_and_then_in_that_of_their_puts(
    moves: list[tuple[str, int | None]],
) -> None:
    """A move gives a thing a key, or takes it out."""
    items: SortedItems[str] = SortedItems()
    expected: dict[str, int] = {}
    for thing, key in moves:
        if key is None:
            items.discard(thing)
            expected.pop(thing, None)
        else:
            items.put(thing, key)
            if expected.get(thing) != key:
                expected.pop(thing, None)
                expected[thing] = key
        order = sorted(expected, key=expected.__getitem__)
        assert list(items) == order and len(items) == len(order)
        assert items.first == (order[0] if order else None)
        assert items.least == (expected[order[0]] if order else None)
        assert all(items.key_of(c) == expected.get(c) and (c in items) == (c in expected) for c in "abcdefgh")
