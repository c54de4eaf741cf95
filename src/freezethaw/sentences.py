"""Why a study stopped, in a sentence for its user."""

from __future__ import annotations

from freezethaw import wording
from freezethaw.records import StopReason, Unit


def stop_sentence(
    kind: StopReason,
    spent: float,
    budget: float,
    unit: Unit,
    chance: float | None = None,
    failures: int = 0,
) -> str:
    """'stopped after 143 of 300 epochs: the best continuation has a 4% chance …'."""
    after = wording.of_budget(spent, budget, unit)
    if kind is StopReason.BUDGET_SPENT and spent < budget * (1 - 1e-9):
        because = "what is left of the budget does not pay for another epoch; extend it to go on"
    else:
        because = _because(kind, chance, failures)
    return f"stopped after {after}: {because}"


def _because(kind: StopReason, chance: float | None, failures: int) -> str:
    if kind is StopReason.NOT_WORTH_IT and chance is not None and chance >= 0.5:
        return (
            "the utility has fallen too far from its best for "
            f"{wording.chance(chance)} to make up for the next cost"
        )
    if kind is StopReason.NOT_WORTH_IT and chance is not None:
        return f"the best continuation has {wording.chance(chance)} to repay its cost"
    if kind is StopReason.FAILURES and failures == 1:
        return "a trial failed; its traceback says why"
    if kind is StopReason.FAILURES and failures > 1:
        return f"{failures:,} trials failed in a row; the first traceback says why"
    return kind.text
