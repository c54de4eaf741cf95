"""What a result is worth: (spent, best score) → utility, falling in spent, rising in quality.

Built-in forms act on q = best where the metric is maximised and q = −best where it is minimised.
Spending beyond the budget is worth −∞. Every form gives the same value for floats, numpy scalars,
arrays and tensors (arrays and tensors broadcast; the answer has the kind of the arguments).
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr

from freezethaw.errors import UtilityError
from freezethaw.records import Goal, Unit
from freezethaw.units import parse_cost, parse_gain, parse_rate
from freezethaw.wording import amount

SLACK = 1 + 1e-9
"""Sums of measured costs may exceed the budget by rounding alone."""
GRID = 49
"""A Python function is checked at so many amounts spent × scores before it is used."""


@dataclass(frozen=True, kw_only=True)
class Utility(ABC):
    """(spent, best) → value. `bind` tells it the study's goal and range before it is used."""

    budget: float
    unit: Unit = "epochs"
    rate: float | None = None
    """Price of an hour of training; needed where the unit is money."""
    goal: Goal = "maximize"

    form: ClassVar[str]

    def __post_init__(self) -> None:
        _check_numbers(self)
        if not (math.isfinite(self.budget) and self.budget > 0):
            raise UtilityError(f"budget={self.budget}: a utility needs a finite budget above 0")
        if self.unit not in ("epochs", "seconds", "money"):
            raise UtilityError(f"unit={self.unit!r}: use 'epochs', 'seconds' or 'money'")
        if self.unit == "money" and not (self.rate is not None and 0 < self.rate < math.inf):
            raise UtilityError(
                f"unit='money' with rate={self.rate}: give the price of an hour, rate='$2.5/h'"
            )

    @abstractmethod
    def value(self, spent: Any, quality: Any) -> Any:
        """The utility within the budget: nothing is asked beyond it. Float64 arrays or tensors."""

    @abstractmethod
    def describe(self) -> str:
        """In one line, for people."""

    def __call__(self, spent: Any, best: Any) -> Any:
        """U(spent, best), −∞ beyond the budget."""
        if _is_tensor(spent) or _is_tensor(best):
            return self._on_tensors(spent, best)
        spent, best = np.asarray(spent, np.float64), np.asarray(best, np.float64)
        within = np.minimum(spent, self.budget)
        value = self.value(within, best if self.goal == "maximize" else -best)
        value = np.where(spent <= self.budget * SLACK, value, -np.inf)
        return value.item() if value.ndim == 0 else value

    def _on_tensors(self, spent: Any, best: Any) -> Any:
        import torch

        device = (spent if _is_tensor(spent) else best).device  # not the user's default one
        spent = torch.as_tensor(spent, dtype=torch.float64, device=device)
        best = torch.as_tensor(best, dtype=torch.float64, device=device)
        within = spent.clamp(max=self.budget)
        value = self.value(within, best if self.goal == "maximize" else -best)
        return torch.where(spent <= self.budget * SLACK, value, -torch.inf)

    def bind(self, *, goal: Goal, low: float, high: float, full: float) -> Utility:  # noqa: ARG002
        """The same utility for a study of this goal.

        Its scores matter between low and high, and 100% of score is `full`.
        """
        return replace(self, goal=goal)

    def to_json(self) -> dict[str, Any]:
        """For the study's events and utility files."""
        return {"form": self.form, **{f.name: getattr(self, f.name) for f in fields(self)}}

    @classmethod
    def from_fields(cls, data: dict[str, Any]) -> Utility:
        """The inverse of `to_json`, its form already looked up."""
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Power(Utility):
    """q − α (b/B)^c: linear (c = 1), quadratic (2), square root (½), or any power above 0."""

    alpha: float
    c: float = 1.0
    form: ClassVar[str] = "power"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise UtilityError(
                f"alpha={self.alpha}: the price of the whole budget cannot be below 0"
            )
        if not (math.isfinite(self.c) and self.c > 0):
            raise UtilityError(
                f"c={self.c}: the power must be above 0, or spending would be a gain"
            )

    def value(self, spent: Any, quality: Any) -> Any:
        """q − α (b/B)^c."""
        return quality - self.alpha * (spent / self.budget) ** self.c

    def describe(self) -> str:
        """In one line."""
        if self.alpha == 0:
            return f"the best score within {amount(self.budget, self.unit)}"
        kind = {1.0: "linear", 2.0: "quadratic", 0.5: "square root"}.get(
            self.c, f"power {self.c:g}"
        )
        return f"{kind}: {amount(self.budget, self.unit)} cost {self.alpha:.4g} of score"


