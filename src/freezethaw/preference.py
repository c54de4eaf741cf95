"""What someone's answers say about their utility: the Bradley–Terry fit (Eqs. 2–3).

An answer says which of two outcomes, each an amount spent and a best score, somebody would rather
have. All is done in the unit square: x is the share of the budget, y the score between its bounds,
higher better, and a utility is y − price(x). A form says how the price may run; every price is a
sum of rising shapes with weights of 0 or more, so that spending more is never a gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit

from freezethaw.errors import PreferenceError
from freezethaw.records import Goal, Unit
from freezethaw.utility import Utility, hard_budget, mix, power, staircase

Array: TypeAlias = NDArray[np.float64]

TAU = 0.05
"""Eq. 2's temperature: differences in utility far below it look alike to people."""
LAPSE = 0.02
"""How often an answer is a slip of the key, whatever the utilities are."""
PRICE_SPREAD = 1.0
"""Before any answer, a price of the whole budget is half normal with this spread."""
MOST_STEPS = 3
"""Of a fitted staircase."""
N_SAMPLES = 400
"""Of the parameters' distribution, for intervals and bands."""

Form = Literal["linear", "quadratic", "square_root", "power", "staircase", "mix"]
FORMS: tuple[Form, ...] = ("linear", "quadratic", "square_root", "power", "staircase", "mix")
FEWEST_ANSWERS: dict[Form, int] = {
    "linear": 0, "quadratic": 0, "square_root": 0, "power": 10, "staircase": 20, "mix": 30,
}  # fmt: skip
"""Before a form is chosen that nobody has named."""
Choice = Literal["first", "second", "tie"]


@dataclass(frozen=True)
class Outcome:
    """Where a study could end: so much spent, this the best score."""

    spent: float
    best: float


@dataclass(frozen=True)
class Answer:
    """Which of two outcomes is preferred; a tie where somebody cannot say."""

    first: Outcome
    second: Outcome
    choice: Choice

    def __post_init__(self) -> None:
        if self.choice not in ("first", "second", "tie"):
            raise PreferenceError(
                f"choice {self.choice!r}: an answer is 'first', 'second' or 'tie'"
            )


@dataclass(frozen=True, kw_only=True)
class Stakes:
    """What can be spent and what can be reached: the range that questions come from."""

    budget: float
    goal: Goal = "maximize"
    bounds: tuple[float, float] = (0.0, 1.0)
    unit: Unit = "epochs"
    rate: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.budget) and self.budget > 0):
            raise PreferenceError(f"budget={self.budget:g}: needs a finite budget above 0")
        low, high = self.bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise PreferenceError(
                f"bounds=({low:g}, {high:g}): questions need a finite range of scores, low below "
                "high; where the metric has no bound, give the range that you expect"
            )
        if self.unit == "money" and not (self.rate is not None and 0 < self.rate < math.inf):
            raise PreferenceError("costs in money need the price of an hour: rate='$2.5/h'")

    @property
    def span(self) -> float:
        """From the worst score to the best."""
        return self.bounds[1] - self.bounds[0]

    def place(self, outcome: Outcome) -> tuple[float, float]:
        """Return an outcome's x and y, or say what is wrong with it."""
        low, high = self.bounds
        if not (0 <= outcome.spent <= self.budget * (1 + 1e-9)):
            raise PreferenceError(
                f"spent {outcome.spent:g}: an outcome lies within the budget, 0 to {self.budget:g}"
            )
        slack = 1e-9 * self.span  # of rounding alone
        if not (low - slack <= outcome.best <= high + slack):
            raise PreferenceError(
                f"score {outcome.best:g}: an outcome lies within the bounds, {low:g} to {high:g}"
            )
        share = min(max((outcome.best - low) / self.span, 0.0), 1.0)
        x = min(outcome.spent / self.budget, 1.0)
        return x, share if self.goal == "maximize" else 1 - share

    def outcome(self, x: float, y: float) -> Outcome:
        """Return the outcome at a place."""
        share = y if self.goal == "maximize" else 1 - y
        low, high = self.bounds
        return Outcome(x * self.budget, min(max(low + share * self.span, low), high))


