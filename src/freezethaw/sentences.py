"""Why a study stopped, in a sentence for its user."""

from __future__ import annotations

from freezethaw.records import StopReason, Unit
from freezethaw.units import amount


def stop_sentence(
    kind: StopReason,
    spent: float,
    budget: float,
    unit: Unit,
    chance: float | None = None,
    failures: int = 0,
) -> str:
    """'stopped after 143 of 300 epochs: the best continuation has a 4% chance …'."""
    return f"stopped after {progress(spent, budget, unit)}: {_because(kind, chance, failures)}"


def progress(spent: float, budget: float, unit: Unit) -> str:
    """'143 of 300 epochs', '1.2 h of 3 h', '$4.10 of $20.00'."""
    if unit == "epochs":
        return f"{spent:,.0f} of {amount(budget, unit)}"
    return f"{amount(spent, unit)} of {amount(budget, unit)}"


def percent(chance: float) -> str:
    """A chance for people: never 0% or 100% unless it is."""
    if 0 < chance < 0.01:
        return "less than 1%"
    if 0.99 < chance < 1:
        return "more than 99%"
    return f"{chance:.0%}"


def _because(kind: StopReason, chance: float | None, failures: int) -> str:
    if kind is StopReason.NOT_WORTH_IT and chance is not None:
        article = "an" if percent(chance).startswith(("8", "11%", "18%")) else "a"
        return f"the best continuation has {article} {percent(chance)} chance to repay its cost"
    if kind is StopReason.FAILURES:
        return f"{failures} trials failed in a row; the first traceback says why"
    return kind.text
