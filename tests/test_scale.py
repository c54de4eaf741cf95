from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freezethaw.errors import ScaleError
from freezethaw.scale import MARGIN, Scale

E = math.e


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_maximise_by_hand() -> None:
    # soft (0.1, 1): ℓ(0.1) = -1, ℓ(0.55) = 0, ℓ(1) = 1 and ℓ(0) = -2 / 0.9 - ... = -11/9.
    scale = Scale.live("maximize", (0, 1), initial=0.1)
    assert scale == Scale(goal="maximize", hard=(0, 1), soft=(0.1, 1))
    floor, ceiling = sigmoid(-11 / 9), E / (1 + E)
    assert scale.to_unit(0.0) == 0
    assert scale.to_unit(1.0) == 1
    assert scale.to_unit(0.55) == pytest.approx((0.5 - floor) / (ceiling - floor))
    assert scale.to_unit(0.1) == pytest.approx((1 / (1 + E) - floor) / (ceiling - floor))
    assert scale.worst == 0.1


def test_minimise_with_an_open_end_by_hand() -> None:
    # A loss of which 0.7 is the untrained value: s(0) = 1/(1+e), s(0.7) = e/(1+e), s(∞) = 1, so
    # y(0.7) = 1 - (e - 1)/(1 + e) / (e/(1 + e)) = 1/e.
    scale = Scale.live("minimize", (0, math.inf), initial=0.7)
    assert scale.soft == (0, 0.7)
    assert scale.to_unit(0.7) == pytest.approx(1 / E, abs=1e-15)
    assert scale.to_unit(0.35) == pytest.approx(1 - (0.5 * (1 + E) - 1) / E, abs=1e-15)
    assert scale.to_unit(0.0) == 1
    assert scale.worst == 0.7
    # Small scaled values keep their digits: 1 - y would have lost them. y ≈ exp(-ℓ) (1 + e)/e.
    assert scale.to_unit(35.0) == pytest.approx(math.exp(-99) * (1 + E) / E, rel=1e-12)


@pytest.mark.parametrize("raw", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "scale", [Scale.live("maximize", (0, 1)), Scale.live("minimize", (0, None), 2), Scale.unit()]
)
def test_a_diverged_score_is_worth_nothing(scale: Scale, raw: float) -> None:
    assert scale.to_unit(raw) == 0
    assert scale.for_utility(raw) == scale.worst


def test_huge_losses_are_worth_nothing_and_warn_of_nothing() -> None:
    scale = Scale.live("minimize", (0, None), initial=0.7)
    raw = np.array([5e34, 1.7e308])
    assert scale.to_unit(raw).tolist() == [0, 0]
    assert scale.for_utility(raw).tolist() == [0.7, 0.7]


def test_floats_give_floats_and_arrays_give_arrays() -> None:
    scale = Scale.live("minimize", (0, 10), soft=(0, 2))
    for function in (scale.to_unit, scale.to_raw, scale.for_utility):
        assert type(function(1)) is float
        assert type(function(np.float64(1))) is float
        assert type(function(np.float32(1))) is float  # type: ignore[call-overload]
        for shape in ((), (3,), (2, 3)):
            array = function(np.ones(shape))
            assert isinstance(array, np.ndarray)
            assert array.shape == shape
            assert array == pytest.approx(function(1.0))


def test_utility_sees_nothing_worse_than_the_worst() -> None:
    up = Scale.live("maximize", (0, 1), initial=0.1)
    assert up.for_utility(np.array([0.05, 0.1, 0.5, np.nan, np.inf])).tolist() == [
        *(0.1, 0.1, 0.5, 0.1, 0.1)
    ]
    down = Scale.live("minimize", (0, None), initial=0.7)
    assert down.for_utility(np.array([9, 0.7, 0.5, -np.inf])).tolist() == [0.7, 0.7, 0.5, 0.7]
    assert math.copysign(1, down.for_utility(0.0)) == 1


def test_the_way_back_is_finite_at_open_ends() -> None:
    scale = Scale(goal="maximize", hard=(-math.inf, math.inf), soft=(-1, 1))
    # s(v) = y here, so v = logit(y).
    edge = math.log((1 - MARGIN) / MARGIN)
    assert scale.to_raw(0.0) == scale.to_raw(MARGIN) == pytest.approx(-edge)
    assert scale.to_raw(1.0) == pytest.approx(edge)
    assert scale.to_raw(0.25) == pytest.approx(-math.log(3))
    loss = Scale.live("minimize", (0, None), initial=0.7)
    assert loss.to_raw(1.0) == 0
    assert loss.to_raw(0.0) == loss.to_raw(MARGIN) > loss.worst
    assert loss.to_unit(loss.to_raw(0.0)) == pytest.approx(MARGIN)