# ── prices ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Price:
    """Σ aᵢ xᶜⁱ + Σ sⱼ 1[x > eⱼ]: what spending the share x of the budget takes off."""

    powers: tuple[tuple[float, float], ...] = ()
    """(a, c) each."""
    steps: tuple[tuple[float, float], ...] = ()
    """(e, s) each: from the share e on, s more."""

    def __call__(self, x: ArrayLike) -> Array:
        """Return the price."""
        x = np.asarray(x, dtype=np.float64)
        price = np.zeros_like(x)
        for a, c in self.powers:
            price += a * x**c
        for edge, step in self.steps:
            price += step * (x > edge)
        return price

    def utility(self, stakes: Stakes) -> Utility:
        """Return it as a utility in the user's units."""
        common: dict[str, object] = {
            "budget": stakes.budget, "unit": stakes.unit, "rate": stakes.rate,
        }  # fmt: skip
        scale = stakes.span
        powers = [(a, c) for a, c in self.powers if a > 0]
        steps = sorted((edge, step) for edge, step in self.steps if step > 0)
        n_parts = len(powers) + bool(steps)
        if not n_parts:
            return replace(hard_budget(**common), goal=stakes.goal)  # type: ignore[arg-type]
        # A mix weighs its parts: each is made n times as dear and weighs an nth.
        parts = [power(alpha=n_parts * scale * a, c=c, **common) for a, c in powers]  # type: ignore[arg-type]
        if steps:
            sums = np.cumsum([step for _, step in steps]).tolist()
            ends = [edge * stakes.budget for edge, _ in steps[1:]] + [math.inf]
            rungs = [
                (edge * stakes.budget, end, n_parts * scale * total)
                for (edge, _), end, total in zip(steps, ends, sums, strict=True)
            ]
            parts.append(staircase(rungs, **common))  # type: ignore[arg-type]
        parts = [replace(part, goal=stakes.goal) for part in parts]
        if n_parts == 1:
            return parts[0]
        return replace(mix([(1 / n_parts, part) for part in parts]), goal=stakes.goal)


# ── the fit ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Answers in the unit square: the dearer outcome of each pair against the cheaper."""

    cheap: Array
    """[pair] x of the cheaper outcome."""
    dear: Array
    """[pair] x of the dearer one."""
    gain: Array
    """[pair] how much better the dearer one's score is."""
    label: Array
    """[pair] 1 where the dearer one was chosen, 0 where the cheaper one, ½ for a tie."""

    def __len__(self) -> int:
        return len(self.gain)

    def advantage(self, price: Callable[[Array], Array]) -> Array:
        """Return by how much the dearer outcomes are better, [pair] or [price, pair]."""
        advantage: Array = self.gain - (price(self.dear) - price(self.cheap))
        return advantage

    def some(self, chosen: NDArray[np.bool_]) -> Pairs:
        """Return those pairs."""
        return Pairs(
            cheap=self.cheap[chosen],
            dear=self.dear[chosen],
            gain=self.gain[chosen],
            label=self.label[chosen],
        )


def pairs_of(answers: Sequence[Answer], stakes: Stakes) -> Pairs:
    """Return the answers in the unit square."""
    rows = []
    for answer in answers:
        (x1, y1), (x2, y2) = stakes.place(answer.first), stakes.place(answer.second)
        second = {"first": 0.0, "second": 1.0, "tie": 0.5}[answer.choice]
        rows.append((x1, x2, y2 - y1, second) if x1 <= x2 else (x2, x1, y1 - y2, 1.0 - second))
    columns = np.array(rows, dtype=np.float64).reshape(-1, 4).T
    return Pairs(cheap=columns[0], dear=columns[1], gain=columns[2], label=columns[3])


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One fitted number, in units of the score's range."""

    name: str
    value: float
    low: float
    """Of the 90% interval."""
    high: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """A utility that explains answers, and how sure that is."""

    form: Form
    stakes: Stakes
    tau: float
    price: Price
    samples: tuple[Price, ...] = field(repr=False)
    """Prices that explain the answers about as well."""
    parameters: tuple[Parameter, ...]
    log_likelihood: float
    """Of an answer, mean, in nats; a coin has −0.69."""
    n_answers: int

    @cached_property
    def utility(self) -> Utility:
        """The fitted utility, in the user's units."""
        return self.price.utility(self.stakes)

    def price_band(self, x: ArrayLike, level: float = 0.9) -> tuple[Array, Array]:
        """Return between which prices the truth probably lies."""
        prices = np.stack([sample(x) for sample in self.samples])
        low, high = np.quantile(prices, [(1 - level) / 2, (1 + level) / 2], axis=0)
        return low, high