@dataclass(frozen=True, kw_only=True)
class Staircase(Utility):
    """q − Σ αᵢ 1[b ∈ Aᵢ] with intervals Aᵢ = (low, high]; high may be infinite."""

    steps: tuple[tuple[float, float, float], ...]
    """(low, high, α) each."""
    form: ClassVar[str] = "staircase"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "steps", tuple(tuple(map(float, step)) for step in self.steps))
        for low, high, alpha in self.steps:
            if not (low < high and math.isfinite(alpha) and alpha >= 0):
                raise UtilityError(
                    f"step ({low}, {high}, {alpha}): needs low < high and a price of 0 or more"
                )
        edges = sorted({e for low, high, _ in self.steps for e in (low, high) if e < self.budget})
        prices = [self._price(np.nextafter(e, math.inf)) for e in edges]
        for edge, before, after in zip(edges[1:], prices, prices[1:], strict=False):
            if after < before - 1e-12:
                raise UtilityError(
                    f"the price falls from {before:g} to {after:g} at {edge:g}: "
                    "spending more must not be a gain; let the intervals run to infinity"
                )

    def _price(self, spent: Any) -> Any:
        price = 0.0 * spent
        for low, high, alpha in self.steps:
            # Not `alpha * inside`, which is single precision for tensors.
            price = price + ((spent > low) & (spent <= high)) * (0.0 * spent + alpha)
        return price

    def value(self, spent: Any, quality: Any) -> Any:
        """q − Σ αᵢ 1[b ∈ Aᵢ]."""
        return quality - self._price(spent)

    def describe(self) -> str:
        """In one line."""
        steps = ", ".join(f"{alpha:.4g} from {low:g}" for low, _, alpha in self.steps)
        return f"staircase: {steps or 'free'}; at most {amount(self.budget, self.unit)}"

    def to_json(self) -> dict[str, Any]:
        """Infinite ends become null."""
        ends = [[lo, None if math.isinf(hi) else hi, a] for lo, hi, a in self.steps]
        return {**super().to_json(), "steps": ends}

    @classmethod
    def from_fields(cls, data: dict[str, Any]) -> Utility:
        """The inverse of `to_json`."""
        steps = [(lo, math.inf if hi is None else hi, a) for lo, hi, a in data["steps"]]
        return cls(**{**data, "steps": tuple(steps)})


