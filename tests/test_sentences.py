from __future__ import annotations

import pytest

from fake_studies import fake_decision, fake_leader
from freezethaw.records import StopReason
from freezethaw.sentences import stop_sentence


def test_the_sentence_of_the_readme():
    decision = fake_decision(fake_leader(chance=0.04))
    sentence = stop_sentence(StopReason.NOT_WORTH_IT, 143.0, 300.0, "epochs", decision=decision)
    assert sentence == (
        "stopped after 143 of 300 epochs: the best continuation has a 4% chance to repay its cost"
    )


@pytest.mark.parametrize(
    ("chance", "words"),
    [(0.0, "no chance"), (0.08, "an 8% chance"), (1e-6, "less than a 0.1% chance")],
)
def test_chances_have_their_article(chance, words):
    decision = fake_decision(fake_leader(chance=chance))
    sentence = stop_sentence(StopReason.NOT_WORTH_IT, 1, 2, "epochs", decision=decision)
    assert sentence.endswith(f"has {words} to repay its cost")


@pytest.mark.parametrize(
    ("unit", "spent", "budget", "start"),
    [
        ("epochs", 1.0, 1.0, "stopped after 1 of 1 epoch: "),
        ("seconds", 2520.0, 7200.0, "stopped after 42 min of 2 h: "),
        ("money", 4.2, 20.0, "stopped after $4.20 of $20: "),
    ],
)
def test_each_unit(unit, spent, budget, start):
    assert stop_sentence(StopReason.NO_GAIN, spent, budget, unit).startswith(start)


@pytest.mark.parametrize(
    ("failures", "end"),
    [
        (1, "a trial failed with KeyError: 'width'"),
        (3, "3 trials failed in a row, the first with KeyError: 'width'"),
    ],
)
def test_failures_are_counted(failures, end):
    trace = "Traceback\n  File train.py, line 3\nKeyError: 'width'\n"
    sentence = stop_sentence(
        StopReason.FAILURES, 3, 300, "epochs", failures=failures, first_failure=trace
    )
    assert sentence == f"stopped after 3 of 300 epochs: {end}"


def test_a_likely_gain_is_refused_after_a_fall():
    decision = fake_decision(fake_leader(chance=0.62), regret=0.31, threshold=0.22)
    assert stop_sentence(StopReason.NOT_WORTH_IT, 3, 300, "epochs", decision=decision).endswith(
        "the utility has fallen 31% of its range below its peak, "
        "more than the 22% that a 62% chance to repay allows"
    )


def test_a_budget_that_is_spent_and_one_that_no_longer_suffices():
    spent = stop_sentence(StopReason.BUDGET_SPENT, 300, 300, "epochs")
    assert spent.endswith(": the budget is spent; extend it to go on")
    short = stop_sentence(StopReason.BUDGET_SPENT, 299.5, 300, "epochs")
    assert "does not pay for another epoch; extend it" in short


@pytest.mark.parametrize("kind", list(StopReason))
def test_every_reason_makes_a_sentence(kind):
    sentence = stop_sentence(kind, 10, 10, "epochs")
    assert sentence == f"stopped after 10 of 10 epochs: {kind.text}"
