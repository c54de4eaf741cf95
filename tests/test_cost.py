from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezethaw.cost import Costs, predict_costs, price, seconds_per_epoch, setup_seconds
from freezethaw.records import Curve, History


def curve(trial_id: int, *seconds: float, replay_epochs: int = 0) -> Curve:
    return Curve(
        trial_id=trial_id,
        params={},
        scores=(0.5,) * len(seconds),
        seconds=seconds,
        replay_epochs=replay_epochs,
    )


def predicted(curves, seen, encoded, *, ids=None, unit="seconds", rate=None, unknown=7.0) -> Costs:
    """Costs of candidates 100, 101, … (or `ids`) after these curves, by their encoded columns."""
    encoded = np.array(encoded, float)
    return predict_costs(
        History(curves={c.trial_id: c for c in curves}),
        list(range(100, 100 + len(encoded))) if ids is None else ids,
        encoded,
        seen=np.array(seen, float).reshape(len(curves), encoded.shape[1]),
        unit=unit,
        rate=rate,
        unknown=unknown,
    )


# --- what an epoch costs -------------------------------------------------------------------------


def test_the_price_of_an_epoch():
    assert price(12.5, "epochs", None) == 1.0
    assert price(12.5, "seconds", None) == 12.5
    assert price(1800, "money", 2.5) == 1.25


def test_in_epochs_every_epoch_costs_one():
    costs = predicted([curve(0, 50.0, 3.0)], [[0.5]], [[0.1], [0.5]], unit="epochs")
    assert costs.per_epoch.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ((), math.nan),
        ((9.0,), 9.0),
        ((9.0, 2.0), 2.0),  # the first epoch also pays for setting up
        ((9.0, 2.0, 4.0), 3.0),
        ((9.0, 2.0, 2.0, 2.0, 600.0), 2.0),  # a hiccup does not count
        ((0.0, 0.0), 1e-6),  # never free
    ],
)
def test_a_trial_s_own_epochs(seconds, expected):
    assert seconds_per_epoch(curve(0, *seconds), 0.0) == pytest.approx(expected, nan_ok=True)


def test_a_single_epoch_is_told_without_the_setting_up():
    assert seconds_per_epoch(curve(0, 9.0), 5.0) == 4.0
    assert seconds_per_epoch(curve(0, 9.0), 20.0) == 0.9
    assert seconds_per_epoch(curve(0, 9.0, 2.0), 5.0) == 2.0


def history(*curves):
    return History(curves={each.trial_id: each for each in curves})


def test_setting_up_is_what_first_epochs_take_beyond_the_others():
    curves = [curve(0, 61.0, 1.0, 1.0), curve(1, 12.0, 2.0), curve(2, 99.0), curve(3, 5.0, 4.0)]
    assert setup_seconds(history(*curves)) == 10.0
    assert setup_seconds(history(curve(0, 61.0))) == 0.0
    assert setup_seconds(history(curve(0, 1.0, 3.0))) == 0.0


def test_a_start_pays_for_setting_up_once():
    curves = [curve(0, 61.0, 1.0, 1.0), curve(1, 61.0)]
    costs = predicted(curves, [[0.5], [0.5]], [[0.5], [0.5], [0.5]], ids=[0, 1, 7])
    assert costs.per_epoch.tolist() == pytest.approx([1.0, 6.1, 2.47], rel=0.01)
    assert costs.of_next_epoch() - costs.per_epoch == pytest.approx([0.0, 0.0, 60.0])
    reach = costs.to_reach(np.array([3, 1, 0]), np.array([1, 4]))
    assert reach[:, 1] == pytest.approx([1.0, 3 * 6.1, 60 + 4 * costs.per_epoch[2]])
    # An evicted trial is started again.
    again = predicted([curve(0, 61.0, 1.0, 1.0, replay_epochs=3)], [[0.5]], [[0.5]], ids=[0])
    assert again.of_next_epoch().tolist() == [60 + 4]
    assert again.epochs_for(0, 65.0) == 2
    assert again.epochs_for(0, 63.0) == 0


def test_a_started_trial_costs_what_its_own_epochs_took():
    curves = [curve(3, 9.0, 2.0, 2.2), curve(8, 30.0, 20.0), curve(9)]
    costs = predicted(curves, [[0.1], [0.9], [0.5]], [[0.1], [0.9], [0.5]], ids=[3, 8, 9])
    assert costs.per_epoch[:2].tolist() == [pytest.approx(2.1), 20.0]
    assert 2.1 < costs.per_epoch[2] < 20.0  # in between, as its configuration is


def test_money_is_time_times_rate():
    seconds = predicted([curve(0, 36.0)], [[0.5]], [[0.1], [0.5]])
    money = predicted([curve(0, 36.0)], [[0.5]], [[0.1], [0.5]], unit="money", rate=2.5)
    assert money.per_epoch == pytest.approx(seconds.per_epoch * 2.5 / 3600)


@pytest.mark.parametrize(("unit", "rate"), [("seconds", None), ("money", 2.5)])
@pytest.mark.parametrize("curves", [[], [curve(0)]])
def test_before_anything_was_measured_the_guess_stands(unit, rate, curves):
    seen = [[0.5]] * len(curves)
    costs = predicted(curves, seen, [[0.1], [0.9]], unit=unit, rate=rate)
    assert costs.per_epoch.tolist() == [7.0, 7.0]


