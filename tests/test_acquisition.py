"""Eqs. 4 and 7 by hand and by brute force.

The exact couplings agree with 10⁶ draws within 5 standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fakes import FakePosteriorOf
from freezethaw.acquisition import (
    COST_LEVELS,
    Averaged,
    Comonotone,
    Coupling,
    Independent,
    Prospects,
    acquire,
    chances,
    cost_levels,
    coupling_from_name,
    expectation,
    gain_table,
)
from freezethaw.errors import ConfigError, ExtrapolatorError
from freezethaw.extrapolator import Queries
from freezethaw.scale import Scale
from freezethaw.utility import Utility, linear, makarova, quadratic, staircase

EXACT = [Comonotone(), Independent()]
EVERY = [*EXACT, Averaged(samples=200)]
exactly = pytest.mark.parametrize("coupling", EXACT, ids=["comonotone", "independent"])
every = pytest.mark.parametrize("coupling", EVERY, ids=["comonotone", "independent", "averaged"])


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator(device="cpu").manual_seed(seed)


def prospects(
    cost: object,
    *,
    best: float,
    utility: Callable[..., object],
    spent: float = 0.0,
    seen: object = None,
    epochs: object = None,
    now: float | None = None,
) -> Prospects:
    """`cost` is [candidate, epoch]; candidate i has row i of the forecast."""
    cost = np.array(cost, np.float64)
    n, q = cost.shape
    return Prospects(
        queries=Queries(
            configs=np.zeros((n, 1)),
            curve=np.arange(n),
            epochs=np.arange(1, q + 1) if epochs is None else np.array(epochs),
        ),
        epochs_seen=np.zeros(n, np.int64) if seen is None else np.array(seen),
        cost=cost,
        spent=spent,
        best=best,
        utility=lambda b, y: np.asarray(utility(b, y)),
        utility_now=float(utility(spent, best)) if now is None else now,
    )


def posterior(mass: object, borders: object = None) -> FakePosteriorOf:
    mass = torch.as_tensor(np.array(mass, np.float64))
    edges = np.linspace(0, 1, mass.shape[-1] + 1) if borders is None else np.array(borders)
    return FakePosteriorOf(mass, torch.from_numpy(edges))


def gains(mass: object, look: Prospects, coupling: Coupling = Comonotone()) -> list[float]:  # noqa: B008
    return acquire(posterior(mass), look, coupling, generator()).gain.tolist()


def chance(mass: object, look: Prospects, coupling: Coupling = Comonotone()) -> list[float]:  # noqa: B008
    rows = np.arange(len(look.epochs_seen))
    return chances(posterior(mass), look, rows, coupling, generator()).tolist()


def priced(spent: object, best: object) -> object:
    """A tenth of score per epoch."""
    return best - 0.1 * np.asarray(spent)


# --- four bins, by hand --------------------------------------------------------------------------


@exactly
def test_eq_4_and_7_by_hand(coupling):
    """U = y − 0.1 b, ỹ_b = ½ at b = 0: one epoch pays above 0.6, two pay above 0.7.

    Epoch 1, uniform. Bin (½, ¾]: ∫ (y − 0.6) from 0.6 to ¾, over ¼, is 0.045, a share of 0.6 pays;
    bin (¾, 1]: 0.275, all of it. A quarter of each: gain 0.08, chance 0.4.
    Epoch 2, all in the top bin: 0.875 − 0.7 = 0.175, chance 1.
    """
    mass = [[[0.25] * 4, [0, 0, 0, 1.0]]]
    only_one = prospects([[1.0]], best=0.5, utility=priced)
    assert gains([mass[0][:1]], only_one, coupling) == pytest.approx([0.08])
    assert chance([mass[0][:1]], only_one, coupling) == pytest.approx([0.4])
    both = prospects([[1.0, 2.0]], best=0.5, utility=priced)
    found = acquire(posterior(mass), both, coupling, generator())
    assert found.gain.tolist() == pytest.approx([0.175])
    assert found.target.tolist() == [1]
    assert chance(mass, both, coupling) == pytest.approx([1.0])


def test_the_best_so_far_inside_a_bin():
    """ỹ_b = 0.6 in (½, ¾], cost 0.05: above 0.65 it pays. ∫ (y − 0.65) from there, over ¼: 0.02."""
    look = prospects([[0.5]], best=0.6, utility=priced)
    assert gains([[[0, 0, 1.0, 0]]], look) == pytest.approx([0.02])
    assert chance([[[0, 0, 1.0, 0]]], look) == pytest.approx([0.4])


def test_going_on_that_costs_nothing_pays_as_soon_as_the_best_rises():
    """ỹ_b = 0.6, no cost: ∫ (y − 0.6) from 0.6 to ¾, over ¼, is 0.045; 0.6 of the bin is above."""
    look = prospects([[1.0]], best=0.6, utility=lambda b, y: y + 0 * np.asarray(b))
    assert gains([[[0.5, 0, 0.5, 0]]], look) == pytest.approx([0.0225])
    assert chance([[[0.5, 0, 0.5, 0]]], look) == pytest.approx([0.3])


def test_unequal_bins():
    look = prospects([[1.0]], best=0.0, utility=priced)
    found = acquire(posterior([[[0.5, 0.5]]], [0, 0.2, 1]), look, Comonotone(), generator())
    # Bin (0, 0.2]: ∫ (y − 0.1) from 0.1 to 0.2, over 0.2, is 0.025; bin (0.2, 1]: 0.6 − 0.1.
    assert found.gain.tolist() == pytest.approx([0.5 * 0.025 + 0.5 * 0.5])


CROSSING = [[[0.4, 0.1, 0.1, 0.4], [0.1, 0.5, 0.3, 0.1]]]
"""CDFs at the upper borders: (0.4, 0.5, 0.6, 1) and (0.1, 0.6, 0.9, 1)."""


@pytest.mark.parametrize(
    ("coupling", "cdf"),
    [
        (Comonotone(), [0.1, 0.5, 0.6]),  # the smaller of the two
        (Independent(), [0.04, 0.3, 0.54]),  # their product
    ],
)
def test_the_running_maximum_by_hand(coupling, cdf):
    above = survival_of_max(coupling, CROSSING)
    assert above[0, 0].tolist() == pytest.approx([1, 0.6, 0.5, 0.4])
    assert above[0, 1].tolist() == pytest.approx([1, *(1 - np.array(cdf))])


def survival_of_max(coupling: Coupling, mass: object) -> np.ndarray:
    """P(best > border) by ascending lower borders."""
    mass = torch.as_tensor(np.array(mass, np.float64))
    borders = torch.linspace(0, 1, mass.shape[-1] + 1, dtype=torch.float64)
    return coupling.survival_of_max(mass, borders, 0, generator()).flip(-1).numpy()


def test_running_maxima_are_exact_at_every_border():
    """G_t = min over s ≤ t of F_s, and Π over s ≤ t of F_s."""
    mass = np.random.default_rng(0).dirichlet([0.3] * 1000, size=(3, 7))
    mass[0, 2, :600] = 0  # F = 0 below a border
    mass /= mass.sum(-1, keepdims=True)
    below = np.concatenate([np.zeros((3, 7, 1)), mass.cumsum(-1)[..., :-1]], axis=-1)
    smallest = np.minimum.accumulate(below, axis=1)
    product = np.multiply.accumulate(below, axis=1)
    assert 1 - survival_of_max(Comonotone(), mass) == pytest.approx(smallest, abs=1e-13)
    assert 1 - survival_of_max(Independent(), mass) == pytest.approx(product, abs=1e-13)


@exactly
def test_small_chances_keep_their_digits(coupling):
    """Single precision, as the network answers: 1e-12 must not be lost next to 1."""
    mass = torch.tensor([[[1.0, 1e-12], [1.0, 3e-12]]])
    borders = torch.tensor([0, 0.5, 1])
    above = coupling.survival_of_max(mass, borders, 1, generator())[0, :, 0].tolist()
    second = 3e-12 if coupling == Comonotone() else 4e-12
    assert above == [pytest.approx(1e-12, rel=1e-5), pytest.approx(second, rel=1e-5)]


def test_independence_inflates_the_maximum():
    mass = np.random.default_rng(1).dirichlet([1.0] * 20, size=(4, 9))
    look = prospects(np.tile(np.arange(1, 10) / 100, (4, 1)), best=0.5, utility=priced)
    one, other = gains(mass, look, Comonotone()), gains(mass, look, Independent())
    assert all(b > a for a, b in zip(one, other, strict=True))


# --- 10⁶ draws -----------------------------------------------------------------------------------

DRAWS = 10**6
BINS = 1000
BORDERS = np.linspace(0, 1, BINS + 1)
EPOCHS = [1, 2, 3, 5, 8]
SEEN = [0, 2, 0]
BEST = 0.5437  # inside a bin
SPENT = 7.3
BUDGET = 40.0


def bins_of(*parts: tuple[float, float, float]) -> np.ndarray:
    """A mixture of normals (weight, mean, spread) cut to [0, 1], with a floor as a network has."""
    mass = 1e-9 + sum(w * np.diff(norm.cdf(BORDERS, mean, spread)) for w, mean, spread in parts)
    return mass / mass.sum()


MASS = np.array(
    [
        [  # rises, surer of itself at first and then less so: the CDFs cross
            bins_of((1, 0.50, 0.04)),
            bins_of((1, 0.49, 0.10)),
            bins_of((1, 0.54, 0.02)),
            bins_of((1, 0.53, 0.15)),
            bins_of((1, 0.58, 0.03)),
        ],
        [  # started: the first two epochs are seen, and would win if they counted
            bins_of((1, 0.90, 0.01)),
            bins_of((1, 0.95, 0.01)),
            bins_of((0.7, 0.52, 0.01), (0.3, 0.60, 0.01)),
            bins_of((0.5, 0.50, 0.01), (0.5, 0.62, 0.02)),
            bins_of((1, 0.55, 0.20)),
        ],
        [  # a long shot that may also collapse
            bins_of((0.9, 0.20, 0.05), (0.1, 0.80, 0.05)),
            bins_of((0.5, 0.01, 0.01), (0.5, 0.56, 0.05)),
            bins_of((1, 0.30, 0.30)),
            bins_of((0.98, 0.40, 0.02), (0.02, 0.95, 0.02)),
            bins_of((1, 0.5439, 0.0004)),
        ],
    ]
)
PER_EPOCH = np.array([1.0, 1.7, 0.6])
COST = np.maximum(np.array(EPOCHS)[None, :] - np.array(SEEN)[:, None], 0) * PER_EPOCH[:, None]
TARGETS = [(0, 0), (0, 2), (0, 4), (1, 2), (1, 4), (2, 1), (2, 3), (2, 4)]
"""(candidate, place in EPOCHS)"""


@cache
def uniform(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random(DRAWS)


def draw(candidate: int, epoch: int, u: np.ndarray) -> np.ndarray:
    """Inverse transform; uniform within a bin."""
    cdf = np.concatenate([[0], MASS[candidate, epoch].cumsum()])
    return np.interp(u * cdf[-1], cdf, BORDERS)


def running_max(candidate: int, place: int, draw_epoch: Callable[[int], np.ndarray]) -> np.ndarray:
    """max(ỹ_b, y at the epochs after t_n up to the target)."""
    ahead = [i for i in range(place + 1) if EPOCHS[i] > SEEN[candidate]]
    best = np.full_like(draw_epoch(ahead[0]), BEST)
    for i in ahead:
        best = np.maximum(best, draw_epoch(i))
    return best


@cache
def drawn(name: str, candidate: int, place: int) -> np.ndarray:
    """Draws of the running maximum under each coupling."""
    if name == "comonotone":
        return running_max(candidate, place, lambda i: draw(candidate, i, uniform(0)))
    if name == "independent":
        return running_max(candidate, place, lambda i: draw(candidate, i, uniform(i)))
    groups = lambda i: draw(candidate, i, uniform(i)).reshape(-1, 5).mean(1)  # noqa: E731
    return running_max(candidate, place, groups)


@dataclass(frozen=True)
class Stakes:
    utility: Utility
    scale: Scale

    def __call__(self, spent: object, best: np.ndarray) -> np.ndarray:
        raw = self.scale.for_utility(self.scale.to_raw(np.asarray(best, np.float64)))
        return np.asarray(self.utility(spent, raw))


IDENTITY = Scale.unit()
LOSS = Scale.live("minimize", (0, math.inf), initial=2.3)
PERCENT = Scale.live("maximize", (0, 100), initial=10)
STAKES = {
    "linear, identity": Stakes(linear(alpha=0.2, budget=BUDGET), IDENTITY),
    "quadratic, identity": Stakes(quadratic(alpha=0.2, budget=BUDGET), IDENTITY),
    "staircase, identity": Stakes(staircase([(9, 0.01), (12, 0.03)], budget=BUDGET), IDENTITY),
    "linear, loss": Stakes(linear(alpha=0.5, budget=BUDGET).bind(
        goal="minimize", low=0.0, high=2.3, full=2.3), LOSS),
    "quadratic, percent": Stakes(quadratic(alpha=9.0, budget=BUDGET), PERCENT),
}  # fmt: skip


def at_target(stakes: Stakes, place: int) -> Prospects:
    """Only this target is within the budget, so that the largest gain is that of this one."""
    cost = np.full(COST.shape, 10 * BUDGET)
    cost[:, place] = COST[:, place]
    return prospects(cost, best=BEST, utility=stakes, spent=SPENT, seen=SEEN, epochs=EPOCHS)


def check_against_draws(
    name: str,
    coupling: Coupling,
    stakes: Stakes,
    samples: float = math.inf,
    targets: Sequence[tuple[int, int]] = TARGETS,
) -> None:
    """`samples` of the implementation's own add to the standard errors."""
    ours = FakePosteriorOf(torch.from_numpy(MASS), torch.from_numpy(BORDERS))
    now = float(stakes(SPENT, BEST))
    something = 0
    for place in {place for _, place in targets}:
        look = at_target(stakes, place)
        gain = acquire(ours, look, coupling, generator(1)).gain
        share = chances(ours, look, np.arange(3), coupling, generator(2))
        for candidate in (c for c, p in targets if p == place):
            best = drawn(name, candidate, place)
            rise = stakes(SPENT + COST[candidate, place], best) - now
            error = math.sqrt(1 / len(best) + 1 / samples)
            positive = np.maximum(rise, 0)
            # Nothing is finer than a rare draw, or than the slope within a bin.
            slack = 5 * error * positive.std() + 1e-6 * np.ptp(rise)
            assert gain[candidate] == pytest.approx(positive.mean(), abs=slack)
            p = float(np.mean(rise > 0))
            slack = 5 * error * math.sqrt(p * (1 - p) + error**2)
            assert share[candidate] == pytest.approx(p, abs=slack)
            something += 0.01 < p < 0.99
    assert something >= len(targets) / 3, "these targets are too easy to show anything"


