"""A hub on this machine for the real client of huggingface_hub: it serves folders and notes what was asked for."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote, urlsplit

MODEL = "people/model"
COMMIT, OLDER = "a" * 40, "b" * 40


@dataclass
class FakeHub:
    """One model with revisions; `fetched` has each file that was sent, and its bytes."""

    revisions: dict[str, Path]
    """Folders by commit."""
    refs: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    says: tuple[int, dict[str, str]] | None = None
    """Status and headers in place of every answer."""
    has_ranges: bool = True
    stalls_at: str = ""
    """A file that is promised and never sent."""
    has_stalled: Event = field(default_factory=Event)
    goes_on: Event = field(default_factory=Event)
    fetched: list[tuple[str, int]] = field(default_factory=list)
    url: str = ""

    @property
    def files(self) -> list[str]:
        return sorted({name for name, _ in self.fetched})

    @property
    def sent(self) -> int:
        return sum(size for _, size in self.fetched)

    def commit_of(self, revision: str) -> str | None:
        found = self.refs.get(revision, revision)
        return found if found in self.revisions else None


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        hub.goes_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.hub.says is not None:
            status, headers = self.hub.says
            self._send(status, b"{}", headers)
        elif found := re.fullmatch(rf"/api/models/{MODEL}(?:/revision/([^/]+))?", path):
            self._model(found[1] or "main")
        elif found := re.fullmatch(rf"/api/models/{MODEL}/tree/([^/]+)", path):
            self._tree(found[1])
        elif found := re.fullmatch(rf"/{MODEL}/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2])
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _model(self, revision: str) -> None:
        commit = self.hub.commit_of(revision)
        if commit is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            return
        siblings = [{"rfilename": name, "size": len(data)} for name, data in self._files(commit).items()]
        self._json({"id": MODEL, "sha": commit, "siblings": siblings})

    def _tree(self, revision: str) -> None:
        files = self._files(self.hub.commit_of(revision) or "")
        self._json([{"type": "file", "path": n, "size": len(d), "oid": _oid(d)} for n, d in files.items()])

    def _files(self, commit: str) -> dict[str, bytes]:
        folder = self.hub.revisions[commit]
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}

    def _file(self, revision: str, name: str) -> None:
        commit = self.hub.commit_of(revision)
        data = self._files(commit).get(name) if commit else None
        if commit is None or data is None:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit or ""})
            return
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_oid(data)}"'}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if self.hub.has_ranges else None
        if asked:
            stop = min(int(asked[2]) + 1 if asked[2] else len(data), len(data))
            headers["Content-Range"] = f"bytes {asked[1]}-{stop - 1}/{len(data)}"
            data = data[int(asked[1]) : stop]
        if self.command == "GET":
            self.hub.fetched.append((name, len(data)))
        self._send(206 if asked else 200, data, headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.hub.stalls_at and unquote(self.path).endswith(self.hub.stalls_at):
            self.hub.has_stalled.set()
            self.hub.goes_on.wait()
            self.close_connection = True
            return
        self.wfile.write(body)


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
