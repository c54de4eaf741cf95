"""Which two outcomes to ask about next: those whose answer is expected to tell most.

What is known is a crowd of prices, each a guess at the truth, weighted by how well it explains the
answers so far. A question's worth is its expected information gain: how unsure the crowd as a whole
is of the answer, less how unsure its members are, each for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import expit

from freezethaw.preference import (
    FORMS,
    LAPSE,
    MOST_STEPS,
    TAU,
    Answer,
    Array,
    Form,
    Outcome,
    Pairs,
    Price,
    Stakes,
    log_likelihoods,
    pairs_of,
)

N_GUESSES = 3000
N_CANDIDATES = 600
"""Pairs that are looked at for the next question."""
N_CHOICES = 400
"""Pairs that stand for the choices which a utility is for."""
ENOUGH = 0.02
"""When so small a share of choices would probably be made otherwise, asking ends."""
FEWEST = 6
"""Answers, before anything is thought to be known."""
FEWEST_GUESSES = 20
"""Of which the crowd must still consist: the few that are left of many need not be right."""
PARTS = 20
"""Outcomes that are asked about lie at twentieths of the budget, to be read easily."""
SCORE_PARTS = 100

Question = tuple[Outcome, Outcome]


def meaningful_pairs(n: int, rng: np.random.Generator) -> Pairs:
    """Draw pairs in the unit square of which neither outcome dominates: the dearer is better."""
    x, y = rng.random((2, n)), rng.random((2, n))
    x.sort(axis=0)
    y.sort(axis=0)
    return Pairs(cheap=x[0], dear=x[1], gain=y[1] - y[0], label=np.full(n, 0.5))


def draw_prices(form: Form | None, n: int, rng: np.random.Generator) -> list[Price]:
    """Draw prices from what is thought before any answer; of any form where none is named."""
    kinds = (form,) if form else FORMS
    return [_draw_price(kinds[i % len(kinds)], rng) for i in range(n)]


def _draw_price(form: Form, rng: np.random.Generator) -> Price:
    # Four in ten are spread over small prices by their logarithm: those matter as much.
    total = rng.random() if rng.random() < 0.6 else float(np.exp(rng.uniform(-5.0, 0.7)))
    match form:
        case "linear":
            return Price(powers=((total, 1.0),))
        case "quadratic":
            return Price(powers=((total, 2.0),))
        case "square_root":
            return Price(powers=((total, 0.5),))
        case "power":
            return Price(powers=((total, float(np.exp(rng.normal(0.0, 0.6)))),))
        case "staircase":
            return Price(steps=_draw_steps(total, rng))
        case "mix":
            shares = rng.dirichlet(np.ones(4))
            powers = tuple(zip((shares[:3] * total).tolist(), (1.0, 2.0, 0.5), strict=True))
            return Price(powers=powers, steps=_draw_steps(total * float(shares[3]), rng))


def _draw_steps(total: float, rng: np.random.Generator) -> tuple[tuple[float, float], ...]:
    n = int(rng.integers(1, MOST_STEPS + 1))
    edges = np.sort(rng.random(n))
    sizes = total * rng.dirichlet(np.ones(n))
    return tuple(zip(edges.tolist(), sizes.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class Guesses:
    """Prices that are thought possible before any answer, and what they say of some choices."""

    powers: Array
    """[guess, term, (a, c)], a = 0 where there are fewer terms."""
    steps: Array
    """[guess, step, (edge, size)], size = 0 where there are fewer steps."""
    choices: Pairs
    """What a utility is for: choices like these."""

    def prices(self, x: Array) -> Array:
        """Return [guess, place]."""
        total = np.zeros((len(self.powers), len(x)))
        for term in range(self.powers.shape[1]):
            total += self.powers[:, term, :1] * x ** self.powers[:, term, 1:]
        for step in range(self.steps.shape[1]):
            total += self.steps[:, step, 1:] * (x > self.steps[:, step, :1])
        return total

    @cached_property
    def at_parts(self) -> Array:
        """[guess, place]: each price at 0, 1/PARTS, …, 1 of the budget."""
        return self.prices(np.linspace(0, 1, PARTS + 1))

    @cached_property
    def on_choices(self) -> Array:
        """[guess, choice]: whether each takes the dearer outcome."""
        return (self.choices.advantage(self.prices) > 0).astype(np.float64)


@lru_cache(maxsize=4)
def guesses_of(form: Form | None, seed: int) -> Guesses:
    """Return the guesses at a price of this form, or of any."""
    rng = np.random.default_rng([seed, 1])
    drawn = draw_prices(form, N_GUESSES, rng)
    return Guesses(
        powers=_padded([price.powers for price in drawn], empty=(0.0, 1.0)),
        steps=_padded([price.steps for price in drawn], empty=(1.0, 0.0)),
        choices=meaningful_pairs(N_CHOICES, rng),
    )


def _padded(terms: Sequence[tuple[tuple[float, float], ...]], empty: tuple[float, float]) -> Array:
    longest = max(map(len, terms))
    return np.array([[*own, *[empty] * (longest - len(own))] for own in terms]).reshape(
        len(terms), longest, 2
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Crowd:
    """Guesses at somebody's price, weighted by their answers."""

    guesses: Guesses
    weights: Array
    """[guess], summing to 1."""

    @property
    def size(self) -> float:
        """How many guesses the weights amount to."""
        return float(1 / np.square(self.weights).sum())

    def doubt(self, price: Price | None = None) -> float:
        """Return the share of choices that the truth would probably make otherwise.

        Otherwise than this price, or than most of the crowd. With few guesses left it says little.
        """
        says_dear = self.weights @ self.guesses.on_choices
        if price is None:
            return float(np.minimum(says_dear, 1 - says_dear).mean())
        takes_dear = self.guesses.choices.advantage(price) > 0
        return float(np.where(takes_dear, 1 - says_dear, says_dear).mean())