@dataclass(frozen=True, kw_only=True)
class Mix(Utility):
    """A weighted mix of utilities that share budget and unit; the weights sum to 1."""

    parts: tuple[tuple[float, Utility], ...]
    form: ClassVar[str] = "mix"

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = [weight for weight, _ in self.parts]
        if not (abs(sum(weights) - 1) <= 1e-6 and all(weight > 0 for weight in weights)):
            raise UtilityError(f"weights {weights}: must be above 0 and sum to 1")
        for _, part in self.parts:
            if isinstance(part, Custom | Worth | Unavailable):
                raise UtilityError(
                    f"a mix of {part.describe()!r}: mix linear(), staircase() and other forms with "
                    "a budget of their own, or write the whole mix as one Python function"
                )
            mine = self.budget, self.unit, self.rate
            if (part.budget, part.unit, part.rate) != mine:
                raise UtilityError(
                    f"budget, unit and rate {(part.budget, part.unit, part.rate)} in a mix with "
                    f"{mine}: the parts of a mix must share them"
                )

    def value(self, spent: Any, quality: Any) -> Any:
        """Σ wᵢ Uᵢ."""
        return sum(weight * part.value(spent, quality) for weight, part in self.parts)

    def bind(self, *, goal: Goal, low: float, high: float, full: float) -> Utility:
        """Each part bound."""
        parts = tuple(
            (weight, part.bind(goal=goal, low=low, high=high, full=full))
            for weight, part in self.parts
        )
        return replace(self, goal=goal, parts=parts)

    def describe(self) -> str:
        """In one line."""
        return "mix: " + " + ".join(f"{w:.3g} × ({part.describe()})" for w, part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """Parts nested."""
        return {**super().to_json(), "parts": [[w, part.to_json()] for w, part in self.parts]}

    @classmethod
    def from_fields(cls, data: dict[str, Any]) -> Utility:
        """The inverse of `to_json`."""
        return cls(**{**data, "parts": tuple((w, from_json(p)) for w, p in data["parts"])})


@dataclass(frozen=True, kw_only=True)
class Custom(Utility):
    """Any callable (spent, best) → value, in the user's units; it may be scalar-only."""

    function: Callable[[Any, Any], Any]
    fingerprint: str = ""
    """Of its values, once bound: a study goes on when the function has changed."""
    form: ClassVar[str] = "custom"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise UtilityError(f"{self.function!r} is not callable; pass f(spent, best) → value")

    @cached_property
    def vectorised(self) -> bool:
        """Whether the function takes arrays, and makes of them what it makes of numbers."""
        spent, best = np.array([0.1, 0.7]) * self.budget, np.array([0.3, 0.6])
        try:
            once = np.asarray(self.function(spent, best), np.float64)
            each = [
                self.function(*pair) for pair in zip(spent.tolist(), best.tolist(), strict=True)
            ]
            # Not to the last digit: numpy's powers of arrays and of numbers differ there.
            return once.shape == (2,) and np.allclose(once, each, rtol=1e-12, equal_nan=True)
        except Exception:  # whatever a scalar-only function makes of an array
            return False

    def value(self, spent: Any, quality: Any) -> Any:
        """The function on user units; one call per element where it cannot take arrays."""
        if _is_tensor(spent):
            import torch

            arrays = (argument.detach().cpu().numpy() for argument in (spent, quality))
            return torch.from_numpy(np.asarray(self.value(*arrays))).to(spent.device)
        spent, best = np.broadcast_arrays(spent, quality if self.goal == "maximize" else -quality)
        if self.vectorised:
            value = np.array(self.function(spent, best), np.float64)
        else:
            pairs = zip(spent.ravel().tolist(), best.ravel().tolist(), strict=True)
            value = np.array([float(self.function(*pair)) for pair in pairs]).reshape(spent.shape)
        wrong = np.isnan(value) | np.isposinf(value)
        if wrong.any():
            at = tuple(np.argwhere(wrong)[0])
            raise UtilityError(
                f"utility({spent[at]:g}, {best[at]:g}) = {value[at]}: "
                "must be a number or −inf everywhere within the budget"
            )
        return value

    def bind(self, *, goal: Goal, low: float, high: float, full: float) -> Utility:  # noqa: ARG002
        """Checked for monotonicity on a grid over the budget and the range of scores."""
        bound = replace(self, goal=goal)
        spent = np.linspace(0, self.budget, GRID)
        best = np.linspace(low, high, GRID) if goal == "maximize" else np.linspace(high, low, GRID)
        try:
            grid = bound(spent[:, None], best[None, :])  # [spent, best], the worst score first
        except UtilityError:
            raise
        except Exception as error:
            raise UtilityError(
                f"the utility {self.describe()} failed ({type(error).__name__}: {error}); it is "
                f"called with 0 ≤ spent ≤ {self.budget:g} and {low:g} ≤ best ≤ {high:g}"
            ) from error
        _check_monotone(grid, spent, best)
        digits = " ".join(f"{value:.9g}" for value in np.ravel(grid))
        return replace(bound, fingerprint=hashlib.sha256(digits.encode()).hexdigest()[:16])

    def describe(self) -> str:
        """In one line."""
        name = getattr(self.function, "__name__", type(self.function).__name__)
        return f"{name}(spent, best); at most {amount(self.budget, self.unit)}"

    def to_json(self) -> dict[str, Any]:
        """By name and values: a callable is given again when the study is opened."""
        name = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return {
            "form": self.form, "budget": self.budget, "unit": self.unit, "rate": self.rate,
            "goal": self.goal, "function": name, "fingerprint": self.fingerprint,
        }  # fmt: skip

    @classmethod
    def from_fields(cls, data: dict[str, Any]) -> Utility:
        """Not possible."""
        raise UtilityError(
            f"the study's utility is the Python function {data.get('function')!r}, which a file "
            "cannot hold; pass it again with utility="
        )


@dataclass(frozen=True, kw_only=True)
class Makarova(Utility):
    """q above a threshold, −∞ below: the rule of Makarova et al. (2022) as a utility.

    The paper's related work writes U = ỹ if ỹ ≥ c(b), else −∞. The threshold is in user units.
    """

    threshold: float
    form: ClassVar[str] = "makarova"

    def value(self, spent: Any, quality: Any) -> Any:
        """q if q ≥ c else −∞."""
        threshold = self.threshold if self.goal == "maximize" else -self.threshold
        return _where(quality >= threshold, quality + 0.0 * spent, -math.inf)

    def describe(self) -> str:
        """In one line."""
        return f"nothing counts before {self.threshold:g}; at most {amount(self.budget, self.unit)}"


@dataclass(frozen=True, kw_only=True)
class Wilson(Utility):
    """q until the optimum is probably within ε, then −cost: the rule of Wilson (2024) as a utility.

    The paper's related work writes U = ỹ if P(r ≤ ε) < 1 − δ, else −c_b. The belief about the
    optimum is normal: P(r ≤ ε) = Φ((ε − (optimum − q)) / spread). It is the one form that falls in
    quality at one place, by design: being close enough is what makes going on worthless.
    """

    optimum: float
    spread: float
    epsilon: float
    delta: float = 0.05
    form: ClassVar[str] = "wilson"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.spread > 0 and self.epsilon >= 0 and 0 < self.delta < 1):
            raise UtilityError(
                f"spread={self.spread}, epsilon={self.epsilon}, delta={self.delta}: "
                "need spread > 0, epsilon ≥ 0 and 0 < delta < 1"
            )

    def value(self, spent: Any, quality: Any) -> Any:
        """q if P(r ≤ ε) < 1 − δ else −b/B."""
        optimum = self.optimum if self.goal == "maximize" else -self.optimum
        close = (self.epsilon - (optimum - quality)) / self.spread
        if _is_tensor(close):
            import torch

            chance = torch.special.ndtr(close)
        else:
            chance = ndtr(close)
        return _where(
            chance < 1 - self.delta, quality + 0.0 * spent, 0.0 * quality - spent / self.budget
        )

    def describe(self) -> str:
        """In one line."""
        return (
            f"until {self.optimum:g} is {1 - self.delta:.0%} surely within {self.epsilon:g}; "
            f"at most {amount(self.budget, self.unit)}"
        )


