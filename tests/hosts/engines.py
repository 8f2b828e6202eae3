"""This machine as a server with a Docker daemon of its own, and base images made on the spot."""

from __future__ import annotations

import io
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from cockpit.hosts.base import Completed
from cockpit.hosts.local import LocalHost
from tests.hosts.dockerd import PYTHON, Dockerd

SITE = f"/opt/python/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
TORCH = "2.10.0+base"
# What docker/requirements.txt asks for, as packages of a few bytes.
_ASKED = {
    "megatron-core": "0.16.1", "tokenizers": "0.23.0", "pydantic": "2.12.0", "hydra-core": "1.3.3",
    "omegaconf": "2.3.1", "pyyaml": "6.0.3", "setuptools": "80.0", "transformers": "5.23.0", "peft": "0.21.0",
    "safetensors": "0.8.0", "datasets": "5.2.0", "webdataset": "1.0.2", "megatron-energon": "7.4.1",
}  # fmt: skip


class Engine(LocalHost):
    """A host whose commands speak with `daemon`, and whose work folder is `work`."""

    def __init__(self, name: str, daemon: Dockerd, work: Path) -> None:
        super().__init__(name)
        self._env = ["env", *(f"{k}={v}" for k, v in daemon.env.items())]
        self._work = str(work)

    async def run(self, argv: Sequence[str], *, input: bytes | None = None, timeout: float = 30.0) -> Completed:  # noqa: A002
        return await super().run([*self._env, *argv], input=input, timeout=timeout)

    async def stream(
        self,
        argv: Sequence[str],
        *,
        output: Callable[[bytes], None],
        input: bytes | Path | None = None,  # noqa: A002
        timeout: float = 3600.0,
    ) -> Completed:
        return await super().stream([*self._env, *argv], output=output, input=input, timeout=timeout)

    async def workdir(self, explicit: str | None = None) -> str:
        return await super().workdir(explicit or self._work)


def wheel(name: str, version: str, *, needs: Sequence[str] = (), files: Mapping[str, str] | None = None) -> bytes:
    """A wheel of a package that holds `files`."""
    stem = f"{name.replace('-', '_')}-{version}"
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n" + "".join(
        f"Requires-Dist: {n}\n" for n in needs
    )
    members = {
        **(files or {f"{name.replace('-', '_')}_here.py": ""}),
        f"{stem}.dist-info/METADATA": about,
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{m},,\n" for m in [*members, f"{stem}.dist-info/RECORD"])
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as whole:
        for path, text in {**members, f"{stem}.dist-info/RECORD": record}.items():
            whole.writestr(path, text)
    return data.getvalue()


def shelf(**changed: bytes) -> dict[str, bytes]:
    """Wheels of all that the images ask for, by file name; `changed` (tokenizers=...) takes another's place."""
    found = {}
    for name, version in _ASKED.items():
        plain = wheel(name, version, needs=["torch"] if name in ("megatron-core", "peft", "megatron-energon") else ())
        found[f"{name.replace('-', '_')}-{version}-py3-none-any.whl"] = changed.get(name.replace("-", "_"), plain)
    return found


def base_image(daemon: Dockerd, tag: str, *, torch: bool, shelves: Mapping[str, Mapping[str, bytes]]) -> None:
    """An image with Python, pip, maybe a torch of a few bytes, and folders of wheels /opt/SHELF."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:

        def add(path: str, content: bytes) -> None:
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(content), 0o644
            tar.addfile(info, io.BytesIO(content))

        for file in metadata.files("pip") or ():
            if ".." not in file.parts and file.suffix != ".pyc":
                add(f"site/{file}", Path(str(file.locate())).read_bytes())
        if torch:
            own = {
                "torch/__init__.py": "from torch.version import __version__\n",
                "torch/version.py": f"__version__ = {TORCH!r}\n",
            }
            with zipfile.ZipFile(io.BytesIO(wheel("torch", TORCH, files=own))) as whole:
                for member in whole.namelist():
                    add(f"site/{member}", whole.read(member))
        for name, wheels in shelves.items():
            for file_name, content in wheels.items():
                add(f"shelves/{name}/{file_name}", content)
        words = [
            f"FROM {PYTHON}",
            f"COPY site/ {SITE}/",
            "COPY shelves/ /opt/",
            f"RUN python3 -m compileall -q {SITE}/pip",
        ]
        add("Dockerfile", "\n".join(words).encode())
    daemon.run("build", "--network", "host", "--tag", tag, "-", stdin=data.getvalue())


@contextmanager
def watching_argvs(token: str) -> Iterator[list[str]]:
    """Look at every process's command line all the time; those that held `token` stand in the list."""
    found: list[str] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = path.read_bytes()
                except OSError:
                    continue  # gone meanwhile
                if token.encode() in words:
                    found.append(words.replace(b"\0", b" ").decode(errors="replace"))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join(10)
