"""The live screen over a scripted session: what is seen, and what the keys do."""

from __future__ import annotations

import pytest

from cockpit.core.events import Iteration, State
from cockpit.core.state import reduce
from cockpit.engine.observer import Outcome
from cockpit.tui.screens.live import LiveScreen
from cockpit.tui.widgets.chart import Chart
from cockpit.tui.widgets.tail import Tail
from tests.tui.scripted import GROUP, T0, Script, comparison, planned
from tests.tui.support import screen, shown, until


def _train(script: Script, server: str, repeat: int, steps: int, *, done: bool = False, start: float = 7.0) -> str:
    run = script.name(server, repeat)
    script.state(run, State.RUNNING)
    for step in range(1, steps + 1):
        script.iteration(run, step, start - step / 100)
    if done:
        script.state(run, State.SUCCEEDED, T0 + steps / 10, exit_code=0)
    return run


async def test_header_charts_runs_and_log_tell_of_both_servers() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        _train(script, "left", 1, 120, done=True)
        _train(script, "right", 1, 60)
        await until(pilot, "✓ 1 done")
        await until(pilot, "━ right r1 6.400")
        text = shown(app)
        assert GROUP in text
        assert "60/120" in text
        assert "▶ 1 running" in text
        assert "· 2 waiting" in text
        assert "━ left r1 5.800" in text  # the legend of the loss
        assert "━ left r1 10.2k" in text  # and of the speed: 1,024 tokens in 0.1 s
        assert "ETA" in text
        assert "right r1 │" in text
        assert "iteration 60/ 120" in text


async def test_after_the_last_step_no_time_is_left_that_nobody_knows() -> None:
    script = Script(planned(repeats=1))
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        _train(script, "left", 1, 120, done=True)
        _train(script, "right", 1, 60)
        await until(pilot, "ETA 0:0")
        for step in range(61, 121):
            script.iteration(script.name("right", 1), step, 6.0)
        await until(pilot, "finishing")
        assert "ETA" not in shown(app)


async def test_the_newest_repeat_is_bright_and_earlier_ones_are_named() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        _train(script, "left", 1, 120, done=True)
        await until(pilot, "━ left r1")
        _train(script, "left", 2, 30)
        await until(pilot, "━ left r2")
        assert "earlier repeats" in shown(app)
        chart = app.screen.query_one("#loss", Chart)
        assert {t.run.rsplit(".", 1)[1]: t.age for t in chart._tracks} == {"r2": 0, "r1": 1}


async def test_the_first_events_are_on_the_screen_when_they_came_before_it_was_painted() -> None:
    script = Script(planned(["left"], 1))
    run = script.name("left")
    for step in (1, 2, 3):  # as an attach finds it: already reduced
        reduce(script.states[run], Iteration(step=step, total=120, loss=5.0, step_s=0.1, tokens=1024))
    async with screen(script) as (_, pilot):
        await until(pilot, "3/120")


async def test_telemetry_says_load_memory_source_age_and_why_power_is_unknown() -> None:
    script = Script()
    async with screen(script, size=(200, 60)) as (app, pilot):
        await until(pilot, "no sample yet")
        run = script.name("left")
        script.hello(run)
        script.tick(run, 0.62)
        await until(pilot, "62%")
        text = shown(app)
        assert "mem 3.2/16 GiB" in text
        assert "power n/a (no RAPL)" in text
        assert "proc · 0 s old" in text
        script.tick(run, 0.62, power_w=87.4)
        await until(pilot, "87 W")


async def test_a_sample_ages_and_the_clock_stands_still_in_a_paused_replay() -> None:
    script = Script(live=False)
    async with screen(script) as (app, pilot):
        await until(pilot, "replay")
        now = [1000.0]
        app.feed._now = lambda: now[0]
        run = script.name("left")
        script.hello(run)
        script.tick(run, 0.5)
        now[0] += 7.5
        await until(pilot, "7 s")
        await pilot.press("space")
        assert script.paces == [0.0]
        now[0] += 100
        await until(pilot, "paused")
        assert "7 s" in shown(app)
        await pilot.press("space")
        now[0] += 1
        await until(pilot, "8 s")


async def test_a_server_with_gpus_has_a_line_each() -> None:
    script = Script(planned(["h200"], 1))
    async with screen(script) as (app, pilot):
        await until(pilot, "no sample yet")
        run = script.name("h200")
        script.hello(run, backend="nvml")
        device = {
            "util": 0.97,
            "mem_used": 61 * 2**30,
            "mem_total": 139 * 2**30,
            "power_w": 640.0,
            "temp_edge_c": 61.0,
        }
        script.tick(run, 0.1, [{"index": 0, **device}, {"index": 1, **device, "power_w": None}])
        await until(pilot, "61.0/139 GiB 640 W 61 °C edge")
        assert "power n/a 61 °C edge" in shown(app)


