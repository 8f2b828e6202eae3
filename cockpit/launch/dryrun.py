"""The dry run: a shell script that does by hand all that a launch does, on every server of a group."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cockpit.core.imagename import image_tag
from cockpit.core.records import Access, DataCopy, GroupPlan, QueuePlan
from cockpit.hosts import layout, shell
from cockpit.launch.common import interpreter

TOKEN = "EKVI_PEERS_TOKEN"  # noqa: S105  stands for the nodes' shared word, which the script makes anew
_WORK, _Q = '"$WORK"', '"$Q"'
_FAR_END = "EKVI_FAR"


def queue(
    group: GroupPlan,
    plan: QueuePlan,
    documents: Sequence[Mapping[str, Any]],
    *,
    agent: str,
    files: Mapping[str, str],
    data: DataCopy | None = None,
) -> Iterator[str]:
    """The script's part for one queue; `documents` are its queue.json, one a node."""
    accesses = plan.nodes or (plan.access,)
    if len(documents) > 1:
        yield "# what the nodes know each other by"
        yield 'EKVI_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d " \\n")'
    for node, (access, document) in enumerate(zip(accesses, documents, strict=True)):
        of = f", node {node + 1} of {len(documents)}" if len(documents) > 1 else ""
        title = f"group {group.group}, queue {plan.key} on {access.address}{of}"
        count = f"{len(plan.runs)} runs, one after the other" if len(plan.runs) > 1 else "1 run"
        yield from shell.comment_line(f"{title}: {count}")
        yield "("
        yield "set -eu; umask 077"
        yield from _Part(group, plan, document, access, agent, files, data).lines()
        yield ")"