def test_the_way_back_reaches_closed_ends_that_the_sigmoid_saturates_at() -> None:
    scale = Scale.live("minimize", (0, 1e6), soft=(0, 1))
    assert scale.to_raw(np.array([0.0, 1.0])).tolist() == [1e6, 0]
    assert scale.to_raw(1e-12) < 1e6


def test_unit_is_the_identity() -> None:
    scale = Scale.unit()
    raw = np.array([0, 0.3, 1, 1.5, -1, np.nan])
    assert scale.to_unit(raw).tolist() == [0, 0.3, 1, 1, 0, 0]
    assert scale.to_raw(0.3) == 0.3
    assert scale.worst == 0
    # It is explicit: the same bounds make a sigmoid scale otherwise.
    assert Scale.live("maximize", (0, 1)) != scale
    assert Scale.live("maximize", (0, 1)).to_unit(0.3) != pytest.approx(0.3, abs=1e-3)
    with pytest.raises(ScaleError, match=r"use Scale\.unit\(\)"):
        Scale(goal="minimize", hard=(0, 1), soft=(0, 1), identity=True)


@st.composite
def scales(draw: st.DrawFn) -> Scale:
    soft_low = draw(st.floats(-1e6, 1e6))
    soft_high = soft_low + draw(st.floats(1e-3, 1e6))
    gap = st.one_of(st.just(0.0), st.floats(0, 1e7), st.just(math.inf))
    return Scale(
        goal=draw(st.sampled_from(["maximize", "minimize"])),
        hard=(soft_low - draw(gap), soft_high + draw(gap)),
        soft=(soft_low, soft_high),
    )


fractions = st.lists(st.floats(0, 1), min_size=1, max_size=20).map(np.array)


@settings(deadline=None)
@given(scales(), fractions)
def test_within_the_soft_range_the_way_there_and_back_is_exact(
    scale: Scale, at: np.ndarray
) -> None:
    low, high = scale.soft
    raw = np.clip(low + at * (high - low), low, high)
    rounding = 1e-15 * max(abs(low), abs(high))
    back = scale.to_raw(scale.to_unit(raw))
    assert np.abs(back - raw).max() <= 1e-9 * (high - low) + 4 * rounding


@settings(deadline=None)
@given(scales(), fractions)
def test_the_map_keeps_the_order_and_the_range(scale: Scale, at: np.ndarray) -> None:
    low, high = scale.soft
    width = high - low
    raw = np.sort(np.clip(low - 5 * width + 11 * width * at, *scale.hard))
    better = raw if scale.goal == "maximize" else raw[::-1]
    scaled = scale.to_unit(better)
    assert (np.diff(scaled) >= -1e-15).all()
    assert ((scaled >= 0) & (scaled <= 1)).all()
    back = scale.to_raw(np.sort(at))
    assert np.isfinite(back).all()
    slack = 1e-9 * width
    assert (np.diff(back if scale.goal == "maximize" else -back) >= -slack).all()
    assert ((back >= scale.hard[0]) & (back <= scale.hard[1])).all()
    ends = scale.hard if scale.goal == "maximize" else scale.hard[::-1]
    for scaled_end, end in zip((0.0, 1.0), ends, strict=True):
        assert math.isinf(end) or scale.to_raw(scaled_end) == end


@settings(deadline=None)
@given(scales(), fractions)
def test_minimising_is_maximising_the_negated_score(scale: Scale, at: np.ndarray) -> None:
    mirror = Scale(
        goal="minimize" if scale.goal == "maximize" else "maximize",
        hard=(-scale.hard[1], -scale.hard[0]),
        soft=(-scale.soft[1], -scale.soft[0]),
    )
    raw = scale.soft[0] + at * (scale.soft[1] - scale.soft[0])
    np.testing.assert_allclose(mirror.to_unit(-raw), scale.to_unit(raw), rtol=0, atol=1e-15)
    np.testing.assert_allclose(-mirror.to_raw(at), scale.to_raw(at))


