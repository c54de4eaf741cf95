"""Which questions are asked: never twice, never a trivial one, and the telling ones first."""

from __future__ import annotations

import numpy as np
import pytest

from freezethaw.preference import Answer, Outcome, Price, Stakes, fit, trivial
from freezethaw.questions import (
    PARTS,
    Guesses,
    crowd_of,
    draw_prices,
    enough,
    guesses_of,
    meaningful_pairs,
    next_question,
    random_question,
)

STAKES = Stakes(budget=300)


def reply(price, question):
    (x1, y1), (x2, y2) = map(STAKES.place, question)
    return Answer(*question, "first" if y1 - price(x1) > y2 - price(x2) else "second")


def ask(price, n, form=None, seed=0):
    answers = []
    for _ in range(n):
        crowd = crowd_of(answers, STAKES, form, seed=seed)
        answers.append(reply(price, next_question(answers, STAKES, crowd, seed=seed)))
    return answers


def test_a_fresh_pair_is_meaningful():
    pairs = meaningful_pairs(500, np.random.default_rng(0))
    assert (pairs.gain > 0).all()
    assert (pairs.dear > pairs.cheap).all()


def test_questions_are_never_trivial_and_never_repeat():
    truth = Price(powers=((0.4, 1.0),))
    answers = ask(truth, 25)
    asked = {frozenset([a.first, a.second]) for a in answers}
    assert len(asked) == 25
    assert not any(trivial(answer, STAKES) for answer in answers)
    assert all(min(a.first.spent, a.second.spent) >= STAKES.budget / PARTS for a in answers)
    # Which is the dearer must not be told by the side it is on.
    dearer_first = sum(a.first.spent > a.second.spent for a in answers)
    assert 5 <= dearer_first <= 20


def test_the_same_answers_lead_to_the_same_question():
    answers = ask(Price(powers=((0.4, 1.0),)), 4)
    crowd = crowd_of(answers, STAKES)
    assert next_question(answers, STAKES, crowd) == next_question(answers, STAKES, crowd)
    assert next_question(answers, STAKES, crowd, seed=1) != next_question(answers, STAKES, crowd)


@pytest.mark.parametrize("form", ["linear", "quadratic", "square_root"])
def test_ten_chosen_questions_tell_as_much_as_thirty_random_ones(form):
    power = {"linear": 1.0, "quadratic": 2.0, "square_root": 0.5}[form]
    fresh = meaningful_pairs(4000, np.random.default_rng(5))
    shares = {"chosen": [], "random": []}
    for user in range(8):
        rng = np.random.default_rng(user)
        truth = Price(powers=((float(rng.random()), power),))
        drawn = [reply(truth, random_question(STAKES, rng)) for _ in range(30)]
        for name, answers in (("chosen", ask(truth, 10, form)), ("random", drawn)):
            found = fit(answers, STAKES, form).price
            one, other = (
                fresh.gain > price(fresh.dear) - price(fresh.cheap) for price in (truth, found)
            )
            shares[name].append((one == other).mean())
    assert np.median(shares["chosen"]) >= np.median(shares["random"])
    assert np.median(shares["chosen"]) > 0.98


def test_a_question_has_the_gain_that_brute_force_finds():
    from freezethaw.questions import _information

    crowd = crowd_of(ask(Price(powers=((0.4, 1.0),)), 3), STAKES)
    pair = np.array([[[0.2, 0.3], [0.8, 0.5]]])
    prices = crowd.guesses.prices(np.array([0.2, 0.8]))
    p = 1 / (1 + np.exp(-(0.2 - (prices[:, 1] - prices[:, 0])) / 0.05))

    def entropy(q):
        q = np.clip(q, 1e-12, 1 - 1e-12)
        return -(q * np.log(q) + (1 - q) * np.log(1 - q))

    wanted = entropy(crowd.weights @ p) - crowd.weights @ entropy(p)
    assert _information(pair, crowd, 0.05)[0] == pytest.approx(wanted, abs=1e-4)


