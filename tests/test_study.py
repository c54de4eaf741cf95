"""Ask and tell: what a study takes, refuses, remembers."""

import contextlib
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from fake_extrapolators import FakeCurves
from freezethaw import report, utility
from freezethaw.errors import (
    BusyError,
    ConfigError,
    ExtrapolatorError,
    MismatchError,
    SpaceError,
    StudyError,
    TellError,
    UtilityError,
)
from freezethaw.events import Decided, PaceFixed, Stopped, UtilityChanged
from freezethaw.parameters import Choice, Float, Int
from freezethaw.records import Step, Stop, StopReason, TrialState
from freezethaw.scale import Scale
from freezethaw.space import Space
from freezethaw.stopping import never
from freezethaw.storage import open_log
from freezethaw.study import Study
from freezethaw.views import view_of

SPACE = {"lr": Float(1e-4, 1.0, log=True), "width": Int(2, 64)}
CONFIGURATIONS = [{"lr": 10.0**-n, "width": 2 + n} for n in range(5)]
ENGINE = {"weights": FakeCurves(), "epochs_per_decision": 1}


def settings(**changes):
    given = {
        "space": SPACE,
        "max_epochs": 5,
        "bounds": (0, 1),
        "initial": 0.1,
        "utility": utility.linear(alpha=0.2, budget=30),
        "configurations": CONFIGURATIONS,
    }
    return given | ENGINE | changes


@pytest.fixture
def path(tmp_path):
    return tmp_path / "study.db"


@pytest.fixture
def study(path):
    with Study.create(**settings(storage=path)) as study:
        yield study


def curve_of(trial_id: int, epoch: int) -> float:
    return 0.1 + 0.15 * (trial_id % 5 + 1) * (1 - math.exp(-epoch / 2))


def run(study: Study, steps: int = 1000) -> Stop | None:
    """Ask and tell so often, or until the stop."""
    for _ in range(steps):
        step = study.ask()
        if isinstance(step, Stop):
            return step
        for epoch in range(step.from_epoch + 1, step.to_epoch + 1):
            study.tell(step, curve_of(step.trial_id, epoch), seconds=1.0)
    return None


def kinds(path, name=None) -> list[str]:
    return [event.kind for event in open_log(path, name).read()]


def decisions(path) -> list[tuple[int, int, int]]:
    return [
        (event.trial_id, event.from_epoch, event.to_epoch)
        for event in open_log(path).read()
        if isinstance(event, Decided)
    ]


# ── asking ───────────────────────────────────────────────────────────────────────────────────────


def test_a_step_says_all_that_training_needs(study):
    step = study.ask()
    assert (step.step_id, step.from_epoch, step.to_epoch) == (0, 0, 1)
    assert step.params == CONFIGURATIONS[step.trial_id]
    assert step.checkpoint is None
    assert 0 <= step.seed < 2**32
    assert study.pending() == [step]
    assert study.tell(step, 0.5)
    assert study.pending() == []
    assert study.history.curves[step.trial_id].scores == (0.5,)


def test_a_study_ends_by_itself(study):
    stop = run(study)
    assert stop.kind in (StopReason.NOT_WORTH_IT, StopReason.NO_GAIN)
    assert study.history.spent < 30
    assert study.stop == stop
    assert study.ask() == stop
    assert study.ask() == stop
    assert kinds(study.storage).count("stopped") == 1
    assert study.last_decision.stop == stop
    assert study.last_decision.leaders


def test_the_budget_ends_it_at_last(path):
    asked = settings(storage=path, utility=utility.hard_budget(7), stopping=never())
    with Study.create(**asked) as study:
        assert run(study).kind is StopReason.BUDGET_SPENT
        assert study.history.spent == 7


def test_every_configuration_can_be_trained_to_its_end(path):
    asked = settings(
        storage=path, utility=utility.hard_budget(99), stopping=never(), epochs_per_decision=5
    )
    with Study.create(**asked) as study:
        assert run(study).kind is StopReason.NO_CANDIDATES
        assert study.history.spent == 25
        states = {curve.state for curve in study.history.curves.values()}
        assert states == {TrialState.COMPLETED}