@pytest.mark.parametrize("stakes", STAKES.values(), ids=STAKES.keys())
@pytest.mark.parametrize("name", ["comonotone", "independent"])
def test_exact_couplings_agree_with_a_million_draws(name, stakes):
    """Eqs. 4 and 7 by brute force, within 5 standard errors."""
    check_against_draws(name, coupling_from_name(name), stakes)


@pytest.mark.parametrize("stakes", [STAKES["staircase, identity"], STAKES["linear, loss"]])
def test_averaged_draws_agree_with_draws_averaged_here(stakes):
    """Groups of 5 are averaged in scaled units, then the maximum is taken."""
    check_against_draws("averaged", Averaged(samples=4000), stakes, 4000, [(0, 2), (1, 4), (2, 4)])


def test_the_draws_of_this_test_tell_the_couplings_apart():
    """Otherwise agreement would say little."""
    stakes = STAKES["linear, identity"]
    for name, other in (("comonotone", Independent()), ("independent", Comonotone())):
        with pytest.raises(AssertionError):
            check_against_draws(name, other, stakes)
    with pytest.raises(AssertionError):
        check_against_draws("averaged", Independent(), stakes)


def test_the_largest_over_all_targets():
    """A(n) = max over Δt (Eq. 4), p_b = max over Δt (Eq. 7)."""
    stakes = STAKES["linear, identity"]
    ours = FakePosteriorOf(torch.from_numpy(MASS), torch.from_numpy(BORDERS))
    look = prospects(COST, best=BEST, utility=stakes, spent=SPENT, seen=SEEN, epochs=EPOCHS)
    whole = acquire(ours, look, Comonotone(), generator())
    share = chances(ours, look, np.arange(3), Comonotone(), generator())
    for candidate in range(3):
        singly, shares = [], []
        for place in range(len(EPOCHS)):
            one = at_target(stakes, place)
            singly.append(acquire(ours, one, Comonotone(), generator()).gain[candidate])
            shares.append(chances(ours, one, np.arange(3), Comonotone(), generator())[candidate])
        assert whole.gain[candidate] == pytest.approx(max(singly))
        assert whole.target[candidate] == int(np.argmax(singly))
        assert share[candidate] == pytest.approx(max(shares))


