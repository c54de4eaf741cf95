"""Why a study stopped, in a sentence for its user."""

from __future__ import annotations

import math

from freezethaw import wording
from freezethaw.records import Decision, StopReason, Unit


def stop_sentence(
    kind: StopReason,
    spent: float,
    budget: float,
    unit: Unit,
    *,
    decision: Decision | None = None,
    failures: int = 0,
    first_failure: str | None = None,
) -> str:
    """'stopped after 143 of 300 epochs: the best continuation has a 4% chance …'."""
    after = wording.of_budget(spent, budget, unit)
    because = kind.text
    if kind is StopReason.BUDGET_SPENT and spent < budget * (1 - 1e-9):
        because = "what is left of the budget does not pay for another epoch; extend it to go on"
    elif kind is StopReason.NOT_WORTH_IT and decision is not None:
        because = not_worth_it(decision) or kind.text
    elif kind is StopReason.FAILURES and failures > 0:
        because = failures_in_a_row(failures, first_failure)
    return f"stopped after {after}: {because}"


def not_worth_it(decision: Decision) -> str | None:
    """What spoke against going on; None where no candidate was left to speak of."""
    if not decision.leaders or math.isnan(decision.leaders[0].chance):
        return None
    chance = decision.leaders[0].chance
    if chance < 0.5 or math.isnan(decision.regret) or math.isnan(decision.threshold):
        return f"the best continuation has {wording.chance(chance)} to repay its cost"
    # A likely gain can still be refused once too much has been lost: then say that.
    lost, limit = wording.two_percents(decision.regret, decision.threshold)
    return (
        f"the utility has fallen {lost} of its range below its peak, "
        f"more than the {limit} that {wording.chance(chance)} to repay allows"
    )


def failures_in_a_row(number: int, first_failure: str | None) -> str:
    """'3 trials failed in a row, the first with KeyError: 'width''."""
    what = last_line(first_failure)
    if number == 1:
        return f"a trial failed{what and ' with '}{what}"
    return f"{number:,} trials failed in a row{what and ', the first with '}{what}"


def last_line(traceback: str | None) -> str:
    """What an exception says, without the way to it."""
    return wording.printable((traceback or "").strip().rpartition("\n")[2])
