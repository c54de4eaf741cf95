"""When to stop: rules are pure functions of a small record, and combine with `|` and `&`.

    adaptive() | fixed(0.5)         stops when either would
    adaptive() & pure_pi()          stops when both would

A rule compares R̂_b, the estimated normalised regret (Eq. 5), strictly with a threshold δ_b.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from scipy.special import betainc

from freezethaw.errors import ConfigError

BETA = math.exp(-1)
GAMMA = math.log(0.2) / math.log(0.5)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What a rule may look at."""

    regret: float
    """R̂_b, Eq. 5."""
    chance: float
    """p_b, Eq. 7: the chance that the chosen configuration raises the utility."""


class Rule(ABC):
    """A stopping rule."""

    @abstractmethod
    def threshold(self, outlook: Outlook) -> float:
        """δ_b: the study stops when the regret exceeds it."""

    def __call__(self, outlook: Outlook) -> bool:
        """Whether to stop."""
        return outlook.regret > self.threshold(outlook)

    def __or__(self, other: Rule) -> Rule:
        return Either(self, other)

    def __and__(self, other: Rule) -> Rule:
        return Both(self, other)


@dataclass(frozen=True)
class Either(Rule):
    """Stops when one of two rules does."""

    one: Rule
    other: Rule

    def threshold(self, outlook: Outlook) -> float:
        """The lower of the two."""
        return min(self.one.threshold(outlook), self.other.threshold(outlook))


@dataclass(frozen=True)
class Both(Rule):
    """Stops when two rules do."""

    one: Rule
    other: Rule

    def threshold(self, outlook: Outlook) -> float:
        """The higher of the two."""
        return max(self.one.threshold(outlook), self.other.threshold(outlook))


@dataclass(frozen=True)
class Adaptive(Rule):
    """δ_b = BetaCDF(p_b; β, β)^γ (Eq. 6): patient while going on is likely to pay."""

    beta: float
    gamma: float

    def threshold(self, outlook: Outlook) -> float:
        """Eq. 6."""
        return math.pow(betainc(self.beta, self.beta, outlook.chance), self.gamma)


@dataclass(frozen=True)
class Fixed(Rule):
    """A constant δ."""

    delta: float

    def threshold(self, outlook: Outlook) -> float:  # noqa: ARG002
        """δ."""
        return self.delta


@dataclass(frozen=True)
class PurePI(Rule):
    """The adaptive rule as β → ∞: any regret stops once going on is less likely to pay."""

    def threshold(self, outlook: Outlook) -> float:
        """0 below a chance of ½, 1 above, 0.2 at it (0.5^γ)."""
        if outlook.chance == 0.5:
            return 0.2
        return 1.0 if outlook.chance > 0.5 else 0.0


@dataclass(frozen=True)
class Never(Rule):
    """Goes on until the budget is spent or nothing is left to train."""

    def threshold(self, outlook: Outlook) -> float:  # noqa: ARG002
        """Out of reach."""
        return math.inf


def adaptive(beta: float = BETA, gamma: float = GAMMA) -> Rule:
    """The paper's rule, Eqs. 5–7."""
    if not (0 < beta < math.inf and 0 < gamma < math.inf):
        raise ConfigError(f"adaptive(beta={beta}, gamma={gamma}): both must be above 0 and finite")
    return Adaptive(beta, gamma)


def fixed(delta: float = 0.2) -> Rule:
    """Stop when the estimated regret exceeds δ."""
    if not 0 <= delta <= 1:
        raise ConfigError(
            f"fixed(delta={delta}): the estimated regret lies in [0, 1], and so must δ"
        )
    return Fixed(delta)


def pure_pi() -> Rule:
    """Stop when the utility has fallen and going on is more likely not to pay."""
    return PurePI()


def never() -> Rule:
    """Never stop before the budget is spent."""
    return Never()


_BY_NAME: dict[str, Callable[..., Rule]] = {
    "adaptive": adaptive,
    "fixed": fixed,
    "pure_pi": pure_pi,
    "never": never,
}


def stopping_rule(given: Rule | str | None) -> Rule:
    """A rule, one by its name, or the default."""
    if given is None:
        return adaptive()
    if isinstance(given, str):
        return from_name(given)
    if not isinstance(given, Rule):
        raise ConfigError(f"stopping={given!r}: pass ft.stopping.adaptive(), or another rule")
    return given


def from_name(name: str, **settings: Any) -> Rule:
    """A rule from a study file: `stopping = "adaptive"` or `{rule = "fixed", delta = 0.1}`."""
    if name not in _BY_NAME:
        raise ConfigError(f"stopping rule {name!r}: known are {', '.join(_BY_NAME)}")
    try:
        return _BY_NAME[name](**settings)
    except TypeError as error:
        raise ConfigError(f"stopping rule {name!r}: {error}") from error