@exactly
def test_single_precision_is_enough(coupling):
    stakes = STAKES["quadratic, percent"]
    look = prospects(COST, best=BEST, utility=stakes, spent=SPENT, seen=SEEN, epochs=EPOCHS)
    answers = []
    for dtype in (torch.float64, torch.float32):
        ours = FakePosteriorOf(torch.from_numpy(MASS).to(dtype), torch.from_numpy(BORDERS))
        gain = acquire(ours, look, coupling, generator()).gain
        share = chances(ours, look, np.arange(3), coupling, generator())
        answers.append((gain, share))
    assert answers[1][0] == pytest.approx(answers[0][0], rel=1e-4, abs=1e-6)
    assert answers[1][1] == pytest.approx(answers[0][1], rel=1e-4, abs=1e-6)


# --- what must not count -------------------------------------------------------------------------


@every
def test_epochs_already_seen_never_count(coupling):
    rest = [0.1, 0.4, 0.4, 0.1]
    low, high = [1.0, 0, 0, 0], [0, 0, 0, 1.0]
    look = prospects([[0, 0, 0.1]], best=0.5, utility=priced, seen=[2])
    one = gains([[low, low, rest]], look, coupling)
    other = gains([[high, high, rest]], look, coupling)
    assert one == other
    assert chance([[low, low, rest]], look, coupling) == chance(
        [[high, high, rest]], look, coupling
    )
    found = acquire(posterior([[high, high, rest]]), look, coupling, generator())
    assert found.target.tolist() == [2]


