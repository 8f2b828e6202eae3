"""The line between the agents of one server's nodes: who they are, what each last said, and since when it is silent.

Node 0 listens, the others connect and come again when the line breaks. Nothing is asked or answered: each side says
all that it knows (its table) when that changed and when a line is new, and a beat once a second, so that no message
can be lost, whoever was killed meanwhile. Lines of JSON, in this order:

    leader    {"type":"hello","schema":"ekvi.peers/1","nonce"}
    follower  {"type":"hello","name","nonce","proof"}      proof: HMAC-SHA256 of both nonces and the name
    leader    {"type":"welcome","proof"}
    both      {"type":"table","table":{...}} and {"type":"beat","quiet":{...}}

The token itself never travels. Until the proof is there a line is short, the time is short, and such connections are
few. All of it happens in a thread of its own: an agent that unpacks gigabytes is still heard.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import socket
import threading
import time
from typing import Any, Callable

from .files import Log
from .peerline import BLOCK_BY, Line, proof, proved
from .queuefile import Peers

SCHEMA = "ekvi.peers/1"
BEAT_S = 1.0
PROOF_S = 5.0  # how long a connection may take to prove who it is
STRANGERS = 16  # connections that have not proved anything yet; above it the oldest goes


class Heard:
    """What one peer last said. `at` is when it was last heard at all (monotonic, s), None before the first word.

    `quiet` says since when its stages have printed nothing (s, as of `quiet_at`).
    """

    def __init__(self) -> None:
        self.table: dict[str, Any] = {}
        self.quiet: dict[str, float] = {}
        self.at: float | None = None
        self.quiet_at = 0.0
        self.offset = 0.0  # what its monotonic clock is behind ours, s; the time on the way included
        self.connected = False


class Wire(threading.Thread):
    """The thread. `tell` and `tell_quiet` say what to send, `heard` what came, `wake` is called when that is new."""

    def __init__(self, peers: Peers, about: str, log: Log, wake: Callable[[], None]) -> None:
        """`about` names the queue (group and key): only agents of equal queues understand each other."""
        super().__init__(name="peers", daemon=True)
        self.peers = peers
        self.about = about
        self.problem: str | None = None  # why the line cannot even be tried, in words
        self._log = log
        self._wake = wake
        self._lock = threading.Lock()
        self._heard = {rank: Heard() for rank in range(len(peers.names)) if rank != peers.rank}
        self._table: dict[str, Any] = {}
        self._quiet: dict[str, float] = {}
        self._changed = False
        self._over = False
        self._poke_read, self._poke_write = socket.socketpair()
        self._lines: list[Line] = []
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._next_beat = 0.0
        self._next_try = 0.0
        self._tries = 0
        self._said = ""

    # --- what the agent's own thread asks

    def tell(self, table: dict[str, Any]) -> None:
        """What the others are to know; sent when it is not what it was."""
        with self._lock:
            if table == self._table:
                return
            self._table, self._changed = table, True
        self._poke()

    def tell_quiet(self, quiet: dict[str, float]) -> None:
        """Seconds since the last output, by stage; travels with the beats."""
        with self._lock:
            self._quiet = quiet

    def heard(self, rank: int) -> Heard:
        """What a peer last said, as it was at this moment."""
        with self._lock:
            now = Heard()
            now.__dict__.update(self._heard[rank].__dict__)
            return now

    def close(self) -> None:
        """Send what is left to send, for a second at most, and end."""
        with self._lock:
            self._over = True
        self._poke()
        self.join(2.0)

    def _poke(self) -> None:
        with contextlib.suppress(OSError):
            self._poke_write.send(b"x")

    # --- the thread

    def run(self) -> None:
        """Until `close`."""
        self._poke_read.setblocking(False)
        self._poke_write.setblocking(False)
        self._selector.register(self._poke_read, selectors.EVENT_READ)
        try:
            while not self._over:
                self._turn()
            self._part()
        finally:
            for line in list(self._lines):
                self._drop(line, "")
            if self._listener is not None:
                self._listener.close()
            self._selector.close()
            self._poke_read.close()

    def _turn(self) -> None:
        now = time.monotonic()
        if self.peers.rank == 0:
            self._listen(now)
        elif not self._lines:
            self._connect(now)
        self._say(now)
        for line in self._lines:
            want = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.output else 0)
            self._selector.modify(line.sock, want, line)
        for key, _ in self._selector.select(min(0.25, self.peers.silence_s / 8)):
            if key.fileobj is self._poke_read:
                with contextlib.suppress(BlockingIOError):
                    self._poke_read.recv(512)
            elif key.fileobj is self._listener:
                self._accept(time.monotonic())
            elif key.data in self._lines:  # not dropped by another's word just now
                self._serve(key.data)
        self._expire(time.monotonic())

    def _part(self) -> None:
        """The last words, then the end of what is sent; what comes is read so that nothing of ours is thrown away."""
        with contextlib.suppress(OSError):
            self._say(time.monotonic())
        end = time.monotonic() + 1.0
        known = [line for line in self._lines if line.rank is not None]
        while any(line.output for line in known) and time.monotonic() < end:
            for line in known:
                try:
                    line.flush()
                except OSError:
                    line.output = b""
            time.sleep(0.01)
        for line in known:
            with contextlib.suppress(OSError):
                line.sock.shutdown(socket.SHUT_WR)
        for line in known:
            with contextlib.suppress(OSError):
                line.sock.settimeout(max(0.05, end - time.monotonic()))
                while line.sock.recv(BLOCK_BY):
                    pass

    # --- lines that come and go

    def _listen(self, now: float) -> None:
        if self._listener is not None or now < self._next_try:
            return
        self._next_try = now + 1.0
        try:
            self._listener = _listener(self.peers.address, self.peers.port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            self.problem = "port %d of this node cannot be listened on (%s)" % (self.peers.port, why)
            return
        self.problem = None
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self, now: float) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        strangers = [line for line in self._lines if line.rank is None]
        if len(strangers) >= STRANGERS:
            self._drop(strangers[0], "")
        line = Line(sock, now)
        self._add(line)
        self._send(line, {"type": "hello", "schema": SCHEMA, "nonce": line.nonce})

    def _connect(self, now: float) -> None:
        """Try to reach the leader; after each failure wait longer, up to 2 s, with jitter."""
        if now < self._next_try:
            return
        where = "%s:%d" % (self.peers.address, self.peers.port)
        try:
            sock = socket.create_connection((self.peers.address, self.peers.port), timeout=min(5.0, self._patience()))
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            self.problem = "%s cannot be reached (%s)" % (where, why)
            self._back_off()
            return
        self._add(Line(sock, time.monotonic()))

    def _back_off(self) -> None:
        longest = min(2.0, self._patience())
        jitter = random.uniform(0.5, 1.0)  # noqa: S311 nothing secret
        self._next_try = time.monotonic() + jitter * min(longest, 0.1 * 2**self._tries)
        self._tries = min(self._tries + 1, 10)

    def _patience(self) -> float:
        """After so many seconds without a word a line is taken for broken, in time to try another."""
        return max(0.2, self.peers.silence_s / 3)

    def _add(self, line: Line) -> None:
        self._lines.append(line)
        self._selector.register(line.sock, selectors.EVENT_READ, line)

    def _drop(self, line: Line, why: str) -> None:
        self._lines.remove(line)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(line.sock)
        line.sock.close()
        if line.rank is not None:
            with self._lock:
                self._heard[line.rank].connected = False
            self._note("the line to node %s broke: %s" % (self.peers.names[line.rank], why))
            self._wake()
        if self.peers.rank != 0:
            if line.rank is None and why:
                self.problem = "%s:%d answers, but not as node %s of this group" % (
                    self.peers.address,
                    self.peers.port,
                    self.peers.names[0],
                )
            self._back_off()

    def _expire(self, now: float) -> None:
        for line in list(self._lines):
            if line.rank is None and now - line.born > min(PROOF_S, self.peers.silence_s):
                self._drop(line, "it did not prove who it is")
            elif line.rank is not None and now - line.heard > self._patience() + BEAT_S:
                self._drop(line, "nothing came through it")

    def _note(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._log.say(text)

    # --- what travels

    def _say(self, now: float) -> None:
        """Send the table where it changed, and a beat when it is time."""
        with self._lock:
            table = self._table if self._changed else None
            self._changed = False
            quiet = self._quiet
        beat = now >= self._next_beat
        if beat:
            self._next_beat = now + min(BEAT_S, self.peers.silence_s / 6)
        for line in [line for line in self._lines if line.rank is not None]:
            if table is not None:
                self._send(line, {"type": "table", "table": table, "mono": time.monotonic()})
            if beat:
                self._send(line, {"type": "beat", "quiet": quiet, "mono": time.monotonic()})

    def _send(self, line: Line, obj: dict[str, Any]) -> None:
        if line not in self._lines:
            return
        try:
            line.send(obj)
            line.flush()
        except OSError as error:
            self._drop(line, str(error))

    def _serve(self, line: Line) -> None:
        try:
            for data in line.lines():
                line.heard = time.monotonic()
                self._take(line, data)
                if line not in self._lines:
                    return
            line.flush()
        except (OSError, ValueError, OverflowError, RecursionError, _Stranger) as error:
            if line in self._lines:
                self._drop(line, str(error) or "it made no sense")

    def _take(self, line: Line, data: bytes) -> None:
        obj = json.loads(data)
        if not isinstance(obj, dict):
            raise _Stranger("it made no sense")
        if line.rank is None:
            (self._judge if self.peers.rank == 0 else self._greet)(line, obj)
            return
        with self._lock:
            heard = self._heard[line.rank]
            heard.at = line.heard
            table, quiet, mono = obj.get("table"), obj.get("quiet"), obj.get("mono")
            if isinstance(mono, (int, float)):
                heard.offset = min(heard.offset, line.heard - mono)
            if isinstance(table, dict):
                heard.table = table
            if isinstance(quiet, dict):
                heard.quiet = {k: float(v) for k, v in quiet.items() if isinstance(v, (int, float))}
                heard.quiet_at = line.heard
        if obj.get("type") == "table":
            self._wake()

    def _judge(self, line: Line, obj: dict[str, Any]) -> None:
        """The leader's side: who says that it is a node has to prove it."""
        name, nonce = obj.get("name"), obj.get("nonce")
        if not isinstance(name, str) or name not in self.peers.names[1:] or not isinstance(nonce, str):
            raise _Stranger("it is no node of this group")
        if not proved(obj.get("proof"), self._proof("follower", line.nonce, nonce, name)):
            raise _Stranger("it does not know the token")
        self._send(line, {"type": "welcome", "proof": self._proof("leader", nonce, line.nonce, name)})
        self._known(line, self.peers.names.index(name))

    def _greet(self, line: Line, obj: dict[str, Any]) -> None:
        """The follower's side: hello, then the leader's own proof."""
        own = self.peers.names[self.peers.rank]
        if not line.theirs:
            nonce = obj.get("nonce")
            if obj.get("schema") != SCHEMA or not isinstance(nonce, str) or not nonce:
                raise _Stranger("it speaks otherwise")
            line.theirs = nonce
            mine = self._proof("follower", nonce, line.nonce, own)
            self._send(line, {"type": "hello", "name": own, "nonce": line.nonce, "proof": mine})
            return
        if not proved(obj.get("proof"), self._proof("leader", line.nonce, line.theirs, own)):
            raise _Stranger("it does not know the token")
        self._tries = 0
        self.problem = None
        self._known(line, 0)

    def _proof(self, side: str, *words: str) -> str:
        return proof(self.peers.token, side, SCHEMA, self.about, *words)

    def _known(self, line: Line, rank: int) -> None:
        """A proved line takes the place of an older one of that node."""
        if line not in self._lines:
            return  # it broke under our answer
        for old in [other for other in self._lines if other.rank == rank]:
            self._drop(old, "it came again")
        line.rank = rank
        self._note("node %s is here" % self.peers.names[rank])
        with self._lock:
            heard = self._heard[rank]
            heard.connected, heard.at = True, line.heard
            table, quiet = self._table, self._quiet
            heard.offset = float("inf")
        self._send(line, {"type": "table", "table": table, "mono": time.monotonic()})
        self._send(line, {"type": "beat", "quiet": quiet, "mono": time.monotonic()})
        self._wake()


class _Stranger(Exception):
    """What came is not of a node of this queue."""


def _listener(address: str, port: int) -> socket.socket:
    """A socket that listens on `address` where that is one of this machine's own, written as numbers, else on all.

    A name is not resolved for that: on its own machine it often stands for 127.0.1.1, where nobody else comes in.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, address)
            return socket.create_server((address, port), family=family, backlog=STRANGERS)
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=STRANGERS)
    return socket.create_server(("", port), backlog=STRANGERS)
