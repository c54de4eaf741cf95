"""A fitted utility and its questions, as people read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from freezethaw.preference import Answer, Fit, Outcome, Stakes, against_reason, contradictions
from freezethaw.wording import amount, number

SMALL = 0.001
"""Of the score's range: what is worth less is worth nothing."""


def score_text(score: float, stakes: Stakes) -> str:
    """Return a score: as a percentage where scores run from 0 to 1."""
    if stakes.bounds == (0.0, 1.0):
        return f"{number(100 * score, 4)}%"
    return number(score, 4)


def outcome_text(outcome: Outcome, stakes: Stakes) -> tuple[str, str]:
    """Return score and cost of an outcome."""
    return score_text(outcome.best, stakes), amount(outcome.spent, stakes.unit)


def points_text(gain: float, stakes: Stakes) -> str:
    """Return a difference of scores, `gain` in shares of the range."""
    if stakes.bounds == (0.0, 1.0):
        return f"{number(100 * gain, 2)} points"
    return f"{number(gain * stakes.span, 2)} of score"


def a_piece(stakes: Stakes) -> tuple[float, str]:
    """Return an amount that people think in, about a tenth of the budget, and its name."""
    if stakes.unit == "seconds":
        for seconds, name in (
            (86400, "a day"),
            (3600, "an hour"),
            (60, "a minute"),
            (1, "a second"),
        ):
            if stakes.budget >= 2 * seconds:
                return float(seconds), name
        return stakes.budget, amount(stakes.budget, "seconds")
    tenth = stakes.budget / 10
    power = 10.0 ** math.floor(math.log10(tenth))
    piece = max(p for p in (power, 2 * power, 5 * power) if p <= tenth * (1 + 1e-9))
    if stakes.unit == "epochs":
        piece = max(1.0, piece)
    return piece, amount(piece, stakes.unit)


def sentence(fit: Fit) -> str:
    """Return what the utility says, in one sentence."""
    stakes = fit.stakes
    whole = float(fit.price(1.0))
    piece, name = a_piece(stakes)
    share = min(1.0, piece / stakes.budget)
    if whole < SMALL:
        most = float(fit.price_band([1.0])[1][0])
        if most > 20 * SMALL:
            return f"So far, {name} may be worth up to {points_text(most * share, stakes)} to you."
        return (
            f"Cost hardly matters to you within {amount(stakes.budget, stakes.unit)}: "
            "the best score within the budget is what counts."
        )
    if fit.form == "staircase":
        return _of_steps(fit)
    average = whole * share
    verb = "are" if name.endswith("s") and stakes.unit == "epochs" else "is"
    low, high = (float(bound[0]) * share for bound in fit.price_band([1.0]))
    text = (
        f"{name[0].upper()}{name[1:]} {verb} worth {points_text(average, stakes)} to you "
        f"(between {_bare(low, stakes)} and {_bare(high, stakes)})"
    )
    first, last = float(fit.price(share)), whole - float(fit.price(1 - share))
    if fit.form != "linear" and max(first, last) > 1.5 * max(min(first, last), SMALL * share):
        text += (
            f" on average: the first {_what(name)} {_bare(first, stakes)}, "
            f"the last {_what(name)} {_bare(last, stakes)}"
        )
    return text + "."


def _of_steps(fit: Fit) -> str:
    steps = [
        f"going beyond {amount(edge * fit.stakes.budget, fit.stakes.unit)} costs "
        f"{points_text(size, fit.stakes)}"
        for edge, size in fit.price.steps
        if size >= SMALL
    ]
    if not steps:
        steps = [f"{amount(fit.stakes.budget, fit.stakes.unit)} cost next to nothing"]
    text = ", ".join(steps[:-1]) + " and " + steps[-1] if len(steps) > 1 else steps[0]
    return f"To you, {text}; in between, spending costs nothing."


def _bare(gain: float, stakes: Stakes) -> str:
    return points_text(gain, stakes).split(" ")[0]


def _what(name: str) -> str:
    return name.split(" ", 1)[1] if name.startswith(("a ", "an ")) else name


def remarks(answers: Sequence[Answer], stakes: Stakes) -> list[str]:
    """Return what is odd about the answers: nothing of it is averaged away in silence."""
    found = []
    for n, answer in enumerate(answers, start=1):
        if against_reason(answer, stakes):
            found.append(
                f"Answer {n} prefers an outcome that costs more and is no better; it is left out."
            )
    for one, other in contradictions(answers, stakes):
        found.append(
            f"Answers {one + 1} and {other + 1} contradict each other: "
            f"{_said(answers[one], stakes)}; but {_said(answers[other], stakes)}."
        )
    choices = {answer.choice for answer in answers}
    if len(answers) >= 5 and len(choices - {"tie"}) <= 1 and "tie" in choices and len(choices) == 1:
        found.append("Every answer is 'I cannot say': nothing can be learned from ties alone.")
    places = [_dearer_chosen(answer, stakes) for answer in answers if answer.choice != "tie"]
    if len(places) >= 5 and len(set(places)) == 1:
        which = "better" if places[0] else "cheaper"
        found.append(
            f"Every answer prefers the {which} outcome: the price "
            f"{'may be far lower' if places[0] else 'may be far higher'} than the fit says."
        )
    return found


def _dearer_chosen(answer: Answer, stakes: Stakes) -> bool:
    first, second = stakes.place(answer.first), stakes.place(answer.second)
    chosen = first if answer.choice == "first" else second
    return chosen == max(first, second)


def _said(answer: Answer, stakes: Stakes) -> str:
    kept, left = answer.first, answer.second
    if answer.choice == "second":
        kept, left = left, kept
    texts = [" for ".join(outcome_text(outcome, stakes)) for outcome in (kept, left)]
    return f"{texts[0]} rather than {texts[1]}"


WIDTH, HEIGHT = 44, 11


def picture(fit: Fit) -> str:
    """Return a small chart: what a score must reach, by what is spent, to be worth the same."""
    x = np.linspace(0, 1, WIDTH)
    low, high = fit.price_band(x)
    top = max(float(high.max()), float(fit.price(1.0)), 1e-3) * 1.05
    rows = [[" "] * WIDTH for _ in range(HEIGHT)]

    def row(price: float) -> int:
        return HEIGHT - 1 - min(HEIGHT - 1, max(0, round(price / top * (HEIGHT - 1))))

    for column, (l, m, h) in enumerate(zip(low, fit.price(x), high, strict=True)):  # noqa: E741
        for place in range(row(float(h)), row(float(l)) + 1):
            rows[place][column] = "░"
        rows[row(float(m))][column] = "●"
    stakes = fit.stakes
    label = points_text(top, stakes)
    lines = [f"{'+' + label:>14} │{''.join(rows[0])}"]
    lines += [f"{'':>14} │{''.join(line)}" for line in rows[1:-1]]
    lines += [f"{'score needed':>14} │{''.join(rows[-1])}", f"{'':>14} └{'─' * WIDTH}"]
    end = amount(stakes.budget, stakes.unit)
    lines.append(f"{'':>16}{amount(0, stakes.unit):<{WIDTH - len(end)}}{end}")
    return "\n".join(lines)
