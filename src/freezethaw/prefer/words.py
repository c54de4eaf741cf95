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
    # As many digits as tell hundredths of the range apart.
    largest = max(abs(bound) for bound in stakes.bounds)
    return number(score, max(4, 3 + math.ceil(math.log10(largest / stakes.span))))


def outcome_text(outcome: Outcome, stakes: Stakes) -> tuple[str, str]:
    """Return score and cost of an outcome."""
    return score_text(outcome.best, stakes), amount(outcome.spent, stakes.unit)


def points_text(gain: float, stakes: Stakes) -> str:
    """Return a difference of scores, `gain` in shares of the range."""
    if stakes.bounds == (0.0, 1.0):
        text = number(100 * gain, 2)
        return f"{text} point{'s' * (text != '1')}"
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
            verb = "are" if name.endswith("s") and stakes.unit == "epochs" else "is"
            return (
                f"{name[0].upper()}{name[1:]} {verb} worth at most "
                f"{points_text(most * share, stakes)} to you."
            )
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
    return name.split(" ", 1)[1] if name.startswith(("a ", "an ", "1 ")) else name


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
    if side := one_sided(answers):
        found.append(_ONE_SIDED[side])
    asked = max((max(a.first.spent, a.second.spent) for a in answers), default=0.0)
    if len(answers) >= 3 and asked < 0.6 * stakes.budget:
        found.append(
            f"No question went beyond {amount(asked, stakes.unit)}: what is said of costs above "
            "it is a guess."
        )
    return found


_ONE_SIDED = {
    "tie": "Every answer is 'I cannot say': both outcomes are taken as equally good.",
    "dear": "Every answer prefers the better outcome: none says yet when cost would matter.",
    "cheap": "Every answer prefers the cheaper outcome: none says yet when a score would pay.",
}


def one_sided(answers: Sequence[Answer]) -> str | None:
    """Return which side five answers or more all took: "dear", "cheap" or "tie"."""
    sides = set()
    for answer in answers:
        first, second = answer.first.spent, answer.second.spent
        chose_dearer = (first > second) == (answer.choice == "first")
        sides.add("tie" if answer.choice == "tie" else "dear" if chose_dearer else "cheap")
    return sides.pop() if len(answers) >= 5 and len(sides) == 1 else None


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