def test_given_configurations_come_first(path):
    first = [{"lr": 0.5, "width": 7}, {"lr": 1e-3, "width": 60}]
    asked = settings(storage=path, configurations=None, first=first, pool_size=8)
    with Study.create(**asked) as study:
        run(study, 2)
        assert [curve.params for curve in study.history.curves.values()] == first
        run(study, 3)
        assert len(study.history.curves) >= 2
    assert [trial for trial, _, _ in decisions(path)[:2]] == [0, 1]


def test_an_open_pool_is_renewed_at_logged_events(path):
    asked = settings(
        storage=path, configurations=None, pool_size=4, stopping=never(),
        utility=utility.hard_budget(60), epochs_per_decision=5,
    )  # fmt: skip
    with Study.create(**asked) as study:
        run(study, 9)
        assert study.history.pool_generation == 2
        ids = list(study.history.curves)
        assert len(set(ids)) == 9
    assert kinds(path).count("pool_renewed") == 2


def test_several_steps_at_once(study):
    steps = [study.ask() for _ in range(3)]
    assert len({step.trial_id for step in steps}) == 3
    assert study.pending() == steps
    for step in reversed(steps):
        study.tell(step, 0.5)
    assert study.pending() == []
    assert set(study.history.curves) == {step.trial_id for step in steps}
    assert study.history.spent == 3


def test_asking_while_all_are_being_trained(study):
    """No stop: it would stand, and other workers would go home."""
    steps = [study.ask() for _ in CONFIGURATIONS]
    with pytest.raises(StudyError, match="5 steps are being trained"):
        study.ask()
    assert study.stop is None
    study.tell(steps[0], 0.5)
    assert isinstance(study.ask(), Step)


def test_a_released_step_can_be_asked_for_again(study):
    step = study.ask()
    study.release(step)
    assert study.pending() == []
    again = study.ask()
    assert again.trial_id == step.trial_id
    assert again.step_id != step.step_id
    with pytest.raises(TellError, match=f"step {step.step_id} is finished"):
        study.tell(step, 0.5)
    with pytest.raises(TellError, match="not a step that was handed out and is unfinished"):
        study.release(step)


def test_completing_and_failing(study):
    one, two = study.ask(), study.ask()
    study.complete(one)
    study.fail(two, ValueError("too wide"), seconds=2.0)
    curves = study.history.curves
    assert curves[one.trial_id].state is TrialState.COMPLETED
    assert curves[two.trial_id].state is TrialState.FAILED
    assert "ValueError: too wide" in curves[two.trial_id].error
    assert study.history.spent == 1
    assert study.history.bill.seconds_training == 2.0
    run(study)
    assert curves[two.trial_id].epochs == 0
    assert all(trial not in (one.trial_id, two.trial_id) for trial, _, _ in decisions(
        study.storage)[2:])  # fmt: skip


def test_failures_in_a_row_stop_the_study(path):
    with Study.create(**settings(storage=path, max_failures=2)) as study:
        study.fail(study.ask(), "first traceback")
        study.fail(study.ask(), "second traceback")
        stop = study.ask()
        assert stop.kind is StopReason.FAILURES
        assert study.history.first_failure == "first traceback"
        assert "first traceback" in report.summary(view_of(study))
        assert study.ask() == stop
        study.resume()
        assert isinstance(study.ask(), Step)


def test_pause_and_resume(study):
    run(study, 2)
    stop = study.pause(StopReason.DEADLINE)
    assert study.ask() == study.stop == stop
    assert stop.reason.startswith("stopped after 2 of 30 epochs")
    assert study.last_decision.leaders  # `why` still has something to show
    study.resume()
    assert study.stop is None
    assert isinstance(study.ask(), Step)


def test_a_stop_of_the_method_is_not_resumed(study):
    stop = run(study)
    study.resume()
    assert study.ask() == stop
    assert "resumed" not in kinds(study.storage)


# ── telling ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def long(path):
    """A study whose steps are of three epochs."""
    with Study.create(**settings(storage=path, epochs_per_decision=3)) as study:
        yield study


