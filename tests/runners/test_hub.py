"""Repo ids and local folders: downloads from a server that plays the hub, and what goes wrong with them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runners import hub, wire
from runners.errors import ConfigurationError
from tests.runners.support import ROOT

COMMIT = "1234567890abcdef1234567890abcdef12345678"
REPO = "someone/model"
SECRET = "hf_never_to_be_printed"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(range(256)) * (24 * 4096),  # 24 MiB: the library keeps a transfer by pieces of 10
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"not wanted",
}
CHILD = """
import json, os, sys
from runners import hub
from runners.errors import RunnerError
hub.PROGRESS_S = 0.0
try:
    found = hub.folder(sys.argv[1], key="model.weights", revision=sys.argv[2] or None, patterns=hub.WEIGHTS)
    print(json.dumps({"path": str(found), "files": sorted(os.listdir(found))}))
except RunnerError as error:
    print(json.dumps({"kind": type(error).__name__, "told": str(error)}))
"""


@dataclass
class Hub:
    """The few endpoints of the hub that a download asks, and how it misbehaves."""

    gated: bool = False
    breaks: int = 0  # how many transfers of the large file are cut in the middle
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)  # method, path, Range
    tokens: set[str | None] = field(default_factory=set)
    url: str = ""

    def answer(self, call: BaseHTTPRequestHandler) -> None:
        path = call.path.partition("?")[0]
        token = call.headers.get("Authorization")
        if REPO in path:
            self.asked.append((call.command, path, call.headers.get("Range")))
            self.tokens.add(token)
        if self.gated and token != f"Bearer {SECRET}":
            self.send(call, 401 if token is None else 403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif match := re.fullmatch(rf"/api/models/{REPO}/revision/(\w+)", path):
            known = match[1] in ("main", COMMIT)
            body = json.dumps({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": []}).encode()
            missing = {"X-Error-Code": "RevisionNotFound"}
            self.send(call, *((200, body, {}) if known else (404, b"{}", missing)))
        elif path == f"/api/models/{REPO}/tree/{COMMIT}":
            self.send(call, 200, json.dumps([self.entry(name) for name in FILES]).encode(), {})
        elif match := re.fullmatch(rf"/{REPO}/resolve/{COMMIT}/(.+)", path):
            self.file(call, match[1])
        else:
            self.send(call, 404, b"{}", {"X-Error-Code": "RepoNotFound"})

    @staticmethod
    def entry(name: str) -> dict[str, object]:
        return {"type": "file", "path": name, "size": len(FILES[name]), "oid": hashlib.sha1(FILES[name]).hexdigest()}

    def file(self, call: BaseHTTPRequestHandler, name: str) -> None:
        content = FILES[name]
        asked = re.fullmatch(r"bytes=(\d+)-", call.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        headers = {
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
        }
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if call.command == "GET" and self.breaks and name == "model.safetensors":
            self.breaks -= 1
            self.send(call, 206 if asked else 200, content[start:], headers, cut=len(content) // 2)
            return
        self.send(call, 206 if asked else 200, content[start:], headers)

    @staticmethod
    def send(
        call: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str], cut: int | None = None
    ) -> None:
        call.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            call.send_header(name, value)
        call.end_headers()
        if call.command != "HEAD":
            call.wfile.write(body[:cut])
        if cut is not None:
            call.close_connection = True


@pytest.fixture
def server() -> Iterator[Hub]:
    """A hub on this machine."""
    found = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.answer(self)

        do_HEAD = do_GET

        def log_message(self, *_args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        found.url = f"http://127.0.0.1:{listener.server_address[1]}"
        thread = threading.Thread(target=listener.serve_forever, daemon=True)
        thread.start()
        yield found
        listener.shutdown()
        thread.join(10)


@dataclass(frozen=True)
class Told:
    """What the process that fetched said."""

    answer: dict[str, object]
    text: str

    @property
    def error(self) -> str:
        return str(self.answer["told"])


def fetch(home: Path, endpoint: str, repo: str = REPO, revision: str = "", **env: str) -> Told:
    """`hub.folder` in a process of its own: the library reads its variables when it is imported."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("HF_", "HUGGING", "TRANSFORMERS_"))}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, repo, revision],
        env={**kept, "PYTHONPATH": str(ROOT), "HF_HOME": str(home), "HF_ENDPOINT": endpoint, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return Told(json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr)


def test_what_the_patterns_name_is_downloaded_and_found_again_offline(server: Hub, tmp_path: Path) -> None:
    first = fetch(tmp_path, server.url)
    assert first.answer["files"] == ["config.json", "model.safetensors"]
    folder = Path(str(first.answer["path"]))
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    lines = [found for line in first.text.splitlines() if (found := wire.parse(line.encode())) is not None]
    assert lines
    assert {line["code"] for line in lines} == {"download"}
    last = max(lines, key=lambda line: line["data"]["done_by"])["data"]
    assert last["name"] == REPO
    assert last["done_by"] == len(FILES["config.json"]) + len(FILES["model.safetensors"])

    server.asked.clear()
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        again = fetch(tmp_path, server.url, **{name: "1"})
        assert again.answer == first.answer
    assert not server.asked


def test_a_broken_transfer_goes_on_where_it_broke(server: Hub, tmp_path: Path) -> None:
    server.breaks = 2
    found = fetch(tmp_path, server.url)
    assert (Path(str(found.answer["path"])) / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    ranges = [asked for method, path, asked in server.asked if method == "GET" and path.endswith(".safetensors")]
    assert ranges == [None, f"bytes={10 * 2**20}-", f"bytes={20 * 2**20}-"]


@pytest.mark.parametrize("given", ["none", "wrong"])
def test_a_gated_repo_says_what_to_do(server: Hub, tmp_path: Path, given: str) -> None:
    server.gated = True
    env = {} if given == "none" else {"HF_TOKEN": "hf_of_somebody_else"}
    told = fetch(tmp_path, server.url, **env)
    assert told.answer["kind"] == "ConfigurationError"
    if given == "none":
        assert (
            f"model.weights={REPO} is gated, private or not there, and this run has no token (HTTP 401)" in told.error
        )
        assert "Accept its licence on its page and set the secret HF_TOKEN" in told.error
    else:
        assert "the token of this run has no access to it (HTTP 403)" in told.error
    assert "hf_of_somebody_else" not in told.text


@pytest.mark.parametrize("way", ["HF_TOKEN_PATH", "HF_TOKEN", "HUGGINGFACE_HUB_TOKEN"])
def test_a_token_opens_it_and_is_never_printed(server: Hub, tmp_path: Path, way: str) -> None:
    server.gated = True
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n")
    told = fetch(tmp_path / "home", server.url, **{way: str(secret) if way == "HF_TOKEN_PATH" else SECRET})
    assert told.answer["files"] == ["config.json", "model.safetensors"]
    assert server.tokens == {f"Bearer {SECRET}"}
    assert SECRET not in told.text


def test_offline_names_the_repo_and_the_file_that_is_missing(server: Hub, tmp_path: Path) -> None:
    absent = fetch(tmp_path, server.url, HF_HUB_OFFLINE="1")
    assert absent.answer["kind"] == "ConfigurationError"
    assert (
        f"model.weights={REPO}: offline mode is on, and the cache {tmp_path / 'hub'} does not hold it" in absent.error
    )
    found = fetch(tmp_path, server.url)
    (Path(str(found.answer["path"])) / "model.safetensors").unlink()
    partial = fetch(tmp_path, server.url, TRANSFORMERS_OFFLINE="1")
    assert "lacks model.safetensors" in partial.error
    assert not server.breaks


@pytest.mark.parametrize(
    ("repo", "revision", "told"),
    [
        ("someone/else", "", "model.weights=someone/else: the hub has no such repo, or your token does not show it"),
        (REPO, "v9", f"model.weights={REPO} (revision v9): the hub has no such revision of it"),
        ("a b", "", "is neither a folder nor a repo id"),
    ],
)
def test_what_is_not_there_is_named(server: Hub, tmp_path: Path, repo: str, revision: str, told: str) -> None:
    found = fetch(tmp_path, server.url, repo, revision)
    assert found.answer["kind"] == "ConfigurationError"
    assert told in found.error


def test_a_hub_that_cannot_be_reached_is_no_configuration_error(tmp_path: Path) -> None:
    told = fetch(tmp_path, "http://127.0.0.1:9")
    assert told.answer["kind"] == "RunnerError"
    assert "could not be downloaded: the hub cannot be reached" in told.error
    assert "what has arrived is kept" in told.error


def test_a_local_folder_is_taken_as_it_is_and_a_missing_one_named(tmp_path: Path) -> None:
    assert hub.folder(str(tmp_path), key="model.weights") == tmp_path
    gone = tmp_path / "gone"
    with pytest.raises(ConfigurationError, match=f"^model.weights: the folder {gone} is not there"):
        hub.folder(str(gone), key="model.weights")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="is a file, not a folder"):
        hub.folder(f"{tmp_path}/file", key="model.weights")


def test_a_folder_here_wins_over_a_repo_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "someone" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub.folder(REPO, key="model.weights") == tmp_path / "someone" / "model"
