"""`foveal serve` with the fake worker: same flags, same process, same sockets."""

from __future__ import annotations

import argparse
import sys

from foveal.api.server import serve
from foveal.errors import ConfigurationError
from foveal.logs import set_up
from foveal.settings import add_flags, read_settings


def main() -> int:
    """Serve; the exit code."""
    parser = argparse.ArgumentParser()
    add_flags(parser)
    try:
        settings = read_settings(parser.parse_args())
        set_up(settings.log_level, settings.log_format)
        return serve(settings, worker="tests.chaos.fake_worker")
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