def test_telling_twice_tells_the_next_epoch(long):
    step = long.ask()
    for score in (0.2, 0.3, 0.4):
        assert long.tell(step, score)
    assert long.history.curves[step.trial_id].scores == (0.2, 0.3, 0.4)
    with pytest.raises(TellError, match=r"finished: .* 3 epochs, the last score 0.4; ask\(\)"):
        long.tell(step, 0.5)
    assert long.history.spent == 3


def test_the_first_report_of_an_epoch_stands(long):
    step = long.ask()
    assert long.tell(step, 0.2, epoch=1)
    assert not long.tell(step, 0.9, epoch=1)
    assert long.tell(step, 0.3, epoch=2)
    assert not long.tell(step, 0.9, epoch=1)
    long.tell(step, 0.4)
    assert not long.tell(step, 0.9, epoch=3)  # also when the step is finished
    assert long.history.curves[step.trial_id].scores == (0.2, 0.3, 0.4)
    assert long.history.best_score == 0.4
    assert kinds(long.storage).count("reported") == 3


@pytest.mark.parametrize("epoch", [2, 3, 0, -1])
def test_epochs_are_told_in_order(long, epoch):
    step = long.ask()
    with pytest.raises(TellError, match=f"epoch {epoch} told after epoch 0; .* tell epoch 1 first"):
        long.tell(step, 0.5, epoch=epoch)
    assert long.history.spent == 0


@pytest.mark.parametrize("epoch", ["1", 1.0, True])
def test_an_epoch_is_a_whole_number(long, epoch):
    with pytest.raises(TellError, match="an epoch is a whole number"):
        long.tell(long.ask(), 0.5, epoch=epoch)


def test_an_unknown_step(study):
    study.ask()
    for call in (lambda: study.tell(7, 0.5), lambda: study.tell(7, 0.5, epoch=1)):
        with pytest.raises(TellError, match="step 7: the study 'default' never handed it out"):
            call()
    for call in (study.complete, study.release, lambda step: study.fail(step, "x")):
        with pytest.raises(TellError, match="step 7: not a step"):
            call(7)


def test_a_step_can_be_told_by_its_number(study):
    study.ask()
    study.tell(0, 0.5)
    assert study.history.best_score == 0.5


NUMBERS = [
    0.25,
    np.float32(0.25),
    np.array(0.25),
    torch.tensor(0.25),
    torch.tensor(0.25, requires_grad=True),
    Fraction(1, 4),
]


@pytest.mark.parametrize("score", NUMBERS, ids=lambda score: type(score).__name__)
def test_a_score_is_any_number(study, score):
    step = study.ask()
    study.tell(step, score)
    (stored,) = study.history.curves[step.trial_id].scores
    assert type(stored) is float
    assert stored == 0.25


NO_NUMBERS = [
    "0.25", b"0.25", None, True, np.True_, [0.25], np.array([0.25]), torch.tensor([0.25]),
    {"score": 0.25}, 1j, 10**400,
]  # fmt: skip


@pytest.mark.parametrize("score", NO_NUMBERS, ids=str)
def test_a_score_is_one_number(study, score):
    step = study.ask()
    with pytest.raises(TellError, match=r"trial \d, epoch 1: got .* a score is a number"):
        study.tell(step, score)
    assert study.history.spent == 0
    assert study.tell(step, 0.5)


@pytest.mark.parametrize("score", [1.4, -0.1, np.float64(1.00001)])
def test_a_score_lies_in_the_bounds(study, score):
    step = study.ask()
    with pytest.raises(TellError, match=r"epoch 1.*bounds"):
        study.tell(step, score)
    assert study.history.spent == 0
    assert study.pending() == [step]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, torch.tensor(math.nan)])
def test_a_diverged_trial_is_over(long, score):
    step = long.ask()
    long.tell(step, 0.5)
    long.tell(step, score)
    assert long.history.curves[step.trial_id].state is TrialState.DIVERGED
    assert long.history.spent == 2
    with pytest.raises(TellError, match="is diverged with 2 epochs"):
        long.tell(step, 0.5)
    run(long)
    assert long.history.curves[step.trial_id].epochs == 2
    assert long.best().epoch >= 1
    with Study.open(long.storage) as again:
        assert math.isnan(again.to_records()[1]["score"]) == math.isnan(score)


