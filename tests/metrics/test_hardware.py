"""How the sides' GPUs differ, who else was on them, and where their power is measured."""

from __future__ import annotations

from typing import Any

import pytest

from cockpit.metrics.compare import compare
from cockpit.metrics.nodes import read
from cockpit.metrics.origin import origin
from cockpit.metrics.parity import parity
from cockpit.metrics.sides import RunFacts, Side
from cockpit.metrics.summary import summarise
from tests.metrics.made import PROVENANCE, START, columns, hello, meta, tick

H200 = {
    "index": 0,
    "model": "NVIDIA H200",
    "driver": "580.159",
    "runtime": "CUDA 13.0",
    "vbios": "96.00.A0",
    "ecc": True,
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "clk_sm_max_mhz": 1980,
    "compute_mode": None,
    "memory_mode": None,
    "pcie": {"gen": 5, "width": 16},
    "links": [{"to": 1, "kind": "NVLink", "count": 18}],
    "power_scope": "gpu",
    "power_kind": "instant",
}
MI300X = {
    **H200,
    "model": "AMD Instinct MI300X",
    "driver": "6.12.12",
    "runtime": "ROCm 7.0.0",
    "vbios": "113-M3000100",
    "power_limit_w": 750.0,
    "power_limit_default_w": 750.0,
    "clk_sm_max_mhz": 2100,
    "compute_mode": "SPX",
    "memory_mode": "NPS1",
    "links": [{"to": 1, "kind": "XGMI", "count": 1}],
    "power_scope": "package",
    "power_kind": "socket",
}


def side(
    name: str,
    device: dict[str, Any] | None = H200,
    vendor: str = "nvidia",
    energy: dict[str, Any] | None = None,
    **provenance: Any,
) -> Side:
    """A side of one run on one GPU that hello described so."""
    told = {**PROVENANCE, **provenance}
    if device is not None:
        told["telemetry"] = [{"node": 0, "devices": [device]}]
    about = meta(f"g.{name}.r1", name, vendor=vendor, provenance=told)
    return Side(name, [RunFacts(f"g.{name}.r1", {"state": "SUCCEEDED", "metrics": {}, "energy": energy}, about)])


def differences(*sides: Side) -> dict[str, dict[str, Any]]:
    """Differences by key."""
    return {d["key"]: d for d in parity(sides)["differences"]}


def test_the_same_gpus_are_fair() -> None:
    assert differences(side("a"), side("b")) == {}


@pytest.mark.parametrize(
    ("field", "value", "key"),
    [
        ("driver", "575.0", "gpu.driver"),
        ("vbios", "97.00", "gpu.vbios"),
        ("ecc", False, "gpu.ecc"),
        ("power_limit_w", 800.0, "gpu.power_limit_w"),
        ("compute_mode", "MIG", None),
        ("clk_sm_max_mhz", 1755, "gpu.clk_sm_max_mhz"),
        ("pcie", {"gen": 5, "width": 8}, "gpu.pcie_width"),
        ("links", [{"to": 1, "kind": "NVLink", "count": 9}], "gpu.links"),
    ],
)
def test_conditions_of_one_model_are_warned_of(field: str, value: Any, key: str | None) -> None:
    found = differences(side("a"), side("b", {**H200, field: value}))
    assert list(found) == ([key] if key else [])
    assert all(d["severity"] == "warning" for d in found.values())


def test_two_makes_differ_in_what_two_makes_differ_in() -> None:
    found = differences(side("a"), side("b", MI300X, "amd"))
    assert {key: d["severity"] for key, d in found.items()} == {
        "gpu.model": "info",
        "gpu.driver": "info",
        "gpu.runtime": "info",
        "gpu.vbios": "info",
        "gpu.clk_sm_max_mhz": "info",
        "gpu.links": "info",
    }


def test_ecc_and_a_lowered_cap_are_warned_of_across_makes_too() -> None:
    lowered = {**MI300X, "ecc": False, "power_limit_w": 550.0}
    found = differences(side("a"), side("b", lowered, "amd"))
    assert found["gpu.ecc"]["severity"] == "warning"
    assert found["gpu.power_cap"]["severity"] == "warning"
    assert found["gpu.power_cap"]["values"] == {"a": "default", "b": "550 of 750 W"}