@every
def test_a_candidate_without_an_epoch_left_has_a_gain_of_minus_one(coupling):
    top = [[0, 0, 0, 1.0]] * 2
    look = prospects([[0, 0], [0.1, 0.2]], best=0.5, utility=priced, seen=[2, 0])
    assert gains([top, top], look, coupling)[0] == -1
    assert chance([top, top], look, coupling)[0] == 0


@every
@pytest.mark.parametrize("scale", [IDENTITY, LOSS, PERCENT], ids=["identity", "loss", "percent"])
def test_a_best_that_stays_is_no_gain_even_by_rounding(coupling, scale):
    """P(U > U_p) is strict: without a price, scores below ỹ_b leave the utility where it is."""
    free = Stakes(
        linear(alpha=0, budget=BUDGET).bind(goal=scale.goal, low=0, high=1, full=1), scale
    )
    for raw in np.linspace(*scale.soft, 13)[1:-1]:
        best = float(scale.to_unit(float(raw)))
        # As a study has it: U_p from the score itself, not by way of the scale.
        look = prospects(
            [[1.0, 2.0]], best=best, utility=free, now=float(free.utility(0.0, float(raw)))
        )
        mass = np.zeros((1, 2, 50))
        mass[..., : int(best * 50)] = 1 / int(best * 50) if int(best * 50) else 0
        mass[..., 0] += 1 - mass.sum(-1)
        if best * 50 >= 1:
            assert gains(mass, look, coupling) == [0.0]
            assert chance(mass, look, coupling) == [0.0]


