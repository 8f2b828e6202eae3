"""Data that one machine prepared, copied to the others of a group bit by bit, where a hub is out of their reach."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cockpit.core.errors import CockpitError, ConfigError, LaunchRefused, ServerError, did_you_mean
from cockpit.core.records import Access, DataCopy, GroupPlan, QueuePlan, RunPlan, ServerSpec
from cockpit.core.within import within
from cockpit.engine.admit import Checked, Connect, accesses, close
from cockpit.hosts import layout

if TYPE_CHECKING:
    from cockpit.hosts.base import Host

ENTRY = "EKVI_DATA_ENTRY"
_KEY = re.compile(rb"[0-9a-f]{16}")
_MANIFEST = "manifest.json"
_MANIFEST_BY = 16 * 1024 * 1024  # it is read whole
_NAME = re.compile(r"[\w-][\w.-]*|\.nv-meta")  # a file or folder of an entry; the one hidden folder is Energon's
_STEP_S = 60.0
_COPY_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry that was fetched: where it is here, and the SHA-256 of its files, the manifest's last."""

    key: str
    folder: Path
    files: Mapping[str, str]


async def share_data(checked: Checked, connect: Connect) -> Checked:
    """`checked` with every run told to take the entry of `data_from`, which is then on all of its servers.

    A server that does not take it is refused. Raises ConfigError for a source that is none, LaunchRefused where it
    has not prepared the data, ServerError where it does not answer.
    """
    group = checked.group
    if group.data_from is None or not any(takes_data(run) for run in group.runs):
        return checked
    if all(_is_source(group, group.servers[run.server]) for run in group.runs):
        return checked  # who has to prepare it cannot wait for it
    _source(group)
    with tempfile.TemporaryDirectory(prefix="ekvi-data-", ignore_cleanup_errors=True) as folder:
        entries = await _fetch(checked, connect, Path(folder))
        refused = dict(checked.refused)
        names = [n for n in dict.fromkeys(r.server for r in group.runs) if n not in refused and n != group.data_from]
        for name, error in zip(
            names, await asyncio.gather(*(_bring(checked, n, entries, connect) for n in names)), strict=True
        ):
            if error is not None:
                refused[name] = error
    queues = tuple(_told(queue, {request: e.key for request, e in entries.items()}) for queue in group.queues)
    return dataclasses.replace(checked, group=dataclasses.replace(group, queues=queues), refused=refused)


def _is_source(group: GroupPlan, server: ServerSpec) -> bool:
    if group.data_from == "local":
        return server.address == "local" and server.workdir is None
    return server.name == group.data_from


def takes_data(run: RunPlan) -> bool:
    """Whether a run trains on prepared data, and so on what `data_from` names."""
    if run.config["runner"]["name"] != "megatron" or run.config["data"]["source"] == "mock":
        return False
    return any(s.stage in ("data", "train") for s in run.stages)


def _request(run: RunPlan) -> str:
    from runners.schema import Data

    return Data.model_validate(run.config["data"]).request


def _told(queue: QueuePlan, keys: Mapping[str, str]) -> QueuePlan:
    """A queue whose stages know their entry."""

    def run_of(run: RunPlan) -> RunPlan:
        if not takes_data(run):
            return run
        stages = tuple(
            dataclasses.replace(s, env={**s.env, ENTRY: keys[_request(run)]}) if s.stage in ("data", "train") else s
            for s in run.stages
        )
        return dataclasses.replace(run, stages=stages)

    return dataclasses.replace(queue, runs=tuple(run_of(run) for run in queue.runs))


async def prepared(group: GroupPlan, connect: Connect) -> tuple[GroupPlan, DataCopy] | None:
    """What a dry run says of `data_from`: the group whose runs know their entries, and where these are.

    Nothing is copied; None where nothing would be. Raises what `share_data` raises.
    """
    if group.data_from is None or all(
        _is_source(group, group.servers[r.server]) for r in group.runs if takes_data(r)
    ):
        return None
    source = _source(group)
    access = Access() if source is None else source.access
    host = connect(access)
    try:
        workdir = await within(_STEP_S, host.workdir(None if source is None else source.workdir))
        requests = dict.fromkeys(_request(run) for run in group.runs if takes_data(run))
        keys = {r: await _key(host, workdir, r, group) for r in requests}
        listed = {key: await _listed(host, workdir, key) for key in dict.fromkeys(keys.values())}
    finally:
        await close([host])
    takers = (group.servers[r.server] for r in group.runs if takes_data(r))
    names = tuple(dict.fromkeys(server.name for server in takers if not _is_source(group, server)))
    files = tuple(f"{key}/{name}" for key, sums in listed.items() for name in (*sums, _MANIFEST))
    copy = DataCopy(access, layout.data_folder(workdir), files, names)
    return dataclasses.replace(group, queues=tuple(_told(q, keys) for q in group.queues)), copy


