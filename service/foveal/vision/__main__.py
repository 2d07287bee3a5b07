"""The prep program: `python -m foveal.vision`, started by the api process. Answers one message after another."""

from __future__ import annotations

import argparse
import logging
import sys
from time import perf_counter

import torch

from foveal.errors import FovealError, TooLarge
from foveal.ipc.arena import MappedArena
from foveal.ipc.channel import Channel
from foveal.ipc.child import join_parent
from foveal.ipc.messages import ChildReady, Prepare, Prepared, Probe, Probed, Refused, ToPrep
from foveal.vision.confine import MEMORY_BYTES, confine, keep_libraries_quiet
from foveal.vision.decode import decode, probe
from foveal.vision.patchify import write_patches
from foveal.vision.resize import resize
from foveal.vision.warm_up import warm_up

logger = logging.getLogger("foveal.vision")


class Prep:
    """Answers messages; owns nothing but the maps of the two arenas."""

    def __init__(self, images: MappedArena, rows: MappedArena, memory_bytes: int = MEMORY_BYTES) -> None:
        self._images, self._rows, self._memory_bytes = images, rows, memory_bytes

    def answer(self, message: ToPrep) -> Probed | Prepared | Refused:
        """The reply to one message. Never raises: a bug of ours is refused as `internal`, and logged whole."""
        try:
            return self._probe(message) if isinstance(message, Probe) else self._prepare(message)
        except FovealError as error:
            return Refused(message.id, error.code, error.message)
        except MemoryError:
            logger.warning("an image needs more memory than decoding may take")
            return Refused(message.id, TooLarge.code, self._too_much_memory())
        except Exception:
            logger.exception("preparing an image failed: this is a bug")
            return Refused(message.id, FovealError.code, "the image could not be prepared: this is a bug of the server")

    def _probe(self, message: Probe) -> Probed:
        started = perf_counter()
        found = probe(self._images.view(message.image), message.max_pixels)
        return Probed(message.id, found.format, found.width, found.height, perf_counter() - started, found.work)

    def _prepare(self, message: Prepare) -> Prepared:
        started = perf_counter()
        pixels = decode(self._images.view(message.image), message.background, message.max_pixels)
        write_patches(resize(pixels, message.plan), message.plan, self._rows.view(message.rows))
        return Prepared(message.id, perf_counter() - started)

    def _too_much_memory(self) -> str:
        return (
            f"decoding the image takes more than the {self._memory_bytes} bytes of memory that it may "
            "(--prep-memory-bytes); make the image smaller"
        )


def main() -> int:
    """Serve until the parent closes the socket; the exit code."""
    keep_libraries_quiet()
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--memory-bytes", type=int, default=MEMORY_BYTES)
    own, others = parser.parse_known_args()
    channel: Channel[ToPrep]
    channel, arenas = join_parent("foveal.vision", ToPrep, ["images", "rows"], others)  # type: ignore[arg-type]
    torch.set_num_threads(1)
    warm_up()
    confine(own.memory_bytes)
    prep = Prep(arenas["images"], arenas["rows"], own.memory_bytes)
    try:
        channel.send(ChildReady())
        while (message := channel.receive()) is not None:
            channel.send(prep.answer(message))
    except ConnectionError:
        pass  # the parent left while this process worked
    return 0


if __name__ == "__main__":
    sys.exit(main())
