"""The frozen records that pass between modules. No behaviour beyond what follows from the fields.

Scores are in the user's units ("raw") unless a name says `scaled`. A configuration that has been
started is a *trial*; its id is the id of its configuration and is never reused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

Goal: TypeAlias = Literal["maximize", "minimize"]
Unit: TypeAlias = Literal["epochs", "seconds", "money"]
ParamValue: TypeAlias = float | int | str | bool | None
Params: TypeAlias = Mapping[str, ParamValue]
"""One configuration by name. A parameter whose condition does not hold is absent."""


class TrialState(StrEnum):
    """Where a trial stands. Only an active trial can be trained further."""

    ACTIVE = "active"
    COMPLETED = "completed"
    DIVERGED = "diverged"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Curve:
    """One trial's scores so far, epochs 1.. in order, with what each epoch took."""

    trial_id: int
    params: Params
    scores: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    state: TrialState = TrialState.ACTIVE
    replay_epochs: int = 0
    """Epochs that must be trained again, and paid for, before the next new one (after eviction)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What the last report carried beside its score."""
    error: str | None = None

    @property
    def epochs(self) -> int:
        """How many epochs have been reported (t_n in the paper)."""
        return len(self.scores)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Leave to train one trial from `from_epoch` (done) to `to_epoch` (included)."""

    step_id: int
    trial_id: int
    params: Params
    from_epoch: int
    to_epoch: int
    seed: int
    checkpoint: Path | None = None
    lease: str = ""


class Point(NamedTuple):
    """One reported epoch of a study: what had been spent, the best score by then, whose it was."""

    spent: float
    best: float
    trial_id: int


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Everything that was paid; `History.spent` counts only what utility does."""

    epochs: int = 0
    epochs_replayed: int = 0
    seconds_training: float = 0.0
    seconds_replaying: float = 0.0
    seconds_deciding: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.seconds_training + self.seconds_replaying + self.seconds_deciding


@dataclass(frozen=True, kw_only=True)
class History:
    """What is known: a fold over a study's events. An empty one is `History()`."""

    curves: Mapping[int, Curve] = field(default_factory=dict)
    """Started trials by id, in the order in which they were started."""
    spent: float = 0.0
    """What the utility counts as spent (b), in the study's unit."""
    path: tuple[Point, ...] = ()
    """After each reported epoch: (spent, best so far in the user's units, the trial it was of)."""
    best_trial_id: int | None = None
    best_epoch: int | None = None
    bill: Bill = field(default_factory=Bill)
    pending: Mapping[int, Step] = field(default_factory=dict)
    """Steps handed out and not finished, by step id."""
    decisions: int = 0
    failures_in_a_row: int = 0
    """Trials that raised one after another, or, if more, whose save hooks did, in a row or not."""
    first_failure: str | None = None
    """The traceback of the first of the failures in a row."""
    pool_generation: int = 0
    pool_centers: tuple[int, ...] = ()
    """Trials around which the present pool was drawn."""
    epochs_per_decision: int | None = None

    @property
    def best_score(self) -> float | None:
        """The best score so far over epochs ≥ 1, in the user's units (None before any)."""
        return self.path[-1].best if self.path else None


class StopReason(StrEnum):
    """Why a study stopped. The value is a short name for scripts; `text` says what to do next."""

    NOT_WORTH_IT = "not_worth_it"
    NO_GAIN = "no_gain"
    NOTHING_AT_STAKE = "nothing_at_stake"
    BUDGET_SPENT = "budget_spent"
    NO_CANDIDATES = "no_candidates"
    DEADLINE = "deadline"
    FAILURES = "failures"
    INTERRUPTED = "interrupted"

    @property
    def text(self) -> str:
        """What it means and what can be done about it."""
        return _STOP_TEXTS[self]


_STOP_TEXTS: dict[StopReason, str] = {
    StopReason.NOT_WORTH_IT: "going on is not expected to repay its cost",
    StopReason.NO_GAIN: "no configuration can raise the utility any more",
    StopReason.NOTHING_AT_STAKE: "neither going on nor spending it all changes the utility",
    StopReason.BUDGET_SPENT: "the budget is spent; extend it to go on",
    StopReason.NO_CANDIDATES: "every configuration has been trained to its end or failed",
    StopReason.DEADLINE: "the deadline passed; run again to go on",
    StopReason.FAILURES: "too many trials failed in a row; the first traceback says why",
    StopReason.INTERRUPTED: "interrupted; run again to go on from the last epoch",
}


@dataclass(frozen=True, kw_only=True)
class Stop:
    """That a study stopped, why, and the sentence that says so to its user."""

    kind: StopReason
    reason: str


@dataclass(frozen=True, kw_only=True)
class Leader:
    """One of the leading candidates of a decision: what going on with it promises and costs."""

    trial_id: int
    params: Params
    epochs_seen: int
    target_epoch: int
    """The epoch at which the expected gain is largest."""
    gain: float
    """Expected gain in utility (Eq. 4)."""
    chance: float
    """The largest chance, over target epochs, that the utility rises (Eq. 7)."""
    cost: float
    """Predicted cost to the target epoch, in the study's unit."""


@dataclass(frozen=True, kw_only=True)
class Fan:
    """A learning curve's forecast: quantiles of the score per epoch, in the user's units."""

    trial_id: int
    epochs: tuple[int, ...]
    levels: tuple[float, ...]
    scores: tuple[tuple[float, ...], ...]
    """scores[i][j]: quantile levels[i] at epochs[j]."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What came of one look at the history: train this trial, or stop, and why."""

    trial_id: int | None
    params: Params | None = None
    from_epoch: int = 0
    to_epoch: int = 0
    stop: Stop | None = None
    leaders: tuple[Leader, ...] = ()
    fans: tuple[Fan, ...] = ()
    """Forecasts of the leading trials; filled in when stopping."""
    utility_now: float = math.nan
    utility_max: float = math.nan
    utility_min: float = math.nan
    regret: float = math.nan
    """R̂_b, Eq. 5."""
    threshold: float = math.nan
    """δ_b, Eq. 6."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best trial of a study and where its model is."""

    trial_id: int
    params: Params
    score: float
    epoch: int
    checkpoint: Path | None
    """The folder its save hook wrote; None without a hook."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What `tune` returns."""

    best: Best | None
    spent: float
    unit: Unit
    bill: Bill
    stop: Stop
    history: History = field(repr=False)
    study: str
    """The study's name."""
    storage: str | None
