"""Write the requirements of extras of a pyproject.toml, with the base ones and without torch, to a file.

    python requirements.py pyproject.toml EXTRA[,EXTRA] OUT

torch has a layer of its own in the images: it is large and comes from another index for the CPU.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: str) -> list[str]:
    """What to install."""
    project = tomllib.loads(pyproject)["project"]
    of_extras = (project["optional-dependencies"][extra] for extra in extras.split(","))
    named = [*project["dependencies"], *(line for lines in of_extras for line in lines)]
    return sorted({line for line in named if re.split(r"[^\w.-]", line)[0] != "torch"})


if __name__ == "__main__":
    source, extras, out = sys.argv[1:]
    Path(out).write_text("\n".join(requirements(Path(source).read_text(), extras)) + "\n")
