"""Follows files on a server: this file's source is sent along and runs there on any Python from 3.8 on.

Standard input: JSON lines. The first is {"interval": s, "block": bytes}; then {"id", "path", "offset"} adds a file
and {"id"} drops one; its end ends us. Standard output: frames, a JSON line each: [id, offset, length] and then that
many bytes of the file; {"id", "cut": size} where a file is shorter than its offset and {"id", "error": why} end it.
An id is used once, so what was on its way when a file was dropped or reset is told from what came after.
"""

from __future__ import annotations

import json
import os
import select
import sys

IDLE_LOOKS = 20  # looks without news before the pace slackens
SLACKEST = 8  # and how far, as a multiple of the interval


class Follower:
    """The files that are followed, and what is read of them."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.files: dict[int, tuple[str, int]] = {}
        self.out = sys.stdout.buffer

    def hear(self, line: bytes) -> None:
        """One line of the other end."""
        said = json.loads(line)
        if "path" in said:
            self.files[said["id"]] = (said["path"], said["offset"])
        else:
            self.files.pop(said["id"], None)

    def look(self) -> tuple[bool, bool]:
        """Send one block at most of each file; whether there was any news, and whether more is waiting."""
        news = more = False
        for id_, (path, offset) in list(self.files.items()):
            try:
                size = os.stat(path).st_size
                data = self.read(path, offset, size) if size > offset else b""
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as e:
                self.end(id_, {"id": id_, "error": e.strerror or "it cannot be read"})
                continue
            if size < offset:
                self.end(id_, {"id": id_, "cut": size})
            elif data:
                self.files[id_] = (path, offset + len(data))
                self.out.write(b"[%d,%d,%d]\n" % (id_, offset, len(data)))
                self.out.write(data)
                news = True
                more = more or len(data) == self.block
        self.out.flush()
        return news, more

    def read(self, path: str, offset: int, size: int) -> bytes:
        """One block."""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.pread(fd, min(self.block, size - offset), offset)
        finally:
            os.close(fd)

    def end(self, id_: int, why: dict[str, object]) -> None:
        """Say why a file is not followed on."""
        del self.files[id_]
        self.out.write(json.dumps(why).encode() + b"\n")


def main() -> None:
    """Follow until standard input ends."""
    source = sys.stdin.fileno()
    buffered = sys.stdin.buffer
    told = json.loads(buffered.readline())
    follower = Follower(told["block"])
    os.set_blocking(source, False)
    rest = buffered.read() or b""  # what came along with the source
    idle = 0
    while True:
        *lines, rest = rest.split(b"\n")
        for line in lines:
            follower.hear(line)
            idle = 0
        news, more = follower.look()
        idle = 0 if news else min(idle + 1, IDLE_LOOKS * SLACKEST)
        pause = 0.0 if more else told["interval"] * min(2 ** (idle // IDLE_LOOKS), SLACKEST)
        if select.select([source], [], [], pause)[0]:
            data = os.read(source, 1 << 20)
            if not data:
                return
            rest += data


if __name__ == "__main__":
    try:
        main()
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # nobody hears us any more
