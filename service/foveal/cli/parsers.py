"""An argparse parser that answers a typing error with the usage of the right command and what was probably meant."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from typing import NoReturn

from foveal.spelling import did_you_mean


class Parser(argparse.ArgumentParser):
    """Refuses what it does not know itself, before the parser of the whole command would."""

    _given: Sequence[str] = ()

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Called by `parse_args`, and by argparse for the parser of a subcommand."""
        self._given = args or ()
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unexpected: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """End; a flag that there is none of is told first, for it may be why another seems to be missing."""
        super().error(". ".join(self._unknown_flags()) or message)

    def _unknown_flags(self) -> list[str]:
        given = self._given
        if self._subparsers is not None:  # what follows the subcommand is for that one's parser
            given = list(itertools.takewhile(lambda word: word.startswith("-"), given))
        flags = [word.partition("=")[0] for word in itertools.takewhile(lambda word: word != "--", given)]
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        unknown = [flag for flag in flags if flag.startswith("--") and not self._is_known(flag, known)]
        return [f"there is no {flag}{did_you_mean(flag, known)}" for flag in unknown]

    def _is_known(self, flag: str, known: Sequence[str]) -> bool:
        return any(one.startswith(flag) for one in known) if self.allow_abbrev else flag in known


def refuse_command(parser: argparse.ArgumentParser, given: str, known: Sequence[str]) -> NoReturn:
    """End with the parser's usage: there is no such command."""
    parser.error(f"there is no {given!r}{did_you_mean(given, known)} (there are {', '.join(known)})")