class _Part:
    """What is done for one queue on one machine."""

    def __init__(
        self,
        group: GroupPlan,
        plan: QueuePlan,
        document: Mapping[str, Any],
        access: Access,
        agent: str,
        files: Mapping[str, str],
        data: DataCopy | None = None,
    ) -> None:
        self.group = group
        self.plan = plan
        self.document = document
        self.access = access
        self.agent = agent
        self.data = data if data and any(run.server in data.servers for run in plan.runs) else None
        self.far = access.address != "local"
        self.servers = [group.servers[name] for name in dict.fromkeys(run.server for run in plan.runs)]
        self.secrets = list(dict.fromkeys(name for server in self.servers for name in server.secrets))
        self.files = {local: files[local] for server in self.servers for local in server.files}

    @property
    def python(self) -> str:
        """The Python that serves the queue, as a shell word."""
        return _at_home(interpreter(self.servers[0]))

    def lines(self) -> Iterator[str]:
        """All of it, in the order of a launch."""
        work = _workdir(self.plan, far=self.far)
        q = layout.queue_folder(_WORK, shell.quote(self.group.group), shell.quote(self.plan.key))
        names = [f"WORK={work}", f"Q={q}"]
        folders = [f"{_WORK}/bin", f"{_WORK}/code", *([f"{_WORK}/files"] if self.files else []), f"{_Q}/control"]
        make = " ".join(["mkdir -p", *folders, *([f"{_Q}/secrets"] if self.secrets else [])])
        if self.far:
            yield f'far() {{ {" ".join(map(shell.quote, ssh(self.access)))} "$1"; }}'
            # ssh would read the rest of a script that is pasted, or comes by a pipe
            yield f"far {_command('umask 077', *names, make)} < /dev/null"
        else:
            yield from [*names, make]
        yield from self._uploads(names)
        yield from self._data(names)
        if not self.far:
            yield from self._there()
            return
        inner = "\n".join(["set -eu; umask 077", *names, *self._there()])
        end = shell.end_of(inner, _FAR_END)
        told = 'printf "EKVI_TOKEN=%s\\n" "$EKVI_TOKEN"; ' if self.document["peers"] else ""
        yield f"{{ {told}cat <<'{end}'"
        yield from inner.split("\n")
        yield end
        yield f"}} | far {shell.quote('sh -s')}"

    # -- what is copied there

    def _uploads(self, names: Sequence[str]) -> Iterator[str]:
        here = f"{shell.quote(sys.executable)} -m cockpit.telemetry"
        pack = f"{shell.quote(sys.executable)} -m cockpit.engine.deliver"
        yield "# the agent and the runners' source"
        yield self._put(f"{here} agent", layout.agent_file(_WORK, self.agent), names)
        if self.document["code"] is not None:
            yield self._put(f"{here} code", layout.code_file(_WORK, self.document["code"]), names)
        for local, archived in self.files.items():
            target = f"{_WORK}/files/{archived.split('/', 1)[0]}.zip"
            yield self._put(f"{pack} {shell.quote(local)}", target, names)
        if self.secrets:
            yield "# secrets, from the variables of this shell to a file there, and in no argument"
        for name in self.secrets:
            value = f'printf %s "${{{name}:?is a secret of this server: set it}}"'
            yield self._put(value, f"{_Q}/secrets/{name}", names)

    def _data(self, names: Sequence[str]) -> Iterator[str]:
        """Prepared data from the machine that has it; a manifest last, since an entry without one is none."""
        if self.data is None:
            return
        there, files = shell.quote(self.data.folder), " ".join(map(shell.quote, self.data.files))
        yield "# prepared data, copied from where it is and compared"
        for give, take in (
            (f"tar -cf - {files}", "tar -xf -"),
            (f"sha256sum {files}", "sha256sum -c --quiet -"),
        ):
            given = [f"cd {there}", give]
            source = " && ".join(given)
            if self.data.source.address != "local":
                source = f"{' '.join(map(shell.quote, ssh(self.data.source)))} {_command(*given)} < /dev/null"
            else:
                source = f"( {source} )"
            target = layout.data_folder(_WORK)
            taken = ["umask 077", f"mkdir -p {target}", f"cd {target}", take]
            if self.far:
                yield f"{source} | far {_command(*names, *taken)}"
            else:
                yield f"{source} | ( {' && '.join(taken)} )"

    def _put(self, source: str, path: str, names: Sequence[str]) -> str:
        """What `source` prints becomes the file `path`, a shell word."""
        if not self.far:
            return f"{source} > {path}"
        return f"{source} | far {_command('umask 077', *names, f'cat > {path}')}"

    # -- what is done there

    def _there(self) -> Iterator[str]:
        yield "# each run's resolved configuration, then the queue"
        for run in self.plan.runs:
            yield f"mkdir -p {_Q}/runs/{shell.quote(run.run)}"
            yield from shell.write(layout.config_file(_Q, shell.quote(run.run)), layout.document(run.config))
        launch = {"agent": self.agent[:16], "python": interpreter(self.servers[0])}
        yield from shell.write(layout.launch_file(_Q), layout.document(launch))
        yield from self._images()
        yield from self._queue_file()
        pyz = layout.agent_file(_WORK, self.agent)
        yield "# the agent works the queue, detached"
        yield f"{self.python} {pyz} start {_Q}"
        yield "# what it then does, run by run:"
        for sha in (*([self.document["code"]] if self.document["code"] else ()), *self.document["files"]):
            folder = f"{_WORK}/{'code' if sha == self.document['code'] else 'files'}/{sha}"
            yield from shell.comment(f"[ -d {folder} ] || {self.python} -m zipfile -e {folder}.zip {folder}")
        for entry in self.document["runs"]:
            yield from _run(entry, self.document["code"])
        yield f"# how far it is:   {self.python} {pyz} status {_Q}"
        yield f"# to stop it all:  touch {layout.stop_file(_Q, None)}"

    def _queue_file(self) -> Iterator[str]:
        """The queue; the nodes' shared word is put in by the shell, so that it stands in no argument."""
        text = layout.document(self.document)
        path = layout.queue_file(_Q)
        before, mark, after = text.partition(f'"{TOKEN}"')
        if not mark or not self.document["peers"]:
            yield from shell.write(path, text)
            return
        yield "{"
        yield from shell.show(before + "\n")
        yield 'printf \'"%s"\\n\' "$EKVI_TOKEN"'
        yield from shell.show(after)
        yield f"}} > {path}"

    def _images(self) -> Iterator[str]:
        """The images that the runs need, brought as the profile says."""
        seen: set[str] = set()
        for run, entry in zip(self.plan.runs, self.document["runs"], strict=True):
            box = entry["stages"][0]["container"]
            if box is None:
                continue
            name = image_tag(run.launch, self.group.servers[run.server].vendor)
            if name not in seen:
                seen.add(name)
                yield from _image(shell.quote(box["engine"]), shell.quote(name), run.launch)


