"""`foveal demo` as a user runs it: a server of its own, pictures of one's own, a table and a drawing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from PIL import Image

DEMO_SECONDS = 120
PICTURES = Path(__file__).parents[2] / "service/foveal/demo/pictures"


def demo(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foveal", "demo", "--device", "cpu", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEMO_SECONDS)


def test_pictures_find_their_variants_and_a_drawing_is_left(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in ("cat.jpg", "rocket.jpg"):
        (own / name).write_bytes((PICTURES / name).read_bytes())
    (own / "torn.jpg").write_bytes((PICTURES / "cat.jpg").read_bytes()[:2000])
    (own / "notes.png").write_text("no picture at all")
    done = demo("--model", "builtin:tiny-clip", "--output-dir", tmp_path / "out", own, PICTURES / "page.jpg")
    assert done.returncode == 0, done.stderr
    left_out = done.stdout.partition("left out:")[2].splitlines()
    assert [any(name in line for line in left_out) for name in ("torn.jpg", "notes.png", "cat.jpg")] == [
        True,
        True,
        False,
    ]
    assert "left out:" in done.stderr
    assert "cat mirrored" in done.stdout and "rocket mirrored" in done.stdout
    assert "6 of 6 pictures and variants" in done.stdout and "random weights" in done.stdout
    with Image.open(tmp_path / "out" / "demo.png") as drawn:
        assert drawn.format == "PNG" and drawn.width > 2000 and len(drawn.resize((64, 64)).getcolors(4096) or ()) > 100


def test_a_picture_that_the_server_refuses_is_named(tmp_path: Path) -> None:
    Image.new("RGB", (900, 4)).save(tmp_path / "ribbon.png")
    done = demo("--output-dir", tmp_path, "--model", "builtin:tiny", tmp_path / "ribbon.png")
    assert done.returncode == 2 and "left out: ribbon: " in done.stderr and "200 to 1" in done.stderr
    assert "refused all" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_path_and_a_wrong_model_are_sentences(tmp_path: Path) -> None:
    no_picture = demo(tmp_path / "gone.jpg", "--model", "builtin:tiny")
    assert no_picture.returncode == 2 and "no such picture or folder" in no_picture.stderr
    no_model = demo("--model", "builtin:gone", "--output-dir", tmp_path)
    assert no_model.returncode == 2 and "built-in models" in no_model.stderr
