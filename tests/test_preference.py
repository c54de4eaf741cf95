"""What answers say: the fit against numbers worked out by hand or by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from scipy.special import expit

from freezethaw import preference
from freezethaw.errors import PreferenceError
from freezethaw.preference import (
    FORMS,
    Answer,
    Outcome,
    Pairs,
    Price,
    Stakes,
    against_reason,
    contradictions,
    fit,
    pairs_of,
    trivial,
)
from freezethaw.questions import meaningful_pairs

STAKES = Stakes(budget=300)


def answers_of(price, n, seed=0, stakes=STAKES, wrong=0.0):
    rng = np.random.default_rng(seed)
    pairs = meaningful_pairs(n, rng)
    found = []
    for x1, x2, gain in zip(pairs.cheap, pairs.dear, pairs.gain, strict=True):
        low = rng.uniform(0, 1 - gain)
        dear = gain > price(x2) - price(x1)
        if rng.random() < wrong:
            dear = not dear
        found.append(
            Answer(
                stakes.outcome(x1, low),
                stakes.outcome(x2, low + gain),
                "second" if dear else "first",
            )
        )
    return found


def agreement(truth, found):
    pairs = meaningful_pairs(4000, np.random.default_rng(1))
    one, other = (pairs.gain > p(pairs.dear) - p(pairs.cheap) for p in (truth, found))
    return (one == other).mean()


# ── places ───────────────────────────────────────────────────────────────────────────────────────


def test_places_and_outcomes_are_inverse_also_where_lower_is_better():
    for stakes in (STAKES, Stakes(budget=50, goal="minimize", bounds=(0.5, 4.5))):
        outcome = stakes.outcome(0.25, 0.75)
        assert outcome.spent == 0.25 * stakes.budget
        assert stakes.place(outcome) == pytest.approx((0.25, 0.75))
    assert stakes.outcome(0.0, 1.0).best == 0.5  # the lowest loss is the best


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": 0}, "budget=0: needs a finite budget above 0"),
        ({"budget": math.inf}, "budget=inf"),
        ({"budget": 1, "bounds": (0, math.inf)}, "bounds=.*finite range of scores"),
        ({"budget": 1, "bounds": (1, 0)}, "low below high"),
        ({"budget": 1, "unit": "money"}, r"need the price of an hour: rate='\$2.5/h'"),
    ],
)
def test_stakes_that_make_no_questions(settings, message):
    with pytest.raises(PreferenceError, match=message):
        Stakes(**settings)


def test_outcomes_beyond_the_stakes_are_refused():
    with pytest.raises(PreferenceError, match=r"spent 301: .* within the budget, 0 to 300"):
        STAKES.place(Outcome(301, 0.5))
    with pytest.raises(PreferenceError, match=r"score 1\.5: .* within the bounds, 0 to 1"):
        STAKES.place(Outcome(3, 1.5))
    with pytest.raises(PreferenceError, match="choice 'left'"):
        Answer(Outcome(1, 0.5), Outcome(2, 0.6), "left")


def test_pairs_put_the_dearer_outcome_last():
    cheap, dear = Outcome(30, 0.4), Outcome(150, 0.7)
    expected = {("first", "second"): 0.0, ("second", "first"): 1.0, ("tie", "tie"): 0.5}
    for (choice, mirrored), label in expected.items():
        for pairs in (
            pairs_of([Answer(cheap, dear, choice)], STAKES),
            pairs_of([Answer(dear, cheap, mirrored)], STAKES),
        ):
            assert pairs.cheap[0] == pytest.approx(0.1)
            assert pairs.dear[0] == pytest.approx(0.5)
            assert pairs.gain[0] == pytest.approx(0.3)
            assert pairs.label[0] == label


# ── Equations 2 and 3 ────────────────────────────────────────────────────────────────────────────


def test_the_loss_is_that_of_bradley_and_terry_by_hand():
    settings = preference._Settings(tau=0.05, lapse=0.0, edges=None)
    pairs = pairs_of([Answer(Outcome(0, 0.5), Outcome(300, 0.6), "second")], STAKES)
    # U = y − 0.08 x: 0.52 against 0.5, and p = 1 / (1 + e^(−0.02 / 0.05)).
    loss = preference._loss(Price(powers=((0.08, 1.0),)), pairs, settings)
    assert loss == pytest.approx(-math.log(1 / (1 + math.exp(-0.4))))


def test_slips_bound_what_one_answer_can_say():
    settings = preference._Settings(tau=0.05, lapse=0.02, edges=None)
    pairs = pairs_of([Answer(Outcome(0, 0.0), Outcome(3, 1.0), "first")], STAKES)
    assert preference._loss(Price(), pairs, settings) == pytest.approx(-math.log(0.01))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["linear", "mix", "power", "steps"]),
    st.lists(st.floats(0.01, 1.5), min_size=5, max_size=5),
    st.floats(0.0, 0.1),
    st.integers(0, 1000),
)
def test_the_gradient_is_right(kind, weights, lapse, seed):
    shapes = {
        "linear": preference._Shapes(powers=(1.0,)),
        "mix": preference._Shapes(powers=(1.0, 2.0, 0.5), edges=(0.3, 0.6)),
        "power": preference._Shapes(free_power=True),
        "steps": preference._Shapes(edges=(0.2, 0.5, 0.9)),
    }[kind]
    rng = np.random.default_rng(seed)
    pairs = meaningful_pairs(20, rng)
    pairs = Pairs(
        cheap=pairs.cheap, dear=pairs.dear, gain=pairs.gain, label=rng.choice([0, 0.5, 1.0], 20)
    )
    objective = preference._objective(
        shapes, pairs, preference._Settings(tau=0.1, lapse=lapse, edges=None)
    )
    at = np.array(weights[: shapes.n_weights])
    numeric = approx_fprime(at, lambda w: objective(w)[0], 1e-6)
    np.testing.assert_allclose(objective(at)[1], numeric, rtol=1e-3, atol=1e-2)


def test_one_parameter_is_found_as_by_brute_force():
    answers = answers_of(Price(powers=((0.4, 1.0),)), 40)
    found = fit(answers, STAKES, "linear", lapse=0.0)
    pairs = pairs_of(answers, STAKES)
    grid = np.linspace(0, 1, 2001)
    z = (pairs.gain - grid[:, None] * (pairs.dear - pairs.cheap)) / 0.05
    log_p = pairs.label * np.log(expit(z)) + (1 - pairs.label) * np.log(expit(-z))
    posterior = log_p.sum(axis=1) - 0.5 * grid**2
    assert found.price.powers[0][0] == pytest.approx(grid[posterior.argmax()], abs=1e-3)


# ── what is fitted ───────────────────────────────────────────────────────────────────────────────

TRUTHS = {
    "linear": Price(powers=((0.5, 1.0),)),
    "quadratic": Price(powers=((0.7, 2.0),)),
    "square_root": Price(powers=((0.4, 0.5),)),
    "power": Price(powers=((0.6, 3.0),)),
    "staircase": Price(steps=((0.3, 0.2), (0.7, 0.3))),
    "mix": Price(powers=((0.2, 1.0), (0.2, 2.0), (0.1, 0.5)), steps=((0.5, 0.2),)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_recovered_from_many_answers(form):
    found = fit(answers_of(TRUTHS[form], 300), STAKES, form)
    assert found.form == form
    assert agreement(TRUTHS[form], found.price) > 0.97


@pytest.mark.parametrize("form", ["linear", "quadratic", "square_root", "staircase"])
def test_the_form_is_found_by_what_it_foretells(form):
    found = fit(answers_of(TRUTHS[form], 300), STAKES)
    assert agreement(TRUTHS[form], found.price) > 0.97
    if form != "staircase":
        assert found.form in (form, "power")


def test_few_answers_do_not_make_a_form_of_many_numbers():
    for n in (1, 3, 9):
        found = fit(answers_of(TRUTHS["staircase"], n), STAKES)
        assert found.form in ("linear", "quadratic", "square_root")


def test_given_edges_are_kept():
    found = fit(answers_of(TRUTHS["staircase"], 200), STAKES, "staircase", edges=[90, 210])
    assert [edge for edge, _ in found.price.steps] == pytest.approx([0.3, 0.7])
    assert [size for _, size in found.price.steps] == pytest.approx([0.2, 0.3], abs=0.05)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    inside = 0
    for seed in range(40):
        truth = float(np.random.default_rng(seed).uniform(0.1, 0.9))
        rng = np.random.default_rng(seed + 1000)
        pairs = meaningful_pairs(30, rng)
        p = expit((pairs.gain - truth * (pairs.dear - pairs.cheap)) / 0.05)
        answers = [
            Answer(STAKES.outcome(a, 0.0), STAKES.outcome(b, g), "second" if dear else "first")
            for a, b, g, dear in zip(
                pairs.cheap, pairs.dear, pairs.gain, rng.random(30) < p, strict=True
            )
        ]
        price = fit(answers, STAKES, "linear", lapse=0.0, seed=seed).parameters[0]
        inside += price.low <= truth <= price.high
    assert 31 <= inside <= 40  # 90% of 40, give or take two standard deviations


def test_more_answers_make_narrower_bands():
    few, many = (fit(answers_of(TRUTHS["linear"], n), STAKES, "linear") for n in (8, 200))
    widths = [float(np.subtract(*f.price_band(np.array([1.0]))[::-1])[0]) for f in (few, many)]
    assert widths[1] < 0.5 * widths[0]


def test_the_same_seed_gives_the_same_fit():
    answers = answers_of(TRUTHS["mix"], 60)
    one, other = (fit(answers, STAKES, seed=3) for _ in range(2))
    assert one.price == other.price
    assert one.samples == other.samples


def test_the_temperature_can_be_estimated():
    rng = np.random.default_rng(0)
    answers = answers_of(TRUTHS["linear"], 400)
    sure = fit(answers, STAKES, "linear", tau=None)
    noisy = [
        Answer(a.first, a.second, a.choice if rng.random() < 0.7 else "tie")
        if rng.random() < 0.6
        else Answer(a.first, a.second, "first" if rng.random() < 0.5 else "second")
        for a in answers
    ]
    assert sure.tau < 0.05
    assert fit(noisy, STAKES, "linear", tau=None).tau > 2 * sure.tau


def test_some_wrong_answers_do_not_spoil_the_rest():
    answers = answers_of(TRUTHS["linear"], 60, wrong=0.1)
    assert agreement(TRUTHS["linear"], fit(answers, STAKES, "linear").price) > 0.95


def test_ties_pull_to_where_both_are_worth_the_same():
    tie = Answer(Outcome(0, 0.2), Outcome(300, 0.7), "tie")
    found = fit([tie] * 8, STAKES, "linear", lapse=0.0)
    assert found.price(1.0) == pytest.approx(0.5, abs=0.02)


def test_no_answers_and_unknown_forms_are_refused():
    with pytest.raises(PreferenceError, match="no answers"):
        fit([], STAKES)
    with pytest.raises(PreferenceError, match="form 'cubic': known are linear, quadratic"):
        fit(answers_of(TRUTHS["linear"], 3), STAKES, "cubic")


# ── in the user's units ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize(
    "stakes", [STAKES, Stakes(budget=20, unit="money", rate=2.5, goal="minimize", bounds=(1, 5))]
)
def test_a_price_becomes_the_same_utility_in_the_users_units(name, stakes):
    price = TRUTHS[name]
    utility = price.utility(stakes).bind(goal=stakes.goal, low=1, high=5, full=4)
    rng = np.random.default_rng(0)
    places = rng.random((50, 2))
    outcomes = [stakes.outcome(x, y) for x, y in places]
    ours = [utility(o.spent, o.best) for o in outcomes]
    wanted = stakes.span * (places[:, 1] - price(places[:, 0]))
    np.testing.assert_allclose(np.diff(ours), np.diff(wanted), atol=1e-9)
    assert (utility.budget, utility.unit, utility.rate) == (
        stakes.budget, stakes.unit, stakes.rate
    )  # fmt: skip


def test_no_price_at_all_is_a_hard_budget():
    assert Price().utility(STAKES).describe() == "the best score within 300 epochs"


# ── odd answers ──────────────────────────────────────────────────────────────────────────────────


def test_pairs_that_say_nothing():
    assert trivial(Answer(Outcome(10, 0.5), Outcome(20, 0.5), "first"), STAKES)
    assert trivial(Answer(Outcome(10, 0.6), Outcome(20, 0.5), "first"), STAKES)
    assert trivial(Answer(Outcome(10, 0.6), Outcome(10, 0.5), "first"), STAKES)
    assert not trivial(Answer(Outcome(10, 0.4), Outcome(20, 0.5), "first"), STAKES)


def test_choices_against_reason():
    cheap_and_good, dear_and_bad = Outcome(10, 0.6), Outcome(20, 0.5)
    assert against_reason(Answer(cheap_and_good, dear_and_bad, "second"), STAKES)
    assert not against_reason(Answer(cheap_and_good, dear_and_bad, "first"), STAKES)
    assert not against_reason(Answer(cheap_and_good, dear_and_bad, "tie"), STAKES)
    assert against_reason(Answer(Outcome(10, 0.6), Outcome(10, 0.5), "second"), STAKES)
    assert not against_reason(Answer(Outcome(10, 0.6), Outcome(10, 0.6), "second"), STAKES)


def test_contradictions_are_found_and_named():
    declined = Answer(Outcome(100, 0.5), Outcome(200, 0.7), "first")  # 100 epochs cost over 0.2
    accepted = Answer(Outcome(50, 0.5), Outcome(250, 0.6), "second")  # 200 cost under 0.1
    harmless = Answer(Outcome(50, 0.2), Outcome(250, 0.9), "second")
    assert contradictions([declined, harmless, accepted], STAKES) == [(0, 2)]
    assert contradictions([declined, harmless], STAKES) == []
    same = Answer(declined.first, declined.second, "second")
    assert contradictions([declined, same], STAKES) == [(0, 1)]


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(TRUTHS)), st.integers(0, 10_000))
def test_answers_by_one_utility_never_contradict_each_other(name, seed):
    assert contradictions(answers_of(TRUTHS[name], 30, seed=seed), STAKES) == []
