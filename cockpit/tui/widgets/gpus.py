"""GPUs of a server on the screen: a line each, or cells of four columns where lines have no room."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.style import Style

from cockpit.core.gpu import DeviceNow, Known, MachineNow, number
from cockpit.core.text import printable
from cockpit.tui import words
from cockpit.tui.theming import Look
from cockpit.tui.widgets.panel import Part

SLOWED = frozenset({"power", "thermal", "hw"})  # reasons that cost speed; the others are how a GPU rests
_SENSORS = (("temp_hot_c", "hot"), ("temp_mem_c", "mem"), ("temp_edge_c", "edge"))
_OLD_S = 15.0  # the slowest field is read every ten seconds: what is older says its age
_CELL = 4
_HEAD = 3
_SHARED = "shared"
_MOST_REASONS = 16


@dataclass(frozen=True, slots=True)
class Facts:
    """What a line says of a GPU, `parts` in the order they stand and `ranks` in that of what matters most."""

    parts: Sequence[Part]
    ranks: Sequence[int]

    def fitting(self, room: int) -> list[Part]:
        """Those that have room, never half of one."""
        taken: set[int] = set()
        for i in self.ranks:
            if self.parts[i][0] and len(self.parts[i][0].rstrip()) <= room:
                taken.add(i)
                room -= len(self.parts[i][0])
        return [part for i, part in enumerate(self.parts) if i in taken]


def hottest(device: DeviceNow) -> tuple[float, str] | None:
    """The highest temperature (degrees Celsius) and the name of its sensor."""
    found = [(value, name) for field, name in _SENSORS if (value := device.number(field)) is not None]
    return max(found) if found else None


def load(device: DeviceNow) -> float | None:
    """Its load 0..1; what a server says beyond that is taken for the nearer end."""
    said = device.number("util")
    return None if said is None else min(1.0, max(0.0, said))


def reasons(device: DeviceNow) -> list[str] | None:
    """Why the GPU is slowed down, in a fixed order; None where that is not known."""
    said = device.get("throttle")
    if not isinstance(said, list):
        return None
    return sorted(
        "".join(filter(str.isprintable, printable(str(reason))))[:12]
        for reason in said[:_MOST_REASONS]
        if reason != "idle"
    )


def power(devices: Sequence[DeviceNow]) -> tuple[float | None, int]:
    """Watts of all GPUs whose power is known, and of how many it is not; a die whose package speaks is not missed."""
    known = [watts for device in devices if (watts := device.number("power_w")) is not None]
    missing = [d for d in devices if d.number("power_w") is None and not _is_shared(d, "power_w")]
    return (sum(known), len(missing)) if known else (None, len(missing))


def memory(devices: Sequence[DeviceNow]) -> tuple[float, float | None] | None:
    """Bytes in use on all GPUs that say it, and what those have; None where none does."""
    known = [d for d in devices if d.number("mem_used") is not None]
    if not known:
        return None
    totals = [total(d) for d in known]
    whole = None if None in totals else sum(t for t in totals if t is not None)
    return sum(d.number("mem_used") or 0.0 for d in known), whole


def total(device: DeviceNow) -> float | None:
    """Bytes of memory of a GPU: as it says now, else as it presented itself."""
    said = device.number("mem_total")
    return said if said is not None else number(device.identity.get("mem_total"))


def line(now: MachineNow, device: DeviceNow, width: int, look: Look, fade: float) -> list[Part]:
    """One GPU in `width` columns: its number, its load as a bar, and what else has room."""
    fade = max(fade, 0.5 if device.stale_s is not None else 0.0)
    head: list[Part] = [(f"  {device.index:>2} ", look("muted"))]
    if device.stale_s is not None:
        return [*head, (f"stale {words.age(device.stale_s)}", look("warn"))]
    head += _bar(load(device), max(4, min(16, width // 5)), look, fade)
    room = width - sum(len(text) for text, _ in head)
    return [*head, *_facts(now, device, look, fade).fitting(room)]


def per_row(width: int) -> int:
    """How many cells stand in a row of `width` columns: as the GPUs of a machine come, in eights."""
    most = max(1, (width - _HEAD) // _CELL)
    return most // 8 * 8 if most >= 8 else most


def cells(devices: Sequence[DeviceNow], width: int, rows: int, look: Look, fade: float) -> list[list[Part]]:
    """The GPUs as cells, `rows` lines for each row of them: their load, their hottest sensor, their power."""
    kilo = any((device.number("power_w") or 0.0) >= 999.5 for device in devices)
    faces: tuple[tuple[str, Callable[[DeviceNow, Look, float], Part]], ...] = (
        ("% ", _load),
        ("°C", _heat),
        ("kW" if kilo else "W ", _kilowatts if kilo else _watts),
    )
    step = per_row(width)
    return [
        [(f"{head:<{_HEAD}}", look("muted")), *(face(device, look, fade) for device in devices[i : i + step])]
        for i in range(0, len(devices), step)
        for head, face in faces[:rows]
    ]


def _load(device: DeviceNow, look: Look, fade: float) -> Part:
    """A load in percent, with `!` where the GPU is slowed down; `old` for a GPU that does not answer."""
    if device.stale_s is not None:
        return "old ", look("warn")
    load = device.number("util")
    slowed = SLOWED.intersection(reasons(device) or ())
    if load is None:
        return "n/a ", look("muted")
    return f"{load * 100:3.0f}{'!' if slowed else ' '}", look(
        "warn" if slowed - {"power"} else look.heat(load), fade=fade
    )


def _heat(device: DeviceNow, look: Look, fade: float) -> Part:
    found = hottest(device)
    return _cell(None if found is None else found[0], "{:3.0f}", look, fade)


def _watts(device: DeviceNow, look: Look, fade: float) -> Part:
    return _cell(device.number("power_w"), "{:3.0f}", look, fade)


def _kilowatts(device: DeviceNow, look: Look, fade: float) -> Part:
    watts = device.number("power_w")
    return _cell(None if watts is None else watts / 1e3, "{:3.1f}", look, fade)


def _cell(value: float | None, form: str, look: Look, fade: float) -> Part:
    return ("n/a ", look("muted")) if value is None else (form.format(value)[:3] + " ", look("foreground", fade=fade))


def _facts(now: MachineNow, device: DeviceNow, look: Look, fade: float) -> Facts:
    plain, muted, warn = look("foreground", fade=fade), look("muted"), look("warn")
    used, whole, heat, why = device.number("mem_used"), total(device), hottest(device), reasons(device)
    slowed = SLOWED.intersection(why or ())
    parts = [
        ("mem n/a " if used is None else f"{words.gib(used):.1f}{f'/{words.gib(whole):.0f}' if whole else ''} GiB ",
         muted if used is None else plain),
        _power(now, device, plain, muted),
        (f"{heat[0]:.0f} °C {heat[1]} ", plain) if heat else ("temp n/a ", muted),
        ("throttle n/a " if why is None else f"throttle {' '.join(why)} " if why else "", warn if slowed else muted),
        (_aged(now, device.values.get("tensor"), "tensor {:.0%}"), plain),
        (_aged(now, device.values.get("clk_sm_mhz"), "{:.0f} MHz"), plain),
    ]  # fmt: skip
    return Facts(parts, (1, 3, 2, 0, 4, 5) if slowed else (1, 2, 0, 3, 4, 5))


def _power(now: MachineNow, device: DeviceNow, plain: Style, muted: Style) -> Part:
    if device.number("power_w") is None:
        return ("power shared " if _is_shared(device, "power_w") else "power n/a "), muted
    return _aged(now, device.values.get("power_w"), "{:.0f} W"), plain


def _aged(now: MachineNow, known: Known | None, form: str) -> str:
    """A value, with its age where it is older than the machine's last sample by much; empty where it is unknown."""
    value = number(known.value) if known is not None else None
    if known is None or value is None:
        return ""
    old = ((now.at_ns or known.at_ns) - known.at_ns) / 1e9
    return f"{form.format(value)}{f' ({words.age(old)})' if old > _OLD_S else ''} "


def _bar(share: float | None, width: int, look: Look, fade: float) -> list[Part]:
    if share is None:
        return [("util n/a ", look("muted"))]
    full = int(share * width + 0.5)
    return [
        ("━" * full, look(look.heat(share), fade=fade)),
        ("━" * (width - full), look("panel", fade=0.4)),
        (f" {share:4.0%} ", look("foreground", fade=fade)),
    ]


def _is_shared(device: DeviceNow, name: str) -> bool:
    return device.unavailable.get(name, ("", ""))[0] == _SHARED
