"""Events as text, and the fold that turns them into a history."""

import json
import math
import time

import pytest

from freezethaw.errors import StorageError
from freezethaw.events import (
    EVENTS,
    Completed,
    Created,
    Decided,
    Evicted,
    Failed,
    Fold,
    PaceFixed,
    PoolRenewed,
    Preferred,
    Released,
    Replayed,
    Reported,
    Resumed,
    Stopped,
    UtilityChanged,
    decision_of,
    event_from_json,
    event_to_json,
    numbers_of,
)
from freezethaw.parameters import Choice, Float, Int
from freezethaw.problems import describe_problem
from freezethaw.records import Decision, Fan, Leader, StopReason, TrialState
from freezethaw.seeds import trial_seed
from freezethaw.utility import hard_budget, linear

SPACE = {
    "lr": Float(1e-4, 1.0, log=True),
    "width": Int(2, 64),
    "optimizer": Choice(["sgd", "adam"]),
    "momentum": Float(0.0, 0.9, when={"optimizer": "sgd"}),
}
PARAMS = {"lr": 0.1, "width": 3, "optimizer": "adam"}


def problem(**settings):
    given = {
        "max_epochs": 5,
        "bounds": (0, 1),
        "initial": 0.1,
        "utility": linear(alpha=1, budget=40),
    }
    return describe_problem(SPACE, **(given | settings))


def begun(**settings) -> Fold:
    fold = Fold()
    fold.apply(Created.of(problem(**settings), "1.0"))
    return fold


def decided(step_id=0, trial_id=0, to_epoch=1, from_epoch=0, seconds=0.0, **fields) -> Decided:
    return Decided(
        step_id=step_id,
        trial_id=trial_id,
        params=PARAMS,
        from_epoch=from_epoch,
        to_epoch=to_epoch,
        seconds=seconds,
        **fields,
    )


def reported(score, epoch=1, trial_id=0, step_id=0, seconds=2.0, **fields) -> Reported:
    return Reported(
        step_id=step_id, trial_id=trial_id, epoch=epoch, score=score, seconds=seconds, **fields
    )


def fold_of(*events, **settings) -> Fold:
    fold = begun(**settings)
    for event in events:
        fold.apply(event)
    return fold


# ── as text ──────────────────────────────────────────────────────────────────────────────────────

ONE_OF_EACH = [
    Created.of(problem(first=[PARAMS]), "1.0"),
    Preferred(first=[60.0, 0.9], second=[250.0, 0.91]),
    UtilityChanged(utility=linear(alpha=1, budget=80).to_json()),
    PoolRenewed(generation=1, centers=[3, 1]),
    PaceFixed(epochs_per_decision=2, seconds_per_decision=0.1, seconds_per_epoch=math.inf),
    decided(numbers={"regret": math.nan, "leaders": [{"gain": -math.inf}]}),
    reported(0.1 + 0.2, extra={"loss": math.inf, "note": "nan", "deep": [{"x": -math.inf}]}),
    Replayed(trial_id=0, epoch=1, seconds=0.5, charged=True),
    Evicted(trial_id=0, replay_epochs=3),
    Completed(step_id=0, trial_id=0),
    Failed(step_id=0, trial_id=0, error="Traceback …\nValueError: ünïcode", seconds=1.5),
    Released(step_id=0),
    Resumed(),
    Stopped(reason="deadline", sentence="stopped", numbers={"regret": 0.5}),
]


def strict(text: str):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_there_is_an_example_of_each_kind():
    assert {event.kind for event in ONE_OF_EACH} == EVENTS.keys()


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda event: event.kind)
def test_round_trip(event):
    text = event_to_json(event)
    strict(text)
    again = event_from_json(event.kind, text)
    assert type(again) is type(event)
    assert repr(again) == repr(event)  # nan is not equal to itself, but is written the same


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1e-310, 0.1 + 0.2, -0.0])
def test_scores_keep_every_bit(score):
    event = reported(score)
    strict(event_to_json(event))
    again = event_from_json("reported", event_to_json(event)).score
    assert repr(again) == repr(score)


def test_an_unknown_kind_asks_for_an_upgrade():
    with pytest.raises(StorageError, match=r"'teleported'.*newer version.*upgrade"):
        event_from_json("teleported", "{}")