def test_doubt_falls_with_answers_and_asking_ends():
    truth = Price(powers=((0.4, 1.0),))
    doubts = [crowd_of(ask(truth, n, "linear"), STAKES, "linear").doubt() for n in (0, 4, 10)]
    assert doubts[0] > doubts[1] > doubts[2]
    answers = ask(truth, 12, "linear")
    crowd, price = crowd_of(answers, STAKES, "linear"), fit(answers, STAKES, "linear").price
    assert enough(answers, crowd, price)
    assert not enough(answers[:2], crowd, price)
    # The crowd is sure, and sure of something else than this price.
    assert crowd.doubt(Price(powers=((1.0, 0.5),))) > 0.1
    assert not enough(answers, crowd, Price(powers=((1.0, 0.5),)))


def test_a_crowd_of_which_little_is_left_is_not_believed():
    answers = ask(Price(steps=((0.3, 0.2), (0.55, 0.15), (0.8, 0.25))), 30, "staircase")
    crowd = crowd_of(answers, STAKES, "staircase")
    assert crowd.size < 20
    assert not enough(answers, crowd, fit(answers, STAKES, "staircase").price)


def test_contradictory_answers_leave_doubt():
    pair = Outcome(100, 0.5), Outcome(200, 0.6)
    answers = [Answer(*pair, "first"), Answer(*pair, "second")] * 4
    assert not enough(answers, crowd_of(answers, STAKES), fit(answers, STAKES).price)


def test_whole_epochs_are_asked_about_and_too_few_are_nothing_to_ask():
    small = Stakes(budget=7)
    answers = []
    for _ in range(8):
        question = next_question(answers, small, crowd_of(answers, small))
        assert all(outcome.spent in range(1, 8) for outcome in question)
        answers.append(Answer(*question, "first"))
    assert next_question([], Stakes(budget=1), crowd_of([], Stakes(budget=1))) is None


@pytest.mark.parametrize(
    "bounds", [(0.3, 0.85), (0.3, 0.9), (-1, 0.1), (-0.1, 0.3), (1e6, 1e6 + 1)]
)
@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_rounding_puts_no_question_out_of_bounds(bounds, goal):
    stakes = Stakes(budget=300, bounds=bounds, goal=goal)
    for y in np.linspace(0, 1, 101):
        outcome = stakes.outcome(1.0, y)
        assert bounds[0] <= outcome.best <= bounds[1]
        assert stakes.place(outcome)[1] == pytest.approx(y, abs=1e-6)


def test_a_study_is_asked_about_its_own_outcomes():
    among = [Outcome(10, 0.4), Outcome(40, 0.6), Outcome(90, 0.7), Outcome(200, 0.72)]
    answers = []
    for _ in range(6):  # four outcomes make six pairs
        question = next_question(answers, STAKES, crowd_of(answers, STAKES), among=among)
        assert set(question) <= {STAKES.outcome(*STAKES.place(outcome)) for outcome in among}
        answers.append(Answer(*question, "first"))
    assert next_question(answers, STAKES, crowd_of(answers, STAKES), among=among) is None


def test_guesses_are_the_prices_that_were_drawn():
    guesses = guesses_of(None, 0)
    drawn = draw_prices(None, 3000, np.random.default_rng([0, 1]))
    x = np.linspace(0, 1, 7)
    np.testing.assert_allclose(guesses.prices(x), [price(x) for price in drawn], atol=1e-12)
    assert isinstance(guesses, Guesses)
    assert guesses_of(None, 0) is guesses


@pytest.mark.parametrize("form", ["linear", "staircase", "mix", "power"])
def test_prices_that_are_thought_possible_never_fall(form):
    x = np.linspace(0, 1, 50)
    for price in draw_prices(form, 50, np.random.default_rng(0)):
        assert (np.diff(price(x)) >= -1e-12).all()
        assert price(0.0) == 0.0
