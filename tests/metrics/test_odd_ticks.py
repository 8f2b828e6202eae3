"""Telemetry that no agent writes: whatever a server sends costs no run its summary."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cockpit.metrics import nodes
from cockpit.metrics.joined import join
from cockpit.metrics.summary import summarise
from tests.metrics.made import START, columns, meta

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.floats(),
    st.integers(-(10**3), 10**3),
    st.sampled_from([10**400, -(10**18), 10**18, 1e308, -1e308, [], {}, [{}], [None, 3], [{"pid": 1}]]),
)
DEVICE = (
    *("index", "power_w", "energy_j", "energy_at", "temp_hot_c", "mem_used", "clk_sm_mhz", "throttle", "throttled"),
    *("thr_power", "procs", "min", "max", "num", "first", "stale_s"),
)
NODE = ("power_w", "energy_j", "energy_at", "mem_used", "node_power_w", "energy_src", "max", "first")
HELLO = ("boot_id", "agent_id", "backend", "hz", "devices", "sources", "vendor", "unavailable", "host")
LINE = ("seq", "from_seq", "n", "t_mono_ns", "code", "t_wall_ns", "offset_s", "error_s")


def some(names: tuple[str, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """A few of the names with anything as values."""
    return st.dictionaries(st.sampled_from(names), ODD, max_size=6)


@st.composite
def lines(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A stream of which most has the right shape and any of it the wrong values."""
    out: list[dict[str, Any]] = []
    for k in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["tick"] * 6 + ["hello", "err", "gap", "clock", "else"]))
        good = {"seq": k, "t_mono_ns": k * 10**9, "t_wall_ns": round((START + k) * 1e9)}
        line = {"type": kind, **(good if kind == "tick" else {}), **draw(some(LINE if kind != "hello" else HELLO))}
        if kind == "tick":
            device = {"index": 0, "power_w": 100.0, "energy_j": 100.0 * k, **draw(some(DEVICE))}
            line["devices"] = draw(st.sampled_from([[device], [device, device], [device, 3], 3, None]))
            line["host"] = draw(st.one_of(some(NODE), ODD))
        out.append(line)
    return out


@settings(max_examples=100, deadline=None)
@given(lines(), lines())
def test_whatever_comes_the_summary_and_the_iterations_are_json(
    first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> None:
    table = columns([0.5] * 20)
    about = meta(vendor="nvidia", started=START, ended=START + 9)
    json.dumps(summarise(about, table, first, others=[second]), allow_nan=False)
    json.dumps(list(join(table, nodes.read([first, second], about)).rows()), allow_nan=False)
