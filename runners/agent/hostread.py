"""What a CPU server tells of itself: use and memory from /proc, energy from RAPL. Values are numbers or None."""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, List, Optional, Tuple

PROC = "/proc"
POWERCAP = "/sys/class/powercap"
HINT = "only root may read it; `chmod a+r` on the energy_uj files makes it readable until the next boot"


class CpuSource:
    """Reads one sample a call. `proc` and `powercap` are the trees to read."""

    backend = "cpu"
    vendor = "cpu"

    def __init__(self, proc: str = PROC, powercap: str = POWERCAP) -> None:
        self.proc = proc
        self.unavailable: Dict[str, str] = {}
        self._rapl = Rapl(powercap)
        self._times = self._cpu_times()
        if self._times is None:
            self.unavailable["cpu_util"] = "%s/stat is not readable" % proc
        if self._memory() == (None, None):
            self.unavailable["mem_used"] = self.unavailable["mem_total"] = "%s/meminfo is not readable" % proc
        if self._rapl.why:
            self.unavailable["energy_j"] = self.unavailable["power_w"] = self._rapl.why
        self.begin()

    def begin(self) -> None:
        """Forget the sample before: the next one has nothing to compare with."""
        self._times = None
        self._rapl.begin()

    def describe(self) -> Dict[str, Any]:
        """The machine, for the hello line: CPU model, logical CPUs, bytes of memory, host name."""
        return {
            "hostname": os.uname().nodename,
            "cpu_model": self._cpu_model(),
            "cpus": os.cpu_count(),
            "mem_total": self._memory()[1],
        }

    def sample(self) -> Dict[str, Any]:
        """`cpu_util` 0..1 since the sample before, memory in bytes, power in W, energy in J.

        `energy_j` is a counter of which only differences mean something; it may start anew after `begin`.
        """
        used, total = self._memory()
        energy_j, power_w = self._rapl.sample()
        return {
            "cpu_util": self._util(),
            "mem_used": used,
            "mem_total": total,
            "power_w": power_w,
            "energy_j": energy_j,
            "energy_src": None if energy_j is None else "rapl",
        }

    def _util(self) -> Optional[float]:
        before, self._times = self._times, self._cpu_times()
        if before is None or self._times is None:
            return None
        total = self._times[0] - before[0]
        idle = self._times[1] - before[1]
        if total <= 0:
            return None
        return round(min(max(1.0 - idle / total, 0.0), 1.0), 4)

    def _cpu_times(self) -> Optional[Tuple[int, int]]:
        """Clock ticks of all CPUs since boot: in total (user holds the guests), and idle or waiting for disks."""
        try:
            words = _head(self.proc + "/stat").split(b"\n", 1)[0].split()
            ticks = [int(word) for word in words[1:9]]
            if words[0] != b"cpu" or len(ticks) < 5:
                return None
            return sum(ticks), ticks[3] + ticks[4]
        except (OSError, ValueError, IndexError):
            return None

    def _memory(self) -> Tuple[Optional[int], Optional[int]]:
        """Bytes used (what no program could get without swapping) and bytes in all."""
        found: Dict[bytes, int] = {}
        try:
            for line in _head(self.proc + "/meminfo").splitlines():
                words = line.split()
                if words and words[0] in (b"MemTotal:", b"MemAvailable:"):
                    found[words[0]] = int(words[1]) * 1024
                    if len(found) == 2:
                        break
        except (OSError, ValueError, IndexError):
            return None, None
        total, free = found.get(b"MemTotal:"), found.get(b"MemAvailable:")
        return (None if total is None or free is None else total - free), total

    def _cpu_model(self) -> Optional[str]:
        try:
            with open(self.proc + "/cpuinfo", errors="replace") as f:
                for line in f:
                    if line.startswith("model name"):
                        return line.partition(":")[2].strip() or None
        except OSError:
            pass
        return None


class Rapl:
    """Energy of the CPU packages. `why` says why there is none to read; empty where it can be read."""

    def __init__(self, root: str = POWERCAP) -> None:
        self.why = ""
        self._files: List[Tuple[str, int]] = []  # energy_uj and where it wraps, in uJ
        self._last: Optional[List[int]] = None
        self._last_t = 0.0
        self._total_uj = 0
        self._find(root)

    def begin(self) -> None:
        """Forget the reading before: over a long pause the counters may have wrapped more than once."""
        self._last = None

    def sample(self) -> Tuple[Optional[float], Optional[float]]:
        """The packages' counter in joules, unwrapped since `begin`, and mean watts since the last reading."""
        values = [_integer(path) for path, _ in self._files]
        counts = [value for value in values if value is not None]
        if not counts or len(counts) < len(values):
            return None, None
        now = time.monotonic()
        last, self._last = self._last, counts
        past_s, self._last_t = now - self._last_t, now
        if last is None:
            self._total_uj = sum(counts)
            return self._total_uj / 1e6, None
        step_uj = 0
        for new, old, (_, wrap) in zip(counts, last, self._files):  # noqa: B905 (strict came with 3.10)
            step_uj += new - old if new >= old else new - old + wrap
        self._total_uj += step_uj
        return self._total_uj / 1e6, round(step_uj / 1e6 / past_s, 3) if past_s > 0 else None

    def _find(self, root: str) -> None:
        """Keep the packages that can be read: all of them or none, since a part would not be the machine's energy."""
        try:
            zones = sorted(name for name in os.listdir(root) if re.fullmatch(r"intel-rapl:\d+", name))
        except OSError:
            zones = []
        found = []
        for zone in zones:
            folder = os.path.join(root, zone)
            if not _text(os.path.join(folder, "name")).startswith("package"):
                continue  # psys holds the packages too
            path = os.path.join(folder, "energy_uj")
            wrap = _integer(os.path.join(folder, "max_energy_range_uj"))
            if _integer(path) is None or wrap is None:
                refused = os.path.exists(path) and not os.access(path, os.R_OK)
                self.why = "%s is not readable: %s" % (path, HINT if refused else "it holds no number")
                return
            found.append((path, wrap))
        if not found:
            self.why = "no RAPL package energy under %s" % root
        self._files = found


def _head(path: str) -> bytes:
    """How a file of /proc begins. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 512)
    finally:
        os.close(fd)


def _text(path: str) -> str:
    try:
        with open(path) as f:
            return f.read().strip()
    except OSError:
        return ""


def _integer(path: str) -> Optional[int]:
    text = _text(path)
    return int(text) if text.isdigit() else None
