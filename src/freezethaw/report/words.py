"""The sentences about a study, each made in one place."""

from __future__ import annotations

import math
from collections.abc import Iterator

from freezethaw import wording
from freezethaw.records import Leader, StopReason, Unit
from freezethaw.report.view import StudyView
from freezethaw.sentences import failures_in_a_row, not_worth_it


def stop_sentence(view: StudyView) -> str:
    """Why a study stopped: "stopped after 143 of 300 epochs: the best continuation has ..."."""
    after, because = stop_parts(view)
    return f"{after}: {because}"


def stop_parts(view: StudyView) -> tuple[str, str]:
    """The two halves of `stop_sentence`: when it stopped, and why."""
    if view.stop is None:
        raise ValueError("this study has not stopped; ask for `standing_sentence`")
    spent = view.history.spent
    after = f"stopped after {wording.of_budget(spent, view.budget, view.unit)}"
    if not view.history.path and spent <= 0:
        after = "stopped before the first epoch"
    return after, _because(view)


def _because(view: StudyView) -> str:
    assert view.stop is not None
    kind, history = view.stop.kind, view.history
    states = view.counts()
    failed = states.get("failed", 0) + states.get("diverged", 0)
    if kind is StopReason.NOT_WORTH_IT and view.decision and (text := not_worth_it(view.decision)):
        return text
    if kind is StopReason.NO_CANDIDATES and failed and failed == len(history.curves):
        if failed == 1:
            return "the only trial failed or diverged"
        return f"all {failed:,} trials failed or diverged"
    if kind is StopReason.FAILURES and history.failures_in_a_row > 0:
        return failures_in_a_row(history.failures_in_a_row, history.first_failure)
    reason = view.stop.reason.rstrip(".")
    if reason.startswith("stopped "):  # a whole sentence: its second half
        reason = reason.partition(": ")[2]
    return reason or kind.text


def standing_sentence(view: StudyView) -> str:
    """One line on where a study stands, stopped or not."""
    if view.stop is not None:
        return stop_sentence(view)
    if not view.history.path:
        return f"no epoch yet; the budget is {wording.amount(view.budget, view.unit)}"
    return f"{wording.of_budget(view.history.spent, view.budget, view.unit)} spent so far"


def choice_sentence(view: StudyView) -> str:
    """Why the last decision chose what it chose."""
    decision = view.decision
    if decision is None:
        return "No decision has been made yet."
    if view.stop is not None or decision.stop is not None or decision.trial_id is None:
        text = stop_sentence(view) if view.stop is not None else "the last decision was to stop"
        return text[0].upper() + text[1:] + "."
    begins = f"Trial {decision.trial_id} "
    if decision.from_epoch <= 0:
        begins += f"starts, up to epoch {decision.to_epoch}"
    else:
        begins += f"goes on from epoch {decision.from_epoch} to {decision.to_epoch}"
    leader = view.leader
    if leader is None or leader.trial_id != decision.trial_id:
        return begins + "."
    rivals = ", more than any other candidate" if len(decision.leaders) > 1 else ""
    return (
        f"{begins}: by epoch {leader.target_epoch} it is expected to gain "
        f"{wording.number(leader.gain, 2)} in utility for {price(leader, view.unit)}{rivals}, "
        f"and it has {wording.chance(leader.chance)} to repay its cost."
    )


def regret_sentence(view: StudyView) -> str | None:
    """How far the study is from stopping; None where the last decision did not say."""
    decision = view.decision
    if decision is None or not math.isfinite(decision.regret + decision.threshold):
        return None
    lost, limit = wording.two_percents(decision.regret, decision.threshold)
    where = "at its peak" if decision.regret <= 0 else f"{lost} of its range below its peak"
    given = "" if view.leader is None else f"with {wording.chance(view.leader.chance)} to repay, "
    ends = "so it stops" if decision.regret > decision.threshold else "so it goes on"
    return f"The utility lies {where}; {given}the limit is {limit}, {ends}."


def price(leader: Leader, unit: Unit) -> str:
    """What going on to the target epoch costs."""
    return wording.amount(leader.cost, unit)


def trials_sentence(view: StudyView) -> str:
    """34 trials: 1 training, 27 frozen, 5 completed, 1 diverged."""
    counts = view.counts()
    total = sum(counts.values())
    if not total:
        return "no trial yet"
    states = ", ".join(f"{n:,} {state}" for state, n in counts.items())
    return f"{wording.count(total, 'trial')}: {states}"


def bill_parts(view: StudyView) -> Iterator[tuple[str, float]]:
    """What was paid for, in seconds."""
    bill = view.history.bill
    yield "training", bill.seconds_training
    yield "replaying", bill.seconds_replaying
    yield "deciding", bill.seconds_deciding


def bill_sentence(view: StudyView) -> str:
    """143 epochs in 2 min 5 s (training 1 min 50 s, deciding 15 s), $1.03 at $2.50 per hour."""
    bill = view.history.bill
    parts = ", ".join(f"{name} {wording.duration(s)}" for name, s in bill_parts(view) if s > 0)
    replayed = f", {bill.epochs_replayed:,} replayed," if bill.epochs_replayed else ""
    text = f"{wording.count(bill.epochs, 'epoch')}{replayed} in {wording.duration(bill.seconds)}"
    text += f" ({parts})" if parts else ""
    if view.money is not None and view.rate is not None:
        text += f", {wording.money(view.money)} at {wording.money(view.rate)} per hour"
    return text