@dataclass(frozen=True, kw_only=True)
class Worth(Utility):
    """Linear, from an exchange rate: `gain` of score is worth `cost` of the unit.

    What "1%" is depends on the study's range of scores, so the slope is fixed by `bind`; the budget
    is where a perfect score no longer pays.
    """

    gain: float
    """In score, or as a share of the range where `relative`."""
    cost: float
    relative: bool = False
    limit: float | None = None
    """The most that may be spent, where that is less than what a perfect score would be worth."""
    form: ClassVar[str] = "worth"

    def value(self, spent: Any, quality: Any) -> Any:
        """As if scores ran from 0 to 1; a study binds it to its own range."""
        return quality - spent * (self.gain / self.cost)

    def bind(self, *, goal: Goal, low: float, high: float, full: float) -> Utility:
        """The linear utility whose budget is where a perfect score no longer pays."""
        span = high - low
        gain = self.gain * full if self.relative else self.gain
        if gain > full:
            raise UtilityError(
                f"{self.describe()}, but scores range over {full:g}: write a smaller gain, "
                "or a percentage, as in '1%'"
            )
        budget = span / gain * self.cost
        bound = Power(budget=budget, unit=self.unit, rate=self.rate, goal=goal, alpha=span)
        return bound if self.limit is None else with_budget(bound, self.limit)

    def describe(self) -> str:
        """In one line."""
        gain = f"{100 * self.gain:g}%" if self.relative else f"{self.gain:g}"
        return f"{gain} of score is worth {amount(self.cost, self.unit)}"


@dataclass(frozen=True, kw_only=True)
class Unavailable(Utility):
    """Stands for a Python function in a study that was opened without it; its value is NaN."""

    function: str
    fingerprint: str = ""
    form: ClassVar[str] = "custom"

    def value(self, spent: Any, quality: Any) -> Any:
        """Not known."""
        return (spent + quality) * math.nan

    def describe(self) -> str:
        """In one line."""
        return f"{self.function}(spent, best); at most {amount(self.budget, self.unit)}"


