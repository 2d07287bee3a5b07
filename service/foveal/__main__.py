"""`python -m foveal` is the `foveal` command."""

import sys

from foveal.cli import main

if __name__ == "__main__":
    sys.exit(main())