@pytest.mark.parametrize("body", ["", "[]", '{"score": 1}', '{"generation": 1, "center": []}'])
def test_a_damaged_event_says_so(body):
    with pytest.raises(StorageError, match="'pool_renewed' event cannot be read"):
        event_from_json("pool_renewed", body)


def test_a_study_begins_with_created():
    with pytest.raises(StorageError, match="first event must be 'created'"):
        _ = Fold().problem


def test_a_problem_survives_its_event():
    asked = problem(first=[PARAMS], seed=7, metric="accuracy")
    text = event_to_json(Created.of(asked, "1.0"))
    fold = Fold()
    fold.apply(event_from_json("created", text))
    assert fold.problem == asked


def test_a_decision_survives_its_event():
    leader = Leader(
        trial_id=3, params=PARAMS, epochs_seen=1, target_epoch=4, gain=0.25, chance=0.5, cost=3.0
    )
    fan = Fan(trial_id=3, epochs=(2, 3), levels=(0.1, 0.9), scores=((0.1, 0.2), (0.3, 0.4)))
    decision = Decision(
        trial_id=3,
        params=PARAMS,
        from_epoch=1,
        to_epoch=2,
        leaders=(leader,),
        fans=(fan,),
        utility_now=0.5,
        utility_max=0.75,
        utility_min=-math.inf,
        regret=0.1,
    )
    event = decided(1, 3, 2, 1, numbers=numbers_of(decision))
    again = decision_of(event_from_json("decided", event_to_json(event)))
    assert again.leaders == decision.leaders
    assert again.fans == decision.fans
    assert again.utility_min == -math.inf
    assert math.isnan(again.threshold)
    assert (again.trial_id, again.from_epoch, again.to_epoch) == (3, 1, 2)


# ── the fold ─────────────────────────────────────────────────────────────────────────────────────


def test_a_step_is_pending_until_its_last_epoch():
    fold = fold_of(decided(to_epoch=2))
    step = fold.history.pending[0]
    assert (step.trial_id, step.from_epoch, step.to_epoch) == (0, 0, 2)
    assert step.seed == trial_seed(0, 0)
    fold.apply(reported(0.3))
    assert list(fold.history.pending) == [0]
    fold.apply(reported(0.4, epoch=2))
    assert not fold.history.pending
    assert fold.history.curves[0].scores == (0.3, 0.4)
    assert fold.history.curves[0].seconds == (2.0, 2.0)
    assert fold.history.decisions == 1


def test_path_and_best_when_maximising():
    fold = fold_of(
        decided(0, 0, 2),
        reported(0.5),
        reported(0.4, epoch=2),
        decided(1, 1, 2),
        reported(0.5, trial_id=1, step_id=1),
        reported(0.7, epoch=2, trial_id=1, step_id=1),
    )
    history = fold.history
    assert [tuple(point) for point in history.path] == [
        (1.0, 0.5, 0),
        (2.0, 0.5, 0),
        (3.0, 0.5, 1),
        (4.0, 0.7, 1),
    ]
    assert (history.best_trial_id, history.best_epoch, history.best_score) == (1, 2, 0.7)


def test_of_equal_scores_the_first_is_the_best():
    fold = fold_of(decided(0, 0, 2), reported(0.5), reported(0.5, epoch=2))
    assert fold.history.best_epoch == 1


def test_what_is_worse_than_the_worst_soft_value_counts_as_that_value():
    """… in the utility; the best trial is still the one with the best score."""
    fold = fold_of(
        decided(0, 0, 3),
        reported(9.0),
        reported(7.0, epoch=2),
        reported(8.0, epoch=3),
        goal="minimize",
        bounds=(0, None),
        initial=2.5,
    )
    assert [point.best for point in fold.history.path] == [2.5, 2.5, 2.5]
    assert (fold.history.best_trial_id, fold.history.best_epoch) == (0, 2)
    fold.apply(decided(1, 1))
    fold.apply(reported(1.5, trial_id=1, step_id=1))
    assert fold.history.best_score == 1.5
    assert fold.history.best_trial_id == 1


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_a_diverged_trial_is_charged_and_over(score):
    fold = fold_of(decided(to_epoch=5), reported(score))
    history = fold.history
    assert history.curves[0].state is TrialState.DIVERGED
    assert not history.pending
    assert history.spent == 1
    assert history.bill.epochs == 1
    assert history.best_trial_id is None
    assert [tuple(point) for point in history.path] == [(1.0, 0.1, 0)]