def test_a_lowered_cap_on_both_sides_is_told_all_the_same() -> None:
    found = differences(*(side(n, {**H200, "power_limit_w": 500.0}) for n in "ab"))
    assert list(found) == ["gpu.power_cap"]


def test_a_partition_that_counts_as_a_gpu_is_warned_of() -> None:
    part = {**MI300X, "compute_mode": "CPX", "partition": 3}
    found = differences(side("a", MI300X, "amd"), side("b", part, "amd"))
    assert found["gpu.partition"]["values"] == {"a": "whole GPUs", "b": "CPX"}
    assert found["gpu.compute_mode"]["severity"] == "warning"
    assert "gpu.partition" not in differences(side("a", part, "amd"), side("b", part, "amd"))


def test_gpus_that_nobody_described_cannot_be_compared() -> None:
    found = differences(side("a"), side("b", None))
    assert found["gpu"]["severity"] == "warning"
    assert "not recorded for b" in found["gpu"]["why"]
    assert "gpu" not in differences(side("a", None), side("b", None))
    assert "gpu" not in differences(side("a"), side("b", None, "cpu"))


def neighbour(**more: Any) -> dict[str, Any]:
    """A process beside the run."""
    base = {"pid": 7, "name": "python", "run": None, "mem": 40_000_000_000, "seconds": 5.0, "share": 0.01}
    return {"node": 0, **base, "gpus": [0], "certain": True, **more}


@pytest.mark.parametrize(
    ("more", "severity"),
    [({}, "warning"), ({"share": 0.8, "seconds": 400.0}, "blocking"), ({"certain": False, "share": 0.9}, "info")],
)
def test_who_else_was_on_the_gpus_is_told(more: dict[str, Any], severity: str) -> None:
    found = differences(side("a"), side("b", neighbours=[neighbour(**more)]))
    assert found["neighbours"]["severity"] == severity
    assert "python (pid 7" in found["neighbours"]["values"]["b"]
    assert found["neighbours"]["values"]["a"] is None, "nobody looked there"
    looked = differences(side("a", neighbours=[]), side("b", neighbours=[neighbour(**more)]))
    assert looked["neighbours"]["values"]["a"] == "none"


def test_a_shared_gpu_is_refused_by_its_own_name() -> None:
    sides = [side("a"), side("b", neighbours=[neighbour(share=0.9)])]
    for one in sides:
        metric = {"value": 10.0, "unit": "token/s", "n": 5, "ci95": None, "note": None}
        one.runs[0].summary["metrics"]["tokens_per_s"] = metric
    assert compare(sides, strict=True)["headline"] == "Refused: a side shared its GPUs with another program."
    assert compare(sides)["headline"].endswith(" But a side shared its GPUs with another program.")


def test_no_neighbours_is_not_the_same_as_nobody_looked() -> None:
    assert differences(side("a", neighbours=[]), side("b")) == {}


def test_what_a_driver_reported_is_told() -> None:
    event = {"node": 0, "t": 1.0, "index": 2, "event": "xid", "value": 79, "text": "lost"}
    found = differences(side("a"), side("b", gpu_events=[event]))
    assert found["gpu.events"]["values"]["b"] == "xid 79 on GPU 2"


def measured(scope: str, src: str = "counter", *kinds: str) -> dict[str, Any]:
    """What a summary says of its energy."""
    return {"scope": scope, "src": src, "power_kind": list(kinds)}


def test_power_that_is_measured_elsewhere_is_told() -> None:
    found = differences(
        side("a", energy=measured("gpu", "counter", "instant")),
        side("b", energy=measured("package", "integrated", "socket")),
    )
    assert {k: d["severity"] for k, d in found.items()} == {
        "power.scope": "warning",
        "energy.src": "warning",
        "power.kind": "info",
    }
    mixed = differences(side("a", energy=measured("gpu", "mixed")), side("b", energy=measured("gpu")))
    assert mixed["energy.src"]["severity"] == "info"