@pytest.mark.parametrize(
    ("arguments", "soft"),
    [
        ({"goal": "maximize", "bounds": (0, 1)}, (0, 1)),
        ({"goal": "minimize", "bounds": (0, 100)}, (0, 100)),
        ({"goal": "minimize", "bounds": (0, 100), "initial": 90}, (0, 90)),
        ({"goal": "maximize", "bounds": (None, 0), "initial": -5}, (-5, 0)),
        ({"goal": "minimize", "bounds": (None, None), "initial": 5, "soft": (-1, 4)}, (-1, 4)),
        ({"goal": "minimize", "bounds": (1, None), "initial": 5e4, "soft": (1, 300)}, (1, 300)),
    ],
)
def test_the_soft_bounds_of_a_study(arguments: Any, soft: tuple[float, float]) -> None:
    assert Scale.live(**arguments).soft == soft


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"goal": "max", "bounds": (0, 1)}, "goal is 'max'; it must be 'maximize' or 'minimize'"),
        ({"goal": "maximize", "bounds": (1, 0)}, r"bounds is \(1, 0\); low must be below high"),
        ({"goal": "maximize", "bounds": (0, math.nan)}, "low must be below high"),
        ({"goal": "maximize", "bounds": 1}, r"bounds is 1; pass bounds=\(low, high\)"),
        ({"goal": "maximize", "bounds": ("a", 1)}, r"pass bounds=\(low, high\)"),
        ({"goal": "minimize", "bounds": (0, None)}, "initial is inf .* pass initial="),
        ({"goal": "maximize", "bounds": (0, 1), "initial": "x"}, "must be a number"),
        ({"goal": "maximize", "bounds": (0, 1), "initial": math.nan}, "must be finite"),
        (
            {"goal": "maximize", "bounds": (0, 1), "initial": 10},
            r"initial is 10; it must lie in the bounds \[0, 1\]; change initial= or bounds=",
        ),
        ({"goal": "maximize", "bounds": (0, 1), "initial": 1}, "the best possible score"),
        (
            {"goal": "maximize", "bounds": (0, None)},
            r"good bound of a score to maximize is inf.*pass soft=\(low, high\)",
        ),
        ({"goal": "maximize", "bounds": (0, 1), "soft": (0, 2)}, r"within the bounds \[0, 1\]"),
        ({"goal": "maximize", "bounds": (0, 1), "soft": (0.5, 0.5)}, "low must be below high"),
        (
            {"goal": "maximize", "bounds": (0, None), "soft": (0, math.inf)},
            "both ends must be finite",
        ),
    ],
)
def test_what_makes_no_scale_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ScaleError, match=message):
        Scale.live(**arguments)


def test_scores_outside_the_bounds() -> None:
    scale = Scale.live("maximize", (0, 1))
    assert scale.check_bounds(1.4, trial=7, epoch=3) == (
        "trial 7, epoch 3: got 1.4; scores must lie in [0, 1]; "
        "clip it, or begin a study with other bounds=(low, high)"
    )
    assert scale.check_bounds(1 + 1e-9) is None  # rounding
    assert str(scale.check_bounds(1 + 1e-5)).startswith("got 1.00001;")
    assert str(scale.check_bounds(-1)).startswith("got -1; scores must lie in [0, 1]")
    assert "a share here (0.875), or begin with bounds=(0, 100)" in str(scale.check_bounds(87.5))
    loss = Scale.live("minimize", (0, None), initial=2)
    message = loss.check_bounds(-0.5, trial=0)
    assert message is not None
    assert message.startswith("trial 0: got -0.5; scores must lie in [0, ∞)")
    for fine in (0.0, 1e300, math.nan, math.inf, -math.inf):
        assert loss.check_bounds(fine) is None


@settings(deadline=None)
@given(scales())
def test_json_gives_the_same_scale_back(scale: Scale) -> None:
    again = Scale.from_json(json.loads(json.dumps(scale.to_json(), allow_nan=False)))
    assert again == scale
    assert scale.differences(again) == []


def test_json_of_unit_and_of_nonsense() -> None:
    assert Scale.from_json(Scale.unit().to_json()) == Scale.unit()
    with pytest.raises(ScaleError, match="a scale in JSON has goal"):
        Scale.from_json({"goal": "maximize"})


def test_differences_are_sentences() -> None:
    one = Scale.live("maximize", (0, 1))
    two = Scale.live("maximize", (0, 1), initial=0.1)
    assert one.differences(two, mine="the study", theirs="this call") == [
        "soft is (0.0, 1.0) in the study and (0.1, 1.0) in this call"
    ]
