"""Variables that libraries read when they are loaded or first used. Whoever runs a tower says them before."""

from __future__ import annotations

import os

_VARIABLES = {
    # OpenMP's threads spin at every barrier by default, and where another process has their core (api and prep do) a
    # forward that takes 6 ms takes 600 ms
    "OMP_WAIT_POLICY": "passive",
    # without workspaces cuBLAS chooses matrix products that need no counter set to zero before: those are 54 nodes of a
    # graph of 300, a graph with them takes 80 µs to launch and not 8, and its products are no faster (H200)
    "CUBLAS_WORKSPACE_CONFIG": ":0:0",
    "CUBLASLT_WORKSPACE_SIZE": "0",
}


def prepare_environment() -> None:
    """Set what is not set; before torch is imported, and before the first matrix product on a GPU."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