def test_the_last_epoch_completes_a_trial():
    events = [reported(0.1 * epoch, epoch=epoch) for epoch in range(1, 6)]
    fold = fold_of(decided(to_epoch=5), *events)
    assert fold.history.curves[0].state is TrialState.COMPLETED


def test_completing_early():
    fold = fold_of(decided(to_epoch=5), reported(0.3), Completed(step_id=0, trial_id=0))
    assert fold.history.curves[0].state is TrialState.COMPLETED
    assert not fold.history.pending
    assert fold.history.spent == 1


@pytest.mark.parametrize(
    ("utility", "spent"),
    [
        (hard_budget(40), 2.0),
        (hard_budget(40, unit="seconds"), 30.0),
        (hard_budget(40, unit="money", rate="$3600/h"), 30.0),
        (hard_budget(40, unit="money", rate="$36/h"), 0.3),
    ],
)
def test_spent_in_each_unit(utility, spent):
    fold = fold_of(
        decided(to_epoch=2, seconds=7.0),
        reported(0.3, seconds=10.0),
        reported(0.4, epoch=2, seconds=20.0),
        utility=utility,
    )
    assert fold.history.spent == pytest.approx(spent)
    bill = fold.history.bill
    assert (bill.epochs, bill.seconds_training, bill.seconds_deciding) == (2, 30.0, 7.0)
    assert bill.seconds == 37.0


def test_replay_after_eviction_is_charged_and_counts_down():
    fold = fold_of(decided(to_epoch=3), reported(0.3), reported(0.4, epoch=2))
    fold.apply(Evicted(trial_id=0, replay_epochs=2))
    assert fold.history.curves[0].replay_epochs == 2
    fold.apply(Replayed(trial_id=0, epoch=1, seconds=1.0, charged=True))
    assert fold.history.curves[0].replay_epochs == 1
    fold.apply(Replayed(trial_id=0, epoch=2, seconds=1.0, charged=True))
    history = fold.history
    assert history.spent == 4
    assert history.curves[0].replay_epochs == 0
    assert history.curves[0].scores == (0.3, 0.4)
    assert len(history.path) == 2
    assert (history.bill.epochs, history.bill.epochs_replayed) == (2, 2)
    assert history.bill.seconds_replaying == 2.0


def test_replay_after_a_crash_stands_in_the_bill_alone():
    fold = fold_of(decided(to_epoch=3), reported(0.3))
    fold.apply(Replayed(trial_id=0, epoch=1, seconds=1.0, charged=False))
    assert fold.history.spent == 1
    assert fold.history.bill.epochs_replayed == 1


def test_a_new_score_ends_the_need_to_replay():
    fold = fold_of(decided(to_epoch=3), reported(0.3), Evicted(trial_id=0, replay_epochs=1))
    fold.apply(reported(0.4, epoch=2))
    assert fold.history.curves[0].replay_epochs == 0


def failed(trial_id, error="first", step_id=-1, **fields) -> Failed:
    return Failed(step_id=step_id, trial_id=trial_id, error=error, seconds=3.0, **fields)


def test_a_failure_is_charged_and_kept():
    fold = fold_of(decided(to_epoch=3), reported(0.3), failed(0))
    history = fold.history
    curve = history.curves[0]
    assert (curve.state, curve.error) == (TrialState.FAILED, "first")
    assert curve.scores == (0.3,)
    assert not history.pending
    assert history.spent == 2
    assert (history.bill.epochs, history.bill.seconds_training) == (2, 5.0)
    assert history.best_trial_id == 0


def test_a_failed_save_costs_no_epoch():
    fold = fold_of(decided(to_epoch=1), reported(0.3), failed(0, charged=False))
    assert fold.history.spent == 1
    assert fold.history.bill.epochs == 1
    assert fold.history.bill.seconds_training == 5.0


