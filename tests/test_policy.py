"""One decision: against numbers worked out by hand, and against a loop over everything."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fake_studies import fake_curve, fake_history
from fakes import FakeExtrapolator, point_mass
from freezethaw import utility
from freezethaw.candidates import FixedPool, OpenPool
from freezethaw.parameters import Float
from freezethaw.policy import EVERY_EPOCH_UP_TO, Policy, estimated_regret, query_epochs
from freezethaw.problems import describe_problem
from freezethaw.records import History, Step, StopReason, TrialState
from freezethaw.scale import Scale
from freezethaw.stopping import adaptive, fixed, never, pure_pi

SPACE = {"x": Float(0.0, 1.0)}
CONFIGURATIONS = [{"x": 0.0}, {"x": 0.25}, {"x": 0.5}, {"x": 1.0}]
EPOCHS = 4
BUDGET = 40
PRICE = 0.4 / BUDGET
"""Of an epoch in utility."""


def a_problem(**changes):
    given = {
        "max_epochs": EPOCHS,
        "bounds": (0, 1),
        "initial": 0.1,
        "scale": Scale.unit(),
        "utility": utility.linear(alpha=0.4, budget=BUDGET),
        "configurations": CONFIGURATIONS,
    }
    return describe_problem(SPACE, **given | changes)


def decide(history=None, *, mass, rule=None, problem=None, **settings):
    problem = problem or a_problem()
    policy = Policy(
        problem=problem,
        extrapolator=FakeExtrapolator(mass),
        rule=rule or adaptive(),
        **settings,
    )
    if problem.pool_size is None:
        pool = FixedPool(problem.space, problem.configurations)
    else:
        pool = OpenPool(space=problem.space, seed=0, goal="maximize", size=problem.pool_size,
                        first=problem.configurations)  # fmt: skip
    history = history or History()
    return policy.decide(history, pool.candidates(history))


def certain(table):
    """Forecasts without doubt: `table[x][epoch - 1]` is the score, in the middle of its bin."""

    def mass(columns, epoch):
        return point_mass(table[float(columns[0])][epoch - 1])

    return mass


FLAT = {c["x"]: [0.15] * EPOCHS for c in CONFIGURATIONS}


def started(*scores_of, **changes):
    """A history of trials 0, 1, … with these scores, trained one after another."""
    curves = [
        fake_curve(i, scores, params=CONFIGURATIONS[i], **changes)
        for i, scores in enumerate(scores_of)
    ]
    order = [i for i, scores in enumerate(scores_of) for _ in scores]
    return fake_history(curves, order)


# ── the estimated regret, Eq. 5 ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("now", "highest", "lowest", "regret"),
    [
        (0.5, 0.5, -0.1, 0.0),
        (0.4, 0.5, 0.1, 0.25),
        (0.1, 0.5, 0.1, 1.0),
        (0.0, 0.5, 0.1, 1.25),  # a custom utility that fell below where it would end
        (-math.inf, 0.5, 0.1, 1.0),
        (0.4, 0.5, -math.inf, 0.0),
        (0.5, 0.5, 0.5, 0.0),
    ],
)
def test_estimated_regret(now, highest, lowest, regret):
    assert estimated_regret(now, highest, lowest) == pytest.approx(regret)


def test_a_decision_carries_where_the_study_stands():
    # Trial 0 scored 0.5 after one epoch and has not improved since.
    decision = decide(started([0.5, 0.4, 0.5]), mass=certain(FLAT), rule=never())
    assert decision.utility_max == pytest.approx(0.5 - 1 * PRICE)
    assert decision.utility_now == pytest.approx(0.5 - 3 * PRICE)
    # The first score kept, and everything spent.
    assert decision.utility_min == pytest.approx(0.5 - 0.4)
    assert decision.regret == pytest.approx(2 * PRICE / (0.4 - PRICE))


# ── whom to train, Eq. 4 ─────────────────────────────────────────────────────────────────────────


def test_the_first_decision_takes_the_largest_gain():
    curves = FLAT | {0.25: [0.15, 0.15, 0.55, 0.95], 0.5: [0.45, 0.75, 0.75, 0.75]}
    decision = decide(mass=certain(curves))
    # From 0.1 and nothing spent: 0.85 for four epochs; 0.65 for two.
    first, second = decision.leaders[:2]
    assert (decision.trial_id, decision.from_epoch, decision.to_epoch) == (1, 0, 1)
    assert decision.params == CONFIGURATIONS[1]
    assert (first.trial_id, first.target_epoch, first.cost) == (1, 4, 4.0)
    assert first.gain == pytest.approx(0.95 - 0.1 - 4 * PRICE)
    assert (second.trial_id, second.target_epoch) == (2, 2)
    assert second.gain == pytest.approx(0.75 - 0.1 - 2 * PRICE)
    assert (first.chance, second.chance) == (1.0, 1.0)


def test_gains_are_those_of_a_loop_over_everything():
    rng = np.random.default_rng(0)
    masses = rng.dirichlet(np.full(10, 0.4), size=(len(CONFIGURATIONS), EPOCHS))
    place = {c["x"]: row for row, c in enumerate(CONFIGURATIONS)}
    history = started([0.35, 0.45], [0.25])
    decision = decide(
        history, mass=lambda columns, epoch: masses[place[float(columns[0])], epoch - 1],
        rule=never(),
    )  # fmt: skip
    best, spent = 0.45, 3
    utility_now = best - spent * PRICE
    middles = (np.arange(10) + 0.5) / 10
    levels = (np.arange(200_000) + 0.5) / 200_000
    expected = {}
    for trial, config in enumerate(CONFIGURATIONS):
        seen = len(history.curves[trial].scores) if trial in history.curves else 0
        running = np.full(len(levels), best)
        gains = []
        for epoch in range(seen + 1, EPOCHS + 1):
            # Comonotone: one draw decides the whole curve.
            cumulated = np.cumsum(masses[place[config["x"]], epoch - 1])
            index = np.minimum(np.searchsorted(cumulated, levels), 9)
            running = np.maximum(running, middles[index])
            value = running - (spent + epoch - seen) * PRICE
            gains.append(np.maximum(value - utility_now, 0).mean())
        expected[trial] = max(gains)
    order = sorted(expected, key=expected.__getitem__, reverse=True)
    assert [leader.trial_id for leader in decision.leaders] == order
    for leader in decision.leaders:
        # Within a bin the library is exact and this loop sits in the middle.
        assert leader.gain == pytest.approx(expected[leader.trial_id], abs=4e-3)


def test_ties_go_to_what_is_further_and_then_to_the_lower_id():
    assert decide(mass=certain(FLAT | dict.fromkeys((0.25, 1.0), [0.55] * EPOCHS))).trial_id == 1
    same = dict.fromkeys(FLAT, [0.95] * EPOCHS)
    history = started([0.15], [0.15, 0.15])
    assert decide(history, mass=certain(same)).trial_id == 1


def test_what_the_extrapolator_is_told():
    fake = FakeExtrapolator(certain(FLAT))
    problem = a_problem(bounds=(-1, 1), initial=-1.0, scale=None)
    policy = Policy(problem=problem, extrapolator=fake)
    history = started([0.0, 0.5], [], [-0.5])
    policy.decide(history, FixedPool(problem.space, problem.configurations).candidates(history))
    context = fake.contexts[0]
    # A trial without a score is no part of the context.
    assert context.configs.tolist() == [[0.0], [0.5]]
    assert context.epochs_seen.tolist() == [2, 1]
    for scores, raw in zip(context.scores, ([0.0, 0.5], [-0.5]), strict=True):
        expected = problem.scale.to_unit(np.array(raw))
        assert scores[: len(raw)].tolist() == expected.tolist()
        assert np.isnan(scores[len(raw) :]).all()
    assert (context.initial, context.max_epochs) == (0.0, EPOCHS)


def test_a_slow_configuration_must_earn_its_price():
    """Equal curves; in seconds, the one whose epochs take ten times as long is left alone."""
    problem = a_problem(utility=utility.linear(alpha=0.4, budget=40, unit="seconds"))
    curves = [
        fake_curve(0, [0.15], params=CONFIGURATIONS[0], seconds=10.0),
        fake_curve(1, [0.15], params=CONFIGURATIONS[1], seconds=1.0),
    ]
    history = replace(fake_history(curves, [0, 1]), spent=11.0)
    same = FLAT | {x: [0.15, 0.55, 0.55, 0.55] for x in (0.0, 0.25)}
    decision = decide(history, mass=certain(same), problem=problem, rule=never())
    assert decision.trial_id == 1
    gains = {leader.trial_id: leader.gain for leader in decision.leaders}
    assert gains[1] == pytest.approx(0.55 - 0.15 - 1 * 0.01)
    assert gains[0] == pytest.approx(0.55 - 0.15 - 10 * 0.01)


def test_epochs_to_train_again_are_paid_for():
    history = started([0.15, 0.15], [0.15, 0.15])
    lost = replace(history.curves[0], replay_epochs=2)
    history = replace(history, curves={**history.curves, 0: lost})
    same = FLAT | {x: [0.15, 0.15, 0.55, 0.55] for x in (0.0, 0.25)}
    decision = decide(history, mass=certain(same), rule=never())
    costs = {leader.trial_id: leader.cost for leader in decision.leaders}
    assert decision.trial_id == 1
    assert (costs[0], costs[1]) == (3.0, 1.0)


# ── how far one decision goes ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pace", "spent", "to_epoch"), [(None, 0, 1), (3, 0, 3), (9, 0, EPOCHS), (3, 38, 2), (3, 39, 1)]
)
def test_the_pace_ends_with_the_curve_and_with_the_budget(pace, spent, to_epoch):
    history = replace(History(), epochs_per_decision=pace, spent=float(spent))
    rising = dict.fromkeys(FLAT, (0.15, 0.35, 0.55, 0.75))
    decision = decide(history, mass=certain(rising), rule=never())
    assert (decision.from_epoch, decision.to_epoch) == (0, to_epoch)


def test_the_pace_ends_where_the_gain_does():
    """What comes after the epoch for which a trial was chosen has no gain of its own."""
    history = replace(History(), epochs_per_decision=3)
    best_at_2 = FLAT | {0.5: [0.15, 0.95, 0.95, 0.95]}
    decision = decide(history, mass=certain(best_at_2), rule=never())
    assert (decision.trial_id, decision.to_epoch) == (2, 2)
    # Without a gain there is nowhere to end.
    nothing = dict.fromkeys(FLAT, (0.05,) * EPOCHS)
    assert decide(history, mass=certain(nothing), rule=never()).to_epoch == 3


@pytest.mark.parametrize("max_epochs", [1, 50, EVERY_EPOCH_UP_TO])
def test_short_curves_are_asked_for_at_every_epoch(max_epochs):
    epochs = query_epochs(max_epochs, np.array([0, 3]))
    assert epochs.tolist() == list(range(1, max_epochs + 1))


def test_long_curves_are_asked_for_at_some_epochs_and_each_next_one():
    epochs = query_epochs(1000, np.array([0, 401, 1000]))
    assert {1, 402, 1000} <= set(epochs.tolist())
    assert len(epochs) <= EVERY_EPOCH_UP_TO + 2
    assert epochs.tolist() == sorted(set(epochs.tolist()))


def test_several_steps_at_once():
    """A pending step holds its trial, and its predicted cost counts as spent."""
    step = Step(step_id=0, trial_id=1, params={}, from_epoch=0, to_epoch=4, seed=0)
    best = FLAT | {0.25: [0.95] * EPOCHS, 0.5: [0.55] * EPOCHS}
    curve = fake_curve(1, [], params=CONFIGURATIONS[1])
    history = replace(History(), pending={0: step}, curves={1: curve})
    decision = decide(history, mass=certain(best), rule=never())
    assert decision.trial_id == 2
    assert 1 not in [leader.trial_id for leader in decision.leaders]
    # It is spent for good: further candidates are not charged for it.
    assert decision.utility_now == pytest.approx(0.1 - 4 * PRICE)
    assert decision.leaders[0].gain == pytest.approx(0.55 - 0.1 - PRICE)
    nearly = replace(history, spent=37.0)
    assert decide(nearly, mass=certain(best), rule=never()).stop.kind is StopReason.BUDGET_SPENT


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────


def test_it_stops_when_the_regret_exceeds_the_threshold():
    history = started([0.55, 0.55, 0.55])
    # Hopeful at 1 in 10: a chance of 0.1 to come from 0.55 to 0.95.
    mass = {x: [0.0] * 10 for x in FLAT}
    for x in FLAT:
        mass[x][1], mass[x][9] = 0.9, 0.1

    def doubtful(columns, epoch):
        return mass[float(columns[0])]

    go_on = decide(history, mass=doubtful, rule=fixed(0.9))
    regret = 2 * PRICE / (0.4 - PRICE)
    assert go_on.stop is None
    assert go_on.threshold == 0.9
    assert go_on.leaders[0].chance == pytest.approx(0.1)
    for rule in (fixed(regret - 0.01), pure_pi()):
        stop = decide(history, mass=doubtful, rule=rule)
        assert stop.stop.kind is StopReason.NOT_WORTH_IT
        assert stop.trial_id is None
        assert "10%" in stop.stop.reason
        assert stop.leaders == go_on.leaders
    assert stop.fans[0].epochs == (4,)
    assert stop.fans[0].scores[0] == pytest.approx((0.1 + 0.05 / 0.9 * 0.1,), abs=1e-6)


def test_the_threshold_of_the_adaptive_rule_follows_the_chance():
    """Eq. 6 at p = 0.5: the CDF of a symmetric Beta is one half there, and 0.5^γ = 0.2."""
    mass = [0.0] * 10
    mass[0] = mass[9] = 0.5
    decision = decide(started([0.5]), mass=lambda columns, epoch: mass)
    assert decision.leaders[0].chance == pytest.approx(0.5)
    assert decision.threshold == pytest.approx(0.2)


def test_a_stop_against_the_odds_says_so():
    history = started([0.55, 0.55, 0.55])
    mass = [0.0] * 10
    mass[1], mass[9] = 0.3, 0.7
    decision = decide(history, mass=lambda columns, epoch: mass, rule=fixed(0.01))
    assert decision.stop.kind is StopReason.NOT_WORTH_IT
    assert "more than the 1% that a 70% chance to repay allows" in decision.stop.reason


@pytest.mark.parametrize("rule", [adaptive(), fixed(0.0), pure_pi()])
def test_nothing_stops_before_the_first_score(rule):
    worthless = dict.fromkeys(FLAT, [0.05] * EPOCHS)
    assert decide(mass=certain(worthless), rule=rule).stop is None


def test_no_gain_stops_unless_told_never():
    history = started([0.55])
    decision = decide(history, mass=certain(FLAT))
    assert decision.stop.kind is StopReason.NO_GAIN
    assert decide(history, mass=certain(FLAT), rule=never()).trial_id is not None


def test_scores_beyond_the_soft_range_are_told_what_to_do():
    problem = a_problem(bounds=(0, None), soft=(0, 10), initial=0.0, scale=None)
    best = dict.fromkeys(FLAT, (0.95,) * EPOCHS)
    decision = decide(started([60.0]), mass=certain(best), problem=problem)
    assert decision.stop.kind is StopReason.NO_GAIN
    assert "60, is beyond soft=(0, 10)" in decision.stop.reason
    assert "wider soft=" in decision.stop.reason
    assert "soft" not in decide(started([0.55]), mass=certain(FLAT)).stop.reason


def test_nothing_at_stake():
    flat = utility.custom(lambda spent, best: 0.0 * best, budget=BUDGET)
    decision = decide(started([0.55]), mass=certain(FLAT), problem=a_problem(utility=flat))
    assert decision.stop.kind is StopReason.NOTHING_AT_STAKE


def test_the_budget_is_spent():
    history = replace(started([0.55]), spent=float(BUDGET))
    best = dict.fromkeys(FLAT, [0.95] * EPOCHS)
    decision = decide(history, mass=certain(best), rule=never())
    assert decision.stop.kind is StopReason.BUDGET_SPENT


def test_no_candidates():
    curves = [
        fake_curve(i, [0.5] * EPOCHS, params=config, state=TrialState.COMPLETED)
        for i, config in enumerate(CONFIGURATIONS)
    ]
    history = fake_history(curves, [i for i in range(4) for _ in range(EPOCHS)])
    assert decide(history, mass=certain(FLAT)).stop.kind is StopReason.NO_CANDIDATES


def test_failures_in_a_row():
    history = replace(started([0.5]), failures_in_a_row=3, first_failure="ZeroDivisionError: 0")
    best = dict.fromkeys(FLAT, [0.95] * EPOCHS)
    assert decide(history, mass=certain(best), max_failures=4).stop is None
    stop = decide(history, mass=certain(best), max_failures=3).stop
    assert stop.kind is StopReason.FAILURES
    assert "3" in stop.reason


# ── repeating a decision ─────────────────────────────────────────────────────────────────────────


def test_given_configurations_come_first_in_an_open_study():
    problem = a_problem(configurations=None, first=CONFIGURATIONS[2:], pool_size=16)
    best = lambda columns, epoch: point_mass(float(columns[0]))  # noqa: E731
    decision = decide(mass=best, problem=problem)
    assert (decision.trial_id, decision.params) == (0, CONFIGURATIONS[2])
    assert decision.leaders == ()
    curve = fake_curve(0, [0.5], params=CONFIGURATIONS[2])
    assert decide(fake_history([curve], [0]), mass=best, problem=problem).trial_id == 1


def test_the_same_history_gives_the_same_decision():
    rng = np.random.default_rng(1)
    masses = rng.dirichlet(np.full(10, 0.4), size=(len(CONFIGURATIONS), EPOCHS))
    place = {c["x"]: row for row, c in enumerate(CONFIGURATIONS)}

    def mass(columns, epoch):
        return masses[place[float(columns[0])], epoch - 1]

    one, two = (decide(started([0.35, 0.45]), mass=mass) for _ in range(2))
    assert one == two
