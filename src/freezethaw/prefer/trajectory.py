"""What a study says about its own outcomes: what is at stake in it, and where it has been."""

from __future__ import annotations

import math
from collections.abc import Sequence

from freezethaw.errors import PreferenceError
from freezethaw.events import Preferred, Problem
from freezethaw.preference import Answer, Fit, Outcome, Stakes, against_reason, fit, trivial
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
    try:
        first, second = (_worth(Outcome(*map(float, pair)), problem) for pair in (better, worse))
    except (TypeError, ValueError):
        raise PreferenceError(
            f"prefer({better!r}, {worse!r}): an outcome is a pair of numbers, (spent, score)"
        ) from None
    answer = Answer(first, second, "tie" if equal else "first")
    if against_reason(answer, stakes):
        raise PreferenceError(
            f"{tuple(better)} preferred to {tuple(worse)}: it is worse in one respect and better "
            "in none; no utility explains that. Outcomes are (spent, score): the other way round?"
        )
    if trivial(answer, stakes):
        raise PreferenceError(
            f"{tuple(better)} and {tuple(worse)}: one of them is no worse in any respect, so "
            "preferring it says nothing about what cost is worth"
        )
    return Preferred(
        first=[first.spent, first.best], second=[second.spent, second.best], choice=answer.choice
    )


def _worth(outcome: Outcome, problem: Problem) -> Outcome:
    """Return the outcome with a score beyond the range of the questions at its end."""
    low, high = stakes_of(problem).bounds
    hard_low, hard_high = problem.scale.hard
    best = outcome.best
    if hard_low <= best <= hard_high:
        best = min(max(best, low), high)
    return Outcome(outcome.spent, best)


def fit_of(problem: Problem, events: Sequence[Preferred]) -> Fit:
    """Return the utility that explains what was said of a study's outcomes.

    What was said under a larger budget than the present one counts where it lies within.
    """
    budget = problem.utility.budget * (1 + 1e-9)
    events = [e for e in events if max(e.first[0], e.second[0]) <= budget]
    answers = [Answer(Outcome(*e.first), Outcome(*e.second), e.choice) for e in events]
    return fit(answers, stakes_of(problem))