def test_a_failed_trial_leaves_no_step_behind():
    """The hook of a trial may raise while the trial waits for its turn."""
    fold = fold_of(decided(0, 0, 3), decided(1, 1, 3), failed(0, step_id=-1))
    assert list(fold.history.pending) == [1]


def test_failures_in_a_row():
    fold = fold_of(decided(0, 0), failed(0, "one"), decided(1, 1), failed(1, "two"))
    assert fold.history.failures_in_a_row == 2
    assert fold.history.first_failure == "one"
    fold.apply(decided(2, 2))
    assert fold.history.failures_in_a_row == 2
    fold.apply(reported(0.5, trial_id=2, step_id=2))
    assert fold.history.failures_in_a_row == 0
    assert fold.history.first_failure is None
    fold.apply(decided(3, 3))
    fold.apply(failed(3, "three"))
    assert fold.history.first_failure == "three"
    fold.apply(Resumed())
    assert fold.history.failures_in_a_row == 0


def test_a_released_step_can_be_taken_again():
    fold = fold_of(decided(to_epoch=3), reported(0.3), Released(step_id=0))
    assert not fold.history.pending
    assert fold.history.curves[0].state is TrialState.ACTIVE
    assert fold.trial_of_step(0) == 0
    assert fold.trial_of_step(1) is None


def test_a_stop_stands_until_something_happens():
    stopped = Stopped(reason="deadline", sentence="so late")
    fold = fold_of(decided(), reported(0.3), stopped)
    assert fold.stop.kind is StopReason.DEADLINE
    assert fold.stop.reason == "so late"
    assert decision_of(fold.last_decision).stop == fold.stop
    fold.apply(Resumed())
    assert fold.stop is None


def test_pool_and_pace():
    fold = fold_of(PoolRenewed(generation=2, centers=[4, 1]), PaceFixed(epochs_per_decision=3))
    history = fold.history
    assert (history.pool_generation, history.pool_centers) == (2, (4, 1))
    assert history.epochs_per_decision == 3


def test_a_new_utility_prices_what_comes_after():
    fold = fold_of(decided(to_epoch=3), reported(0.3, seconds=10.0), utility=hard_budget(
        40, unit="money", rate="$3600/h"
    ))  # fmt: skip
    cheaper = hard_budget(40, unit="money", rate="$36/h")
    fold.apply(UtilityChanged(utility=cheaper.to_json()))
    fold.apply(reported(0.3, epoch=2, seconds=10.0))
    assert fold.history.spent == pytest.approx(10.1)
    assert fold.problem.utility == cheaper


def test_what_is_preferred_is_kept_and_does_not_undo_a_stop():
    stopped = Stopped(reason="not_worth_it", sentence="enough", numbers={})
    said = Preferred(first=[60.0, 0.9], second=[250.0, 0.91])
    fold = fold_of(decided(to_epoch=1), reported(0.3), stopped, said)
    assert fold.preferences == (said,)
    assert fold.stop is not None
    fold.apply(UtilityChanged(utility=linear(alpha=1, budget=80).to_json()))
    assert fold.stop is None


def test_decisions_that_looked_ahead_are_timed():
    fold = fold_of(
        decided(0, 0, seconds=9.0), decided(1, 1, seconds=2.0, numbers={"leaders": [{}]})
    )
    assert fold.decision_seconds == [2.0]


def test_a_history_does_not_change_afterwards():
    fold = fold_of(decided(to_epoch=3), reported(0.3))
    before = fold.history
    fold.apply(reported(0.4, epoch=2))
    assert before.curves[0].scores == (0.3,)
    assert len(before.path) == 1
    assert list(before.pending) == [0]


def test_twenty_thousand_events_fold_fast():
    fold = begun(max_epochs=50)
    texts = []
    for step in range(10_000):
        trial, epoch = divmod(step, 40)
        texts += [
            event_to_json(decided(step, trial, epoch + 1, epoch, numbers={"leaders": []})),
            event_to_json(reported(0.01 * epoch, epoch + 1, trial, step)),
        ]
    began = time.process_time()
    for number, text in enumerate(texts):
        fold.apply(event_from_json("reported" if number % 2 else "decided", text))
    seconds = time.process_time() - began
    assert fold.history.spent == 10_000
    assert len(fold.history.curves) == 250
    assert seconds < 2  # about 0.4 on two slow cores
