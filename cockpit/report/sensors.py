"""The sensors of machines for a terminal: a row a GPU, old values with their age, unknown ones as such."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cockpit.core.gpu import DeviceNow, Known, MachineNow, number
from cockpit.core.text import printable

if TYPE_CHECKING:
    from rich.table import Table

NONE = "n/a"
_OLD_S = 15.0  # the slowest field is read every ten seconds: what is older is marked with its age
_GIB = 2**30
_STYLE = {"live": "green", "connecting": "dim", "away": "yellow", "refused": "bold red", "ended": "dim"}
_WIDE, _WIDER = 100, 124


class Shown(Protocol):
    """What is shown of a machine; engine.watch.Machine is one."""

    name: str
    state: str
    why: str | None
    now: MachineNow


def table(machines: Sequence[Shown], now: float, width: int) -> Table:
    """A table of at most `width` columns at the moment `now` (the clock that `MachineNow.take` was given, s)."""
    from rich.markup import escape
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, expand=False, header_style="bold")
    heads = _heads(width)
    for head in heads:
        name = head == "server"
        right = head not in {"server", "gpu", "throttle"}
        grid.add_column(
            head, justify="right" if right else "left", no_wrap=True, overflow="ellipsis" if name else "fold"
        )
    for machine in machines:
        label = escape(printable(machine.name))
        if machine.state != "live":
            label = f"{label} [{_STYLE.get(machine.state, 'dim')}]{machine.state}[/]"
        rows = [_device(machine.now, device, now, heads) for device in machine.now.each()] or [
            _host(machine.now, now, heads)
        ]
        for i, row in enumerate(rows):
            grid.add_row(label if i == 0 else "", *(escape(row.get(head, "")) for head in heads[1:]))
    return grid


def plain(machine: Shown, now: float) -> list[str]:
    """The same as a line a GPU, without a table: for pipes."""
    if machine.state != "live":
        return [f"{printable(machine.name)}: {machine.state}{f': {printable(machine.why)}' if machine.why else ''}"]
    heads = _heads(_WIDER)
    rows = [_device(machine.now, d, now, heads) for d in machine.now.each()] or [_host(machine.now, now, heads)]
    return [
        " ".join([printable(machine.name), *(f"{h}={row[h].replace(' ', '')}" for h in heads[1:] if row.get(h))])
        for row in rows
    ]


def words(machine: Shown) -> list[str]:
    """What else is to be said of a machine: why it does not answer, what is missing, how far its clock is off."""
    found = []
    if machine.why and machine.state != "live":
        found.append(f"{machine.name}: {machine.why}")
    now = machine.now
    if now.gap:
        found.append(f"{machine.name}: samples are missing: {now.gap}")
    if now.offset_s is not None and now.error_s is not None and abs(now.offset_s) > max(0.5, now.error_s):
        side = "ahead of" if now.offset_s > 0 else "behind"
        found.append(f"{machine.name}: its clock is {abs(now.offset_s):.1f} s {side} this one's")
    sources = (now.hello or {}).get("sources")
    if now.hello is not None and not now.devices and isinstance(sources, list) and sources:
        fates = [f"{s.get('name')}: {s.get('text')}" for s in sources if isinstance(s, dict) and s.get("text")]
        found += [f"{machine.name}: no GPU values. {'; '.join(fates)}"] if fates else []
    return [printable(text) for text in found]


def _heads(width: int) -> list[str]:
    heads = ["server", "gpu", "util", "memory", "power", "temp", "clock", "throttle"]
    if width >= _WIDE:
        heads[4:4] = ["tensor", "dram"]
    if width >= _WIDER:
        heads += ["energy", "ecc", "age"]
    return heads


def _device(now: MachineNow, device: DeviceNow, at: float, heads: Sequence[str]) -> dict[str, str]:
    def of(name: str) -> str:
        return _aged(now, device.values.get(name), name, at)

    used, total = device.number("mem_used"), device.number("mem_total") or number(device.identity.get("mem_total"))
    age = f"{device.stale_s:.0f} s" if device.stale_s is not None else _age(now, device.values.get("power_w"), at)
    row = {
        "gpu": _label(device, short="tensor" not in heads),
        "util": of("util"),
        "memory": NONE if used is None else f"{used / _GIB:.1f}" + (f"/{total / _GIB:.0f} GiB" if total else " GiB"),
        "tensor": of("tensor"),
        "dram": of("dram_bw"),
        "power": of("power_w"),
        "temp": _hottest(device),
        "clock": of("clk_sm_mhz"),
        "throttle": _throttle(device),
        "energy": of("energy_j"),
        "ecc": of("ecc_uncorr"),
        "age": age,
    }
    return {head: row[head] for head in heads[1:]}


def _host(now: MachineNow, at: float, heads: Sequence[str]) -> dict[str, str]:
    """A machine without GPUs: what its CPU says."""
    if now.at_ns is None:
        return {}
    used, total = (number(k.value) if (k := now.host.get(n)) else None for n in ("mem_used", "mem_total"))
    row = {
        "gpu": "cpu",
        "util": _aged(now, now.host.get("cpu_util"), "util", at),
        "memory": NONE if used is None else f"{used / _GIB:.1f}" + (f"/{total / _GIB:.0f} GiB" if total else " GiB"),
        "power": _aged(now, now.host.get("power_w"), "power_w", at),
    }
    return {head: row.get(head, "") for head in heads[1:]}


def _label(device: DeviceNow, *, short: bool) -> str:
    model = device.identity.get("model")
    partition = device.identity.get("partition")
    name = printable(str(model))[:18] if model else ""
    if short:
        name = name.removeprefix("NVIDIA ").removeprefix("AMD ").removeprefix("Instinct ")
    return f"{device.index}{f'.{partition}' if partition is not None else ''} {name}".rstrip()


_FORMS: dict[str, tuple[float, str]] = {
    "util": (100, "{:.0f} %"),
    "tensor": (100, "{:.0f} %"),
    "dram_bw": (100, "{:.0f} %"),
    "power_w": (1, "{:.0f} W"),
    "clk_sm_mhz": (1, "{:.0f} MHz"),
    "energy_j": (1e-3, "{:,.1f} kJ"),
    "ecc_uncorr": (1, "{:.0f}"),
}


def _aged(now: MachineNow, known: Known | None, name: str, at: float) -> str:
    value = number(known.value) if known is not None else None
    if known is None or value is None:
        return NONE
    times, form = _FORMS[name]
    text = form.format(value * times)
    old = now.age_s(known, at)
    return f"{text} ({old:.0f} s old)" if old > _OLD_S else text


def _age(now: MachineNow, known: Known | None, at: float) -> str:
    return NONE if known is None else f"{now.age_s(known, at):.1f} s"


def _hottest(device: DeviceNow) -> str:
    found = [
        (value, letter)
        for name, letter in (("temp_hot_c", "hot"), ("temp_mem_c", "mem"), ("temp_edge_c", "edge"))
        if (value := device.number(name)) is not None
    ]
    return "{:.0f} °C {}".format(*max(found)) if found else NONE


def _throttle(device: DeviceNow) -> str:
    reasons: Any = device.get("throttle")
    if not isinstance(reasons, list):
        return NONE
    return printable(",".join(str(r) for r in reasons if r != "idle")) or "-"