async def test_wire_lines_are_hidden_and_w_shows_them() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        script.log(script.name("left"), b'hello there\n@ekvi {"type":"iteration"}\n')
        await until(pilot, "hello there")
        assert "@ekvi" not in shown(app)
        await pilot.press("w")
        await until(pilot, "@ekvi")


async def test_a_log_of_wire_lines_alone_says_so() -> None:
    script = Script()
    async with screen(script) as (_app, pilot):
        await until(pilot, "duel-local")
        await until(pilot, "no output yet")
        for lines in (1, 2):
            script.log(script.name("left"), b'@ekvi {"type":"iteration"}\n')
            await until(pilot, "no output but wire lines: w shows them")
            await until(pilot, f"{lines} lines · following")


async def test_l_goes_through_the_servers_and_back_to_all() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        script.log(script.name("left"), b"from the left\n")
        script.log(script.name("right"), b"from the right\n")
        await until(pilot, "from the right")
        seen = []
        for _ in range(3):
            await pilot.press("l")
            await pilot.pause(0.2)
            seen.append(("from the left" in shown(app), "from the right" in shown(app)))
        assert seen == [(True, False), (False, True), (True, True)]


async def test_scrolling_back_holds_the_lines_while_more_come_and_f_follows_again() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        run = script.name("left")
        script.log(run, b"".join(b"line %d\n" % i for i in range(200)))
        await until(pilot, "line 199")
        await pilot.press("pageup")
        tail = app.screen.query_one(Tail)
        assert not tail.follow
        before = shown(app)
        script.log(run, b"".join(b"line %d\n" % i for i in range(200, 400)))
        await until(pilot, "of 400")
        assert [x for x in before.splitlines() if "│ line" in x] == [
            x for x in shown(app).splitlines() if "│ line" in x
        ]
        await pilot.press("f")
        await until(pilot, "line 399")
        assert tail.follow


async def test_lines_that_leave_the_ring_do_not_move_what_is_read() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        run = script.name("left")
        script.log(run, b"".join(b"line %d\n" % i for i in range(5000)))
        await until(pilot, "line 4999")
        await pilot.press("pageup")
        first = app.screen.query_one(Tail).top
        script.log(run, b"".join(b"line %d\n" % i for i in range(5000, 8000)))
        await until(pilot, lambda: app.feed.logs.view.first == 3000)
        await until(pilot, f"│ line {first}")


async def test_long_lines_are_read_sideways() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        script.log(script.name("left"), b"a" * 150 + b" the end\n")
        await until(pilot, "│ aaaa")
        assert "the end" not in shown(app)
        await pilot.press("right", "right", "right")
        await until(pilot, "the end")
        await pilot.press("left", "left", "left", "left")
        await until(pilot, lambda: "the end" not in shown(app))


async def test_half_a_figure_is_never_shown() -> None:
    script = Script()
    async with screen(script, size=(80, 24)) as (app, pilot):
        await until(pilot, "duel-local")
        script.finish(Outcome(GROUP, "SUCCEEDED", 0, comparison()))
        await until(pilot, "No difference between left and right can be shown.")
        assert "tokens_per_s: right" not in shown(app)


async def test_y_changes_the_scale_and_z_zooms_the_panel_in_focus() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        _train(script, "left", 1, 50)
        await until(pilot, "50/120")
        await pilot.press("y")
        await until(pilot, "loss (log)")
        app.screen.query_one("#loss", Chart).focus()
        await pilot.press("z")
        await until(pilot, lambda: "tokens/s" not in shown(app))
        assert app.screen.query_one("#loss", Chart).size.width > 100
        await pilot.press("z")
        await until(pilot, "tokens/s ·")
        await pilot.press("z", "escape")
        await until(pilot, "tokens/s ·")


async def test_the_speed_of_a_replay_goes_up_and_down_within_bounds() -> None:
    script = Script(live=False)
    async with screen(script) as (_, pilot):
        await until(pilot, "replay")
        await pilot.press("right_square_bracket", "right_square_bracket", "left_square_bracket")
        assert script.paces == [2.0, 4.0, 2.0]
        await until(pilot, "×2")
        await pilot.press(*["right_square_bracket"] * 12)
        assert script.paces[-1] == 64.0


async def test_a_replay_goes_on_from_the_speed_that_it_was_started_with() -> None:
    script = Script(live=False)
    script.speed = 8.0
    async with screen(script) as (_, pilot):
        await until(pilot, "×8")
        await pilot.press("right_square_bracket")
        assert script.paces == [16.0]


