"""The worker program: take the device, load, measure, say ready, then answer packs until the parent is gone.

Exit codes: 0 at the end of the socket, 1 after a fault that the device does not recover from, 2 when it cannot work
as configured.
"""

from __future__ import annotations

import sys
from typing import cast

from foveal.gpu.environment import prepare_environment
from foveal.ipc.child import join_parent
from foveal.ipc.messages import ToWorker


def main() -> int:
    """Run the worker; returns its exit code."""
    channel, arenas = join_parent("foveal.gpu", cast(type[ToWorker], ToWorker), ["rows", "embeddings"])
    prepare_environment()
    from foveal.gpu.worker import serve

    try:
        return serve(channel, arenas)
    except ConnectionError:
        return 0  # the parent left while this process computed


if __name__ == "__main__":
    sys.exit(main())