_FORMS: dict[str, type[Utility]] = {
    form.form: form for form in (Power, Staircase, Mix, Custom, Makarova, Wilson, Worth)
}


def from_json(data: dict[str, Any]) -> Utility:
    """A utility from what `to_json` wrote."""
    data = dict(data)
    form = data.pop("form", None)
    if form not in _FORMS:
        raise UtilityError(f"utility form {form!r}: known are {', '.join(_FORMS)}")
    try:
        return _FORMS[form].from_fields(data)
    except (TypeError, ValueError, KeyError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise UtilityError(f"utility of form {form!r}: {reason}") from error


def from_stored(data: dict[str, Any]) -> Utility:
    """Like `from_json`, but a Python function comes back as `Unavailable`."""
    if data.get("form") == Custom.form:
        return Unavailable(**{key: value for key, value in data.items() if key != "form"})
    return from_json(data)


# ── what users call ──────────────────────────────────────────────────────────────────────────────


def power(
    *, alpha: float, c: float, budget: float, unit: Unit = "epochs", rate: str | float | None = None
) -> Utility:
    """q − α (b/B)^c for any c > 0: spending the whole budget costs α of score."""
    return Power(alpha=alpha, c=c, budget=budget, unit=unit, rate=parse_rate(rate))


def linear(
    *, alpha: float, budget: float, unit: Unit = "epochs", rate: str | float | None = None
) -> Utility:
    """q − α b/B: every unit of the budget costs the same."""
    return power(alpha=alpha, c=1.0, budget=budget, unit=unit, rate=rate)


def quadratic(
    *, alpha: float, budget: float, unit: Unit = "epochs", rate: str | float | None = None
) -> Utility:
    """q − α (b/B)²: cheap at first, ever dearer."""
    return power(alpha=alpha, c=2.0, budget=budget, unit=unit, rate=rate)


def square_root(
    *, alpha: float, budget: float, unit: Unit = "epochs", rate: str | float | None = None
) -> Utility:
    """q − α √(b/B): dear at first, ever cheaper."""
    return power(alpha=alpha, c=0.5, budget=budget, unit=unit, rate=rate)


def hard_budget(
    budget: float, *, unit: Unit = "epochs", rate: str | float | None = None
) -> Utility:
    """The best score within the budget; spending less earns nothing."""
    return power(alpha=0.0, c=1.0, budget=budget, unit=unit, rate=rate)


def staircase(
    steps: Sequence[tuple[float, ...]],
    *,
    budget: float,
    unit: Unit = "epochs",
    rate: str | float | None = None,
) -> Utility:
    """q − Σ αᵢ 1[b ∈ Aᵢ]: each step is (from, α), which lasts, or (low, high, α)."""
    if any(len(step) not in (2, 3) for step in steps):
        raise UtilityError(
            f"steps {list(steps)}: write each as (from, price) or (low, high, price)"
        )
    whole = tuple((s[0], math.inf, s[1]) if len(s) == 2 else (s[0], s[1], s[2]) for s in steps)
    return Staircase(steps=whole, budget=budget, unit=unit, rate=parse_rate(rate))


def mix(parts: Sequence[tuple[float, Utility]]) -> Utility:
    """A weighted mix; the weights sum to 1 and the parts share budget and unit."""
    if not parts:
        raise UtilityError("mix([]): needs at least one (weight, utility)")
    one = parts[0][1]
    return Mix(parts=tuple(parts), budget=one.budget, unit=one.unit, rate=one.rate)


def custom(
    function: Callable[[Any, Any], Any],
    *,
    budget: float,
    unit: Unit = "epochs",
    rate: str | float | None = None,
) -> Utility:
    """Any f(spent, best) → value in your own units; must fall in spent and rise in quality."""
    return Custom(function=function, budget=budget, unit=unit, rate=parse_rate(rate))


def makarova(
    threshold: float, *, budget: float, unit: Unit = "epochs", rate: str | float | None = None
) -> Utility:
    """Nothing counts below the threshold, only quality above it (Makarova et al., 2022)."""
    return Makarova(threshold=threshold, budget=budget, unit=unit, rate=parse_rate(rate))


def wilson(
    *,
    optimum: float,
    spread: float,
    epsilon: float,
    delta: float = 0.05,
    budget: float,
    unit: Unit = "epochs",
    rate: str | float | None = None,
) -> Utility:
    """Quality counts until the optimum is probably within ε, then only cost (Wilson, 2024)."""
    return Wilson(
        optimum=optimum, spread=spread, epsilon=epsilon, delta=delta,
        budget=budget, unit=unit, rate=parse_rate(rate),
    )  # fmt: skip


def worth(gain: str | float, cost: str | float, *, rate: str | float | None = None) -> Utility:
    """`worth("1% accuracy", "$20", rate="$2.5/h")`: the linear utility of an exchange rate.

    `gain` is a percentage of the range of scores or a number in the metric's units (words after it
    are for the reader); `cost` is money ("$20"), time ("90min", "2h", "1d") or "30 epochs".
    """
    number, relative = parse_gain(gain)
    value, unit = parse_cost(cost)
    if not (0 < number < math.inf and 0 < value < math.inf):
        raise UtilityError(f"worth({gain!r}, {cost!r}): both must be above 0 and finite")
    return Worth(
        gain=number,
        cost=value,
        relative=relative,
        budget=value / number,
        unit=unit,
        rate=parse_rate(rate),
    )


def with_budget(utility: Utility, budget: float) -> Utility:
    """The same prices with another budget: what a unit costs stays as it is at the old budget."""
    scaled: dict[str, Any] = {"budget": budget}
    if isinstance(utility, Power):
        scaled["alpha"] = utility.alpha * (budget / utility.budget) ** utility.c
    elif isinstance(utility, Wilson):
        raise UtilityError(
            f"with_budget(…, {budget:g}): what a unit costs follows from the budget in this "
            "utility; write wilson(…, budget=…) anew"
        )
    elif isinstance(utility, Mix):
        scaled["parts"] = tuple((w, with_budget(part, budget)) for w, part in utility.parts)
    elif isinstance(utility, Worth):
        scaled = {"limit": budget}
    return replace(utility, **scaled)


# ── helpers ──────────────────────────────────────────────────────────────────────────────────────


def _check_numbers(utility: Utility) -> None:
    """Every field that is a number by its annotation is one."""
    for each in fields(utility):
        value: Any = getattr(utility, each.name)
        if each.name == "budget" and isinstance(value, str):
            number, unit = parse_cost(value)
            raise UtilityError(
                f"budget={value!r}: a number in the unit beside it; "
                f"write budget={number:g}, unit={unit!r}"
            )
        if each.type == "float" and (isinstance(value, bool) or not isinstance(value, Real)):
            raise UtilityError(f"{each.name}={value!r}: must be a number")


def _is_tensor(value: Any) -> bool:
    """Without importing torch: a tensor comes from a process that has."""
    return type(value).__module__.partition(".")[0] == "torch"


def _where(condition: Any, value: Any, other: Any) -> Any:
    if _is_tensor(condition):
        import torch

        return torch.where(condition, value, other)
    return np.where(condition, value, other)


def _check_monotone(grid: Any, spent: Any, best: Any) -> None:
    """Raise where the utility rises in what is spent or falls as the score gets better.

    grid: [spent, best], the worst score first.
    """
    finite = grid[np.isfinite(grid)]
    tolerance = 1e-9 * np.ptp(finite) if finite.size else 0.0
    with np.errstate(invalid="ignore"):
        dearer_is_better = np.argwhere(grid[1:] - grid[:-1] > tolerance)
        better_is_worse = np.argwhere(grid[:, 1:] - grid[:, :-1] < -tolerance)
    for where, (down, right), rule in (
        (dearer_is_better, (1, 0), "spending more must not be worth more"),
        (better_is_worse, (0, 1), "a better score must not be worth less"),
    ):
        if len(where):
            i, j = where[0]
            k, m = i + down, j + right
            raise UtilityError(
                f"utility({spent[i]:g}, {best[j]:g}) = {grid[i, j]:g}, "
                f"but utility({spent[k]:g}, {best[m]:g}) = {grid[k, m]:g}: {rule}"
            )
