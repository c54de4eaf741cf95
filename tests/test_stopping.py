"""Truth tables over made-up outlooks: no study, no clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezethaw.errors import ConfigError
from freezethaw.stopping import (
    BETA,
    GAMMA,
    Outlook,
    Rule,
    adaptive,
    fixed,
    from_name,
    never,
    pure_pi,
)

P = 0.3
SHARES = st.floats(0, 1)


def stops(rule: Rule, regret: float, chance: float) -> bool:
    return rule(Outlook(regret=regret, chance=chance))


def delta(rule: Rule, chance: float) -> float:
    return rule.threshold(Outlook(regret=0.5, chance=chance))


# --- Eq. 6 ---------------------------------------------------------------------------------------


def test_the_paper_s_constants():
    assert pytest.approx(0.36787944117144233) == BETA  # e⁻¹
    assert pytest.approx(0.2, rel=1e-15) == 0.5**GAMMA  # γ = log_{0.5} 0.2
    assert adaptive() == adaptive(BETA, GAMMA)


@pytest.mark.parametrize("beta", [1e-12, 1e-3, BETA, 1.0, 7.5, 1e4])
def test_eq_6_at_a_half_is_two_tenths_for_every_beta(beta):
    assert delta(adaptive(beta), 0.5) == pytest.approx(0.2, rel=1e-6)


def test_eq_6_by_hand():
    # Beta(1, 1) is uniform: its CDF is p.  Beta(2, 2): 3p² − 2p³.  Beta(½, ½): 2/π asin √p.
    assert delta(adaptive(1, 1), 0.3) == pytest.approx(0.3)
    assert delta(adaptive(1, 2), 0.3) == pytest.approx(0.09)
    assert delta(adaptive(2, 1), 0.3) == pytest.approx(3 * 0.09 - 2 * 0.027)
    assert delta(adaptive(0.5, 1), 0.3) == pytest.approx(2 / math.pi * math.asin(math.sqrt(0.3)))
    assert delta(adaptive(1, GAMMA), 0.25) == pytest.approx(0.04)  # (½²)^γ = 0.2²


@pytest.mark.parametrize("rule", [adaptive(), adaptive(3.0, 0.5), pure_pi()])
def test_eq_6_at_the_ends(rule):
    """No chance: any regret stops. Certain gain: none does."""
    assert delta(rule, 0.0) == 0.0
    assert delta(rule, 1.0) == 1.0


@pytest.mark.parametrize("chance", [1e-6, 0.1, P, 0.5, 0.9, 1 - 1e-6])
def test_beta_to_zero_is_the_fixed_threshold(chance):
    assert delta(adaptive(1e-9), chance) == pytest.approx(0.2, abs=1e-6)
    assert delta(fixed(0.2), chance) == 0.2


@pytest.mark.parametrize("chance", [0.0, 0.1, P, 0.49, 0.5, 0.51, 0.9, 1.0])
def test_beta_to_infinity_is_pure_pi(chance):
    assert delta(adaptive(1e8), chance) == pytest.approx(delta(pure_pi(), chance), abs=1e-6)


@given(SHARES, SHARES)
def test_eq_6_rises_with_the_chance(one, other):
    low, high = sorted((one, other))
    assert delta(adaptive(), low) <= delta(adaptive(), high)


# --- truth tables --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "regret", "chance", "expected"),
    [
        # Strictly above the threshold, not at it.
        (fixed(0.2), 0.2, 0.9, False),
        (fixed(0.2), math.nextafter(0.2, 1), 0.9, True),
        (fixed(0.0), 0.0, 0.0, False),
        (fixed(0.0), 1e-300, 1.0, True),
        (fixed(1.0), 1.0, 0.0, False),
        (adaptive(1, 1), P, P, False),
        (adaptive(1, 1), math.nextafter(P, 1), P, True),
        # Nothing lost: nothing stops, however small the chance.
        (adaptive(), 0.0, 0.0, False),
        (pure_pi(), 0.0, 0.0, False),
        # Something lost: the chance decides.
        (adaptive(), 0.01, 0.0, True),
        (adaptive(), 0.1, 0.5, False),
        (adaptive(), 0.3, 0.5, True),
        (adaptive(), 1.0, 1.0, False),
        (pure_pi(), 0.01, 0.49, True),
        (pure_pi(), 0.99, 0.51, False),
        (never(), 1.0, 0.0, False),
        (never(), math.inf, 0.0, False),
    ],
)
def test_rules(rule, regret, chance, expected):
    assert stops(rule, regret, chance) is expected


YES, NO = fixed(0.0), never()


@pytest.mark.parametrize("one", [YES, NO])
@pytest.mark.parametrize("other", [YES, NO])
def test_or_and_and(one, other):
    first, second = stops(one, 0.5, P), stops(other, 0.5, P)
    assert stops(one | other, 0.5, P) is (first or second)
    assert stops(one & other, 0.5, P) is (first and second)


@given(regret=SHARES, chance=SHARES, a=SHARES, b=SHARES)
def test_combinations_stop_exactly_as_their_parts_do(regret, chance, a, b):
    first, second, third = fixed(a), adaptive(), fixed(b)
    one, two, three = (stops(rule, regret, chance) for rule in (first, second, third))
    assert stops(first | second, regret, chance) is (one or two)
    assert stops(first & second, regret, chance) is (one and two)
    assert stops((first | second) & third, regret, chance) is ((one or two) and three)
    assert stops(first & second | third, regret, chance) is ((one and two) or three)


def test_a_combination_shows_the_threshold_that_decides():
    both, either = fixed(0.1) & fixed(0.4), fixed(0.1) | fixed(0.4)
    assert (delta(both, P), delta(either, P)) == (0.4, 0.1)


# --- making them ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{"beta": 0}, {"gamma": -1}, {"beta": math.inf}, {"beta": math.nan}]
)
def test_adaptive_needs_positive_settings(settings):
    with pytest.raises(ConfigError, match="both must be above 0 and finite"):
        adaptive(**settings)


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_a_fixed_threshold_lies_in_the_range_of_the_regret(value):
    with pytest.raises(ConfigError, match=r"lies in \[0, 1\]"):
        fixed(value)


def test_rules_by_name():
    assert from_name("adaptive") == adaptive()
    assert from_name("fixed", delta=0.1) == fixed(0.1)
    assert from_name("pure_pi") == pure_pi()
    assert from_name("never") == never()
    with pytest.raises(ConfigError, match="'often': known are adaptive, fixed, pure_pi, never"):
        from_name("often")
    with pytest.raises(ConfigError, match=r"'fixed'.*sigma"):
        from_name("fixed", sigma=1)
