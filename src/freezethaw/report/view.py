"""What a screen or a page is drawn from, and the few facts that all of them derive from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from freezethaw.records import Curve, Decision, Goal, History, Leader, Stop, TrialState, Unit


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One trial as a reader sees it: its best finite score, and whether it is trained or frozen."""

    curve: Curve
    best: float | None
    best_epoch: int | None
    state: str
    """training, frozen, completed, diverged or failed."""

    @property
    def trial_id(self) -> int:
        """The id of its trial."""
        return self.curve.trial_id


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Where the utility was highest."""

    spent: float
    utility: float


@dataclass(frozen=True, kw_only=True)
class StudyView:
    """Everything that a screen or a page about a study needs; nothing is read from elsewhere."""

    name: str
    metric: str
    goal: Goal
    unit: Unit
    budget: float
    max_epochs: int
    initial: float | None
    """The untrained score, in the user's units."""
    utility_text: str
    """What the utility is, in words: "linear: the whole budget is worth 0.1 of score"."""
    utility: Callable[[float, float], float]
    """(spent, best score in the user's units) → value."""
    history: History
    decision: Decision | None = None
    """The last one made."""
    stop: Stop | None = None
    rate: float | None = None
    """Money per hour."""
    storage: str | None = None
    writer: str | None = None
    """Another process that writes to it now."""
    started_at: str | None = None
    """ISO 8601."""

    @cached_property
    def standings(self) -> tuple[Standing, ...]:
        """All trials, the best first; those without a finite score last. Ties: the lower id."""
        sign = -1.0 if self.goal == "maximize" else 1.0

        def rank(standing: Standing) -> tuple[float, int]:
            best = math.inf if standing.best is None else sign * standing.best
            return best, standing.trial_id

        return tuple(sorted(map(self._standing, self.history.curves.values()), key=rank))

    def _standing(self, curve: Curve) -> Standing:
        finite = [(s, t) for t, s in enumerate(curve.scores, start=1) if math.isfinite(s)]
        # Of equal scores the earliest epoch: it is the one whose model was kept.
        if self.goal == "maximize":
            best = max(finite, key=lambda pair: (pair[0], -pair[1]), default=None)
        else:
            best = min(finite, default=None)
        state = str(curve.state)
        if curve.state is TrialState.ACTIVE:
            pending = (step.trial_id for step in self.history.pending.values())
            training = self.stop is None and curve.trial_id in pending
            state = "training" if training else "frozen"
        return Standing(
            curve=curve,
            best=best[0] if best else None,
            best_epoch=best[1] if best else None,
            state=state,
        )

    @cached_property
    def best(self) -> Standing | None:
        """The best trial so far; None before any finite score."""
        for standing in self.standings:
            if standing.trial_id == self.history.best_trial_id and standing.best is not None:
                return standing
        first = self.standings[0] if self.standings else None
        return first if first and first.best is not None else None

    def utility_at(self, spent: float, best: float) -> float:
        """The utility as a plain float; NaN for a score that is no number yet."""
        return math.nan if math.isnan(best) else float(self.utility(spent, best))

    @cached_property
    def utility_now(self) -> float:
        """The utility of what has been spent and found; NaN before any of both is known."""
        best = self.history.best_score
        best = self.initial if best is None else best
        return math.nan if best is None else self.utility_at(self.history.spent, best)

    @cached_property
    def improvements(self) -> tuple[int, ...]:
        """Indices into the history's path at which the best score changed; the first included."""
        bests = [point.best for point in self.history.path]
        return tuple(i for i, best in enumerate(bests) if i == 0 or best != bests[i - 1])

    @cached_property
    def peak(self) -> Peak | None:
        """Where the utility was highest so far; None before the first epoch."""
        # Utility falls in spending and rises in quality, so it can only peak where quality rose.
        peaks = (
            Peak(spent=point.spent, utility=self.utility_at(point.spent, point.best))
            for point in (self.history.path[i] for i in self.improvements)
        )
        finite = (peak for peak in peaks if math.isfinite(peak.utility))
        return max(finite, key=lambda peak: (peak.utility, -peak.spent), default=None)

    @cached_property
    def money(self) -> float | None:
        """What the whole bill comes to; None without a rate."""
        return None if self.rate is None else self.rate * self.history.bill.seconds / 3600

    @cached_property
    def failed(self) -> tuple[Curve, ...]:
        """Trials that raised, or could not be saved, in the order in which they were started."""
        return tuple(curve for curve in self.history.curves.values() if curve.error)

    @property
    def leader(self) -> Leader | None:
        """The candidate that the last decision chose, or would have chosen had it not stopped."""
        if self.decision is None or not self.decision.leaders:
            return None
        chosen = [x for x in self.decision.leaders if x.trial_id == self.decision.trial_id]
        return chosen[0] if chosen else self.decision.leaders[0]

    def counts(self) -> dict[str, int]:
        """How many trials are in each state, in a fixed order, without zeros."""
        order = ("training", "frozen", "completed", "diverged", "failed")
        states = [standing.state for standing in self.standings]
        return {state: states.count(state) for state in order if state in states}