def test_a_price_too_high_for_any_score():
    look = prospects([[9.0]], best=0.5, utility=priced)
    assert gains([[[0.25] * 4]], look) == [0.0]
    assert chance([[[0.25] * 4]], look) == [0.0]


def test_beyond_the_budget_nothing_is_gained():
    utility = linear(alpha=0.1, budget=10)
    look = prospects([[2.0, 4.0]], best=0.1, utility=utility, spent=7.0)
    found = acquire(posterior([[[0.5, 0.5], [0, 1.0]]]), look, Comonotone(), generator())
    assert found.target.tolist() == [0]
    assert found.gain[0] > 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_forecast_that_is_no_distribution_is_refused(bad):
    with pytest.raises(ExtrapolatorError, match="NaN or infinite"):
        gains([[[0.5, bad]]], prospects([[1.0]], best=0.1, utility=priced))


# --- a utility of −∞ -----------------------------------------------------------------------------


def test_from_minus_infinity_any_finite_utility_is_a_gain():
    """Nothing counts below ½: what matters is the chance to get there, and then how far."""
    utility = makarova(0.5, budget=10)
    look = prospects([[1.0], [1.0], [1.0]], best=0.25, utility=utility)
    assert look.utility_now == -math.inf
    mass = [[[0.9, 0, 0, 0.1]], [[0, 0.5, 0.5, 0]], [[1.0, 0, 0, 0]]]
    assert chance(mass, look) == pytest.approx([0.1, 0.5, 0.0])
    # Finite utilities reach from ½ to 1, so they are counted from 0: 0.1 · 0.875 and 0.5 · 0.625.
    assert gains(mass, look) == pytest.approx([0.0875, 0.3125, 0.0])