def test_what_goes_with_a_score(study):
    extra = {"loss": math.nan, "time": {"data": 1.5}, "note": "x", "ok": True, "none": None}
    step = study.ask()
    study.tell(step, 0.5, extra=extra)
    with Study.open(study.storage) as again:
        assert repr(again.history.curves[step.trial_id].extra) == repr(extra)


def test_what_cannot_go_with_a_score(study):
    step = study.ask()
    with pytest.raises(TellError, match="beside the score there may be numbers"):
        study.tell(step, 0.5, extra={"net": object()})
    assert study.history.spent == 0
    assert study.tell(step, 0.5)


# ── seconds and money ────────────────────────────────────────────────────────────────────────────


def test_seconds_are_measured_or_told(path):
    utility_ = utility.linear(alpha=0.2, budget=1000, unit="seconds")
    with Study.create(**settings(storage=path, utility=utility_)) as study:
        step = study.ask()
        study.tell(step, 0.5, seconds=12.5)
        assert study.history.spent == 12.5
        study.tell(study.ask(), 0.5)
        assert 12.5 < study.history.spent < 13.5


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_seconds_are_a_length(study, seconds):
    with pytest.raises(TellError, match=r"seconds=.*at least 0"):
        study.tell(study.ask(), 0.5, seconds=seconds)


def test_another_process_has_to_say_how_long_it_took(path):
    utility_ = utility.linear(alpha=0.2, budget=1000, unit="money", rate="$3600/h")
    with Study.create(**settings(storage=path, utility=utility_)) as study:
        step = study.ask()
    with Study.open(path, **ENGINE) as study:
        with pytest.raises(TellError, match=r"another process, .* counts money: say with seconds="):
            study.tell(step, 0.5)
        study.tell(step, 0.5, seconds=4.0)
        assert study.history.spent == pytest.approx(4.0)


def test_where_epochs_count_it_need_not(path):
    with Study.create(**settings(storage=path)) as study:
        step = study.ask()
    with Study.open(path, **ENGINE) as study:
        study.tell(step, 0.5)
        assert study.history.spent == 1


# ── opening again ────────────────────────────────────────────────────────────────────────────────


def test_a_study_goes_on_where_it_was(path):
    with Study.create(**settings(storage=path)) as study:
        run(study)
        history, stop = study.history, study.stop
    whole = decisions(path)
    other = path.with_name("other.db")
    for steps in [1, 3, 1000]:
        with Study.create(**settings(storage=other)) as study:
            run(study, steps)
    assert decisions(other) == whole
    with Study.open(other) as again:
        assert again.history.path == history.path
        assert again.history.best_trial_id == history.best_trial_id
        assert again.stop == stop
        assert again.last_decision.leaders


def test_an_interrupted_step_is_still_there(path):
    with Study.create(**settings(storage=path, epochs_per_decision=3)) as study:
        step = study.ask()
        study.tell(step, 0.3)
    with Study.open(path, **ENGINE) as study:
        (left,) = study.pending()
        assert (left.step_id, left.trial_id, left.params) == (0, step.trial_id, step.params)
        assert (left.from_epoch, left.to_epoch, left.seed) == (1, 3, step.seed)
        study.tell(left, 0.4)
        assert study.history.curves[step.trial_id].scores == (0.3, 0.4)


def test_a_study_that_is_not_there(path):
    with pytest.raises(StudyError, match="no such file"):
        Study.open(path)


