"""`utility.json`: answers, and the utility that was fitted to them.

The same file is a session that goes on where it was left, and what
`ft.tune(utility="utility.json")` reads. It is replaced as a whole after every answer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freezethaw.errors import FreezeThawError, PreferenceError
from freezethaw.preference import FORMS, Answer, Form, Outcome, Stakes
from freezethaw.problems import Bounds, UtilityFunction
from freezethaw.records import Goal
from freezethaw.utility import Utility, from_json

FORMAT = "freezethaw-utility"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class UtilityFile:
    """What a file holds."""

    stakes: Stakes
    metric: str | None
    """None: whatever the study calls its score."""
    form: Form | None
    """The form that was asked for; None: the one that fits best."""
    answers: tuple[Answer, ...]
    utility: Utility | None
    """None while there is no answer."""


def write_file(path: Path, content: UtilityFile, notes: Sequence[str] = ()) -> None:
    """Replace the file by this content; `notes` are for people who look into it."""
    stakes = content.stakes
    data = {
        "format": FORMAT,
        "version": VERSION,
        "notes": list(notes),
        "metric": content.metric,
        "goal": stakes.goal,
        "bounds": list(stakes.bounds),
        "budget": stakes.budget,
        "unit": stakes.unit,
        "rate": stakes.rate,
        "form": content.form,
        "utility": None if content.utility is None else content.utility.to_json(),
        "answers": [
            [a.first.spent, a.first.best, a.second.spent, a.second.best, a.choice]
            for a in content.answers
        ],
    }
    try:
        path = path.resolve()  # a link stays one
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(data, file, indent=1, allow_nan=False)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            Path(partial).chmod(_mode(path))
            Path(partial).replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                Path(partial).unlink()
    except OSError as error:
        raise PreferenceError(
            f"{path}: cannot be written: {error.strerror}; this answer was not taken"
        ) from error


def _mode(path: Path) -> int:
    """The file's own permissions, or those that new files get here."""
    if path.exists():
        return path.stat().st_mode & 0o777
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask


def read_file(path: Path) -> UtilityFile:
    """Read and check a file; nothing in it is executed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise PreferenceError(
            f"{path}: there is no such file; `freezethaw prefer` makes one from your answers"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PreferenceError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PreferenceError(f"{path}: is no utility file; `freezethaw prefer` makes them")
    if data.get("version") != VERSION:
        raise PreferenceError(
            f"{path}: is of version {data.get('version')!r}; this freezethaw reads version "
            f"{VERSION}: update it, or answer the questions again into another file"
        )
    try:
        return _parse(data)
    except FreezeThawError as error:
        raise PreferenceError(f"{path}: {error}") from None
    except KeyError as error:
        raise PreferenceError(f"{path}: has no {error}") from None
    except (TypeError, ValueError) as error:
        raise PreferenceError(f"{path}: {error}; was it edited by hand?") from None


def _parse(data: dict[str, Any]) -> UtilityFile:
    low, high = data["bounds"]
    if data["unit"] not in ("epochs", "seconds", "money"):
        raise PreferenceError(f"unit {data['unit']!r}: it is 'epochs', 'seconds' or 'money'")
    if not isinstance(data["metric"], str | None):
        raise PreferenceError(f"metric {data['metric']!r}: it is a name, or null")
    goal = _goal(data["goal"])
    stakes = Stakes(
        budget=float(data["budget"]),
        goal=goal,
        bounds=(float(low), float(high)),
        unit=data["unit"],
        rate=data["rate"],
    )
    if data["form"] is not None and data["form"] not in FORMS:
        raise PreferenceError(f"form {data['form']!r}: known are {', '.join(FORMS)}")
    answers = tuple(
        Answer(Outcome(float(a), float(b)), Outcome(float(c), float(d)), choice)
        for a, b, c, d, choice in data["answers"]
    )
    for answer in answers:
        stakes.place(answer.first)
        stakes.place(answer.second)
    utility = None if data["utility"] is None else from_json(data["utility"])
    if utility is not None:
        _check_utility(utility, stakes)
    return UtilityFile(
        stakes=stakes, metric=data["metric"], form=data["form"], answers=answers, utility=utility
    )


def _goal(goal: Any) -> Goal:
    if goal not in ("maximize", "minimize"):
        raise PreferenceError(f"goal {goal!r}: it is 'maximize' or 'minimize'")
    chosen: Goal = goal
    return chosen


def _check_utility(utility: Utility, stakes: Stakes) -> None:
    mine = (utility.budget, utility.unit, utility.rate)
    theirs = (stakes.budget, stakes.unit, stakes.rate)
    if mine != theirs:
        raise PreferenceError(
            f"the utility's budget, unit and rate are {mine}, the file's {theirs}; "
            "answer again, or correct one of them"
        )


def read_utility(
    path: str | os.PathLike[str],
    *,
    goal: Goal | None = None,
    bounds: Bounds | None = None,
    metric: str | None = None,
) -> Utility:
    """Return the file's utility for a study of this goal, these bounds and this metric."""
    place = Path(path)
    content = read_file(place)
    if content.utility is None and content.answers:
        raise PreferenceError(
            f"{place}: holds answers and no utility; `freezethaw prefer --out {place}` makes it "
            "again"
        )
    if content.utility is None:
        raise PreferenceError(
            f"{place}: holds no answers yet; `freezethaw prefer --out {place}` asks the questions"
        )
    if goal is not None and goal != content.stakes.goal:
        raise PreferenceError(
            f"{place}: its questions were about a score to {content.stakes.goal}, and this study's "
            f"is to {goal}; answer again with --goal {goal} into another --out"
        )
    if metric is not None and content.metric is not None and metric != content.metric:
        raise PreferenceError(
            f"{place}: its questions were about {content.metric!r}, and this study's metric is "
            f"{metric!r}; answer again with --metric {metric}, into another --out"
        )
    if bounds is not None:
        _check_bounds(place, content.stakes.bounds, bounds)
    return content.utility


def utility_of(
    utility: Utility | UtilityFunction | str | os.PathLike[str] | None,
    *,
    goal: Goal,
    bounds: Bounds,
    metric: str,
) -> Utility | UtilityFunction | None:
    """Return a utility as it is, or read it from its file."""
    if not isinstance(utility, str | os.PathLike):
        return utility
    # "score" is what a study calls its metric when nobody has named it.
    named = None if metric == "score" else metric
    return read_utility(utility, goal=goal, bounds=bounds, metric=named)


def _check_bounds(place: Path, asked: tuple[float, float], bounds: Bounds) -> None:
    low, high = (
        -math.inf if bounds[0] is None else bounds[0],
        math.inf if bounds[1] is None else bounds[1],
    )
    if not (low <= asked[0] and asked[1] <= high):
        raise PreferenceError(
            f"{place}: its questions were about scores from {asked[0]:g} to {asked[1]:g}, and this "
            f"study's lie in [{low:g}, {high:g}]; answer again with --bounds within that, into "
            "another --out"
        )
