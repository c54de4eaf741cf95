"""The metric and its place in [0, 1]: the bounded sigmoid map of LC-PFN, fixed once per study.

    ℓ(v) = 2 (v - soft_low) / (soft_high - soft_low) - 1,   s(v) = 1 / (1 + exp(-ℓ(v)))
    y = (s(v) - s(hard_low)) / (s(hard_high) - s(hard_low)),   and 1 - y for a minimised metric

The hard bounds say which scores are possible, the soft ones where most of the resolution goes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from freezethaw.errors import ScaleError
from freezethaw.records import Goal

Range: TypeAlias = tuple[float, float]
Array: TypeAlias = NDArray[np.float64]

ROUNDING = 1e-6
"""By so much of their range scores may exceed the bounds; they count as the bound."""

MARGIN = 5e-4
"""How near to 0 or 1 a scaled value counts where the raw bound is infinite.

Half of one of the extrapolator's 1,000 bins: no forecast says anything finer.
"""


@dataclass(frozen=True)
class Scale:
    """How scores in the user's units ("raw") and in [0, 1] ("scaled", higher better) relate."""

    goal: Goal
    hard: Range
    """The lowest and highest possible score; either may be infinite."""
    soft: Range
    """The finite range in which scores are told apart well."""
    identity: bool = False
    """Whether scaled and raw are the same (a benchmark's metric is its scaled score)."""

    def __post_init__(self) -> None:
        if self.goal not in ("maximize", "minimize"):
            raise ScaleError(f"goal is {self.goal!r}; it must be 'maximize' or 'minimize'")
        object.__setattr__(self, "hard", _read_range("bounds", self.hard))
        object.__setattr__(self, "soft", _read_range("soft", self.soft))
        low, high = self.soft
        if not math.isfinite(high - low):
            raise ScaleError(f"soft is {_pair(self.soft)}; both ends must be finite")
        if not self.hard[0] <= low < high <= self.hard[1]:
            raise ScaleError(
                f"soft is {_pair(self.soft)}; it must lie within the bounds {_interval(self.hard)}"
            )
        if self.identity and (self.goal, self.hard, self.soft) != ("maximize", (0, 1), (0, 1)):
            raise ScaleError("the identity scale maximises within [0, 1]; use Scale.unit()")

    @classmethod
    def live(
        cls,
        goal: Goal,
        bounds: tuple[float | None, float | None],
        initial: float | None = None,
        soft: Range | None = None,
    ) -> Scale:
        """Return the scale of a study: `initial` is the score of an untrained model.

        It defaults to the bad bound and must be given where that is infinite (or None).
        `soft` defaults to the range from `initial` to the good bound, likewise.
        """
        if goal not in ("maximize", "minimize"):
            raise ScaleError(f"goal is {goal!r}; it must be 'maximize' or 'minimize'")
        hard = _read_range("bounds", _open_ends(bounds))
        bad, good = hard if goal == "maximize" else hard[::-1]
        initial = _read_initial(goal, hard, bad if initial is None else initial, good)
        if soft is None:
            if math.isinf(good):
                raise ScaleError(
                    f"the good bound of a score to {goal} is {good}, so how good scores will be "
                    "is open; pass soft=(low, high), the range in which they will mostly lie"
                )
            soft = (min(initial, good), max(initial, good))
        return cls(goal=goal, hard=hard, soft=soft)

    @classmethod
    def unit(cls) -> Scale:
        """Return the identity on [0, 1], maximised: for metrics that are scaled already."""
        return cls(goal="maximize", hard=(0.0, 1.0), soft=(0.0, 1.0), identity=True)

    @property
    def worst(self) -> float:
        """The worst score that utility distinguishes: the bad soft bound."""
        return self.soft[0] if self.goal == "maximize" else self.soft[1]

    def is_beyond(self, raw: float) -> bool:
        """Whether a score is so far beyond the soft range that no better one looks different."""
        good = self.hard[1] if self.goal == "maximize" else self.hard[0]
        return math.isinf(good) and self.to_unit(raw) >= 1 - MARGIN

    @overload
    def to_unit(self, raw: float) -> float: ...
    @overload
    def to_unit(self, raw: Array) -> Array: ...
    def to_unit(self, raw: float | Array) -> float | Array:
        """Return the scaled value; a diverged score (NaN, ±inf) is worth 0."""
        return _same_kind(self._to_unit, raw)

    @overload
    def to_raw(self, scaled: float) -> float: ...
    @overload
    def to_raw(self, scaled: Array) -> Array: ...
    def to_raw(self, scaled: float | Array) -> float | Array:
        """Return the score with this scaled value, within the hard bounds and always finite.

        Where a bound is infinite, a scaled value counts as at least `MARGIN` away from it.
        """
        return _same_kind(self._to_raw, scaled)

    @overload
    def for_utility(self, raw: float) -> float: ...
    @overload
    def for_utility(self, raw: Array) -> Array: ...
    def for_utility(self, raw: float | Array) -> float | Array:
        """Return the score as utility sees it: diverged or worse than `worst` is `worst`."""
        return _same_kind(self._for_utility, raw)

    def check_bounds(
        self, raw: float, *, trial: int | None = None, epoch: int | None = None
    ) -> str | None:
        """Return what is wrong with a score outside the hard bounds, None if nothing is.

        NaN and ±inf are no breach of bounds: the trial diverged. Nor is what rounding may add.
        """
        low, high = self.hard
        slack = ROUNDING * (high - low if math.isfinite(high - low) else abs(raw))
        if not math.isfinite(raw) or low - slack <= raw <= high + slack:
            return None
        place = [f"trial {trial}"] * (trial is not None) + [f"epoch {epoch}"] * (epoch is not None)
        where = f"{', '.join(place)}: " if place else ""
        return (
            f"{where}got {_short(raw)}; scores must lie in {_interval(self.hard)}; "
            f"{self._remedy(raw)}"
        )

    def _remedy(self, raw: float) -> str:
        if self.hard == (0.0, 1.0) and 2 <= raw <= 100:
            return f"a percentage is a share here ({raw / 100:g}), or begin with bounds=(0, 100)"
        return "clip it, or begin a study with other bounds=(low, high)"

    def to_json(self) -> dict[str, Any]:
        """Return the scale as JSON, null where a bound is infinite."""
        return {
            "goal": self.goal,
            "hard": [bound if math.isfinite(bound) else None for bound in self.hard],
            "soft": list(self.soft),
            "identity": self.identity,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Scale:
        """Read what `to_json` wrote."""
        try:
            return cls(
                goal=data["goal"],
                hard=_open_ends(data["hard"]),
                soft=data["soft"],
                identity=bool(data.get("identity", False)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ScaleError(
                f"got {data!r}; a scale in JSON has goal, hard [low, high] and soft [low, high]"
            ) from error

    def differences(
        self, other: Scale, *, mine: str = "this scale", theirs: str = "the other"
    ) -> list[str]:
        """Return one sentence for each difference; none if the scales are equal."""
        facts = {"goal": "goal", "hard": "bounds", "soft": "soft", "identity": "identity"}
        return [
            f"{word} is {getattr(self, name)} in {mine} and {getattr(other, name)} in {theirs}"
            for name, word in facts.items()
            if getattr(self, name) != getattr(other, name)
        ]

    # A minimised metric is the maximised one with its sign changed: 1 - s(v) is s of the negated
    # score with negated bounds. Computed so, small scaled values keep all their digits.

    @property
    def _sign(self) -> int:
        return 1 if self.goal == "maximize" else -1

    def _upward(self, bounds: Range) -> Range:
        return bounds if self.goal == "maximize" else (-bounds[1], -bounds[0])

    def _squash(self, upward: Array) -> Array:
        """s(v), of scores signed so that higher is better."""
        low, high = self._upward(self.soft)
        return np.asarray(expit(2 * ((upward - low) / (high - low)) - 1), dtype=np.float64)

    def _to_unit(self, raw: Array) -> Array:
        if self.identity:
            scaled = raw
        else:
            floor, ceiling = self._squash(np.array(self._upward(self.hard)))
            scaled = (self._squash(self._sign * raw) - floor) / (ceiling - floor)
        return np.where(np.isfinite(raw), np.clip(scaled, 0.0, 1.0), 0.0)

    def _to_raw(self, scaled: Array) -> Array:
        bad, good = self._upward(self.hard)
        scaled = np.clip(
            scaled, MARGIN if math.isinf(bad) else 0.0, 1 - MARGIN if math.isinf(good) else 1.0
        )
        if self.identity:
            return scaled
        floor, ceiling = self._squash(np.array([bad, good]))
        low, high = self._upward(self.soft)
        upward = low + (logit(floor + scaled * (ceiling - floor)) + 1) / 2 * (high - low)
        # 0 and 1 stand for the bounds themselves, which a saturated sigmoid would miss.
        upward = np.where(scaled == 0, bad, np.where(scaled == 1, good, upward))
        return self._sign * np.clip(upward, bad, good)

    def _for_utility(self, raw: Array) -> Array:
        upward = np.where(np.isfinite(raw), self._sign * raw, -np.inf)
        return self._sign * np.maximum(upward, self._sign * self.worst)


def _same_kind(function: Callable[[Array], Array], value: float | Array) -> float | Array:
    """Apply a function of arrays to an array or a float, and return the same kind."""
    # Losses of 1e300 may overflow on the way to a sigmoid that is 0 there: nothing to warn about.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        result = function(np.asarray(value, dtype=np.float64))
    return np.asarray(result) if isinstance(value, np.ndarray) else float(result)


def _open_ends(bounds: Any) -> Any:
    """Return bounds with None, which means unbounded, replaced by the infinity on its side."""
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        return bounds
    low, high = bounds
    return (-math.inf if low is None else low, math.inf if high is None else high)


def _read_range(name: str, bounds: Any) -> Range:
    try:
        if any(isinstance(bound, str) for bound in bounds):
            raise TypeError
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        raise ScaleError(f"{name} is {bounds!r}; pass {name}=(low, high)") from None
    if not low < high:
        raise ScaleError(f"{name} is {_pair((low, high))}; low must be below high")
    return low, high


def _read_initial(goal: Goal, hard: Range, given: Any, good: float) -> float:
    try:
        if isinstance(given, str):
            raise TypeError
        initial = float(given)
    except (TypeError, ValueError):
        raise ScaleError(f"initial is {given!r}; it must be a number") from None
    remedy = "pass initial=, the score of an untrained model"
    if not math.isfinite(initial):
        # Either given so, or the default: the bad bound, which is infinite.
        raise ScaleError(f"initial is {initial} for a score to {goal}; it must be finite; {remedy}")
    if not hard[0] <= initial <= hard[1]:
        raise ScaleError(
            f"initial is {_short(initial)}; it must lie in the bounds {_interval(hard)}; "
            "change initial= or bounds="
        )
    if initial == good:
        raise ScaleError(
            f"initial is {_short(initial)}, the best possible score to {goal}; nothing could be "
            f"gained; {remedy}"
        )
    return initial


def _short(value: float) -> str:
    # All digits: "got 1; scores must lie in [0, 1]" would be a riddle.
    return repr(float(value)).removesuffix(".0")


def _pair(bounds: Range) -> str:
    return f"({_short(bounds[0])}, {_short(bounds[1])})"


def _interval(bounds: Range) -> str:
    low = "(-∞" if math.isinf(bounds[0]) else f"[{_short(bounds[0])}"
    high = "∞)" if math.isinf(bounds[1]) else f"{_short(bounds[1])}]"
    return f"{low}, {high}"
