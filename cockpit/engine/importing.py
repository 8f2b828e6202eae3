"""Logs that were made without the cockpit become runs of a group, each with the telemetry that lies beside it."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cockpit import __version__
from cockpit.core.errors import UsageError
from cockpit.core.events import Event, State, StateChange
from cockpit.core.ids import group_id, run_id, slug
from cockpit.core.state import RunState, reduce
from cockpit.core.text import printable
from cockpit.engine import imported_log, imported_ticks
from cockpit.engine.finish import close_run
from cockpit.engine.imported_log import Log, LogFacts, Stamper
from cockpit.engine.imported_ticks import TickFacts
from cockpit.store.errors import explained
from cockpit.store.records import IMPORTED, GroupRecord
from cockpit.store.staging import Staging, staging

if TYPE_CHECKING:
    from cockpit.store.rundir import RunDir
    from cockpit.store.store import Store

_SLACK_S = 2.0  # stamps are often whole seconds
_BATCH = 4096
_NO_ENERGY = "its energy is not known"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user said of the logs; None is for their files to tell."""

    telemetry: Path | None = None
    server: str | None = None
    vendor: str | None = None
    form: str = "auto"


@dataclass(frozen=True, slots=True)
class Found:
    """What becomes one run: a log, with its telemetry where there is some, of a server by its name."""

    log: Path
    server: str
    telemetry: Path | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """The group that was made."""

    group: str
    runs: tuple[str, ...]


def find(paths: Sequence[str], wanted: Wanted) -> list[Found]:
    """What each path becomes. Logs of one folder are of one server, named like it where nobody named another.

    Raises UsageError.
    """
    if wanted.telemetry is not None and not wanted.telemetry.is_file():
        raise UsageError(f"--telemetry {wanted.telemetry}: there is no such file.")
    logs = [_log(path) for path in paths]
    twice = next((log for i, log in enumerate(logs) if log.resolve() in [o.resolve() for o in logs[:i]]), None)
    if twice is not None:
        raise UsageError(f"{twice} is named twice.")
    names = _servers([log.resolve().parent for log in logs])
    return [
        Found(log, wanted.server or names[log.resolve().parent], wanted.telemetry or _beside(log)) for log in logs
    ]


def _log(path: str) -> Path:
    log = Path(path)
    if not log.exists():
        raise UsageError(f"there is no file {path}.")
    if not log.is_file():
        raise UsageError(f"{path} is no file.", hint="Name the logs in it.")
    return log


def _beside(log: Path) -> Path | None:
    """The telemetry that lies beside a log."""
    beside = (log.with_name(f"{log.stem}.telemetry.jsonl"), log.with_name("telemetry.jsonl"))
    return next((path for path in beside if path.is_file()), None)


def _servers(folders: Sequence[Path]) -> dict[Path, str]:
    """A name for each folder, no two alike."""
    names: dict[Path, str] = {}
    for folder in folders:
        if folder not in names:
            name = slug(folder.name or IMPORTED, 20)
            alike = sum(other == name or other.startswith(f"{name}-") for other in names.values())
            names[folder] = f"{name}-{alike + 1}" if alike else name
    return names


def bring(store: Store, paths: Sequence[str], wanted: Wanted, say: Callable[[str], None]) -> Imported:
    """Make a group of the logs at `paths`: all of them, or none. `say` is handed what the user ought to know.

    Raises UsageError, DiskFull and StoreError.
    """
    found = find(paths, wanted)
    store.check_writable()
    group = group_id(IMPORTED, datetime.now().astimezone())
    made: list[dict[str, Any]] = []
    with staging(store.root, group) as place:
        for one in found:
            repeat = sum(meta["server"] == one.server for meta in made)
            made.append(_Run(one, wanted, group, repeat, say).make(place))
        record = _record(group, made)
        place.keep(record)
    return Imported(group, record.runs)


def _record(group: str, made: Sequence[dict[str, Any]]) -> GroupRecord:
    states = {State(meta["state"]) for meta in made}
    worst = next(state for state in (State.FAILED, State.LOST, State.SUCCEEDED) if state in states)
    return GroupRecord(
        id=group,
        profile=IMPORTED,
        runs=tuple(meta["id"] for meta in made),
        state=worst.value,
        servers={meta["server"]: {"name": meta["server"], "vendor": meta["vendor"]} for meta in made},
        created=made[0]["created"],
    )