# --- configurations that were never run ----------------------------------------------------------


def test_one_curve_says_what_all_cost():
    costs = predicted([curve(0, 9.0, 3.0)], [[0.2, 0.8]], [[0.2, 0.8], [1.0, 0.0], [0.0, 1.0]])
    assert costs.per_epoch == pytest.approx([3.0, 3.0, 3.0])


def test_ridge_regression_by_hand():
    """Two curves at x = 0 and 1 with logs 0 and 2: mean 1, centre ½.

    Slope: Σ x y / (Σ x² + 0.3) = (−½ · −1 + ½ · 1) / (½ + 0.3) = 1.25.
    """
    costs = predicted([curve(0, 1.0), curve(1, math.e**2)], [[0.0], [1.0]], [[0.0], [0.5], [0.75]])
    assert np.log(costs.per_epoch) == pytest.approx([1 - 0.625, 1.0, 1 + 0.3125])


def test_what_makes_epochs_slow_is_learned():
    rng = np.random.default_rng(0)
    x = rng.random((40, 3))
    curves = [curve(i, float(s)) for i, s in enumerate(2 * 10 ** x[:, 1])]
    costs = predicted(curves, x, [[0.5, 0.0, 0.5], [0.5, 1.0, 0.5], [0.0, 0.5, 1.0]])
    assert costs.per_epoch == pytest.approx([2.0, 20.0, 2 * math.sqrt(10)], rel=0.2)


def test_collinear_columns_do_no_harm():
    x = np.linspace(0, 1, 5)
    seen = np.stack([x, x, 1 - x, np.full(5, 0.3)], axis=1)
    curves = [curve(i, float(s)) for i, s in enumerate(np.exp(x))]
    costs = predicted(curves, seen, seen, ids=range(200, 205))
    assert np.all(np.diff(costs.per_epoch) > 0)
    assert np.all((costs.per_epoch > 0.9) & (costs.per_epoch < 3))


def test_an_outlier_does_not_carry_the_others_away():
    """One of twenty took a thousand times as long."""
    rng = np.random.default_rng(1)
    x = rng.random((20, 2))
    curves = [curve(i, 2000.0 if i == 7 else 2.0) for i in range(20)]
    costs = predicted(curves, x, rng.random((200, 2)))
    assert np.all((costs.per_epoch > 2 / 3) & (costs.per_epoch < 2 * 8))
    assert np.median(costs.per_epoch) < 2 * 1.6


def test_an_inactive_parameter_counts_as_its_middle():
    curves = [curve(0, 1.0), curve(1, 5.0)]
    seen = [[0.0, math.nan], [1.0, 0.5]]
    costs = predicted(curves, seen, [[0.3, math.nan], [0.3, 0.5]])
    assert costs.per_epoch[0] == costs.per_epoch[1]


@given(
    st.lists(st.floats(0.0, 1e6), min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 99)
)
def test_predictions_stay_near_what_was_measured(seconds, width, seed):
    rng = np.random.default_rng(seed)
    seen = rng.random((len(seconds), width))
    curves = [curve(i, s) for i, s in enumerate(seconds)]
    asked = rng.random((9, width))
    costs = predicted(curves, seen, asked)
    low, high = max(min(seconds), 1e-6), max(max(seconds), 1e-6)
    assert np.all(costs.per_epoch >= low / math.e * (1 - 1e-9))
    assert np.all(costs.per_epoch <= high * math.e * (1 + 1e-9))
    # … and are the same every time.
    assert costs.per_epoch.tolist() == predicted(curves, seen, asked).per_epoch.tolist()


# --- how much to reach an epoch ------------------------------------------------------------------


def test_cost_of_reaching_each_epoch():
    costs = Costs(per_epoch=np.array([1.0, 2.5]), replay_epochs=np.array([0, 0]), setup=np.zeros(2))
    reach = costs.to_reach(np.array([0, 2]), np.array([1, 2, 3, 5]))
    assert reach.tolist() == [[1, 2, 3, 5], [0, 0, 2.5, 7.5]]
    assert costs.of_next_epoch().tolist() == [1.0, 2.5]


@pytest.mark.parametrize("delta", [1, 2, 7])
def test_an_evicted_trial_pays_for_its_epochs_again(delta):
    """Going Δt further with an evicted trial costs t_n + Δt."""
    seen = 4
    curves = [curve(0, *[3.0] * seen, replay_epochs=seen)]
    costs = predicted(curves, [[0.5]], [[0.5]], ids=[0], unit="epochs")
    target = np.array([seen + delta])
    assert costs.to_reach(np.array([seen]), target).tolist() == [[seen + delta]]
    assert costs.of_next_epoch().tolist() == [seen + 1]
    timed = predicted(curves, [[0.5]], [[0.5]], ids=[0])
    assert timed.to_reach(np.array([seen]), target).tolist() == [[3.0 * (seen + delta)]]


def test_a_trial_with_an_older_checkpoint_pays_from_there():
    curves = [curve(0, 1, 1, 1, 1, replay_epochs=1)]
    costs = predicted(curves, [[0.5]], [[0.5]], ids=[0], unit="epochs")
    assert costs.to_reach(np.array([4]), np.array([4, 5, 6])).tolist() == [[0, 2, 3]]