def _image(engine: str, name: str, launch: Mapping[str, Any]) -> Iterator[str]:
    inspect = f"{engine} image inspect {name} > /dev/null"
    if launch.get("send_from"):
        yield from shell.comment_line(
            f"the image has to be there: on {launch['send_from']}, {engine} save {name}, and here {engine} load"
        )
        yield inspect
    elif not launch.get("image"):
        yield "# the image is made on the server by `ekvi-cockpit build`"
        yield inspect
    elif launch.get("pull", "missing") == "always":
        yield f"{engine} pull {name}"
    elif launch.get("pull", "missing") == "missing":
        yield f"{inspect} 2>&1 || {engine} pull {name}"
    else:
        yield inspect


def ssh(access: Access) -> list[str]:
    """The system's ssh to a machine, up to the far command; that one is read by the shell there."""
    words = ["ssh"]
    if access.config is not None:
        words += ["-F", _expanded(access.config)]
    if access.port is not None:
        words += ["-p", str(access.port)]
    if access.identity is not None:
        words += ["-i", _expanded(access.identity)]
    return [*words, "-o", f"ConnectTimeout={max(1, round(access.connect_timeout_s))}", "--", access.address]


def _expanded(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111  a Path would change the words


def _command(*lines: str) -> str:
    """One shell word that the login shell of the far side, whichever it is, hands to sh."""
    return shell.quote(f"sh -c {shell.quote(' && '.join(lines))}")


def _at_home(path: str) -> str:
    """A path there as a shell word; ~ is the user's home."""
    return f'"$HOME"{shell.quote(path[1:])}' if path.startswith("~/") else shell.quote(path)


def _workdir(plan: QueuePlan, *, far: bool) -> str:
    """The agent's folder as a shell word: what the plan says, else what `Host.workdir` would find there."""
    if plan.workdir is not None:
        return _at_home(plan.workdir) if far else shell.quote(_expanded(plan.workdir))
    if far:
        return '"${XDG_STATE_HOME:-$HOME/.local/state}/ekvi-cockpit/$(uname -n)"'
    return '"${EKVI_WORKDIR:-${XDG_STATE_HOME:-$HOME/.local/state}/ekvi-cockpit/server}"'


def _run(entry: Mapping[str, Any], code: str | None) -> Iterator[str]:
    """The commands of one run, as comments: the agent does them, and a reader may."""
    run = shell.quote(entry["run"])
    places = 'WORK_DIR="$WORK" CACHE_DIR="$WORK"/cache FILES_DIR="$WORK"/files SECRETS_DIR="$Q"/secrets'
    places += f' RUN_DIR="$Q"/runs/{run} OUT_DIR="$Q"/runs/{run}/out'
    yield from shell.comment(places + (f' CODE_DIR="$WORK"/code/{code}' if code else ""))
    yield from shell.comment('mkdir -p "$CACHE_DIR" "$OUT_DIR"; cd "$RUN_DIR"')
    for link, target in entry["links"].items():
        where = shell.quote(f"./{link}")
        yield from shell.comment(f'mkdir -p "$(dirname {where})"; ln -sfn {shell.fill(target)} {where}')
    yield from shell.comment(f'export EKVI_RUN={run} EKVI_OUT="$OUT_DIR" EKVI_CACHE="$CACHE_DIR" PYTHONUNBUFFERED=1')
    for at, stage in enumerate(entry["stages"]):
        words = " ".join(shell.fill(word) for word in stage["argv"])
        if stage["container"] is not None:
            yield from _container(at, stage["container"], words)
            continue
        env = entry["env"] | stage["env"] | {"EKVI_STAGE": stage["stage"]}
        said = " ".join(f"{name}={shell.fill(value)}" for name, value in env.items())
        yield from shell.comment(f"env {said} {words}")


def _container(at: int, container: Mapping[str, Any], create: str) -> Iterator[str]:
    engine, name = shell.quote(container["engine"]), shell.quote(container["name"])
    for folder in container["folders"]:
        yield from shell.comment(f"mkdir -p {shell.fill(folder)}")
    pipe = f'"$RUN_DIR"/pipe.{at}'
    yield from shell.comment(f'[ -p {pipe} ] || mkfifo {pipe}; chmod 666 {pipe}; chmod 777 "$OUT_DIR" "$CACHE_DIR"')
    yield from shell.comment(f"{create}")
    yield from shell.comment(f"cat {pipe} & {engine} start {name}; {engine} wait {name}; wait; {engine} rm {name}")