def fit(
    answers: Sequence[Answer],
    stakes: Stakes,
    form: Form | None = None,
    *,
    tau: float | None = TAU,
    lapse: float = LAPSE,
    edges: Sequence[float] | None = None,
    seed: int = 0,
) -> Fit:
    """Fit a utility to answers; the form by held-out likelihood where none is named.

    `tau=None` estimates it. `edges`, in the unit of the budget, are the staircase's; without them
    they are found. Answers in which one outcome is no worse in any respect say nothing and should
    not be among them: see `trivial`.
    """
    pairs = pairs_of(answers, stakes)
    if not len(pairs):
        raise PreferenceError("no answers: a utility is fitted to at least one")
    if form is not None and form not in FORMS:
        raise PreferenceError(f"form {form!r}: known are {', '.join(FORMS)}")
    shares = None if edges is None else tuple(sorted({edge / stakes.budget for edge in edges}))
    settings = _Settings(tau=tau or TAU, lapse=lapse, edges=shares)
    if tau is None:
        settings = replace(settings, tau=_best_tau(pairs, form or "power", settings))
    chosen = form or _best_form(pairs, settings)
    found = _fit_form(chosen, pairs, settings)
    samples = _samples(found, pairs, settings, np.random.default_rng(seed))
    return Fit(
        form=chosen,
        stakes=stakes,
        tau=settings.tau,
        price=found.price(found.weights),
        samples=tuple(map(found.price, samples)),
        parameters=_parameters(found, samples),
        log_likelihood=-_loss(found.price(found.weights), pairs, settings),
        n_answers=len(pairs),
    )


@dataclass(frozen=True, kw_only=True)
class _Settings:
    tau: float
    lapse: float
    edges: tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class _Shapes:
    """A price as weights of fixed shapes; `c` is a weight too where it is free."""

    powers: tuple[float, ...] = ()
    edges: tuple[float, ...] = ()
    free_power: bool = False
    """The last weight is the logarithm of the only power."""
    weights: Array = field(default_factory=lambda: np.zeros(0))

    def price(self, weights: Array) -> Price:
        powers = self.powers
        if self.free_power:
            powers = (float(np.exp(weights[-1])),)
        n = len(powers)
        return Price(
            powers=tuple(zip(weights[:n].tolist(), powers, strict=True)),
            steps=tuple(zip(self.edges, weights[n : n + len(self.edges)].tolist(), strict=True)),
        )

    def differences(self, pairs: Pairs, weights: Array) -> Array:
        """[pair, shape] by how much each shape's price is higher for the dearer outcome."""
        powers = (float(np.exp(weights[-1])),) if self.free_power else self.powers
        columns = [pairs.dear**c - pairs.cheap**c for c in powers]
        columns += [(pairs.dear > edge).astype(float) - (pairs.cheap > edge) for edge in self.edges]
        return np.stack(columns, axis=1) if columns else np.zeros((len(pairs), 0))

    @property
    def n_weights(self) -> int:
        return len(self.powers) + len(self.edges) + 2 * self.free_power


def log_likelihoods(advantage: Array, label: Array, tau: float, lapse: float) -> Array:
    """Return Eq. 2's log probability of each answer, with slips."""
    yes, no = _chances(advantage, tau, lapse)
    likelihoods: Array = label * yes + (1 - label) * no
    return likelihoods


def _chances(advantage: Array, tau: float, lapse: float) -> tuple[Array, Array]:
    """Log p and log (1 − p) that the dearer outcome is chosen."""
    z = advantage / tau
    if lapse == 0:
        return log_expit(z), log_expit(-z)
    p = lapse / 2 + (1 - lapse) * expit(z)
    return np.log(p), np.log1p(-p)


def _loss(price: Price, pairs: Pairs, settings: _Settings) -> float:
    """Eq. 3."""
    advantage = pairs.advantage(price)
    return -float(log_likelihoods(advantage, pairs.label, settings.tau, settings.lapse).mean())


def _objective(
    shapes: _Shapes, pairs: Pairs, settings: _Settings
) -> Callable[[Array], tuple[float, Array]]:
    """Minus the log posterior and its gradient."""

    def value_and_gradient(weights: Array) -> tuple[float, Array]:
        n = len(weights) - shapes.free_power
        columns = shapes.differences(pairs, weights)
        advantage = pairs.gain - columns @ weights[:n]
        yes, no = _chances(advantage, settings.tau, settings.lapse)
        loss = -(pairs.label * yes + (1 - pairs.label) * no).sum()
        # d log p/dz = (1 − lapse) σ' / p, and likewise for 1 − p.
        z = advantage / settings.tau
        slope = (1 - settings.lapse) * expit(z) * expit(-z) / settings.tau
        by_advantage = -(pairs.label / np.exp(yes) - (1 - pairs.label) / np.exp(no)) * slope
        gradient = -columns.T @ by_advantage
        loss += 0.5 * (weights[:n] ** 2).sum() / PRICE_SPREAD**2
        gradient += weights[:n] / PRICE_SPREAD**2
        if shapes.free_power:
            c = math.exp(weights[-1])
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = [np.where(x > 0, x**c * np.log(x), 0.0) for x in (pairs.dear, pairs.cheap)]
            by_log_c = -(weights[0] * c * (logs[0] - logs[1])) @ by_advantage
            # A power between a third and three is likely.
            loss += 0.5 * weights[-1] ** 2 / math.log(3) ** 2 * 2
            gradient = np.append(gradient, by_log_c + weights[-1] / math.log(3) ** 2 * 2)
        return float(loss), gradient

    return value_and_gradient


