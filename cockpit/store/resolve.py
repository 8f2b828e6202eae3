"""Words of the command line to ids of runs and groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from cockpit.core.errors import UsageError, did_you_mean

LAST: Final = "last"  # the newest group
Want = Literal["run", "group", "any"]
_MOST_NAMED = 5


class Resolved(NamedTuple):
    """What a word of the command line stands for: `kind` is "run" or "group"."""

    kind: str
    id: str


def resolve(token: str, want: Want, *, groups: Sequence[str], runs: Sequence[str], where: str) -> Resolved:
    """The one id among `groups` and `runs` that is `token`, or else begins with it.

    Where either will do, a group goes before the runs whose ids begin with its own. Raises UsageError where there is
    none in `where`, or more than one.
    """
    if not token:  # an unset variable of a script begins every id, and `rm` would take the only one
        raise UsageError("an empty word names no run and no group.", hint="`ekvi-cockpit runs` lists them.")
    if want != "run":
        found = _matching(token, groups)
        if want == "group" or (found and token not in runs):
            return Resolved("group", _only(token, "group", found, groups, where))
    what, known = ("run", runs) if want == "run" else ("run or group", [*groups, *runs])
    return Resolved("run", _only(token, what, _matching(token, runs), known, where))


def _matching(token: str, known: Sequence[str]) -> list[str]:
    return [token] if token in known else [i for i in known if i.startswith(token)]


def _only(token: str, what: str, found: Sequence[str], known: Sequence[str], where: str) -> str:
    if len(found) == 1:
        return found[0]
    if found:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        whats = what.replace("run or", "runs or") + "s"
        raise UsageError(
            f"{token!r} stands for {len(found)} {whats}: {', '.join(found[:_MOST_NAMED])}{more}.",
            hint="Type more of the one that you mean.",
        )
    if not known:
        raise UsageError(f"there is no {what} {token!r}: {where} has none yet.")
    raise UsageError(f"there is no {what} {token!r} in {where}.", hint=nearest_id(token, known))


def nearest_id(token: str, known: Iterable[str]) -> str:
    """A hint with the ids that may have been meant, or how to list them."""
    return did_you_mean(token, known) or "`ekvi-cockpit runs` lists them."
