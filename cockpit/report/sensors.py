"""The sensors of machines for a terminal: a row a GPU, old values with their age, unknown ones as such."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cockpit.core.gpu import DeviceNow, Known, MachineNow, number
from cockpit.core.text import printable

if TYPE_CHECKING:
    from rich.table import Table

NONE = "n/a"
_OLD_S = 15.0  # the slowest field is read every ten seconds: what is older is marked with its age
_GIB = 2**30
_UNIT = re.compile(r"(?<=\d) (?=[%°A-Za-z])")  # what parts a figure from its unit
_STYLE = {"live": "green", "connecting": "dim", "away": "yellow", "refused": "bold red", "ended": "dim"}
_WIDE, _WIDER = 100, 124
_NAME_LEAST = 12
_BETWEEN = 2
_SPARE = ("age", "ecc", "energy", "dram", "tensor", "clock", "throttle", "memory")  # the first to go
_SHORT, _LONG = 18, 24  # letters of a model


class Shown(Protocol):
    """What is shown of a machine; engine.watch.Machine is one."""

    name: str
    state: str
    why: str | None
    now: MachineNow


def table(machines: Sequence[Shown], now: float, width: int) -> Table:
    """A table of at most `width` columns at the moment `now` (the clock that `MachineNow.take` was given, s)."""
    from rich.table import Table
    from rich.text import Text

    heads = _heads(width)
    rows = [(*name, row) for machine in machines for name, row in _rows(machine, now, heads)]
    heads, room = _fitting(heads, rows, width)
    grid = Table(box=None, pad_edge=False, expand=False, header_style="bold")
    for head in heads:
        right = head not in {"server", "gpu", "throttle"}
        grid.add_column(head, justify="right" if right else "left", no_wrap=True)
    for name, state, row in rows:
        label = Text(_middle(name, room - len(state) - 1 if state else room))
        label.append(f" {state}" if state else "", _STYLE.get(state, "dim"))
        grid.add_row(label, *(Text(row.get(head, "")) for head in heads[1:]))
    return grid


def _rows(machine: Shown, now: float, heads: Sequence[str]) -> list[tuple[tuple[str, str], dict[str, str]]]:
    """A row a GPU, else one: (name, state where it is not live), the cells by their heads."""
    first = (printable(machine.name), "" if machine.state == "live" else machine.state)
    cells = [_device(machine.now, device, now, heads) for device in machine.now.each()]
    return [(("", "") if i else first, row) for i, row in enumerate(cells or [_host(machine.now, now, heads)])]


def _fitting(
    heads: list[str], rows: Sequence[tuple[str, str, Mapping[str, str]]], width: int
) -> tuple[list[str], int]:
    """The heads for which there is room, and how much of it is the name's: no figure is ever cut."""
    from rich.cells import cell_len

    name = max((len(f"{name} {state}".rstrip()) for name, state, _ in rows), default=0)
    wide = {head: max([len(head), *(cell_len(row.get(head, "")) for *_, row in rows)]) + _BETWEEN for head in heads}
    for gone in _SPARE:
        if sum(wide[head] for head in heads[1:]) + min(name, _NAME_LEAST) <= width:
            break
        heads = [head for head in heads if head != gone]
    return heads, max(_NAME_LEAST, width - sum(wide[head] for head in heads[1:]))


def _middle(text: str, room: int) -> str:
    """Shortened in the middle: names of servers differ at their ends."""
    if len(text) <= room:
        return text
    tail = max(0, room - 1) // 2
    return f"{text[: max(0, room - 1 - tail)]}…{text[len(text) - tail :]}"


def plain(machine: Shown, now: float) -> list[str]:
    """The same as a line a GPU, without a table: for pipes."""
    if machine.state != "live":
        return [f"{printable(machine.name)}: {machine.state}{f': {printable(machine.why)}' if machine.why else ''}"]
    heads = _heads(_WIDER)
    rows = [_device(machine.now, d, now, heads) for d in machine.now.each()] or [_host(machine.now, now, heads)]
    return [" ".join([printable(machine.name), *_pairs(row)]) for row in rows]


def _pairs(row: Mapping[str, str]) -> Iterator[str]:
    """A row as words without spaces: `gpu=0 model=NVIDIA_H200 util=97% temp=71°C_mem`."""
    index, _, model = row.get("gpu", "").partition(" ")
    for head, text in {"gpu": index, "model": model, **{h: t for h, t in row.items() if h != "gpu"}}.items():
        if text:
            yield f"{head}={_UNIT.sub('', text).replace(' ', '_')}"


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
        told = "; ".join(fates) or f"{now.hello.get('backend')} knows none of the chosen GPUs"
        found.append(f"{machine.name}: no GPU values. {told}")
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
    name = printable(str(model)) if model else ""
    if short:
        name = name.removeprefix("NVIDIA ").removeprefix("AMD ").removeprefix("Instinct ")
    most = _SHORT if short else _LONG
    name = name if len(name) <= most else f"{name[: most - 1]}…"  # a MI300X must not read as an MI300
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
