"""The prep program: `python -m foveal.vision`, started by the api process. Answers one message after another."""

from __future__ import annotations

import logging
import sys
from time import perf_counter

import torch

from foveal.errors import FovealError, Undecodable
from foveal.ipc.arena import MappedArena
from foveal.ipc.channel import Channel
from foveal.ipc.child import join_parent
from foveal.ipc.messages import ChildReady, Prepare, Prepared, Probe, Probed, Refused, ToPrep
from foveal.vision.decode import decode, probe
from foveal.vision.patchify import write_patches
from foveal.vision.resize import resize

logger = logging.getLogger("foveal.vision")


class Prep:
    """Answers messages; owns nothing but the maps of the two arenas."""

    def __init__(self, images: MappedArena, rows: MappedArena) -> None:
        self._images, self._rows = images, rows

    def answer(self, message: ToPrep) -> Probed | Prepared | Refused:
        """The reply to one message. Never raises: a bug of ours is refused as `internal`, and logged whole."""
        try:
            return self._probe(message) if isinstance(message, Probe) else self._prepare(message)
        except FovealError as error:
            return Refused(message.id, error.code, error.message)
        except MemoryError:
            logger.warning("an image needs more memory than there is")
            return Refused(message.id, Undecodable.code, "the image needs more memory than decoding may take")
        except Exception:
            logger.exception("preparing an image failed: this is a bug")
            return Refused(message.id, FovealError.code, "the image could not be prepared: this is a bug of the server")

    def _probe(self, message: Probe) -> Probed:
        started = perf_counter()
        found = probe(self._images.view(message.image), message.max_pixels)
        return Probed(message.id, found.format, found.width, found.height, perf_counter() - started)

    def _prepare(self, message: Prepare) -> Prepared:
        started = perf_counter()
        pixels = decode(self._images.view(message.image), message.background, message.max_pixels)
        write_patches(resize(pixels, message.plan), message.plan, self._rows.view(message.rows))
        return Prepared(message.id, perf_counter() - started)


def main() -> int:
    """Serve until the parent closes the socket; the exit code."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    channel: Channel[ToPrep]
    channel, arenas = join_parent("foveal.vision", ToPrep, ["images", "rows"])  # type: ignore[arg-type]
    torch.set_num_threads(1)
    prep = Prep(arenas["images"], arenas["rows"])
    channel.send(ChildReady())
    while (message := channel.receive()) is not None:
        channel.send(prep.answer(message))
    return 0


if __name__ == "__main__":
    sys.exit(main())
