"""Makes the demo that ships with the product from a real duel: `python -m tests.demo GROUP [--runs-dir DIR]`.

What names the machine it ran on is replaced; in stdout.log by words of the same length, because events carry byte
offsets into it.
"""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from cockpit.store.store import Store, runs_root

TARGET = Path(__file__).resolve().parents[1] / "cockpit" / "demo" / "duel.zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)
_PLACE = {"hostname": "workstation", "host_id": "demo-host", "python": "python3", "kernel": "6.x"}
_KERNEL = re.compile(rb"\d+\.\d+\.\d+-[\w.]+?-v\d+")


def scrubbed(data: bytes) -> bytes:
    """Bytes of a log or journal without the kernel's own name, at the same length."""
    return _KERNEL.sub(lambda m: (m[0].split(b"-")[0] + b"-generic").ljust(len(m[0]), b"0")[: len(m[0])], data)


def anonymous(value: Any, key: str = "") -> Any:
    """A JSON document with the facts that name a machine replaced."""
    if isinstance(value, dict):
        return {k: anonymous(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [anonymous(v, key) for v in value]
    if isinstance(value, str):
        if key in _PLACE:
            return _PLACE[key]
        if key in ("workdir", "path") and value.startswith("/"):
            return "~/.local/state/ekvi-cockpit/server"
        if key == "platform":
            return "Linux-x86_64"
    return value


def members(store: Store, group: str) -> dict[str, bytes]:
    """The files of the demo by their names in the archive."""
    root = store.root
    found = {f"groups/{group}.json": _document(root / "groups" / f"{group}.json")}
    for run in store.group(group).runs:
        folder = root / run
        for name in ("run.json", "summary.json"):
            found[f"{run}/{name}"] = _document(folder / name)
        for name in ("stdout.log", "events.jsonl"):
            found[f"{run}/{name}"] = scrubbed((folder / name).read_bytes())
        ticks = (folder / "telemetry.jsonl").read_bytes()
        found[f"{run}/telemetry.jsonl"] = scrubbed(re.sub(rb'"hostname":"[^"]*"', b'"hostname":"workstation"', ticks))
    return found


def _document(path: Path) -> bytes:
    return scrubbed((json.dumps(anonymous(json.loads(path.read_text())), indent=1) + "\n").encode())


def names_a_machine(data: bytes) -> list[bytes]:
    """What in `data` still tells of the machine: absolute paths and kernels by name."""
    return sorted(
        {m[0] for m in re.finditer(rb"/(?:tmp|root|home|work|Users|opt|mnt)/[\w./-]*", data)}
        | set(_KERNEL.findall(data))
    )


def main() -> None:
    """Write the archive, reproducibly; refuses what names the machine."""
    parser = argparse.ArgumentParser(prog="python -m tests.demo", description=__doc__)
    parser.add_argument("group")
    parser.add_argument("--runs-dir")
    args = parser.parse_args()
    store = Store(runs_root(args.runs_dir))
    _, group = store.resolve(args.group, want="group")
    for name, data in members(store, group).items():
        if told := names_a_machine(data):
            raise SystemExit(f"{name} still names the machine: {told[:3]}")
    TARGET.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(TARGET, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(members(store, group).items()):
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED, 9)
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