async def test_the_end_shows_the_verdict_its_reason_and_the_whole_comparison() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        script.log(script.name("left"), b"a line of the log\n")
        await until(pilot, "a line of the log")
        script.finish(Outcome(GROUP, "SUCCEEDED", 0, comparison(why="The interval holds 1 and is wide.")))
        await until(pilot, "No difference between left and right can be shown.")
        text = shown(app)
        assert "The interval holds 1 and is wide." in text
        assert "SUCCEEDED" in text
        assert "95 % interval" in text  # the report itself, not the reasons alone
        assert "tokens_per_s: right -0.2 % [-2.5 %, +2.2 %]" in text
        assert "a line of the log" not in text
        await pilot.press("v")
        await until(pilot, "a line of the log")
        await pilot.press("v")
        await until(pilot, lambda: "a line of the log" not in shown(app))


async def test_a_failed_run_says_why_and_the_header_counts_it() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "duel-local")
        run = _train(script, "left", 1, 5)
        script.state(run, State.FAILED, signal=9, reason="killed by the kernel")
        await until(pilot, "✗ 1 failed")
        assert "FAILED signal 9 at step 5" in shown(app)
        script.finish(Outcome(GROUP, "FAILED", 1))
        await until(pilot, "1 of 4 runs did not finish (FAILED: killed by the kernel)")


async def test_a_note_of_the_engine_stands_in_the_log() -> None:
    script = Script()
    async with screen(script) as (_, pilot):
        await until(pilot, "duel-local")
        script.observer.note("warning", "the disk is full; the training goes on")
        await until(pilot, "the disk is full; the training goes on")


async def test_t_changes_the_theme_and_the_groups_theme_is_taken() -> None:
    async with screen(Script(theme="rainbow")) as (app, pilot):
        await until(pilot, lambda: app.look.theme.name == "rainbow")
        await pilot.press("t")
        assert app.look.theme.name == "nord"
        assert app.theme == "nord"


async def test_the_users_theme_wins_over_the_groups() -> None:
    async with screen(Script(theme="rainbow"), theme="nord") as (app, pilot):
        await until(pilot, "duel-local")
        assert app.look.theme.name == "nord"


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (60, 16), (30, 8), (20, 4)])
@pytest.mark.parametrize("servers", [1, 2, 6])
async def test_the_layout_holds_at_any_size(size: tuple[int, int], servers: int) -> None:
    script = Script(planned([f"server{i}" for i in range(servers)], 2))
    async with screen(script, size=size) as (app, pilot):
        await until(pilot, lambda: app.feed.info is not None)
        for i in range(servers):
            _train(script, f"server{i}", 1, 20)
            script.hello(script.name(f"server{i}"))
            script.tick(script.name(f"server{i}"), 0.5)
        await pilot.pause(0.7)
        lines = shown(app).splitlines()
        assert len(lines) == size[1]
        assert all(len(line) <= size[0] for line in lines)
        assert "q quit" in lines[-1]
        if size[0] >= 80:
            assert "━ server0 r1" in "\n".join(lines)
            assert "20/120" in "\n".join(lines)
            assert "iteration" in "\n".join(lines)


async def test_it_can_be_resized_at_any_moment() -> None:
    script = Script()
    async with screen(script) as (_, pilot):
        await until(pilot, "duel-local")
        run = script.name("left")
        script.state(run, State.RUNNING)
        sizes = [(80, 24), (200, 60), (40, 10), (10, 3), (120, 40)]
        for step, size in enumerate(sizes * 2, 1):
            await pilot.resize_terminal(*size)
            script.iteration(run, step, 7.0 - step / 10)
            script.tick(run, 0.5)
            await pilot.pause(0.05)
        await until(pilot, "10/120")
        script.finish(Outcome(GROUP, "SUCCEEDED", 0, comparison()))
        await until(pilot, "SUCCEEDED")
        for size in sizes:
            await pilot.resize_terminal(*size)
        await until(pilot, "No difference")


async def test_nothing_is_painted_for_an_event_until_the_timer_asks() -> None:
    script = Script()
    async with screen(script) as (app, pilot):
        await until(pilot, "4 waiting")
        live = app.screen
        assert isinstance(live, LiveScreen)
        await until(pilot, "waiting for the first iteration")
        live._timer.pause()
        await pilot.pause()
        painted: list[str] = []
        for panel in live.query(Chart):
            panel.rows = lambda w, h, p=panel: painted.append(str(p.id)) or []  # type: ignore[method-assign,misc,func-returns-value]
        _train(script, "left", 1, 100)
        await pilot.pause()
        assert painted == []
        live._slow_at = 0.0
        live.paint()
        await pilot.pause()
        assert sorted(painted) == ["loss", "speed"]