def crowd_of(
    answers: Sequence[Answer],
    stakes: Stakes,
    form: Form | None = None,
    *,
    tau: float = TAU,
    lapse: float = LAPSE,
    seed: int = 0,
) -> Crowd:
    """Return what the answers leave of all guesses."""
    guesses = guesses_of(form, seed)
    pairs = pairs_of(answers, stakes)
    advantage = pairs.advantage(guesses.prices)
    logs = log_likelihoods(advantage, pairs.label, tau, lapse).sum(axis=1)
    weights = np.exp(logs - logs.max())
    return Crowd(guesses=guesses, weights=weights / weights.sum())


def next_question(
    answers: Sequence[Answer],
    stakes: Stakes,
    crowd: Crowd,
    *,
    among: Sequence[Outcome] = (),
    tau: float = TAU,
    seed: int = 0,
) -> Question | None:
    """Return the pair whose answer is expected to tell most, never one that was asked before.

    `among` gives the outcomes to choose from, such as a study's own; without it they come from all
    over the stakes. None when every pair has been asked.
    """
    asked = {_key(stakes, answer.first, answer.second) for answer in answers}
    rng = np.random.default_rng([seed, 2, len(answers)])
    candidates = _pairs_among(among, stakes) if among else _pairs_anywhere(stakes, rng)
    fresh = [pair for pair in candidates if _place_key(pair) not in asked]
    if not fresh:
        return None
    # Few of them, drawn anew for every question: a good one among many is as good as the best.
    chosen = rng.permutation(len(fresh))[:N_CANDIDATES]
    some = [fresh[i] for i in chosen]
    gains = _information(np.array(some), crowd, tau)
    (x1, y1), (x2, y2) = some[int(np.argmax(gains))]
    question = stakes.outcome(x1, y1), stakes.outcome(x2, y2)
    # Which of them comes first must not tell which is the dearer.
    return question if rng.random() < 0.5 else (question[1], question[0])


Place = tuple[float, float]


def _pairs_anywhere(stakes: Stakes, rng: np.random.Generator) -> list[tuple[Place, Place]]:
    n = 2 * N_CANDIDATES
    amounts = np.linspace(0, 1, PARTS + 1)[1:]  # nobody has a score before anything was spent
    if stakes.unit == "epochs":
        amounts = np.unique(np.maximum(1, np.round(amounts * stakes.budget))) / stakes.budget
    amounts = amounts[amounts <= 1]
    if len(amounts) < 2:
        return []
    x = amounts[np.sort([rng.choice(len(amounts), 2, replace=False) for _ in range(n)], axis=1)]
    y = np.sort([rng.choice(SCORE_PARTS + 1, 2, replace=False) for _ in range(n)], axis=1)
    y = y / SCORE_PARTS
    rows = zip(x.tolist(), y.tolist(), strict=True)
    return list({((x1, y1), (x2, y2)) for (x1, x2), (y1, y2) in rows})


def _pairs_among(outcomes: Sequence[Outcome], stakes: Stakes) -> list[tuple[Place, Place]]:
    places = sorted({stakes.place(outcome) for outcome in outcomes})
    return [
        (cheap, dear)
        for i, cheap in enumerate(places)
        for dear in places[i + 1 :]
        if cheap[0] < dear[0] and cheap[1] < dear[1]
    ]


def _key(stakes: Stakes, first: Outcome, second: Outcome) -> tuple[Place, Place]:
    return _place_key((stakes.place(first), stakes.place(second)))


def _place_key(pair: tuple[Place, Place]) -> tuple[Place, Place]:
    one, other = sorted((round(x, 6), round(y, 6)) for x, y in pair)
    return one, other


def _information(pairs: Array, crowd: Crowd, tau: float) -> Array:
    """Return each question's expected information gain; `pairs` [question, outcome, x and y]."""
    x, y = pairs[:, :, 0], pairs[:, :, 1]
    # Linear between the places where prices are kept: outcomes of a study lie anywhere.
    place = x * PARTS
    below = np.minimum(place.astype(int), PARTS - 1)
    share = place - below
    kept = crowd.weights > 1e-6
    prices, weights = crowd.guesses.at_parts[kept], crowd.weights[kept]
    at = prices[:, below] * (1 - share) + prices[:, below + 1] * share  # [guess, question, outcome]
    p = expit(((y[:, 1] - y[:, 0]) - (at[:, :, 1] - at[:, :, 0])) / tau)
    return _entropy(weights @ p) - weights @ _entropy(p)


def _entropy(p: Array) -> Array:
    p = np.clip(p, 1e-12, 1 - 1e-12)
    entropy: Array = -(p * np.log(p) + (1 - p) * np.log1p(-p))
    return entropy


def random_question(stakes: Stakes, rng: np.random.Generator) -> Question:
    """Return a meaningful pair drawn uniformly: the paper's protocol."""
    x, y = np.sort(rng.random(2)), np.sort(rng.random(2))
    question = stakes.outcome(x[0], y[0]), stakes.outcome(x[1], y[1])
    return question if rng.random() < 0.5 else (question[1], question[0])


def enough(answers: Sequence[Answer], crowd: Crowd, price: Price) -> bool:
    """Whether another answer would hardly change any choice that this fitted price makes."""
    known = len(answers) >= FEWEST and crowd.size >= FEWEST_GUESSES
    return known and crowd.doubt(price) < ENOUGH
