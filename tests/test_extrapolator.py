from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from freezethaw.extrapolator import UNSEEN, BinnedForecast, Context, Queries, survival

QUARTERS = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)


def forecast(*masses: list[float], borders: torch.Tensor = QUARTERS) -> BinnedForecast:
    """One configuration, one epoch per distribution."""
    return BinnedForecast(mass=torch.tensor([masses], dtype=torch.float64), borders=borders)


def quantiles(one: BinnedForecast, *levels: float) -> list[float]:
    return one.quantile(torch.tensor(levels, dtype=torch.float64))[0, 0].tolist()


# --- binned distributions ------------------------------------------------------------------------


def test_four_bins_by_hand():
    one = forecast([0.1, 0.2, 0.3, 0.4])
    assert one.survival()[0, 0].tolist() == pytest.approx([1.0, 0.9, 0.7, 0.4, 0.0])
    # Bin centres are 1/8, 3/8, 5/8 and 7/8.
    assert one.mean().item() == pytest.approx((0.1 * 1 + 0.2 * 3 + 0.3 * 5 + 0.4 * 7) / 8)
    # Within a bin, mass is uniform: half of the second bin's lies below its middle.
    assert quantiles(one, 0.1, 0.2, 0.3, 0.45, 0.9) == pytest.approx(
        [0.25, 0.375, 0.5, 0.625, 0.9375]
    )


def test_unequal_bins():
    borders = torch.tensor([0.0, 0.1, 1.0], dtype=torch.float64)
    one = forecast([0.5, 0.5], borders=borders)
    assert one.mean().item() == pytest.approx(0.5 * 0.05 + 0.5 * 0.55)
    assert quantiles(one, 0.25, 0.5, 0.75) == pytest.approx([0.05, 0.1, 0.55])


def test_quantiles_skip_bins_without_mass():
    one = forecast([0.0, 0.5, 0.0, 0.5])
    assert quantiles(one, 0.25, 0.5, 0.75) == pytest.approx([0.375, 0.5, 0.875])
    assert quantiles(one, 1e-12, 1 - 1e-12) == pytest.approx([0.25, 1.0])


def test_quantiles_at_the_ends_stay_within_the_borders():
    for masses in ([1.0, 0, 0, 0], [0, 0, 0, 1.0], [0.25] * 4):
        assert all(0 <= value <= 1 for value in quantiles(forecast(masses), 0.0, 1.0))


def test_a_small_chance_of_a_high_score_keeps_its_digits():
    mass = torch.tensor([1 - 1e-12, 1e-12, 1e-20], dtype=torch.float32)
    assert survival(mass)[1].item() == pytest.approx(1e-12, rel=1e-6)
    assert survival(mass)[2].item() == pytest.approx(1e-20, rel=1e-6)


def test_a_single_precision_forecast_takes_double_precision_levels():
    one = BinnedForecast(mass=torch.full((2, 3, 1000), 1e-3), borders=torch.arange(1001) / 1000)
    levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    answer = one.quantile(levels)
    assert (answer.dtype, tuple(answer.shape)) == (torch.float32, (2, 3, 3))
    assert answer[1, 2].tolist() == pytest.approx([0.05, 0.5, 0.95], abs=1e-5)
    assert one.mean()[1, 2].item() == pytest.approx(0.5, abs=1e-5)


MASSES = st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(lambda m: sum(m) > 1e-3)


@given(MASSES, st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_quantiles_invert_the_distribution(masses, levels):
    mass = np.array(masses) / sum(masses)
    borders = np.linspace(0, 1, len(mass) + 1)
    one = forecast(mass.tolist(), borders=torch.from_numpy(borders))
    values = np.array(quantiles(one, *sorted(levels)))
    assert np.all(np.diff(values) >= 0)
    below = np.interp(values, borders, np.concatenate([[0], np.cumsum(mass)]))
    # Across a bin with hardly any mass the inverse is steep, but not wrong.
    assert below == pytest.approx(np.sort(levels), abs=1e-9)


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1, 1, 3), (1, 1, 5)])
def test_axes_of_a_forecast_are_checked(shape):
    with pytest.raises(ValueError, match=r"must be \[config, epoch, bin\] and \[bin \+ 1\]"):
        BinnedForecast(mass=torch.zeros(shape), borders=QUARTERS)


# --- context and queries -------------------------------------------------------------------------


def context(**changes: object) -> Context:
    settings = {
        "configs": np.zeros((2, 3)),
        "scores": np.zeros((2, 5)),
        "epochs_seen": np.array([1, 5]),
        "initial": 0.1,
        "max_epochs": 5,
    }
    return Context(**(settings | changes))


def test_a_context_may_be_empty():
    empty = context(
        configs=np.zeros((0, 3)), scores=np.zeros((0, 5)), epochs_seen=np.zeros(0, np.int64)
    )
    assert len(empty.scores) == 0


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"configs": np.zeros((3, 3))}, "the first axis of all three is the curve"),
        ({"epochs_seen": np.array([1])}, "the first axis of all three is the curve"),
        ({"scores": np.zeros((2, 6))}, "scores have 6 epochs; max_epochs is 5"),
        ({"epochs_seen": np.array([0, 5])}, "a curve has 1 to 5 epochs"),
        ({"epochs_seen": np.array([1, 6])}, "a curve has 1 to 5 epochs"),
    ],
)
def test_axes_of_a_context_are_checked(changes, rule):
    with pytest.raises(ValueError, match=rule):
        context(**changes)


@pytest.mark.parametrize("rows", [slice(1, 3), np.array([1, 2])])
def test_some_of_the_queries(rows):
    queries = Queries(
        configs=np.array([[0.1], [0.2], [0.3]]),
        curve=np.array([0, UNSEEN, 1]),
        epochs=np.array([4, 5]),
    )
    some = queries.take(rows)
    assert some.configs.tolist() == [[0.2], [0.3]]
    assert some.curve.tolist() == [UNSEEN, 1]
    assert some.epochs.tolist() == [4, 5]
