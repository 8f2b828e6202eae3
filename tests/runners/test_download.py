"""Downloads: resumed where they broke, never a mixture of two files, checked, said."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runners import wire
from runners.data import download, sources
from runners.errors import ConfigurationError, RunnerError
from runners.schema import Data

CONTENT = b"".join(b'{"text": "line %06d"}\n' % n for n in range(40_000))  # about 900 kB
SUM = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Gives one file, in ways that a test chooses."""

    content = CONTENT
    tag: str | None = '"1"'
    break_after: int | None = None  # bytes of an answer, until `breaks` is used up
    breaks = 0
    status: int | None = None  # in place of a file
    shifted = 0  # bytes that a resumed answer begins before what was asked for
    ranges: list[str | None]


class Handler(BaseHTTPRequestHandler):
    """Answers GET with ranges, as static servers do."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        asked = self.headers.get("Range")
        server.ranges.append(asked)
        if server.status is not None:
            self.send_error(server.status)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        if self.headers.get("If-Range") not in (None, server.tag):
            start = 0
        if start >= len(server.content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        resumed, start = bool(start), max(0, start - server.shifted)
        body = server.content[start:]
        self.send_response(206 if resumed else 200)
        if server.shifted:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(body)))
        if server.tag:
            self.send_header("ETag", server.tag)
        self.end_headers()
        if server.breaks and server.break_after is not None:
            server.breaks -= 1
            self.wfile.write(body[: server.break_after])
            self.close_connection = True
            return
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Without a word."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    found = Server(("127.0.0.1", 0), Handler)
    found.ranges = []
    thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield found
    found.shutdown()
    thread.join()
    found.server_close()


def url(server: Server, name: str = "data.jsonl") -> str:
    return f"http://127.0.0.1:{server.server_port}/some/{name}?x=1"


def test_a_broken_transfer_is_resumed_and_told(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.break_after, server.breaks = 300_000, 2
    path = download.fetch(url(server), tmp_path, sha256=SUM)
    assert path.read_bytes() == CONTENT
    assert path.name == "data.jsonl"
    assert server.ranges == [None, "bytes=300000-", "bytes=600000-"]
    assert [p.name for p in path.parent.iterdir()] == ["data.jsonl"]
    lines = [line for text in capsys.readouterr().out.splitlines() if (line := wire.parse(text.encode()))]
    assert {line["code"] for line in lines} == {"download"}
    assert lines[-1]["data"] == {"name": "data.jsonl", "done_by": len(CONTENT), "total_by": len(CONTENT)}
    assert download.fetch(url(server), tmp_path) == path  # and is not asked for again
    assert len(server.ranges) == 3


def test_what_arrived_is_kept_for_the_next_attempt(server: Server, tmp_path: Path) -> None:
    server.break_after, server.breaks = 0, 100
    with pytest.raises(RunnerError, match=r"could not be downloaded: .*ended early|of \d+ bytes came") as error:
        download.fetch(url(server), tmp_path)
    assert "what has arrived is kept" in str(error.value.hint)
    server.break_after, server.breaks = 100_000, 1
    before = len(server.ranges)
    assert download.fetch(url(server), tmp_path).read_bytes() == CONTENT
    assert server.ranges[before:] == [None, "bytes=100000-"]


def test_a_file_that_changed_meanwhile_is_read_from_its_start(server: Server, tmp_path: Path) -> None:
    server.break_after, server.breaks = 100_000, 100
    server.content = CONTENT[:200_000]
    part = download.place(url(server), tmp_path)
    part.parent.mkdir(parents=True)
    (part.parent / ".data.jsonl.part").write_bytes(b"x" * 50_000)
    (part.parent / ".data.jsonl.json").write_text('{"version": "\\"0\\""}')
    server.breaks = 0
    assert download.fetch(url(server), tmp_path).read_bytes() == CONTENT[:200_000]


def test_another_part_than_was_asked_for_is_not_added(server: Server, tmp_path: Path) -> None:
    server.break_after, server.breaks, server.shifted = 300_000, 1, 10
    assert download.fetch(url(server), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=300000-", None]


@pytest.mark.parametrize(
    "path", ["..", "%2e%2e", "a/%2E%2E", "%2Fetc%2Fpasswd", "..%2f..", "\u20ac" * 100 + ".jsonl", "."]
)
def test_a_name_stays_in_its_folder_and_can_be_had(tmp_path: Path, path: str) -> None:
    place = download.place(f"http://x/{path}", tmp_path)
    assert place.parent.parent == tmp_path / "downloads"
    assert not place.name.startswith(".")
    place.parent.mkdir(parents=True)
    place.with_name(f".{place.name}.part").write_text("")
    assert place.suffix == (".jsonl" if path.endswith(".jsonl") else "")


def test_an_address_with_a_login_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data\.urls hold a login") as found:
        Data(source="url", urls=("https://me:word@host/a.jsonl",))
    assert "hold a login, which would be recorded" in str(found.value)
    assert Data(source="url", urls=("https://host/a@b.jsonl",)).urls


def test_without_a_version_nothing_is_added_to_what_arrived(server: Server, tmp_path: Path) -> None:
    server.tag, server.break_after, server.breaks = None, 300_000, 1
    assert download.fetch(url(server), tmp_path).read_bytes() == CONTENT
    assert server.ranges == [None, None]


def test_what_had_arrived_whole_is_taken(server: Server, tmp_path: Path) -> None:
    part = download.place(url(server), tmp_path)
    part.parent.mkdir(parents=True)
    (part.parent / ".data.jsonl.part").write_bytes(CONTENT)
    assert download.fetch(url(server), tmp_path, sha256=SUM).read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT)}-"]


def test_another_hash_is_refused_and_not_kept(server: Server, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"not the file that data.sums names: its SHA-256 is {SUM}"):
        download.fetch(url(server), tmp_path, sha256="0" * 64)
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    ("status", "kind", "told"),
    [(404, ConfigurationError, "answered 404"), (403, ConfigurationError, "answered 403"), (503, RunnerError, "503")],
)
def test_a_refusal_is_one_sentence(
    server: Server, tmp_path: Path, status: int, kind: type[RunnerError], told: str
) -> None:
    server.status = status
    with pytest.raises(kind, match=told):
        download.fetch(url(server), tmp_path)
    assert len(server.ranges) == (download.TRIES if status >= 500 else 1)


def test_who_cannot_be_reached_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    with pytest.raises(RunnerError, match=r"http://127\.0\.0\.1:9/x\.jsonl could not be downloaded: .*refused"):
        download.fetch("http://127.0.0.1:9/x.jsonl", tmp_path)


def test_offline_names_the_file_and_fetches_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"offline mode is on, and http.*data\.jsonl"):
        download.fetch(url(server), tmp_path, offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigurationError, match="offline mode is on"):
        download.fetch(url(server), tmp_path)
    assert not server.ranges


def test_other_schemes_are_no_urls(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no http or https address"):
        download.fetch("file:///etc/passwd", tmp_path)


def test_a_full_disk_is_not_taken_for_the_network(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunnerError, match="cannot be written: No space left on device"):
        download.fetch(url(server), tmp_path)


def test_a_source_by_url_is_read_by_its_name(server: Server, tmp_path: Path) -> None:
    data = Data(source="url", urls=(url(server),), sums=(SUM,), samples=3)
    assert [d.text for d in sources.documents(data, tmp_path)] == [f"line {n:06d}" for n in range(3)]
    assert next(sources.records_of(data, tmp_path)).text == "line 000000"
    text = Data(source="url", urls=(url(server, "a.txt"),))
    assert [d.text for d in sources.documents(text, tmp_path)] == [CONTENT.decode()]
    with pytest.raises(ConfigurationError, match=r"what a\.bin holds cannot be told"):
        list(sources.documents(Data(source="url", urls=(url(server, "a.bin"),)), tmp_path))
