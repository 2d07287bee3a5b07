"""`foveal info`: what a running server serves, as JSON."""

from __future__ import annotations

import argparse
import json
import sys

from foveal_client import Client, FovealError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The flags of the command."""
    parser = subparsers.add_parser("info", help="show what a running server serves")
    parser.add_argument("--url", default=None, help="default: $FOVEAL_URL or http://127.0.0.1:8000")
    parser.add_argument("--api-key", default=None, help="default: $FOVEAL_API_KEY")


def run(args: argparse.Namespace) -> int:
    """Print /info; the exit code is 1 when the server does not answer."""
    try:
        with Client(args.url, api_key=args.api_key) as client:
            print(json.dumps(client.info().raw, indent=2))
    except (FovealError, ValueError) as error:
        print(f"foveal: {error}", file=sys.stderr)
        return 2
    return 0
