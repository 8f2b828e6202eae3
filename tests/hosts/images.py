"""Images made on the spot from what this machine has: no registry, no download."""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.hosts.namespace import ROOT, locked

_CACHE = ROOT / "cache"
_HOME = "/opt/python"  # where Python stands in the images
_PATH = f"PATH={_HOME}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
# What a training imports, beside what these ask for themselves; pip is there because Dockerfiles use it.
_TRAINING = (
    "torch",
    "megatron-core",
    "tokenizers",
    "setuptools",
    "pip",
    "pydantic",
    "hydra-core",
    "omegaconf",
    "pyyaml",
)
# What docker/requirements.txt asks for besides, and no training of these tests imports: only said to be there.
_SAID = ("transformers", "peft", "safetensors", "datasets", "webdataset", "megatron-energon")
_NOT_STDLIB = r"(.*/)?(site-packages|test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|config-[^/]*)"
_NOT_SITE = r".*/tests|torch/(include|test|share|bin/(?!torch_shm_manager).*)|.*\.(a|h|hpp|cuh|pyi)"


@dataclass(frozen=True, slots=True)
class Image:
    """An image to come: its root file system as a tar, what to call it, and what to say of it (Dockerfile words)."""

    tag: str
    tar: Callable[[], Path]
    changes: tuple[str, ...]


def busybox(tag: str) -> Image:
    """2 MB: busybox with all its applets."""
    return Image(tag, lambda: _cached("busybox", _busybox, _stamp("/bin/busybox")), ('CMD ["sh"]',))


def python(tag: str) -> Image:
    """About 70 MB: this Python's standard library over busybox."""
    changes = (f"ENV {_PATH}", 'CMD ["sh"]')
    return Image(tag, lambda: _cached("python", _python, sys.version), changes)


def training(tag: str) -> Image:
    """About 900 MB: that, and the training stack out of this environment."""
    changes = (f"ENV {_PATH}", 'CMD ["sh"]')
    versions = [f"{name} {importlib.metadata.version(name)}" for name in (*_closure(_TRAINING), *_SAID)]
    return Image(tag, lambda: _cached("training", _training, sys.version, *versions), changes)


def _stamp(path: str) -> str:
    status = Path(_which(path)).stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def _which(path: str) -> str:
    """busybox stands in /bin or in /usr/bin."""
    found = path if Path(path).exists() else shutil.which(Path(path).name)
    assert found, f"{path} is not here: tests/hosts/setup.sh installs it"
    return found


def _cached(name: str, make: Callable[[Rootfs], None], *made_of: str) -> Path:
    """The tar of that name, made once for the same ingredients, also where two sessions ask at once."""
    key = hashlib.sha256("\n".join([Path(__file__).read_text(), *made_of]).encode()).hexdigest()[:12]
    target = _CACHE / f"{name}-{key}.tar"
    with locked(_CACHE / f"{name}.lock"):
        if not target.exists():
            for old in _CACHE.glob(f"{name}-*.tar*"):
                old.unlink()
            part = target.with_suffix(".tar.part")
            with tarfile.open(part, "w", bufsize=1 << 20) as tar:
                make(Rootfs(tar))
            part.rename(target)
    return target


