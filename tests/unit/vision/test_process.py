"""`python -m foveal.vision` as the api process meets it: a socket, two arenas, one answer for each message."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from foveal.ipc.arena import Arena, Block
from foveal.ipc.channel import Channel
from foveal.ipc.messages import ChildReady, FromPrep, Prepare, Prepared, Probe, Probed, Refused
from foveal.types import PixelPlan
from foveal.vision import __main__ as program
from foveal.vision.decode import decode
from foveal.vision.patchify import write_patches
from foveal.vision.resize import resize

WHITE = (255, 255, 255)
PLAN = PixelPlan(64, 96, 16, 2)


class Child:
    """A started prep process and the parent's ends."""

    def __init__(self, *flags: str) -> None:
        self.images, self.rows = Arena("images", 1 << 20), Arena("rows", 1 << 20)
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(60)
        fds = (theirs.fileno(), self.images.fd, self.rows.fd)
        command = [sys.executable, "-m", "foveal.vision", *flags, *("--socket", str(fds[0]), "--images", str(fds[1]))]
        self.process = subprocess.Popen([*command, "--rows", str(fds[2])], pass_fds=fds, stderr=subprocess.PIPE)
        theirs.close()
        self.channel: Channel = Channel(self.socket, FromPrep)

    def put(self, data: bytes) -> Block:
        block = self.images.allocate(len(data))
        block.view[:] = np.frombuffer(data, np.uint8)
        return block

    def ask(self, message: Probe | Prepare) -> object:
        self.channel.send(message)
        return self.channel.receive()

    def close(self) -> tuple[int, str]:
        self.socket.close()
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log.decode()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child()
    assert child.channel.receive() == ChildReady()
    yield child
    child.socket.close()
    child.process.communicate(timeout=60)


def test_a_picture_is_probed_and_prepared(child: Child, drawing, encode) -> None:
    data = encode(drawing, "JPEG")
    block, rows = child.put(data), child.rows.allocate(PLAN.num_patches * PLAN.row_bytes)
    probed = child.ask(Probe(1, block.span, 10**6))
    assert isinstance(probed, Probed)
    assert (probed.id, probed.format, probed.width, probed.height) == (1, "JPEG", 48, 32)
    prepared = child.ask(Prepare(2, block.span, rows.span, PLAN, WHITE, 10**6))
    assert isinstance(prepared, Prepared) and prepared.id == 2 and prepared.seconds > 0
    expected = np.empty_like(rows.view)
    write_patches(resize(decode(data, WHITE, 10**6), PLAN), PLAN, expected)
    assert np.array_equal(rows.view, expected)


BAD = {
    "undecodable": b"\xff\xd8\xff" + bytes(50),
    "unsupported_type": b"<svg/>",
    "too_large": None,
}


@pytest.mark.parametrize("code", BAD)
def test_bad_pictures_are_refused_and_the_next_one_is_served(child: Child, drawing, encode, code) -> None:
    good = child.put(encode(drawing, "PNG"))
    bad = child.put(BAD[code]) if BAD[code] else good
    limit = 100 if code == "too_large" else 10**6
    rows = child.rows.allocate(PLAN.num_patches * PLAN.row_bytes)
    for message in (Probe(7, bad.span, limit), Prepare(7, bad.span, rows.span, PLAN, WHITE, limit)):
        refused = child.ask(message)
        assert isinstance(refused, Refused)
        assert (refused.id, refused.code) == (7, code) and refused.message
    assert isinstance(child.ask(Probe(8, good.span, 10**6)), Probed)


def test_an_empty_span_is_an_empty_image(child: Child) -> None:
    block = child.images.allocate(0)
    refused = child.ask(Probe(9, block.span, 10**6))
    assert isinstance(refused, Refused) and refused.code == "undecodable"


def test_rows_that_do_not_fit_the_plan_are_internal_and_end_nothing(child: Child, drawing, encode) -> None:
    block, rows = child.put(encode(drawing, "PNG")), child.rows.allocate(64)
    refused = child.ask(Prepare(3, block.span, rows.span, PLAN, WHITE, 10**6))
    assert isinstance(refused, Refused) and refused.code == "internal"
    assert isinstance(child.ask(Probe(4, block.span, 10**6)), Probed)


def test_the_process_ends_well_when_its_socket_closes(drawing, encode) -> None:
    child = Child()
    assert child.channel.receive() == ChildReady()
    block = child.put(encode(drawing, "WEBP")[:-20])
    refused = child.ask(Probe(1, block.span, 10**6))
    assert isinstance(refused, Refused)
    code, log = child.close()
    assert code == 0
    assert "WEBP" in log and "Traceback" not in log


@pytest.mark.parametrize("part", ["decode", "resize"])
def test_running_out_of_memory_names_the_limit(drawing, encode, monkeypatch, part) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(program, part, fail)
    data = encode(drawing, "PNG")
    images, rows = Arena("images", 1 << 16), Arena("rows", 1 << 16)
    block = images.allocate(len(data))
    block.view[:] = np.frombuffer(data, np.uint8)
    refused = program.Prep(images, rows, 12345).answer(
        Prepare(5, block.span, rows.allocate(10).span, PLAN, WHITE, 10**6)
    )
    assert isinstance(refused, Refused) and refused.code == "too_large"
    assert "12345 bytes" in refused.message and "--prep-memory-bytes" in refused.message


def flat(encode, format: str, **options: object) -> bytes:
    return encode(Image.new("RGB", (4000, 4000), (90, 20, 10)), format, **options)


LARGE = {
    "jpeg": ("JPEG", {}),
    "jpeg progressive": ("JPEG", {"progressive": True}),
    "png": ("PNG", {}),
    "gif": ("GIF", {}),
    "webp": ("WEBP", {"method": 0}),
    "tiff": ("TIFF", {"compression": "tiff_lzw"}),
    "avif": ("AVIF", {"speed": 10}),
}


@pytest.fixture(scope="module")
def poor_child() -> Iterator[Child]:
    child = Child("--memory-bytes", str(24 << 20))
    assert child.channel.receive() == ChildReady()
    yield child
    child.socket.close()
    child.process.communicate(timeout=60)


@pytest.mark.parametrize("kind", LARGE)
def test_a_picture_that_needs_more_memory_than_allowed_is_too_large_and_ends_nothing(
    poor_child: Child, drawing, encode, kind
) -> None:
    format, options = LARGE[kind]
    rows = poor_child.rows.allocate(PLAN.num_patches * PLAN.row_bytes)
    large = poor_child.put(flat(encode, format, **options))
    refused = poor_child.ask(Prepare(1, large.span, rows.span, PLAN, WHITE, 10**8))
    assert isinstance(refused, Refused) and refused.code == "too_large", refused
    small = poor_child.put(encode(drawing, format, **options))
    assert isinstance(poor_child.ask(Prepare(2, small.span, rows.span, PLAN, WHITE, 10**8)), Prepared)


def test_a_large_picture_takes_the_memory_of_one_copy_or_two(encode) -> None:
    gif = encode(Image.new("P", (8000, 8000)), "GIF")
    child = Child("--memory-bytes", str(400 << 20))
    assert child.channel.receive() == ChildReady()
    rows, block = child.rows.allocate(PLAN.num_patches * PLAN.row_bytes), child.put(gif)
    assert isinstance(child.ask(Prepare(1, block.span, rows.span, PLAN, WHITE, 64_000_000)), Prepared)
    child.close()