def gpu_run(name: str, device: dict[str, Any] | None, watts: float = 500.0) -> RunFacts:
    """A run with telemetry of one GPU, or of the CPU packages alone."""
    lines: list[dict[str, Any]] = [hello(*([device] if device else []), hz=1.0)]
    for t in range(-6, 110):
        host = {"power_w": watts, "energy_src": "rapl"} if device is None else None
        lines.append(tick(float(t), *([{"index": 0, "power_w": watts}] if device else []), host=host))
    about = meta(f"g.{name}", name, vendor="nvidia")
    table = columns([0.5] * 200, tokens=1e6)
    return RunFacts(f"g.{name}", summarise(about, table, lines), about, loss=table)


def energy_of(*devices: dict[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """energy_per_token_j of two sides with three runs each, and the comparison's notes."""
    sides = [
        Side(n, [gpu_run(f"{n}.r{i}", d, 500.0 + i) for i in range(3)]) for n, d in zip("ab", devices, strict=True)
    ]
    found = compare(sides)
    return next(m for m in found["metrics"] if m["name"] == "energy_per_token_j"), found["notes"]


def test_energies_of_the_gpu_and_of_the_cpu_are_not_compared() -> None:
    metric, _ = energy_of(H200, None)
    assert metric["verdict"] == "not_comparable"
    assert metric["ratio"] is None
    assert metric["why"] == (
        "energy_per_token_j is of the GPUs for a and of the CPU packages for b: these are not the same thing."
    )


def test_energies_of_gpu_and_package_are_compared_with_a_note() -> None:
    metric, notes = energy_of(H200, MI300X)
    assert metric["verdict"] != "not_comparable"
    assert any("b: scope package, integrated" in note for note in notes)
    metric, notes = energy_of(H200, H200)
    assert not any("measured alike" in note for note in notes)
    assert any(n.startswith("Energy and power: scope gpu, integrated") and n.endswith("on all sides.") for n in notes)


def test_a_board_s_power_and_a_socket_s_are_not_measured_alike() -> None:
    _, notes = energy_of({**H200, "power_kind": "instant"}, {**H200, "power_kind": "socket"})
    assert any("a: scope gpu, integrated, instant; b: scope gpu, integrated, socket" in note for note in notes)


def telemetry_of(*procs: tuple[float, list[dict[str, Any]] | None]) -> list[dict[str, Any]]:
    """Ticks of one GPU with the lists of processes at their times."""
    first = hello(H200, {"index": 1}, boot_id="b", backend="nvml", vendor="nvidia", hz=10.0)
    first["sources"] = [{"name": "nvml", "ok": True, "version": "580", "code": None, "text": None, "x": 1}]
    return [first, *(tick(t, {"index": 0, "power_w": 1.0, "procs": listed}) for t, listed in procs)]


def proc(pid: int, run: str | None = None) -> dict[str, Any]:
    """One entry of procs."""
    return {"pid": pid, "name": f"p{pid}", "mem": pid * 1000, "run": run}


ABOUT: dict[str, Any] = {"started": START + 5, "ended": START + 105, "gpus": [0]}


def origin_of(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Provenance of a run from second 5 to 105."""
    about = meta("mine", vendor="nvidia", **ABOUT)
    return origin(read([lines], about).each, about)


def test_the_gpus_of_the_run_stand_in_the_provenance() -> None:
    found = origin_of(telemetry_of((10.0, [])))
    (node,) = found["telemetry"]
    assert node["backends"] == ["nvml"]
    assert [d["index"] for d in node["devices"]] == [0]
    assert node["devices"][0]["vbios"] == "96.00.A0"
    assert node["sources"][0] == {"name": "nvml", "ok": True, "version": "580", "code": None, "text": None}
    assert found["neighbours"] == []
    assert "gpu_events" not in found


def test_neighbours_are_those_that_were_not_the_run_s_own_while_it_ran() -> None:
    lines = telemetry_of(
        (0.0, [proc(1), proc(2)]),
        (10.0, [proc(2), proc(3, "mine"), proc(4, "other"), proc(5)]),
        (60.0, [proc(2), proc(3, "mine")]),
        (110.0, [proc(6)]),
    )
    found = {n["pid"]: n for n in origin_of(lines)["neighbours"]}
    assert set(found) == {2, 4, 5}
    assert (found[2]["seconds"], found[2]["share"], found[2]["mem"]) == (55.0, 0.55, 2000)
    assert found[4]["run"] == "other"
    assert all(n["certain"] for n in found.values())  # the run's own could be told by theirs


def test_a_process_whose_environment_is_closed_may_be_the_run_s_own() -> None:
    (found,) = origin_of(telemetry_of((0.0, []), (10.0, [proc(5)]), (60.0, [proc(5)])))["neighbours"]
    assert not found["certain"]
    (before,) = origin_of(telemetry_of((0.0, [proc(5)]), (60.0, [proc(5)])))["neighbours"]
    assert before["certain"]


def test_without_lists_of_processes_neighbours_are_unknown() -> None:
    assert "neighbours" not in origin_of(telemetry_of((10.0, None)))


def test_events_of_another_time_are_not_the_run_s() -> None:
    def event(t: float) -> dict[str, Any]:
        line = {"type": "err", "code": "event", "event": "xid", "value": 13, "index": 0, "text": "x"}
        return {**line, "t_wall_ns": round((START + t) * 1e9)}

    found = origin_of([*telemetry_of((10.0, [])), event(2.0), event(50.0)])
    assert [round(e["t"] - START) for e in found["gpu_events"]] == [50]


def test_the_whole_run_s_energy_leaves_the_idle_baseline_out() -> None:
    lines = [hello(H200, hz=10.0)]
    lines += [tick(k / 10, {"index": 0, "power_w": 70.0 if k < 50 else 500.0, "procs": []}) for k in range(1060)]
    about = meta("mine", vendor="nvidia", **ABOUT)
    found = summarise(about, columns([0.5] * 100), lines)
    value = {name: metric["value"] for name, metric in found["metrics"].items()}
    assert value["power_idle_w"] == pytest.approx(70.0, rel=0.01)
    assert value["energy_j"] == pytest.approx(50_000, rel=0.001)
    assert value["energy_above_idle_j"] == pytest.approx(43_000, rel=0.01)
    assert value["node_energy_j"] is None
    assert found["energy"]["scope"] == "gpu"
    assert found["provenance"]["telemetry"][0]["devices"][0]["model"] == "NVIDIA H200"


def test_the_run_s_span_is_told_by_the_first_node_and_meant_by_every_clock() -> None:
    def node(ahead: float, boot: str) -> list[dict[str, Any]]:
        clock = [{"type": "clock", "t_wall_ns": round((START + ahead + t) * 1e9), "offset_s": ahead, "error_s": 0.001,
                  "rtt_s": 0.002} for t in (0.0, 110.0)]  # fmt: skip
        ticks = [tick(ahead + k / 10, {"index": 0, "power_w": 70.0 if k < 50 else 500.0}) for k in range(1060)]
        ticks[0]["devices"][0]["procs"] = []
        ticks[300]["devices"][0]["procs"] = [proc(9, "other")]
        return [hello({"index": 0}, boot_id=boot, hz=10.0), *clock, *ticks]

    handle = {"nodes": [{"access": {"address": a}} for a in ("h1", "h2")]}
    about = meta("mine", vendor="nvidia", handle=handle, plan={"log_node": 1, "stages": []}, **ABOUT)
    table = columns([0.5] * 100)
    table["t"] += 90.0 + 5.0  # the second node tells the iterations, by its own clock
    found = summarise(about, table, node(0.0, "b"), others=[node(90.0, "c")])
    value = {name: metric["value"] for name, metric in found["metrics"].items()}
    assert value["energy_j"] == pytest.approx(100_000, rel=0.001)
    assert value["power_idle_w"] == pytest.approx(140.0, rel=0.01)
    assert value["power_w"] == pytest.approx(1000.0)
    assert [(n["node"], n["pid"]) for n in found["provenance"]["neighbours"]] == [(0, 9), (1, 9)]


def test_what_slowed_a_side_is_said_with_how_long() -> None:
    slowed = side("b")
    metric = {"value": 0.125, "note": "power 12 %; by the drivers' counters: power 9 %"}
    summary = {"state": "SUCCEEDED", "metrics": {"throttled_ratio": metric}}
    slowed = Side("b", [RunFacts("g.b.r1", summary, slowed.runs[0].meta)])
    found = differences(side("a"), slowed)["throttling"]
    assert found["values"] == {"a": None, "b": 0.125}
    assert found["why"].endswith("(b: power 12 %; by the drivers' counters: power 9 %)")
