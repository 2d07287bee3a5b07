"""What was probably meant by an unknown word."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], prefix: str = "") -> str:
    """A question to put behind an unknown word; empty where nothing is near. Dashes and capitals do not matter.

    `prefix` begins the word and is put before what was meant; what all words share says nothing of how near they are.
    """
    spelled = {_plain(one): one for one in known}
    found = difflib.get_close_matches(_plain(word).removeprefix(_plain(prefix) + "_"), spelled, n=1)
    return f"; did you mean {prefix}{spelled[found[0]]}?" if found else ""


def _plain(word: str) -> str:
    return word.replace("-", "_").strip("_").lower()
