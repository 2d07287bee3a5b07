"""How many values a JSON text has, before it is parsed: a few megabytes of commas would become gigabytes of objects.

Long prompts are full of commas and braces, all inside of strings, where they cost nothing. So where there are many,
those outside of strings are counted. In steps of constant memory and with vector instructions, since texts may be long.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_MARKS = b",[{"
_QUOTE = ord('"')
_STEP_BYTES = 1 << 18


def has_more_values(text: bytes, most: int) -> bool:
    """True if a JSON text has more than so many values. For what is no JSON it may say anything."""
    return _sums_above(_marks(text), most) and _sums_above(_marks_outside_strings(text), most)


def _sums_above(counts: Iterator[int], most: int) -> bool:
    found = 0
    return any((found := found + count) > most for count in counts)


def _marks(text: bytes) -> Iterator[int]:
    for at in range(0, len(text), _STEP_BYTES):
        yield int(_is_mark(np.frombuffer(text, np.uint8, min(_STEP_BYTES, len(text) - at), at)).sum())


def _marks_outside_strings(text: bytes) -> Iterator[int]:
    is_inside = False
    pending = b""
    for at in range(0, len(text), _STEP_BYTES):
        step = pending + text[at : at + _STEP_BYTES]
        # a backslash at the end escapes what the next step begins with
        pending = b"\\" if (len(step) - len(step.rstrip(b"\\"))) % 2 else b""
        step = step[: len(step) - len(pending)].replace(b"\\\\", b"__").replace(b'\\"', b"__")
        symbols = np.frombuffer(step, np.uint8)
        # its lowest bit says whether an odd number of quotes came before; that it wraps around does not matter
        num_quotes = np.cumsum(symbols == _QUOTE, dtype=np.uint8)
        inside = (num_quotes & 1).astype(bool) ^ is_inside
        yield int((_is_mark(symbols) & ~inside).sum())
        is_inside = bool(inside[-1]) if len(inside) else is_inside


def _is_mark(symbols: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    comma, bracket, brace = _MARKS
    found: npt.NDArray[np.bool_] = (symbols == comma) | (symbols == bracket) | (symbols == brace)
    return found