class Rootfs:
    """A root file system that is written entry by entry; everything in it belongs to root."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._there: set[str] = set()

    def folder(self, path: str, mode: int = 0o755) -> None:
        """A folder and those above it."""
        path = path.strip("/")
        if not path or path in self._there:
            return
        self.folder(str(Path(path).parent).removeprefix("."))
        info = tarfile.TarInfo(path)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self._add(info)

    def link(self, path: str, to: str) -> None:
        """A symbolic link."""
        self.folder(str(Path(path).parent))
        info = tarfile.TarInfo(path.strip("/"))
        info.type, info.linkname = tarfile.SYMTYPE, to
        self._add(info)

    def text(self, path: str, text: str) -> None:
        """A small file."""
        self.folder(str(Path(path).parent))
        info = tarfile.TarInfo(path.strip("/"))
        info.size, info.mode = len(text.encode()), 0o644
        self._add(info, io.BytesIO(text.encode()))

    def file(self, source: Path, path: str) -> None:
        """A file of this machine with its mode and time (compiled Python is valid for the source's time only)."""
        self.folder(str(Path(path).parent))
        status = source.stat()
        info = tarfile.TarInfo(path.strip("/"))
        info.size, info.mode, info.mtime = status.st_size, status.st_mode & 0o777 | 0o444, status.st_mtime
        if info.name not in self._there:
            with source.open("rb") as data:
                self._add(info, data)

    def tree(self, base: Path, top: str, path: str, leave_out: str) -> list[Path]:
        """Files of `base`/`top` but those whose path below `base`, or a folder's on the way, matches. Those taken."""
        skip = re.compile(leave_out)
        taken = []
        for folder, folders, files in os.walk(base / top):
            below = Path(folder).relative_to(base)
            folders[:] = sorted(f for f in folders if not skip.fullmatch(str(below / f)))
            for name in sorted(files):
                file = Path(folder, name)
                if file.exists() and not skip.fullmatch(str(below / name)):
                    self.file(file, f"{path}/{below / name}")
                    taken.append(file)
        return taken

    def libraries(self, programs: Iterable[Path], besides: Path | None = None) -> None:
        """The shared libraries that these need, the loader among them, but those below `besides`."""
        needed: set[str] = set()
        for program in programs:
            said = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
            needed.update(re.findall(r"(/\S+) \(0x", said))
        home = next(str(Path(lib).parent) for lib in needed if Path(lib).name.startswith("libc."))
        for lib in sorted(needed):
            if besides is not None and Path(lib).is_relative_to(besides):
                continue
            system = lib.startswith(("/lib", "/usr/lib"))
            self.file(Path(lib), lib if system else f"{home}/{Path(lib).name}")

    def _add(self, info: tarfile.TarInfo, data: io.BufferedIOBase | None = None) -> None:
        if info.name not in self._there:
            self._there.add(info.name)
            self._tar.addfile(info, data)


def _busybox(root: Rootfs) -> None:
    program = _which("/bin/busybox")
    for path, mode in (("tmp", 0o1777), ("var/tmp", 0o1777), ("root", 0o700)):
        root.folder(path, mode)
    for path in ("etc", "proc", "sys", "dev", "run", "home", "usr/bin", "usr/sbin", "sbin"):
        root.folder(path)
    root.file(Path(program), "bin/busybox")
    for applet in subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet != "busybox":
            root.link(f"bin/{applet}", "busybox")
    root.link("usr/bin/env", "../../bin/busybox")
    root.text("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    root.text("etc/group", "root:x:0:\nvideo:x:44:\nrender:x:105:\nnogroup:x:65534:\n")
    root.text("etc/nsswitch.conf", "hosts: files dns\n")


def _python(root: Rootfs) -> None:
    _busybox(root)
    base = Path(sys.base_prefix)
    program = base / "bin" / _VERSION
    root.file(program, f"{_HOME}/bin/{_VERSION}")
    for name in ("python3", "python"):
        root.link(f"{_HOME}/bin/{name}", _VERSION)
        root.link(f"usr/bin/{name}", f"{_HOME}/bin/{_VERSION}")
    files = root.tree(Path(sysconfig.get_path("stdlib")), "", f"{_HOME}/lib/{_VERSION}", _NOT_STDLIB)
    root.folder(f"{_HOME}/lib/{_VERSION}/site-packages")
    root.libraries([program, *(f for f in files if f.suffix == ".so")])


def _training(root: Rootfs) -> None:
    _python(root)
    site = Path(sysconfig.get_path("purelib"))
    tops = {f.parts[0] for name in _closure(_TRAINING) for f in importlib.metadata.files(name) or ()}
    shared = []
    for top in sorted(tops - {"..", "__pycache__"}):
        path = f"{_HOME}/lib/{_VERSION}/site-packages"
        if (site / top).is_dir():
            shared += root.tree(site, top, path, _NOT_SITE)
        elif (site / top).exists():
            root.file(site / top, f"{path}/{top}")
    for name in _SAID:
        stem = f"{name.replace('-', '_')}-{(version := importlib.metadata.version(name))}.dist-info"
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        root.text(f"{_HOME}/lib/{_VERSION}/site-packages/{stem}/METADATA", text)
    root.libraries((f for f in shared if ".so" in f.name), besides=site)


def _closure(names: Iterable[str]) -> list[str]:
    """These distributions and all that they need here, sorted; what is not installed is not needed."""
    from packaging.requirements import Requirement

    found: set[str] = set()
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        wanted = (Requirement(text) for text in requires)
        todo += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return sorted(found)