def test_gains_from_minus_infinity_compare_across_chunks():
    """The reference is one for all candidates, whatever they cost."""
    utility = makarova(0.5, budget=10)
    mass = np.tile([0.5, 0, 0, 0.5], (150, 1, 1))
    cost = np.linspace(0.1, 3, 150)[:, None]
    found = gains(mass, prospects(cost, best=0.1, utility=utility))
    assert found == pytest.approx([0.5 * 0.875] * 150)


def test_where_nothing_can_be_reached_there_is_no_gain():
    look = prospects([[20.0]], best=0.1, utility=makarova(0.5, budget=10))
    assert gains([[[0.5, 0.5]]], look) == [0.0]
    assert chance([[[0.5, 0.5]]], look) == [0.0]


# --- costs ---------------------------------------------------------------------------------------


def test_few_costs_are_kept_as_they_are():
    cost = np.array([[0.0, 1.0, 2.5], [1.0, 2.5, 4.0]])
    levels, level_of = cost_levels(prospects(cost, best=0.5, utility=priced))
    assert levels.tolist() == [0.0, 1.0, 2.5, 4.0]
    assert levels[level_of.numpy()].tolist() == cost.tolist()


def test_many_costs_are_rounded_up_never_down():
    rng = np.random.default_rng(0)
    cost = np.exp(rng.uniform(0, 5, (40, 9)))
    cost[:, 0] = 0
    levels, level_of = cost_levels(prospects(cost, best=0.5, utility=priced))
    assert len(levels) == COST_LEVELS + 1
    rounded = levels[level_of.numpy()]
    assert np.all(rounded >= cost * (1 - 1e-8))
    assert np.all(rounded[cost == 0] == 0)
    step = (cost.max() / cost[cost > 0].min()) ** (1 / (COST_LEVELS - 1))
    assert np.all(rounded[cost > 0] <= cost[cost > 0] * step * (1 + 1e-8))
    assert rounded.max() == pytest.approx(cost.max(), rel=1e-12)


def test_rounding_costs_never_makes_a_candidate_look_better():
    rng = np.random.default_rng(1)
    mass = rng.dirichlet([1.0] * 8, size=(30, 5))
    cost = np.cumsum(rng.uniform(0.01, 1, (30, 5)), axis=1)
    together = gains(mass, prospects(cost, best=0.4, utility=priced))
    for i in range(30):
        alone = gains(mass[i : i + 1], prospects(cost[i : i + 1], best=0.4, utility=priced))[0]
        assert together[i] <= alone + 1e-12
        assert together[i] == pytest.approx(alone, abs=0.05)


@exactly
def test_chunks_do_not_show(coupling):
    rng = np.random.default_rng(2)
    mass = rng.dirichlet([0.5] * 12, size=(150, 4))
    seen = rng.integers(0, 5, 150)
    cost = np.maximum(np.arange(1, 5)[None, :] - seen[:, None], 0).astype(float)
    look = prospects(cost, best=0.4, utility=priced, seen=seen)
    together = acquire(posterior(mass), look, coupling, generator())
    for i in range(0, 150, 7):
        alone = acquire(posterior(mass), look.take(np.array([i])), coupling, generator())
        assert together.gain[i] == pytest.approx(alone.gain[0], abs=1e-14)
        assert together.target[i] == alone.target[0]


def test_equal_gains_take_the_nearest_target():
    look = prospects([[1.0, 1.0, 1.0]], best=0.1, utility=priced)
    found = acquire(posterior([[[0.5, 0.5]] * 3]), look, Comonotone(), generator())
    assert found.target.tolist() == [0]


# --- gradients -----------------------------------------------------------------------------------


