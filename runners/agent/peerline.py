"""One connection between two agents: whole lines of JSON, bounded, and the proof of who is at its other end."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
from typing import Any

STRANGER_BY = 1024  # bytes of a line before the other side has proved who it is
LINE_BY = 4 << 20
OUT_BY = 16 << 20  # that may wait for a peer that does not read
BLOCK_BY = 1 << 16


def proof(token: str, *words: str) -> str:
    """What only who knows the token can say of `words`; the first one tells the sides apart."""
    return hmac.new(token.encode(), json.dumps(words).encode(), hashlib.sha256).hexdigest()


def proved(said: Any, wanted: str) -> bool:
    """Whether `said` is the proof `wanted`, in a time that tells nothing of it."""
    return isinstance(said, str) and hmac.compare_digest(said.encode(), wanted.encode())


class Line:
    """One connection. `rank` is None until the other side has proved who it is."""

    def __init__(self, sock: socket.socket, now: float) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.rank: int | None = None
        self.nonce = os.urandom(32).hex()
        self.theirs = ""
        self.born = now
        self.heard = now
        self.input = b""
        self.output = b""

    def send(self, obj: dict[str, Any]) -> None:
        """Queue one message. Raises ConnectionError where the other side has long not read."""
        self.output += json.dumps(obj, separators=(",", ":")).encode() + b"\n"
        if len(self.output) > OUT_BY:
            raise ConnectionError("it does not read")

    def flush(self) -> None:
        """Write what the socket takes. Raises OSError."""
        while self.output:
            try:
                sent = self.sock.send(self.output[:BLOCK_BY])
            except BlockingIOError:
                return
            self.output = self.output[sent:]

    def lines(self) -> list[bytes]:
        """Whole lines that came. Raises OSError, ConnectionError at its end or on a line that is too long."""
        try:
            data = self.sock.recv(BLOCK_BY)
        except BlockingIOError:
            return []
        if not data:
            raise ConnectionError("it hung up")
        *whole, self.input = (self.input + data).split(b"\n")
        longest = STRANGER_BY if self.rank is None else LINE_BY
        if any(len(line) > longest for line in (*whole, self.input)):
            raise ConnectionError("it sent a line that is too long")
        return whole
