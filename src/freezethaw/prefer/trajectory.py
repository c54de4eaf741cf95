"""What a study says about its own outcomes: what is at stake in it, and where it has been."""

from __future__ import annotations

import math
from collections.abc import Sequence

from freezethaw.errors import PreferenceError
from freezethaw.events import Preferred, Problem
from freezethaw.preference import Answer, Fit, Outcome, Stakes, fit
from freezethaw.records import History

Pair = tuple[float, float]
"""An amount spent and a best score."""

MOST_OUTCOMES = 30


def stakes_of(problem: Problem) -> Stakes:
    """Return what can be spent and reached in a study."""
    low, high = problem.scale.hard
    soft_low, soft_high = problem.scale.soft
    return Stakes(
        budget=problem.utility.budget,
        goal=problem.scale.goal,
        bounds=(
            low if math.isfinite(low) else soft_low,
            high if math.isfinite(high) else soft_high,
        ),
        unit=problem.utility.unit,
        rate=problem.utility.rate,
    )


def outcomes_of(history: History, stakes: Stakes) -> list[Outcome]:
    """Return where the study stood: each amount spent at which its best score had just improved."""
    found: list[Outcome] = []
    for point in history.path:
        low, high = stakes.bounds
        outcome = Outcome(min(point.spent, stakes.budget), min(max(point.best, low), high))
        if not found or outcome.best != found[-1].best:
            found.append(outcome)
    if len(found) < 3:
        raise PreferenceError(
            f"the study has improved {len(found)} times so far; questions about it need 3 "
            "different outcomes: let it run on, or ask without --study"
        )
    if len(found) > MOST_OUTCOMES:
        step = (len(found) - 1) / (MOST_OUTCOMES - 1)
        found = [found[round(i * step)] for i in range(MOST_OUTCOMES)]
    return found


def preferred(problem: Problem, better: Pair, worse: Pair, *, equal: bool) -> Preferred:
    """Return the event that says so, its outcomes checked."""
    stakes = stakes_of(problem)
    for spent, best in (better, worse):
        stakes.place(Outcome(spent, best))
    return Preferred(
        first=list(map(float, better)),
        second=list(map(float, worse)),
        choice="tie" if equal else "first",
    )


def fit_of(problem: Problem, events: Sequence[Preferred]) -> Fit:
    """Return the utility that explains what was said of a study's outcomes."""
    answers = [Answer(Outcome(*e.first), Outcome(*e.second), e.choice) for e in events]
    return fit(answers, stakes_of(problem))