DIFFERENT = {
    "space": ({"space": SPACE | {"lr": Float(1e-4, 2.0, log=True)}}, "lr"),
    "a parameter": ({"space": SPACE | {"depth": Int(1, 3)}, "configurations": None}, "depth"),
    "goal": ({"goal": "minimize", "initial": 0.9}, "goal is maximize in the study and minimize"),
    "bounds": ({"bounds": (0, 2)}, r"bounds is \(0.0, 1.0\) in the study and \(0.0, 2.0\)"),
    "initial": ({"initial": 0.2}, "initial is 0.1 in the study and 0.2 in this call"),
    "soft": ({"soft": (0.2, 0.9)}, "soft is"),
    "max_epochs": ({"max_epochs": 6}, "max_epochs is 5 in the study and 6 in this call"),
    "seed": ({"seed": 1}, "seed is 0 in the study and 1 in this call"),
    "metric": ({"metric": "loss"}, "metric is 'score' in the study and 'loss' in this call"),
    "pool": ({"configurations": None}, "pool_size is None in the study and 512"),
    "fewer": (
        {"configurations": CONFIGURATIONS[:3]},
        "was given 5 configurations, this call gives 3",
    ),
    "order": ({"configurations": CONFIGURATIONS[::-1]}, "configuration 0 is .* in the study and"),
}