def _fit_form(form: Form, pairs: Pairs, settings: _Settings) -> _Shapes:
    match form:
        case "linear":
            return _solve(_Shapes(powers=(1.0,)), pairs, settings)
        case "quadratic":
            return _solve(_Shapes(powers=(2.0,)), pairs, settings)
        case "square_root":
            return _solve(_Shapes(powers=(0.5,)), pairs, settings)
        case "power":
            return _solve(_Shapes(free_power=True), pairs, settings)
        case "staircase":
            return _climb(_Shapes(), pairs, settings)
        case "mix":
            return _climb(_Shapes(powers=(1.0, 2.0, 0.5)), pairs, settings)


def _solve(shapes: _Shapes, pairs: Pairs, settings: _Settings) -> _Shapes:
    """Return the shapes with the weights that explain the answers best."""
    from scipy.optimize import minimize  # takes a while to load, and most studies never fit

    n = shapes.n_weights - shapes.free_power
    if n == 0:
        return shapes
    objective = _objective(shapes, pairs, settings)
    best: tuple[float, Array] | None = None
    # Slips make the loss bend both ways: more than one start finds the lowest place.
    for first in (0.3,) if shapes.edges else (0.1, 0.5) if n > 1 else (0.03, 0.2, 0.5, 1.0):
        start = np.full(n, first / n)
        limits: list[tuple[float | None, float | None]] = [(0.0, None)] * n
        if shapes.free_power:
            start, limits = np.append(start, 0.0), [*limits, (math.log(0.1), math.log(8.0))]
        done = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=limits)
        if best is None or done.fun < best[0] - 1e-9:
            best = float(done.fun), np.asarray(done.x)
    assert best is not None
    return replace(shapes, weights=best[1])


def _climb(shapes: _Shapes, pairs: Pairs, settings: _Settings) -> _Shapes:
    """Return the shapes with those steps that are worth their two numbers each, best first."""
    if settings.edges is not None:
        return _solve(replace(shapes, edges=settings.edges), pairs, settings)
    best = _solve(shapes, pairs, settings)
    price_of_step = math.log(max(2, len(pairs)))  # half of the criterion of Schwarz, per number
    places = _edges_that_matter(pairs)
    for _ in range(MOST_STEPS):
        grown = [
            _solve(replace(best, edges=tuple(sorted({*best.edges, edge}))), pairs, settings)
            for edge in places
            if edge not in best.edges
        ]
        if not grown:
            break
        losses = [_total(each, pairs, settings) for each in grown]
        better = int(np.argmin(losses))
        if losses[better] > _total(best, pairs, settings) - price_of_step and best.n_weights:
            break
        best = grown[better]
    return best


MOST_EDGES = 24


def _edges_that_matter(pairs: Pairs) -> list[float]:
    """Return places between the amounts that were asked about."""
    amounts = np.unique(np.concatenate([[0.0], pairs.cheap, pairs.dear]))
    middles = (amounts[1:] + amounts[:-1]) / 2
    if len(middles) > MOST_EDGES:
        middles = np.quantile(middles, np.linspace(0, 1, MOST_EDGES))
    return middles.tolist()  # type: ignore[no-any-return]


def _total(shapes: _Shapes, pairs: Pairs, settings: _Settings) -> float:
    return (
        _objective(shapes, pairs, settings)(shapes.weights)[0]
        if shapes.n_weights
        else (_loss(Price(), pairs, settings) * len(pairs))
    )


def _best_form(pairs: Pairs, settings: _Settings, n_folds: int = 5) -> Form:
    """Return the form that explains answers it has not seen best; simple ones first."""
    # A form of many numbers needs many answers before it can prove itself.
    candidates = [form for form in FORMS if len(pairs) >= FEWEST_ANSWERS[form]]
    folds = np.arange(len(pairs)) % min(n_folds, len(pairs))
    losses = {}
    for form in candidates:
        total = 0.0
        for fold in range(folds.max() + 1):
            if len(pairs) == 1:
                found, rest = _fit_form(form, pairs, settings), pairs
            else:
                found = _fit_form(form, pairs.some(folds != fold), settings)
                rest = pairs.some(folds == fold)
            total += _loss(found.price(found.weights), rest, settings) * len(rest)
        losses[form] = total
    lowest = min(losses.values())
    # Half an answer's worth of likelihood does not pay for a more complicated form.
    return next(form for form in candidates if losses[form] <= lowest + 0.35)