@exactly
def test_expected_gain_is_differentiable_in_the_forecast(coupling):
    look = prospects([[0.1, 0.2, 0.3], [0.2, 0.4, 0.6]], best=0.37, utility=priced)
    borders = torch.linspace(0, 1, 9, dtype=torch.float64)
    levels, level_of = cost_levels(look)
    table = gain_table(look, levels, borders).gain

    def gain(logits: torch.Tensor) -> torch.Tensor:
        mass = logits.softmax(-1)
        return expectation(mass, borders, table, level_of, coupling, generator())

    logits = torch.randn(2, 3, 8, dtype=torch.float64, generator=generator(), requires_grad=True)
    assert torch.autograd.gradcheck(gain, logits)
    gain(logits).sum().backward()
    assert logits.grad is not None
    assert bool((logits.grad.abs().amax(-1) > 0).any())


# --- random numbers and torch's defaults ---------------------------------------------------------


def test_couplings_by_name():
    assert coupling_from_name("comonotone") == Comonotone()
    assert coupling_from_name("independent") == Independent()
    assert coupling_from_name("averaged") == Averaged(samples=1000, group=5)
    with pytest.raises(ConfigError, match="'joint': known are comonotone, averaged, independent"):
        coupling_from_name("joint")


@pytest.fixture
def odd_torch() -> Iterator[None]:
    """A process whose torch defaults are not ours."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(dtype)


@every
def test_torch_s_defaults_do_not_matter(coupling, request):
    mass = np.random.default_rng(3).dirichlet([1.0] * 10, size=(4, 3))
    look = prospects(np.tile([0.1, 0.2, 0.3], (4, 1)), best=0.33, utility=priced, seen=[0, 1, 2, 3])
    ours = posterior(mass)
    plain = acquire(ours, look, coupling, generator())
    share = chances(ours, look, np.arange(4), coupling, generator())
    request.getfixturevalue("odd_torch")
    odd = acquire(ours, look, coupling, generator())
    assert odd.gain.tolist() == plain.gain.tolist()
    assert chances(ours, look, np.arange(4), coupling, generator()).tolist() == share.tolist()


@every
def test_only_the_given_generator_is_used(coupling):
    mass = np.random.default_rng(4).dirichlet([1.0] * 10, size=(4, 3))
    look = prospects(np.tile([0.1, 0.2, 0.3], (4, 1)), best=0.33, utility=priced)
    answers = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        answers.append(acquire(posterior(mass), look, coupling, generator(7)).gain.tolist())
        assert torch.equal(torch.get_rng_state(), before)
    assert answers[0] == answers[1]
    again = acquire(posterior(mass), look, coupling, generator(8)).gain.tolist()
    assert (again == answers[0]) is (coupling in EXACT)


def test_the_order_of_the_bins_below_is_without_meaning():
    """Bins that can gain nothing are skipped, not miscounted."""
    rng = np.random.default_rng(5)
    mass = rng.dirichlet([1.0] * 20, size=(3, 4))
    shuffled = mass.copy()
    shuffled[..., :10] = rng.permuted(mass[..., :10], axis=-1)
    look = prospects(np.tile([0.1, 0.2, 0.3, 0.4], (3, 1)), best=0.5, utility=priced)
    assert gains(shuffled, look) == pytest.approx(gains(mass, look), abs=1e-14)
    assert gains(shuffled, replace(look, best=0.6)) == pytest.approx(
        gains(mass, replace(look, best=0.6)), abs=1e-14
    )


# ── scores that run off to a bound ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bound", [10.0, 100.0, 1e3, 1e6, 1e300])
def test_a_far_bound_does_not_make_the_top_bin_priceless(bound: float) -> None:
    """The mean over a bin, against very many points in it."""
    scale = Scale.live("minimize", (-bound, bound), initial=7.0, soft=(-3.0, 7.0))
    free = linear(alpha=0.0, budget=300).bind(goal="minimize", low=-3, high=7, full=2 * bound)

    def utility(b: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.asarray(free(b, scale.for_utility(scale.to_raw(np.asarray(y)))))

    best = float(scale.to_unit(2.0))
    look = prospects([[1.0]], best=best, utility=utility, now=-2.0)
    levels, _ = cost_levels(look)
    borders = torch.linspace(0, 1, 1001, dtype=torch.float64)
    found = gain_table(look, levels, borders)
    inside = (np.arange(400_000) + 0.5) / 400_000
    for index in (999, 998, 700):
        y = (index + inside) / 1000
        expected = np.maximum(utility(np.zeros(1), y) + 2.0, 0).mean()
        assert found.gain[0, index].item() == pytest.approx(expected, rel=0.02)
    assert found.share[0, 999].item() == pytest.approx(1.0)
