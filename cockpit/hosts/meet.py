"""Do machines reach each other on a port? One really listens, the others really connect, and a word proves who."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cockpit.core.text import printable
from cockpit.hosts.base import Completed, Host

WAIT_S = 8.0  # how long both sides try; a port that drops packets takes all of it
_AFTER_S = 2.0  # for the listener's last word, once all callers are done

# argv: seconds, word, how many callers each port expects, ports. Prints {"busy": {port: why}}.
_LISTEN = """
import json, select, socket, sys, time
end, word, callers, ports = time.time() + float(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3]), sys.argv[4:]
busy, open_, left = {}, {}, {}
for port in ports:
    try:
        s = socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)
    except OSError:
        s = socket.socket(socket.AF_INET)
    try:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if s.family != socket.AF_INET:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            s.bind(("", int(port)))
        except OSError as error:
            if s.family == socket.AF_INET or error.errno == 98:
                raise
            s.close()
            s = socket.socket()
            s.bind(("", int(port)))
        s.listen(16)
        open_[s], left[s] = port, callers
    except OSError as error:
        busy[port] = error.strerror
if not busy:
    while any(left.values()) and time.time() < end:
        for s in select.select(list(open_), [], [], 0.2)[0]:
            c, _ = s.accept()
            c.settimeout(2)
            try:
                if c.recv(64) == word:
                    c.sendall(word)
                    left[s] -= 1
            except OSError:
                pass
            c.close()
print(json.dumps({"busy": busy}))
"""

# argv: seconds, word, address, ports. Prints {port: why not}, empty when all answered.
_CALL = """
import json, socket, sys, time
end, word, address, ports = time.time() + float(sys.argv[1]), sys.argv[2].encode(), sys.argv[3], sys.argv[4:]
failed = {}
for port in ports:
    while True:
        why = "another program answers there"
        try:
            c = socket.create_connection((address, int(port)), timeout=max(0.5, min(5.0, end - time.time())))
            try:
                c.sendall(word)
                if c.recv(64) == word:
                    break
            finally:
                c.close()
        except socket.timeout:
            why = "timed out"
        except OSError as error:
            why = error.strerror or str(error)
            if error.errno != 111 and not isinstance(error, ConnectionError):  # only a late listener is worth waiting
                failed[port] = why
                break
        if time.time() >= end:
            failed[port] = why
            break
        time.sleep(0.2)
print(json.dumps(failed))
"""


@dataclass(frozen=True, slots=True)
class Met:
    """`busy`: ports that the first machine could not listen on, and why. `failed`: for each caller, likewise."""

    busy: dict[str, str]
    failed: list[dict[str, str]]


async def meet(
    first: Host, others: Sequence[Host], address: str, ports: Sequence[int], *, python: str, wait: float = WAIT_S
) -> Met:
    """Let `first` listen on `ports` and each of `others` connect to them at `address`. Raises ServerError."""
    word, names = secrets.token_hex(16), [str(p) for p in ports]
    listen = asyncio.create_task(
        first.run([python, "-c", _LISTEN, str(wait), word, str(len(others)), *names], timeout=wait + 20.0)
    )
    words = [python, "-c", _CALL, str(wait), word, address, *names]
    calls = [asyncio.create_task(other.run(words, timeout=wait * len(ports) + 20.0)) for other in others]
    try:
        await asyncio.wait([listen, *calls], return_when=asyncio.FIRST_COMPLETED)
        if listen.done() and (busy := _words((_said(listen.result()) or {}).get("busy"))):
            return Met(busy, [{} for _ in others])
        failed = [_failed(done, names) for done in await asyncio.gather(*calls)]
        await asyncio.wait([listen], timeout=_AFTER_S)
        said = _said(listen.result()) if listen.done() else None
        return Met(_words((said or {}).get("busy")), failed)
    finally:
        for task in (listen, *calls):
            task.cancel()
        await asyncio.gather(listen, *calls, return_exceptions=True)


def _said(done: Completed) -> dict[str, Any] | None:
    """The JSON object in the last line of what a program printed; None where there is none."""
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    try:
        said = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def _failed(done: Completed, ports: Sequence[str]) -> dict[str, str]:
    said = _said(done)
    if said is None:  # silence is no success
        return dict.fromkeys(ports, printable(done.last_words) or f"status {done.rc}")
    return _words(said)


def _words(said: Any) -> dict[str, str]:
    return {printable(str(k)): printable(str(v)) for k, v in said.items()} if isinstance(said, dict) else {}