def _best_tau(pairs: Pairs, form: Form, settings: _Settings) -> float:
    """Return the temperature that explains the answers best, 0.01 to 0.5 of the range."""

    def loss(tau: float) -> float:
        own = replace(settings, tau=tau)
        found = _fit_form(form, pairs, own)
        return _loss(found.price(found.weights), pairs, own) * len(pairs) + (
            0.5 * math.log(tau / TAU) ** 2
        )

    taus = np.geomspace(0.01, 0.5, 12).tolist()
    return float(min(taus, key=loss))


def _samples(
    shapes: _Shapes, pairs: Pairs, settings: _Settings, rng: np.random.Generator
) -> list[Array]:
    """Draw weights about the best ones: Laplace's normal, within the limits."""
    weights = shapes.weights
    n = len(weights)
    if n == 0:
        return [weights]
    objective = _objective(shapes, pairs, settings)
    hessian = np.zeros((n, n))
    for i in range(n):
        nudge = np.zeros(n)
        nudge[i] = 1e-4
        hessian[i] = (objective(weights + nudge)[1] - objective(weights - nudge)[1]) / 2e-4
    values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
    # Never surer than an answer's worth of curvature allows, never flatter than before any answer.
    spread = 1 / np.sqrt(np.maximum(values, 1 / PRICE_SPREAD**2))
    drawn = weights + (rng.standard_normal((N_SAMPLES, n)) * spread) @ vectors.T
    last = n - 1 if shapes.free_power else n
    drawn[:, :last] = np.maximum(drawn[:, :last], 0.0)
    if shapes.free_power:
        drawn[:, -1] = drawn[:, -1].clip(math.log(0.1), math.log(8.0))
    return list(drawn)


def _parameters(shapes: _Shapes, samples: Sequence[Array]) -> tuple[Parameter, ...]:
    drawn = np.stack(samples) if len(shapes.weights) else np.zeros((1, 0))
    names = [f"price of the budget, power {c:g}" for c in shapes.powers]
    if shapes.free_power:
        names = ["price of the budget"]
    names += [f"step at {edge:.0%} of the budget" for edge in shapes.edges]
    values, columns = shapes.weights.copy(), drawn.copy()
    if shapes.free_power:
        names.append("power")
        values[-1], columns[:, -1] = np.exp(values[-1]), np.exp(columns[:, -1])
    lows, highs = np.quantile(columns, [0.05, 0.95], axis=0)
    return tuple(
        Parameter(name=name, value=float(v), low=float(lo), high=float(hi))
        for name, v, lo, hi in zip(names, values, lows, highs, strict=True)
    )


# ── answers that say nothing, or contradict each other ───────────────────────────────────────────


def trivial(answer: Answer, stakes: Stakes) -> bool:
    """Whether one outcome is no worse in any respect: nothing can be learned from such a pair."""
    pairs = pairs_of([answer], stakes)
    return bool(pairs.gain[0] <= 0 or pairs.dear[0] == pairs.cheap[0])


def against_reason(answer: Answer, stakes: Stakes) -> bool:
    """Whether the outcome was chosen that is worse in one respect and better in none."""
    (x1, y1), (x2, y2) = stakes.place(answer.first), stakes.place(answer.second)
    if answer.choice == "second":
        x1, y1, x2, y2 = x2, y2, x1, y1
    worse = x1 >= x2 and y1 <= y2 and (x1, y1) != (x2, y2)
    return answer.choice != "tie" and worse


def contradictions(answers: Sequence[Answer], stakes: Stakes) -> list[tuple[int, int]]:
    """Return pairs of answers that no utility of this kind can give both.

    Spending from `cheap` to `dear` was worth more than `gain` to whoever declined it, and less to
    whoever accepted. A price that rises cannot rise less over a stretch than over a part of it.
    """
    pairs = pairs_of(answers, stakes)
    found = []
    for i, j in combinations(range(len(pairs)), 2):
        for inner, outer in ((i, j), (j, i)):
            contained = (
                pairs.cheap[outer] <= pairs.cheap[inner] and pairs.dear[inner] <= pairs.dear[outer]
            )
            declined, accepted = pairs.label[inner] == 0, pairs.label[outer] == 1
            if contained and declined and accepted and pairs.gain[outer] <= pairs.gain[inner]:
                found.append((i, j))
                break
    return found
