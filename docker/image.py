"""Adds packages to a base image and leaves its torch as it is. Runs inside `docker build`; standard library only.

    image.py fetch REQUIREMENTS [--torch FILE] --into FOLDER     wheels of what the base lacks
    image.py install FOLDER --notes FILE                         installs them; FILE says what was there before
    image.py check FILE                                          fails where torch is not the base's any more

Nothing of the index it took from is kept: `install` reads the wheels alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

# What a base image brings in builds of its own: another build of one of these breaks the others.
KEPT = (
    "torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm",
    "transformer-engine", "transformer-engine-torch", "apex", "flash-attn", "flash_attn", "amdsmi",
)  # fmt: skip


class Refused(Exception):
    """One sentence for whoever reads the build's output."""


def main(argv):
    """One command; a foreseen failure is one sentence and exit 1."""
    parser = argparse.ArgumentParser(prog="image.py")
    sub = parser.add_subparsers(dest="command", required=True)
    p = sub.add_parser("fetch")
    p.add_argument("requirements")
    p.add_argument("--torch")
    p.add_argument("--into", required=True)
    p = sub.add_parser("install")
    p.add_argument("folder")
    p.add_argument("--notes", required=True)
    p = sub.add_parser("check")
    p.add_argument("notes")
    args = parser.parse_args(argv)
    try:
        if args.command == "fetch":
            fetch(args.requirements, args.torch, Path(args.into))
        elif args.command == "install":
            install(Path(args.folder), Path(args.notes))
        else:
            check(Path(args.notes))
    except Refused as refused:
        sys.stdout.flush()
        sys.stderr.write(f"ekvi-cockpit: {refused}\n")
        return 1
    return 0


def kept():
    """The versions of those of KEPT that are here."""
    found = {}
    for name in KEPT:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def torch_here():
    """What tells one torch from another: version, place, and a digest of its files' names, sizes and version.

    None where there is no torch. Nothing is imported: a build has no GPU, and some bases then fail.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix != ".pyc" and p.is_file()):
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
    for name in ("__init__.py", "version.py"):
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return {"version": kept().get("torch"), "file": spec.origin, "digest": digest.hexdigest()}


def fetch(requirements, torch, into):
    """Put wheels of what `requirements` ask for and the base lacks into `into`."""
    into.mkdir(parents=True, exist_ok=True)
    pins = kept()
    here = torch_here()
    if here is not None and here["version"] is None:
        raise Refused(
            f"pip does not know the base image's torch ({here['file']}), so it would be replaced. Take a base image "
            "whose torch is an installed package."
        )
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "kept.txt"
        _write_pins(pinned, pins)
        if here is None:
            if torch is None:
                raise Refused("the base image has no torch. Take a base_image that has one.")
            index = os.environ.get("TORCH_INDEX_URL")
            pins.update(_wheels([*(["--index-url", index] if index else []), "-r", torch], into, pinned, {}))
            _write_pins(pinned, pins)  # or the second look would find a newer torch elsewhere
        _wheels(["-r", requirements], into, pinned, pins)
    names = [w.name for w in sorted(into.glob("*.whl"))]
    print("to add: " + (", ".join(names) or "nothing"), flush=True)  # noqa: T201


def _write_pins(path, pins):
    path.write_text("".join(f"{name}=={version}\n" for name, version in pins.items()))


def _wheels(wanted, into, pinned, have):
    """Fetch wheels of what `wanted` would install, save what is in `have`; the versions of those by name."""
    report = into / "report.json"
    # What an earlier step fetched can be had from there: torch is not looked for twice.
    options = ["--find-links", str(into), "--no-cache-dir"]
    words = ["install", "--dry-run", "--quiet", "--report", str(report), "-c", str(pinned), *options, *wanted]
    if _pip(words) != 0:
        raise Refused(
            "the packages cannot be had beside the base image's torch (pip says why above). Another base_image, or "
            "an index that has them (build_args: PIP_INDEX_URL), may help."
        )
    items = [item["metadata"] for item in json.loads(report.read_text())["install"]]
    report.unlink()
    found = {item["name"]: item["version"] for item in items if item["name"] not in have}
    names = [f"{name}=={version}" for name, version in found.items()]
    source = wanted[: wanted.index("-r")]
    if names and _pip(["wheel", "--quiet", "--no-deps", "--wheel-dir", str(into), *options, *source, *names]) != 0:
        raise Refused("the packages could not be fetched or built (pip says why above).")
    return found


def install(folder, notes):
    """Install the wheels of `folder`, and write down what torch was before."""
    before = torch_here()
    wheels = sorted(folder.glob("*.whl"))
    if before is not None and any(w.name.lower().startswith("torch-") for w in wheels):
        raise Refused("the packages bring another torch than the base image's: that would replace it.")
    names = [str(w) for w in wheels]
    if names and _pip(["install", "--no-index", "--no-deps", "--no-cache-dir", *names]) != 0:
        raise Refused("the packages could not be installed (pip says why above).")
    document = {"torch": before, "kept": kept(), "added": [w.name for w in wheels]}
    notes.write_text(json.dumps(document, indent=1) + "\n")


def check(notes):
    """Refuse an image whose torch is another than its base's, or that has none."""
    before = json.loads(notes.read_text())["torch"]
    after = torch_here()
    if after is None:
        raise Refused("the image has no torch.")
    if before is not None and before != after:
        changed = ", ".join(f"{k} was {before[k]} and is {after[k]}" for k in after if before[k] != after[k])
        raise Refused(f"the base image's torch was replaced: {changed}. The image is not made.")
    whose = "the base image's" if before else "new"
    print(f"torch {after['version']} ({after['file']}) is {whose}", flush=True)  # noqa: T201


def _pip(words):
    """Run pip; its exit status. A base whose Python belongs to its distribution is a base all the same."""
    env = {**os.environ, "PIP_BREAK_SYSTEM_PACKAGES": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    env.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    # An ARG that nobody gave is an empty variable in some builders, and an empty index is no index.
    env = {k: v for k, v in env.items() if v or not k.startswith("PIP_")}
    return subprocess.run([sys.executable, "-m", "pip", *words], env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
