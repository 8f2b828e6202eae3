"""Several nodes: whether they reach each other on the ports that they meet at."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cockpit.core.records import ServerSpec
from cockpit.engine.findings import Finding, fail, ok, warn

if TYPE_CHECKING:
    from cockpit.hosts.base import Host
    from cockpit.hosts.meet import Met


# $1 is the work folder, $2 a name. A file in what is there of the folder, which is then looked for on the others.
_LEAVE = r"""
p=$1
while [ ! -e "$p" ] && [ "$p" != / ] && [ "$p" != . ]; do p=$(dirname "$p"); done
: > "$p/$2" && printf %s "$p"
"""


async def apart(first: Host, peers: Sequence[Host], server: ServerSpec, workdirs: Sequence[str]) -> Iterable[Finding]:
    """Whether each node has a work folder of its own; `workdirs` are theirs, the first one's first."""
    if workdirs[0] not in workdirs[1:]:
        return []
    name = f".ekvi-{secrets.token_hex(8)}"
    left = await first.run(["sh", "-c", _LEAVE, "sh", workdirs[0], name], timeout=30.0)
    if left.rc != 0:
        return []  # nothing can be written there, which is told already
    path = f"{left.stdout.decode(errors='surrogateescape')}/{name}"
    try:
        same = [p for p, w in zip(peers, workdirs[1:], strict=True) if w == workdirs[0]]
        seen = await asyncio.gather(*(p.run(["test", "-e", path], timeout=30.0) for p in same))
    finally:
        await first.run(["rm", "-f", path], timeout=30.0)
    return [
        fail(
            "workdir",
            f"nodes {first.name} and {peer.name} share the work folder {workdirs[0]}, and each node's agent needs "
            "one of its own.",
            f"Leave servers.{server.name}.workdir out: by default each node takes a folder of its host name. Or name "
            "one on a disk that each node has to itself.",
        )
        for peer, done in zip(same, seen, strict=True)
        if done.rc == 0
    ]


async def ports(
    first: Host, peers: Sequence[Host], server: ServerSpec, workdir: str, python: str
) -> Iterable[Finding]:
    """Really listen on the first node and connect from the others."""
    from cockpit.hosts.meet import meet

    address = server.master_addr or await first.network_name()
    wanted = (server.master_port, server.master_port + 1)
    met = await meet(first, peers, address, wanted, python=python)
    if met.busy:
        return [await _busy(first, server, workdir, met)]
    failed = [
        fail(
            "ports",
            f"node {peer.name} does not reach {address} port {port} on node {first.name}: {why}.",
            f"Open ports {wanted[0]} and {wanted[1]} between the nodes, or set servers.{server.name}.master_addr to "
            "an address of the first node that the others reach.",
        )
        for peer, said in zip(peers, met.failed, strict=True)
        for port, why in list(said.items())[:1]
    ]
    return failed or [ok("ports", f"{len(peers) + 1} nodes meet at {address} ports {wanted[0]} and {wanted[1]}")]


async def _busy(first: Host, server: ServerSpec, workdir: str, met: Met) -> Finding:
    """A port that is taken: by a run of ours that a new one waits for, or by somebody else."""
    port, why = next(iter(met.busy.items()))
    text = f"port {port} on node {first.name} is taken: {why}."
    run = _holder(await first.read(f"{workdir}/slots/{server.slot}.0.lock", 0, 512))
    if run is not None:
        return warn("ports", text, f"{run} trains there; a new run in its slot waits for it.")
    return fail("ports", text, f"Set servers.{server.name}.master_port; it and the next one must be free.")


def _holder(data: bytes) -> str | None:
    """The run that a slot's file names as training."""
    try:
        said = json.loads(data.decode(errors="replace") or "{}")
    except (ValueError, RecursionError):
        return None
    run = said.get("run") if isinstance(said, dict) and "ended" not in said else None
    return str(run) if run else None
