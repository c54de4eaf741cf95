from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezethaw import wording
from freezethaw.errors import UtilityError
from freezethaw.units import parse_cost, parse_gain, parse_rate, parse_seconds


@pytest.mark.parametrize(
    ("text", "gain"),
    [
        ("1% accuracy", (0.01, True)),
        ("0.5 %", (0.005, True)),
        ("1%accuracy", (0.01, True)),
        ("2 percent of top-5 accuracy", (0.02, True)),
        ("1,5%", (0.015, True)),
        ("0.02 loss", (0.02, False)),
        ("0.01 F1", (0.01, False)),
        ("1e-3 nats", (0.001, False)),
        (".5 BLEU", (0.5, False)),
        ("1,000 points of Elo", (1000.0, False)),
        (0.02, (0.02, False)),
        (np.int64(3), (3.0, False)),
        (np.float32(0.5), (0.5, False)),
    ],
)
def test_a_gain_is_a_share_or_a_number(text, gain):
    assert parse_gain(text) == (pytest.approx(gain[0], rel=1e-15), gain[1])


@pytest.mark.parametrize("text", ["accuracy", "", "-1%", "1 2%", "1.5.2", "5%%", "nan"])
def test_a_gain_that_cannot_be_read(text):
    with pytest.raises(UtilityError, match="write a percentage or a number") as caught:
        parse_gain(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("$20", (20.0, "money")),
        ("$ 1,250.50", (1250.5, "money")),
        ("€1,5", (1.5, "money")),
        ("20 €", (20.0, "money")),
        ("2h", (7200.0, "seconds")),
        ("1h30min", (5400.0, "seconds")),
        ("30 epochs", (30.0, "epochs")),
        ("1 epoch", (1.0, "epochs")),
        ("10,000 epochs", (10000.0, "epochs")),
        (30, (30.0, "epochs")),
        (np.int64(30), (30.0, "epochs")),
    ],
)
def test_a_cost_has_a_unit(text, cost):
    assert parse_cost(text) == cost


@pytest.mark.parametrize("text", ["20", "$", "20 dollars", "$20/h", "500ms", "-$5", ""])
def test_a_cost_that_cannot_be_read(text):
    with pytest.raises(UtilityError, match=r"write money \('\$20'\), time") as caught:
        parse_cost(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90.0),
        ("90 secs", 90.0),
        ("90min", 5400.0),
        ("2 m", 120.0),
        ("2 H", 7200.0),
        ("3hrs", 10800.0),
        ("1.5d", 129600.0),
        ("2 days 1 hour", 176400.0),
        ("1h30min15s", 5415.0),
        ("1e3s", 1000.0),
        (90, 90.0),
        (0, 0.0),
        (np.float64(1.5), 1.5),
    ],
)
def test_times(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "90", "1h-30min", "1h30", "h2"])
def test_times_that_cannot_be_read(text):
    with pytest.raises(UtilityError, match="write it as '90s'"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["500ms", "2 weeks", "3 fortnights", "5ss"])
def test_milliseconds_are_not_minutes_and_other_units_are_unknown(text):
    with pytest.raises(UtilityError, match="is no time; use s, min, h or d"):
        parse_seconds(text)


@pytest.mark.parametrize("number", [-1, math.nan, math.inf])
def test_a_time_is_finite_and_not_below_zero(number):
    with pytest.raises(UtilityError, match="must be 0 or more, and finite"):
        parse_seconds(number)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("$2.5/h", 2.5),
        ("2.5 $/hour", 2.5),
        ("$0.001/s", 3.6),
        ("€24/day", 1.0),
        ("$2.5 per hour", 2.5),
        (2.5, 2.5),
        (np.float32(2.5), 2.5),
        (None, None),
    ],
)
def test_a_rate_is_the_price_of_an_hour(text, rate):
    assert parse_rate(text) == (None if rate is None else pytest.approx(rate, rel=1e-15))


@pytest.mark.parametrize("text", ["$2.5", "2.5 hours", "$/h", "$2.5/year", "h/$2"])
def test_a_rate_that_cannot_be_read(text):
    with pytest.raises(UtilityError, match=r"write the price of a time|is no time"):
        parse_rate(text)


@given(st.integers(1, 10**7))
def test_epochs_are_read_as_they_are_written(n):
    assert parse_cost(wording.amount(n, "epochs")) == (n, "epochs")


@given(st.integers(10, 10**8))
def test_money_is_read_as_it_is_written(cents):
    text = wording.amount(cents / 100, "money")
    assert parse_cost(text) == (
        pytest.approx(cents / 100, abs=0.5 if cents > 99_949 else 1e-9),
        "money",
    )


@given(st.integers(1, 48 * 3600 - 60))
def test_times_are_read_as_they_are_written(seconds):
    """Two units at most are written: the rest is rounded away."""
    assert parse_seconds(wording.amount(seconds, "seconds")) == pytest.approx(seconds, abs=31)
