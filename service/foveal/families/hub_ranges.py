"""Reads some bytes of a hub's file, by the hub's own client."""

from __future__ import annotations

import logging

from foveal.families.tower_download import Read

log = logging.getLogger(__name__)
PARTIAL, ALL = 206, 200


def reader(repository: str, commit: str) -> Read | None:
    """A reader of ranges of one revision's files, for any thread; None where the client cannot."""
    try:
        from huggingface_hub.utils import http_stream_backoff  # type: ignore[attr-defined]
    except ImportError:
        log.warning("this huggingface_hub reads no ranges: whole files are fetched; 1.0 and newer save much")
        return None
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    def read(file: str, start: int, stop: int) -> bytes | None:
        url = hf_hub_url(repository, file, revision=commit)
        # identity: a range of a compressed body would be of no use
        headers = build_hf_headers() | {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
        seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with http_stream_backoff("GET", url, headers=headers, timeout=seconds) as response:
            if response.status_code == PARTIAL:
                return bytes(response.read())
            if response.status_code != ALL:
                response.read()
                hf_raise_for_status(response)
        return None

    return read