@pytest.mark.parametrize(("changes", "words"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_a_different_study_is_refused(path, changes, words):
    with Study.create(**settings(storage=path)) as study:
        run(study, 1)
    before = kinds(path)
    with pytest.raises(MismatchError, match=words) as caught:
        Study.create(**settings(storage=path, **changes))
    assert "made differently" in str(caught.value)
    assert "another name=" in str(caught.value)
    assert kinds(path) == before
    with Study.create(**settings(storage=path)) as study:  # nothing is left locked
        assert study.history.spent == 1


def test_all_differences_are_named(path):
    Study.create(**settings(storage=path)).close()
    with pytest.raises(MismatchError, match=r"bounds.*; .*max_epochs.*; .*seed"):
        Study.create(**settings(storage=path, bounds=(0, 2), max_epochs=9, seed=3))


def test_another_name_is_another_study(path):
    Study.create(**settings(storage=path)).close()
    with Study.create(**settings(storage=path, name="two", seed=3)) as study:
        run(study, 1)
    with Study.open(path, "default") as study:
        assert study.history.spent == 0


def test_nothing_is_made_of_a_space_beyond_the_limits(path):
    wide = {f"p{i}": Float(0, 1) for i in range(17)}
    asked = settings(storage=path, space=wide, configurations=None, pool_size=4)
    with pytest.raises(ExtrapolatorError, match="17 columns"):
        Study.create(**asked)
    assert not path.exists()
    with Study.create(**settings(storage=path)):
        pass  # the user has fixed the space


WRONG = [
    ({"max_epochs": 0}, ConfigError, "max_epochs=0"),
    ({"max_epochs": 2.5}, ConfigError, "max_epochs=2.5"),
    ({"seed": -1}, ConfigError, "seed=-1"),
    ({"seed": 0.5}, ConfigError, "seed=0.5"),
    ({"epochs_per_decision": 0}, ConfigError, "epochs_per_decision=0"),
    ({"epochs_per_decision": "often"}, ConfigError, "'auto' or a number"),
    ({"max_failures": 0}, ConfigError, "max_failures=0"),
    ({"first": CONFIGURATIONS}, ConfigError, "exclude each other"),
    ({"configurations": [{"lr": 5.0, "width": 3}]}, SpaceError, "lr"),
    ({"utility": 3}, ConfigError, "utility=3"),
    ({"utility": lambda spent, best: best}, ConfigError, "needs budget="),
    ({"budget": 50}, ConfigError, "one place"),
    ({"coupling": "tight"}, ConfigError, "known are"),
]


@pytest.mark.parametrize(("changes", "error", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_what_makes_no_study(path, changes, error, words):
    with pytest.raises(error, match=words):
        Study.create(**settings(storage=path, **changes))
    assert not path.exists()


def test_a_kill_before_the_first_event_leaves_no_half_study(path, monkeypatch):
    def die(self, events):
        raise KeyboardInterrupt

    monkeypatch.setattr("freezethaw.storage.SqlLog._rows", die)
    with pytest.raises(KeyboardInterrupt):
        Study.create(**settings(storage=path))
    monkeypatch.undo()
    with Study.create(**settings(storage=path)) as study:
        run(study, 1)


# ── another utility ──────────────────────────────────────────────────────────────────────────────


def test_a_larger_budget_goes_on(path):
    small, large = (utility.linear(alpha=budget / 100, budget=budget) for budget in (4, 60))
    with Study.create(**settings(storage=path, utility=small, stopping=never())) as study:
        assert run(study).kind is StopReason.BUDGET_SPENT
        low = study.last_decision.utility_min
        first = study.history.path[0].best
        assert low == pytest.approx(first - 0.04)
    with Study.create(**settings(storage=path, utility=large)) as study:
        assert study.stop is None
        assert study.problem.utility == large
        assert isinstance(study.ask(), Step)
        assert study.last_decision.utility_min == pytest.approx(first - 0.6)
        assert study.history.spent == 4
    assert kinds(path).count("utility_changed") == 1
    with Study.create(**settings(storage=path, utility=large)) as study:
        assert kinds(path).count("utility_changed") == 1


def test_the_same_utility_changes_nothing(path):
    with Study.create(**settings(storage=path)) as study:
        stop = run(study)
    with Study.create(**settings(storage=path)) as study:
        assert study.ask() == stop
    assert "utility_changed" not in kinds(path)


@pytest.mark.parametrize("unit", ["seconds", "money"])
def test_another_unit_is_refused(path, unit):
    Study.create(**settings(storage=path)).close()
    other = utility.linear(alpha=0.2, budget=30, unit=unit, rate="$1/h")
    with pytest.raises(MismatchError, match=f"in epochs, the utility in {unit}"):
        Study.create(**settings(storage=path, utility=other))


def half(spent, best):
    return best - spent / 200


def test_a_function_as_utility(path):
    asked = settings(storage=path, utility=half, budget=30)
    with Study.create(**asked) as study:
        run(study, 3)
        history = study.history
    # Without the function the study can be read …
    with Study.open(path, **ENGINE) as study:
        assert study.problem.utility.describe().startswith("half(spent, best)")
        assert study.history.path == history.path
        assert study.result().best.score == history.best_score
        view = view_of(study)
        json.dumps(report.to_json(view), allow_nan=False)
        assert "half(spent, best)" in report.summary(view)
        assert "half(spent, best)" in report.html(view)
        json.dumps(report.why_json(view), allow_nan=False)
        # … and told, but not asked.
        with pytest.raises(ConfigError, match=r"utility half\(spent, best\).*use_utility"):
            study.ask()
        study.use_utility(study.problem.utility.__class__(**vars(study.problem.utility)))
        with pytest.raises(ConfigError, match="use_utility"):
            study.ask()
    with Study.create(**asked) as study:
        assert isinstance(study.ask(), Step)
        assert study.problem.utility(10, 0.5) == 0.45
    assert "utility_changed" not in kinds(path)
    with Study.open(path, **ENGINE) as study:
        study.use_utility(
            utility.custom(half, budget=60).bind(goal="maximize", low=0, high=1, full=1)
        )
        study.release(study.pending()[0])
        assert isinstance(study.ask(), Step)
    assert kinds(path).count("utility_changed") == 1


def test_a_function_stays_when_the_study_is_read_again_for_writing(path):
    """The first write reads what another process has written since."""
    asked = settings(storage=path, utility=half, budget=30)
    Study.create(**asked).close()
    study = Study.create(**asked)
    study.close()
    with study:
        assert isinstance(study.ask(), Step)


def test_a_function_that_is_no_utility(path):
    with pytest.raises(UtilityError, match="a better score must not be worth less"):
        Study.create(**settings(storage=path, utility=lambda spent, best: -best, budget=30))
    assert not path.exists()


# ── two at once ──────────────────────────────────────────────────────────────────────────────────


def test_the_second_writer_sees_what_the_first_wrote(path):
    with Study.create(**settings(storage=path, epochs_per_decision=3)) as first:
        step = first.ask()
        second = Study.open(path, **ENGINE)
        first.tell(step, 0.2)
        with pytest.raises(BusyError):
            second.tell(step, 0.9)
        with pytest.raises(BusyError):
            second.ask()
    with second:
        assert second.history.spent == 0  # as it was when it was opened
        second.tell(step, 0.3)
        assert second.history.curves[step.trial_id].scores == (0.2, 0.3)
    with pytest.raises(TellError, match="epoch 4 told after epoch 2"):
        first.tell(step, 0.9, epoch=4)
    assert first.history.curves[step.trial_id].scores == (0.2, 0.3)
    assert not first.tell(step, 0.9, epoch=2)
    first.close()


def test_every_way_to_write_reads_first(path):
    calls = {
        "tell": lambda s: s.tell(0, 0.5),
        "ask": lambda s: s.ask(),
        "complete": lambda s: s.complete(0),
        "release": lambda s: s.release(0),
        "fail": lambda s: s.fail(0, "x"),
        "replayed": lambda s: s.replayed(0, 1, 1.0),
        "evicted": lambda s: s.evicted(0, 1),
        "pause": lambda s: s.pause(StopReason.DEADLINE),
        "resume": lambda s: s.resume(),
        "use_utility": lambda s: s.use_utility(s.problem.utility),
        "clean": lambda s: s.clean(),
    }
    for name, call in calls.items():
        where = path.with_name(f"{name}.db")
        with Study.create(**settings(storage=where)) as first:
            stale = Study.open(where, **ENGINE)
            first.ask()
            first.tell(0, 0.25)
            first.ask()
        with contextlib.suppress(TellError):
            call(stale)
        assert stale.history.path[:1] == first.history.path, name
        assert stale.history.decisions >= 2, name
        stale.close()


def test_in_memory_it_can_be_closed_and_go_on():
    study = Study.create(**settings())
    run(study, 2)
    study.close()
    assert study.history.spent == 2
    run(study, 1)
    assert study.history.spent == 3
    assert study.storage is None
    assert study.checkpoints is None
    assert study.clean() == 0


# ── the pace ─────────────────────────────────────────────────────────────────────────────────────


def pace(path) -> list[PaceFixed]:
    return [event for event in open_log(path).read() if isinstance(event, PaceFixed)]


def auto(path, **changes):
    return settings(
        storage=path, epochs_per_decision="auto", stopping=never(),
        utility=utility.hard_budget(25), **changes,
    )  # fmt: skip


@pytest.fixture
def slow_decisions(monkeypatch):
    """Every decision takes a second by the study's clock."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr("freezethaw.study.time.perf_counter", clock)


@pytest.mark.parametrize(("seconds", "epochs"), [(1000.0, 1), (22.5, 1), (8.0, 3), (0.01, 5)])
def test_the_pace_follows_from_what_is_measured(path, slow_decisions, seconds, epochs):
    with Study.create(**auto(path)) as study:
        while not study.history.epochs_per_decision:
            step = study.ask()
            assert step.to_epoch == step.from_epoch + 1 or study.history.epochs_per_decision
            for epoch in range(step.from_epoch + 1, step.to_epoch + 1):
                study.tell(step, curve_of(step.trial_id, epoch), seconds=seconds)
        assert study.history.decisions == 4  # three to measure, the fourth uses it
    (event,) = pace(path)
    assert event.epochs_per_decision == epochs
    assert (event.seconds_per_decision, event.seconds_per_epoch) == (1.0, seconds)


def test_the_pace_is_fixed_once_and_repeated(path, slow_decisions):
    with Study.create(**auto(path)) as study:
        while not study.history.epochs_per_decision:
            step = study.ask()
            study.tell(step, curve_of(step.trial_id, 1), seconds=8.0)
    with Study.create(**auto(path)) as study:
        assert study.history.epochs_per_decision == 3
        for step in study.pending():
            study.release(step)
        run(study)
    assert len(pace(path)) == 1


def test_the_pace_is_measured_over_several_processes(path, slow_decisions):
    for _ in range(5):
        with Study.create(**auto(path)) as study:
            step = study.ask()
            study.tell(step, 0.3, seconds=8.0)
    assert [event.epochs_per_decision for event in pace(path)] == [3]


def test_epochs_that_take_no_time_measure_nothing(path):
    with Study.create(**auto(path)) as study:
        for _ in range(6):
            step = study.ask()
            study.tell(step, curve_of(step.trial_id, step.to_epoch), seconds=0.0)
    assert pace(path) == []


def test_a_number_fixes_the_pace_by_hand(path):
    with Study.create(**settings(storage=path, epochs_per_decision=2)) as study:
        step = study.ask()
        assert (step.from_epoch, step.to_epoch) == (0, 2)
    assert [event.epochs_per_decision for event in pace(path)] == [2]
    with Study.create(**settings(storage=path, epochs_per_decision="auto")) as study:
        study.release(0)
        step = study.ask()
        assert step.to_epoch == step.from_epoch + 2
    with Study.create(**settings(storage=path, epochs_per_decision=4)) as study:
        study.release(1)
        assert study.ask().to_epoch == 4
    assert [event.epochs_per_decision for event in pace(path)] == [2, 4]


# ── what comes out ───────────────────────────────────────────────────────────────────────────────


def test_records_and_frame(path):
    space = {"lr": Float(0, 1), "opt": Choice(["a", "b"]), "m": Float(0, 1, when={"opt": "a"})}
    configurations = [{"lr": 0.5, "opt": "a", "m": 0.25}, {"lr": 0.25, "opt": "b"}]
    asked = settings(
        storage=path, space=space, configurations=configurations, metric="accuracy",
        epochs_per_decision=2, stopping=never(),
    )  # fmt: skip
    with Study.create(**asked) as study:
        run(study, 3)
        records = study.to_records()
        assert len(records) == study.history.spent
        one = next(r for r in records if r["trial_id"] == 0)
        assert one == {
            "trial_id": 0, "epoch": 1, "accuracy": curve_of(0, 1), "seconds": 1.0,
            "state": study.history.curves[0].state.value,
            "params.lr": 0.5, "params.opt": "a", "params.m": 0.25,
        }  # fmt: skip
        frame = study.to_dataframe()
        assert len(frame) == len(records)
        assert set(frame.columns) == set(one)
        assert frame[frame.trial_id == 1]["params.m"].isna().all()


def test_the_best_of_a_result(study):
    assert study.result().best is None
    step = study.ask()
    study.tell(step, 0.25)
    study.complete(study.ask())  # of the same trial
    other = study.ask()
    study.tell(other, 0.75)
    result = study.result()
    assert (result.best.trial_id, result.best.score, result.best.epoch) == (other.trial_id, 0.75, 1)
    assert result.best.params == other.params
    assert result.best.checkpoint is None
    assert (result.spent, result.unit, result.study) == (2, "epochs", "default")
    assert result.storage == study.storage
    assert result.history == study.history
    assert "not stopped" in result.stop.reason


def test_scores_are_scaled_as_the_user_says(path):
    asked = settings(storage=path, bounds=(0, None), goal="minimize", initial=2.3, soft=(0, 2.3))
    with Study.create(**asked) as study:
        assert study.problem.scale == Scale.live("minimize", (0, None), 2.3, (0, 2.3))
        step = study.ask()
        study.tell(step, 1.1)
        study.tell(study.ask(), 1.2)
        assert study.result().best.score == 1.1
        assert study.problem.space == Space.of(SPACE)


def test_events_of_a_whole_study(study):
    run(study)
    events = open_log(study.storage).read()
    assert [event.kind for event in events[:3]] == ["created", "pace_fixed", "decided"]
    assert isinstance(events[-1], Stopped)
    assert not [event for event in events if isinstance(event, UtilityChanged)]
    assert events[-1].numbers["fans"]


def test_a_perfect_score_is_the_hard_bound(path):
    """What is good may go beyond the soft range: budget and checks reach to the bound."""
    asked = settings(storage=path, soft=(0.8, 0.9), initial=0.8)
    with Study.create(**asked | {"utility": utility.worth("1%", "3 epochs")}) as study:
        found = study.problem.utility
        assert found.budget == pytest.approx(60)
        assert found(60, 1.0) == pytest.approx(found(0, 0.8))
    drops = utility.custom(lambda spent, best: best if best <= 0.9 else 0.0, budget=30)
    with pytest.raises(UtilityError, match="a better score must not be worth less"):
        Study.create(**asked | {"utility": drops, "storage": None})


def test_a_budget_pays_for_an_epoch():
    with pytest.raises(ConfigError, match=r"a budget of 0\.5 epochs does not pay for one"):
        Study.create(**settings(utility=utility.hard_budget(0.5)))