class _Run:
    """One log on its way to a run."""

    def __init__(self, found: Found, wanted: Wanted, group: str, repeat: int, say: Callable[[str], None]) -> None:
        self._found = found
        self._wanted = wanted
        self._group = group
        self._repeat = repeat
        self._say = say
        self._run = run_id(group, found.server, repeat)
        self._notes: list[str] = []

    def make(self, place: Staging) -> dict[str, Any]:
        """Build the run's directory; its run.json."""
        with Log(self._found.log, self._wanted.form) as log:
            facts = log.look()
            ticks = self._ticks()
            ahead = self._ahead(facts, ticks)
            window = _window(facts, ahead)
            run_dir = place.run_dir(self._run)
            try:
                sha256 = _copy(log, run_dir)
                samples = self._telemetry(run_dir, facts, ticks, window)
                run_dir.write_meta(self._meta(facts, ticks, window, ahead, sha256, samples))
                state = self._journal(log, run_dir, facts, window, ahead)
            finally:
                run_dir.close()
        close_run(run_dir.path, state)
        return run_dir.meta()

    def _tell(self, text: str) -> None:
        self._notes.append(text)
        self._say(printable(f"{self._found.log}: {text}."))

    def _ticks(self) -> TickFacts | None:
        if self._found.telemetry is None:
            return None
        try:
            return imported_ticks.look(self._found.telemetry)
        except UsageError as error:
            if self._wanted.telemetry is not None:
                raise
            self._tell(f"left out what lies beside it: {error.message.rstrip('.')}")
            return None

    def _ahead(self, facts: LogFacts, ticks: TickFacts | None) -> float | None:
        """How far the log's clock on the wall is ahead of UTC (s); None where that is not known, or no matter.

        A stamp without a zone is read in the one zone that puts it into the telemetry's time; where several do, in
        this machine's, if that is among them.
        """
        begin, end = facts.begin, facts.end
        if begin is None or end is None or begin.zoned or ticks is None or ticks.span is None:
            return None
        fits = imported_log.zones(begin.t, end.t, ticks.span, _SLACK_S)
        mine = imported_log.here(begin.t)
        if not fits and min(end.t - mine, ticks.span[1]) > max(begin.t - mine, ticks.span[0]):
            fits = [mine]
        ahead = fits[0] if len(fits) == 1 else mine if mine in fits else None
        if ahead is not None:
            how = "this machine's" if len(fits) > 1 else "the one in which its telemetry fits"
            self._tell(f"its times have no zone and are read as {imported_log.zone_name(ahead)}, {how}")
        return ahead

    def _telemetry(
        self, run_dir: RunDir, facts: LogFacts, ticks: TickFacts | None, window: tuple[float, float] | None
    ) -> int | None:
        """Put the run's telemetry in its place, or beside it where it cannot be the run's; how many samples."""
        if ticks is None:
            return None
        why = None
        if ticks.span is None:
            why = f"{ticks.path.name} holds no sample"
        elif window is None:
            untold = f"its lines tell no time that {ticks.path.name} could be set against"
            why = untold if facts.begin is None else f"in no one time zone do its times lie within {ticks.path.name}"
        elif ticks.span[1] < window[0] or window[1] < ticks.span[0]:
            why = f"{ticks.path.name} is of another time ({_times(ticks.span)}) than the log ({_times(window)})"
        elif ticks.span[0] > window[0] + _SLACK_S or ticks.span[1] < window[1] - _SLACK_S:
            self._tell(f"{ticks.path.name} ({_times(ticks.span)}) has not all of the log's time ({_times(window)})")
        if why is None and window is not None:
            return imported_ticks.copy(ticks, run_dir, window)
        self._tell(f"{why}: it is kept among the artifacts, and {_NO_ENERGY}")
        target = run_dir.artifact(ticks.path.name)
        with explained("write", target):
            shutil.copyfile(ticks.path, target)
        return None

    def _meta(
        self,
        facts: LogFacts,
        ticks: TickFacts | None,
        window: tuple[float, float] | None,
        ahead: float | None,
        sha256: str,
        samples: int | None,
    ) -> dict[str, Any]:
        imported = {
            "log": self._found.log.name,
            "log_sha256": sha256,
            "telemetry": ticks.path.name if ticks is not None else None,
            "samples": samples,
            "zone": None if ahead is None else imported_log.zone_name(ahead),
            "notes": self._notes,
        }
        return {
            "id": self._run,
            "group": self._group,
            "profile": IMPORTED,
            "server": self._found.server,
            "vendor": self._wanted.vendor or (ticks.vendor if ticks is not None else None),
            "gpus": None,
            "state": State.PLANNED.value,
            "reason": None,
            "exit_code": None,
            "signal": None,
            "repeat": self._repeat,
            "sweep": {},
            "total": facts.total,
            "tags": [],
            "created": time.time(),
            "started": window[0] if window else None,
            "ended": window[1] if window else None,
            "handle": {},
            "provenance": {"cockpit": __version__, "imported": imported},
            "plan": {},
            "config": {},
        }

    def _journal(
        self,
        log: Log,
        run_dir: RunDir,
        facts: LogFacts,
        window: tuple[float, float] | None,
        ahead: float | None,
    ) -> RunState:
        state = RunState(run=self._run, group=self._group, server=self._found.server, repeat=self._repeat)
        begin, end = window or (None, None)
        final, why = facts.ending()
        stamper = Stamper(log, facts.begin is not None and facts.begin.zoned, ahead, begin)
        batch: list[Event] = [StateChange(state=State.RUNNING, t=begin, stage="train")]
        with run_dir.journal() as journal:
            for event in log.events():
                batch.append(stamper.stamp(event))
                if len(batch) >= _BATCH:
                    _keep(journal.append(batch), state)
                    batch.clear()
            batch.append(StateChange(state=final, t=end, reason=why))
            _keep(journal.append(batch), state)
        return state


def _keep(events: Sequence[Event], state: RunState) -> None:
    for event in events:
        reduce(state, event)


def _window(facts: LogFacts, ahead: float | None) -> tuple[float, float] | None:
    """When the run was (s, wall clock), where that is known."""
    if facts.begin is None or facts.end is None or (not facts.begin.zoned and ahead is None):
        return None
    shift = 0.0 if facts.begin.zoned else ahead or 0.0
    return facts.begin.t - shift, facts.end.t - shift


def _copy(log: Log, run_dir: RunDir) -> str:
    """The log as the run's output; its SHA-256."""
    seen = hashlib.sha256()
    for offset, block in log.blocks():
        run_dir.append_stdout(block, offset)
        seen.update(block)
    return seen.hexdigest()


def _times(span: tuple[float, float]) -> str:
    begin, end = (datetime.fromtimestamp(t).astimezone() for t in span)
    return f"{begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S}"
