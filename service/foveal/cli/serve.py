"""`foveal serve`: every setting as a flag, then the server."""

from __future__ import annotations

import argparse
import logging

from foveal.errors import ConfigurationError
from foveal.logs import refuse, set_up
from foveal.settings import add_flags, log_format_asked_for, read_settings

log = logging.getLogger(__name__)

WRONG_SETTINGS = 2


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The flags of the command."""
    parser = subparsers.add_parser(
        "serve",
        help="run the encoding server",
        usage="foveal serve [--config FILE] [--SETTING VALUE ...]    (foveal serve --help shows all)",
        description="Run the encoding server. Every setting is also a variable FOVEAL_* and a key of --config.",
        allow_abbrev=False,
    )
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal, or say why not; the exit code."""
    set_up("info", log_format_asked_for(args))  # so that settings are refused in the form of the log
    try:
        return _serve(args)
    except ConfigurationError as error:
        refuse(str(error))
        return WRONG_SETTINGS


def _serve(args: argparse.Namespace) -> int:
    settings = read_settings(args)
    set_up(settings.log_level, settings.log_format)
    for warning in settings.warnings:
        log.warning(warning)
    from foveal.api.server import serve

    try:
        return serve(settings)
    except ConfigurationError as error:
        raise ConfigurationError(settings.explain(str(error))) from None
