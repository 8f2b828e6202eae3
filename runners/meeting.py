"""How processes on several machines meet over gloo: through which network interface each is reached.

Left alone, gloo looks this machine's own name up and listens at what that gives. On many machines that is 127.0.1.1,
where no other machine comes in. Here each node takes the interface that leads to the first node, and the first node
the one that the second came to it by, which it is told through the store; its own resolver is not asked. Who sets
GLOO_SOCKET_IFNAME has chosen, and nothing is looked for.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_SIOCGIFADDR = 0x8915
_KEY = "ekvi/first-node"


def several_nodes() -> bool:
    """Whether the launcher started this run on more than one machine."""
    return int(os.environ.get("GROUP_WORLD_SIZE") or 1) > 1


def store(seconds: float) -> Any:
    """The store that all processes share, with this one's interface chosen for gloo. Raises what the store raises."""
    found, _, _ = next(dist.rendezvous("env://", timeout=timedelta(seconds=seconds)))
    if not os.environ.get("GLOO_SOCKET_IFNAME"):
        name = interface_of(_own_address(found))
        if name is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name
    return dist.PrefixStore("ekvi", found)


def _own_address(found: Any) -> str:
    """The address at which the other nodes reach this one."""
    if int(os.environ["GROUP_RANK"]) == 0:
        told: str = found.get(_KEY).decode()
        return told
    own, first = route_to(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    if os.environ["GROUP_RANK"] == "1" and os.environ.get("LOCAL_RANK", "0") == "0":
        found.set(_KEY, first)
    return own


def route_to(host: str, port: int) -> tuple[str, str]:
    """This machine's address on the way to `host`, and the one that `host` stands for; nothing is sent.

    Raises OSError where no address of `host` can be reached.
    """
    error: OSError = OSError(f"{host} has no address")
    for family, kind, _, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(where)
                return str(probe.getsockname()[0]), str(where[0])
        except OSError as failed:
            error = failed
    raise error


def interface_of(address: str) -> str | None:
    """The network interface that has `address`, or None where it is not this machine's or cannot be told."""
    for _, name in socket.if_nameindex():
        if address in _addresses(name):
            return name
    if address.startswith("127."):  # all of them are the loopback interface's
        return "lo" if any(name == "lo" for _, name in socket.if_nameindex()) else None
    return None


def _addresses(name: str) -> set[str]:
    found = set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            found.add(socket.inet_ntoa(reply[20:24]))
        except OSError:
            pass  # it has no IPv4 address
    try:
        with open("/proc/net/if_inet6") as table:
            for line in table:
                fields = line.split()
                if fields[-1] == name:
                    found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(fields[0])))
    except OSError:
        pass  # no IPv6 here
    return found