def _source(group: GroupPlan) -> ServerSpec | None:
    """The server that has the data, None where that is this machine. Raises ConfigError where there is none."""
    if group.data_from == "local":
        return None
    if group.data_from not in group.servers:
        raise ConfigError(
            f"data_from: there is no server {group.data_from!r} in this group.",
            hint=did_you_mean(str(group.data_from), ["local", *group.servers]),
        )
    return group.servers[str(group.data_from)]


async def _key(host: Host, workdir: str, request: str, group: GroupPlan) -> str:
    """The entry that a request led to on the source."""
    key = await within(_STEP_S, host.read(f"{layout.data_folder(workdir)}/{request}.entry", 0, 17))
    if not _KEY.fullmatch(key):
        source = group.data_from
        raise LaunchRefused(
            f"data_from: {source} has not prepared the data of this profile.",
            hint=f"First `ekvi-cockpit run --profile {group.profile} --stage data --servers {source}`.",
        )
    return key.decode()


async def _fetch(checked: Checked, connect: Connect, folder: Path) -> dict[str, _Entry]:
    """The entries that the group's runs ask for, by request, each whole and as its manifest says."""
    group = checked.group
    source = _source(group)
    host = connect(Access() if source is None else source.access)
    try:
        workdir = await within(_STEP_S, host.workdir(None if source is None else source.workdir))
        requests = dict.fromkeys(_request(run) for run in group.runs if takes_data(run))
        most = group.limits.fetch_by
        return {r: await _fetch_one(host, workdir, r, folder / r, group, most) for r in requests}
    except TimeoutError:
        raise ServerError(f"{host.name} did not answer in time for its prepared data.") from None
    finally:
        await close([host])


async def _fetch_one(host: Host, workdir: str, request: str, folder: Path, group: GroupPlan, most: int) -> _Entry:
    key = await _key(host, workdir, request, group)
    entry = f"{layout.data_folder(workdir)}/{key}"
    manifest = await within(_COPY_S, host.get(f"{entry}/{_MANIFEST}", folder / _MANIFEST, max_by=_MANIFEST_BY))
    sums = _sums((folder / _MANIFEST).read_bytes(), entry, host)
    files = {}
    for name in sums:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        files[name] = await within(_COPY_S, host.get(f"{entry}/{name}", folder / name, max_by=most))
    wrong = [name for name, said in sums.items() if files[name] != said]
    if wrong:
        raise _damaged(entry, host, f"{', '.join(wrong)} is not what its manifest says")
    return _Entry(key, folder, {**files, _MANIFEST: manifest})


async def _listed(host: Host, workdir: str, key: str) -> Mapping[str, str]:
    """The files of an entry on the source and their SHA-256, read from its manifest alone."""
    entry = f"{layout.data_folder(workdir)}/{key}"
    return _sums(await within(_STEP_S, host.read(f"{entry}/{_MANIFEST}", 0, _MANIFEST_BY)), entry, host)


def _sums(raw: bytes, entry: str, host: Host) -> Mapping[str, str]:
    """The files that a manifest names, with their SHA-256. A name that leads out of the entry is refused."""
    try:
        files = {str(name): str(said["sha256"]) for name, said in json.loads(raw)["files"].items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise _damaged(entry, host, "its manifest names no files") from None
    for name in files:
        if name == _MANIFEST or not all(_NAME.fullmatch(part) for part in name.split("/")):
            raise _damaged(entry, host, f"its manifest names {name!r}")
    return files


def _damaged(entry: str, host: Host, what: str) -> LaunchRefused:
    return LaunchRefused(
        f"data_from: {entry} on {host.name} is damaged: {what}.",
        hint="Remove that folder there, and run the stage data again.",
    )


async def _bring(checked: Checked, name: str, entries: Mapping[str, _Entry], connect: Connect) -> CockpitError | None:
    """Put the entries on a server's nodes; why it did not take them, or None."""
    server = checked.group.servers[name]
    hosts = [connect(access) for access in accesses(server)]
    try:
        for host in hosts:
            workdir = await within(_STEP_S, host.workdir(server.workdir))
            for entry in entries.values():
                await within(_COPY_S, _put(host, f"{layout.data_folder(workdir)}/{entry.key}", entry))
    except CockpitError as error:
        return error
    except TimeoutError:
        return ServerError(f"server {name} did not take the prepared data in time.")
    finally:
        await close(hosts)
    return None


async def _put(host: Host, path: str, entry: _Entry) -> None:
    """One entry, its manifest last: it is complete or absent."""
    names: Sequence[str] = list(entry.files)
    manifest = (entry.folder / _MANIFEST).read_bytes()
    there = {e.path: e.size for e in await host.listdir(path)}
    whole = all(there.get(n) == (entry.folder / n).stat().st_size for n in names)
    if whole and await host.read(f"{path}/{_MANIFEST}", 0, len(manifest) + 1) == manifest:
        return
    for name in names:
        if await host.put_file(entry.folder / name, f"{path}/{name}") != entry.files[name]:
            raise ServerError(f"{path}/{name} on {host.name} is not what was sent.", hint="Launch it again.")
