"""What a person reads: text for terminals, markdown, JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from cockpit.metrics.compare import compare
from cockpit.metrics.sides import RunFacts, Side
from cockpit.metrics.summary import UNITS, summarise
from cockpit.report import as_json, markdown, summary_text, text
from cockpit.report.numbers import change, number, plain, relative, span, values
from tests.metrics.made import columns, hello, meta, run, side, tick, told
from tests.metrics.test_parity import changed


def duel(**more: Any) -> dict[str, Any]:
    """A comparison of two sides that cannot be told apart."""
    return compare([side("left", [4000, 4040, 3960]), side("right", [4016, 4064, 3980], **more)])


def words(rendered: str) -> str:
    """The text without its line breaks."""
    return " ".join(rendered.split())


def test_the_verdict_comes_first_and_then_why() -> None:
    shown = text(duel())
    assert shown.startswith("No difference between left and right can be shown.\nright is 0.5 % faster")
    assert "runs a side would settle" in words(shown)


def test_figures_carry_unit_count_and_interval() -> None:
    found = duel()
    shown = text(found)
    primary = next(m for m in found["metrics"] if m["primary"])
    assert "tokens_per_s *" in shown
    assert "token/s" in shown
    assert "3 runs" in shown
    assert f"{primary['sides']['left']['value']:,.0f}" in shown
    assert span("tokens_per_s", primary["sides"]["left"]["ci95"]) in shown
    assert "indistinguishable" in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = text(duel(), width=width).splitlines() + summary_text(run(4000.0).summary, width=width).splitlines()
    assert max(map(len, lines)) <= width


def test_at_eighty_columns_no_word_of_the_verdict_is_broken() -> None:
    sides = [side("mi300x", [4000, 4040, 3960]), side("h200", [4016, 4064, 3980])]
    for word in ("indistinguishable", "tokens_per_s *", "step_s_p99"):
        assert word in text(compare(sides), width=80)


def test_differences_are_named_with_both_values_and_the_worst_is_not_hidden() -> None:
    about = changed(meta(), "config.training.micro_batch", 2)
    right = Side("right", [RunFacts(r.id, r.summary, {**about, "id": r.id}) for r in side("right", [1, 2, 3]).runs])
    found = compare([side("left", [1, 2, 3]), right])
    shown = words(text(found))
    assert "Parity: labelled (1 blocking)" in shown
    assert "training.micro_batch left: 4, right: 2" in shown
    assert "did not do the same work" in shown
    assert "| blocking | training.micro\\_batch | 4 | 2 |" in markdown(found)


def test_many_harmless_differences_are_counted_and_not_all_listed() -> None:
    host = {f"fact{i}": i for i in range(20)}
    found = duel(provenance={"host": {**host, "host_id": "h9"}})
    assert re.search(r"and \d+ more of kind info", text(found))


def test_three_sides_stand_one_below_another() -> None:
    sides = [side(n, [1000 * f, 1003 * f, 997 * f]) for n, f in (("a", 1.0), ("b", 1.001), ("c", 1.1))]
    shown = text(compare(sides))
    assert "Against a, faster: c; equally fast: b." in shown
    assert "against a" in shown
    assert shown.count("c_better") >= 2
    assert "c_better" in words(markdown(compare(sides))).replace("\\", "")


def test_one_side_alone_has_no_column_of_ratios() -> None:
    shown = text(compare([side("left", [1000, 1001, 999])]))
    assert "nothing to compare with" in shown
    assert "against" not in shown
    assert "Parity" not in shown


def test_runs_that_failed_and_figures_that_lack_are_told() -> None:
    left = side("left", [1000, 1001, 999])
    failed = run(10.0, "g.left.r9", "left", state="TIMEOUT")
    right = side("right", [1000, 1001, 999])
    for one in right.runs:
        one.summary["metrics"]["tokens_per_s"].update(value=None, note="the log does not say")
    found = compare([Side("left", [*left.runs, failed]), right])
    for shown in (words(text(found)), words(markdown(found)).replace("\\", "")):
        assert "g.left.r9 (TIMEOUT)" in shown
        assert "tokens_per_s is not known for right: the log does not say." in shown
        assert "n/a" in shown


def test_colour_is_for_those_who_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[" in text(duel(), color=True)
    assert "\x1b[" not in text(duel(), color=False)
    assert "\x1b[" not in text(duel())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\x1b[" in text(duel())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in text(duel())


def test_a_name_cannot_smuggle_control_codes_or_markup_in() -> None:
    found = duel(provenance={"host": {"hostname": "\x1b[31mbad[/red]|<b>", "host_id": "h2"}})
    assert "\x1b" not in text(found, color=False)
    assert "[/red]" in text(found)
    assert "<b>" not in markdown(found)


def test_a_summary_shows_what_is_known_and_why_the_rest_is_not() -> None:
    table = columns(np.full(200, 0.25))
    shown = words(summary_text(summarise(meta("g.left.r1"), table)))
    assert "g.left.r1 SUCCEEDED" in shown
    assert "left (cpu, no GPU)" in shown
    assert "200 iterations, 0 dropped as warm-up, 200 steady" in shown
    assert "tokens_per_s 4,096 token/s" in shown
    assert "no price is configured" in shown
    assert all(name in shown for name in UNITS)


def test_at_eighty_columns_names_of_figures_are_whole_and_notes_are_said_once() -> None:
    table = columns(np.full(200, 0.25))
    ticks = [hello({"index": 0}), *(tick(0.5 * k, {"index": 0, "power_w": 400.0}) for k in range(110))]
    summary = summarise(meta("g.left.r1", vendor="nvidia"), table, ticks)
    known = [name for name, found in summary["metrics"].items() if found["value"] is not None]
    assert "energy_per_token_j" in known
    lines = summary_text(summary, width=80).splitlines()
    for name in known:
        assert any(line.startswith(f"{name} ") for line in lines), name
    assert "energy_per_token_j, tokens_per_j: scope: GPUs, integrated power" in lines


@pytest.mark.parametrize("state", ["CANCELLED", "SUCCEEDED"])
def test_a_run_without_iterations_is_said_in_lines_and_not_in_reasons(state: str) -> None:
    shown = summary_text(summarise(meta(state=state, vendor="nvidia"), columns([])))
    assert shown.splitlines()[1:] == ["left (nvidia, GPU n/a)", "no iteration in its log, so no speed and no loss"]


def test_what_is_known_without_iterations_is_one_line() -> None:
    seen = [hello({"index": 0}), tick(0.0, {"index": 0, "mem_used": 4 << 30}), tick(1.0, {"index": 0, "mem_used": 1})]
    assert summary_text(summarise(meta(), columns([]), seen)).splitlines()[3:] == ["mem_peak_by 4.000 GiB"]


def test_a_run_that_was_stopped_shows_what_is_known_and_counts_the_rest() -> None:
    shown = summary_text(summarise(meta(state="CANCELLED"), columns(np.full(9, 0.25))))
    assert "tokens_per_s" in shown
    assert "Not known" not in shown
    assert re.search(r"\n\d+ more are not known; the JSON says why\n$", shown)


def test_what_a_calibration_found_stands_in_its_summary() -> None:
    found = told("calibrate", matmul_tflops=0.1176, precision="fp32", device="cpu")
    shown = summary_text(summarise(meta(), columns([]), (), [found]))
    assert "Calibrated: no class figure: gpu_specs.csv holds GPUs, and this is a CPU." in shown
    assert "\n  fp32 products 0.1176 TFLOP/s\n" in shown


def test_json_is_one_document_that_reads_back() -> None:
    found = duel()
    assert json.loads(as_json(found)) == found
    assert as_json(found).endswith("}\n")
    with pytest.raises(ValueError, match="JSON compliant"):
        as_json({"value": float("nan")})


def test_reports_end_with_one_newline() -> None:
    for shown in (text(duel()), markdown(duel()), summary_text(run(1.0).summary)):
        assert shown.endswith("\n")
        assert not shown.endswith("\n\n")
        assert not any(line != line.rstrip() for line in shown.splitlines())


def test_published_speeds_stand_with_their_source() -> None:
    found = duel()
    found["published"] = [
        {"side": "left", "model": "Llama-3-8B", "gpu": "H200", "framework": "F", "precision": "BF16",
         "tokens_per_s_gpu": 12345.0, "source": "https://example.org/a"}
    ]  # fmt: skip
    assert "12,345" in text(found)
    assert "<https://example.org/a>" in markdown(found)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("tokens_per_s", 4095.35, "4,095"),
        ("tokens_per_s", 1234567.0, "1,234,567"),
        ("step_s", 0.24994, "0.2499"),
        ("step_s", None, "n/a"),
        ("mem_peak_by", 3 << 30, "3.000"),
        ("mfu", 0.41234, "41.23"),
        ("loss_final", 0.0, "0"),
        ("energy_per_token_j", 1.5e-6, "1.500e-06"),
    ],
)
def test_numbers_read_well_and_unknown_is_not_zero(name: str, value: float | None, shown: str) -> None:
    assert number(name, value) == shown


def test_ratios_and_values_read_as_a_person_writes_them() -> None:
    assert change(1.004) == "+0.40 %"
    assert change(0.95) == "-5.0 %"
    assert change(None) == "n/a"
    assert relative(None) == "n/a"
    assert relative(0.0123) == "1.2 %"
    assert values("code", "ab" * 32) == "abababababab…"
    assert values("code", None) == "not recorded"
    assert values("code", True) == "true"
    assert values("throttling", 0.980891) == "98 % of the time"
    assert values("throttling", 1) == "100 % of the time"
    assert values("throttling", 0.012) == "1.2 % of the time"
    assert plain(-0.5) == "-0.5000"
