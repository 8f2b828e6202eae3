"""Where a calibrated server stands in its class: its measured rates against those of its kind of GPU.

A data sheet's dense rate is seldom reached by a product: power and memory keep it below. So both are told, the share
of the data sheet, and, where somebody measured that kind of card, the share of that.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from cockpit.metrics.specs import TABLE, Spec, gpu_spec

SLOW = 0.05  # below the median by more than this, a device is named
_PRECISIONS = ("bf16", "fp16", "fp8", "fp32")
_OTHERS = {
    "copy": "memory copy",
    "host_to_device": "host to device",
    "device_to_host": "device to host",
    "all_reduce": "all-reduce",
}


def standing(calibrations: Sequence[Mapping[str, Any]], model: str | None) -> dict[str, Any] | None:
    """How the devices of one server stand, from the data of its `calibrate` diagnostics; None without any.

    `model` is what telemetry calls its GPUs, for a torch that does not know the name. Of several calibrations each
    figure is the median. `figures`: name, what, value, unit, spec and of_spec (of the data sheet), measured,
    of_measured and where (of a card of the same kind), each None where it is not known. `slow`: devices that are
    SLOW below the median, as the last calibration found them. `headline` is one sentence.
    """
    found = [one for one in calibrations if one]
    if not found:
        return None
    last = found[-1]
    spec = gpu_spec(_text(last.get("device"))) or gpu_spec(model)
    figures = [figure for name in _names(last) if (figure := _figure(name, found, spec)) is not None]
    main = next((f for f in figures if f["name"] == last.get("precision")), None)
    return {
        "device": _text(last.get("device")),
        "class": spec.name if spec else None,
        "devices": _count(last.get("processes")),
        "precision": _text(last.get("precision")),
        "calibrations": len(found),
        "headline": _headline(last, main, spec),
        "figures": figures,
        "slow": _slow(last),
        "spread": _spread(last),
    }


def _names(last: Mapping[str, Any]) -> list[str]:
    """The training's precision first, then the others."""
    own = str(last.get("precision"))
    return list(dict.fromkeys((own, *_PRECISIONS, *_OTHERS)))


def _figure(name: str, found: Sequence[Mapping[str, Any]], spec: Spec | None) -> dict[str, Any] | None:
    values = [v for one in found if (v := _value(one, name)) is not None]
    if not values:
        return None
    value = statistics.median(values)
    last = _rate(found[-1], name)
    peak = None if spec is None else spec.mem_bw_gb_s if name == "copy" else spec.peak_tflops(name)
    other = spec.measured.get(name) if spec else None
    return {
        "name": name,
        "what": _what(name, last),
        "value": value,
        "unit": "GB/s" if name in _OTHERS else "TFLOP/s",
        "spec": peak,
        "of_spec": value / peak if peak else None,
        "measured": other.tflops if other else None,
        "of_measured": value / other.tflops if other else None,
        "where": other.where if other else None,
    }


def _what(name: str, rate: Mapping[str, Any]) -> str:
    if name in _OTHERS:
        how = [_text(rate.get("collective")), _text(rate.get("library"))] if name == "all_reduce" else []
        over = f" over {n} processes" if (n := _count(rate.get("processes"))) else ""
        told = " ".join(word for word in how if word)
        return f"{_OTHERS[name]}{over}{f' ({told}, bus rate)' if told else ''}"
    kind = _text(rate.get("format"))
    return f"{name}{f' ({kind})' if kind else ''} products"


def _headline(last: Mapping[str, Any], main: Mapping[str, Any] | None, spec: Spec | None) -> str:
    """What share of its class this server reaches, and what is meant by class; or why that is not known."""
    precision, device = _text(last.get("precision")) or "an unknown precision", _text(last.get("device"))
    if main is None:
        why = _text(last.get("matmul_why"))
        return f"no rate of {precision} products was found{f': {why}' if why else ''}"
    if device == "cpu":
        return f"no class figure: {TABLE} holds GPUs, and this is a CPU"
    if spec is None:
        return f"no class figure: {device or 'an unnamed GPU'} is not in {TABLE}"
    who = _who(last)
    sheet = f"{main['spec']:g} TFLOP/s dense {precision}" if main["spec"] else ""
    if main["of_measured"] is not None:
        share = f"{_percent(main['of_measured'])} of its class: {main['measured']:g} TFLOP/s in {precision}"
        rest = f"; {_percent(main['of_spec'])} of its data sheet's {sheet}, which products seldom reach"
        return f"{who} at {share} were measured on another {spec.name} ({main['where']}){rest if sheet else ''}"
    if not sheet:
        return f"no class figure for {precision}: {TABLE} gives none for {spec.name}"
    share = f"{_percent(main['of_spec'])} of its class by the data sheet"
    return f"{who} at {share}: {sheet} ({spec.name}), which products seldom reach"


def _who(last: Mapping[str, Any]) -> str:
    hosts = {one.get("host") for one in _devices(last)}
    return f"these {len(hosts)} nodes are" if len(hosts) > 1 else "this node is"


def _slow(last: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each device that is more than SLOW below the median of all, with the rate it is slow in."""
    out = []
    devices = _devices(last)
    for name in _names(last):
        median = _value(last, name)
        if name == "all_reduce" or median is None or len(devices) < 2:
            continue
        for one in devices:
            value = _number((one.get(name) or {}).get("value")) if isinstance(one.get(name), Mapping) else None
            if value is not None and value < median * (1 - SLOW):
                who = {key: one.get(key) for key in ("rank", "host", "gpu", "uuid")}
                told = {"what": _what(name, {}), "value": value, "below": 1 - value / median}
                out.append({"name": name, **told, "text": _named(who), **who})
    return out


def _named(who: Mapping[str, Any]) -> str:
    """`GPU 3 of host-a (rank 3, GPU-1f2e)`."""
    device = f"GPU {who['gpu']}" if who.get("gpu") is not None else f"rank {who.get('rank')}"
    more = [f"rank {who.get('rank')}"] if who.get("gpu") is not None else []
    more += [str(who["uuid"])] if who.get("uuid") else []
    return f"{device} of {who.get('host')}" + (f" ({', '.join(more)})" if more else "")


def _spread(last: Mapping[str, Any]) -> float | None:
    """How far apart the devices are in the training's precision: greatest less least over the median."""
    rate = _rate(last, str(last.get("precision")))
    least, greatest, median = (_number(rate.get(key)) for key in ("least", "greatest", "value"))
    if len(_devices(last)) < 2 or not median or least is None or greatest is None:
        return None
    return (greatest - least) / median


def _value(one: Mapping[str, Any], name: str) -> float | None:
    """A rate's value; runs of before have the training's precision alone."""
    found = _number(_rate(one, name).get("value"))
    if found is None and name == one.get("precision"):
        found = _number(one.get("matmul_tflops"))
    return found


def _rate(one: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    rates = one.get("rates")
    found = rates.get(name) if isinstance(rates, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _devices(one: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    devices = one.get("devices")
    return [d for d in devices if isinstance(d, Mapping)] if isinstance(devices, list) else []


def _number(value: Any) -> float | None:
    """A rate as a program said it: a finite number above 0, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _percent(ratio: float | None) -> str:
    return "?" if ratio is None else f"{100 * ratio:.0f} %"
