"""The command as a whole: what it does when nobody reads what it prints, or a disk takes no more."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from foveal import cli

PRINTS = [
    ["models"],
    ["models", "--json"],
    ["--help"],
    ["--version"],
    ["encode", "--help"],
    ["serve", "--help"],
    ["bench", "--help"],
    ["bench", "serve", "--help"],
    ["bench", "packing", "--packs", "3", "--depths", "1"],
]


def run(*arguments: str, stdout: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foveal", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60)


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader has gone."""
    reads, writes = os.pipe()
    os.close(reads)
    yield writes
    os.close(writes)


@pytest.mark.parametrize("arguments", PRINTS, ids=" ".join)
def test_a_command_ends_quietly_when_nobody_reads_what_it_prints(unread: int, arguments: list[str]) -> None:
    done = run(*arguments, stdout=unread)
    # argparse hides that its help could not be written, where that is written at once
    assert done.stderr == "" and done.returncode in ({0, 141} if arguments[-1].startswith("--") else {141})


def test_info_ends_quietly_too(unread: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"model": "' + b"m" * 200_000 + b'"}')

        def log_message(self, *args: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        done = run("info", "--url", f"http://127.0.0.1:{http.server_port}", stdout=unread)
        http.shutdown()
        thread.join()
    assert (done.returncode, done.stderr) == (141, "")


def test_a_bench_whose_table_nobody_reads_has_written_its_figures(unread: int, tmp_path: Path) -> None:
    done = run("bench", "packing", "--packs", "3", "--depths", "1", "--json", str(tmp_path / "x.json"), stdout=unread)
    assert done.returncode == 141 and (tmp_path / "x.json").read_text().startswith("{")


def test_a_full_disk_under_the_output_is_a_sentence() -> None:
    with open("/dev/full", "w") as full:
        done = run("models", stdout=full.fileno())
    assert done.returncode == 1
    assert done.stderr == "foveal: the output cannot be written: No space left on device\n"


def test_a_broken_pipe_of_something_else_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(argv: object) -> int:
        raise BrokenPipeError(32, "a child's")

    monkeypatch.setattr(cli, "_run", run)
    monkeypatch.setattr(cli, "_is_closed", lambda stream: False)
    with pytest.raises(BrokenPipeError, match="a child's"):
        cli.main([])
