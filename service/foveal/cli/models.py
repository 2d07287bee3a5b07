"""`foveal models`: which families are served, and how far each was checked; without loading any of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from foveal.families.listing import LISTING, FamilyInfo

_LABELS = {
    "models": "models",
    "outputs": "outputs",
    "model_types": "model types",
    "builtins": "built in",
    "reference": "follows",
    "checked": "checked",
}
"""From a field of FamilyInfo to what stands before it."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The flags of the command."""
    parser = subparsers.add_parser("models", help="list model families and built-in models")
    parser.add_argument("--json", action="store_true", help="for programs: a list of objects")


def run(args: argparse.Namespace) -> int:
    """Print the list; the exit code."""
    if args.json:
        print(json.dumps([asdict(family) for family in LISTING], indent=2))
        return 0
    for family in LISTING:
        print("\n".join(_lines(family)) + "\n")
    print("foveal serve --model takes a checkpoint folder or a hub id of these families, or the name of a built-in.")
    print('"follows" names classes of transformers, "checked" what was compared with them.')
    return 0


def _lines(family: FamilyInfo) -> Iterator[str]:
    width = max(map(len, _LABELS.values()))
    yield family.name
    for field, value in asdict(family).items():
        if field in _LABELS:
            yield f"  {_LABELS[field]:{width}}  {', '.join(value) if isinstance(value, tuple) else value}"
