"""What happens to a study, and the fold that turns it into a `History`.

Events are appended and never changed. A study is nothing but its events: whatever else is shown or
decided follows from folding them in order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from freezethaw import utility as utilities
from freezethaw.cost import price
from freezethaw.errors import StorageError
from freezethaw.records import (
    Bill,
    Curve,
    Decision,
    Fan,
    History,
    Leader,
    Params,
    Point,
    Step,
    Stop,
    StopReason,
    TrialState,
)
from freezethaw.scale import Scale
from freezethaw.seeds import trial_seed
from freezethaw.space import Space
from freezethaw.utility import Utility


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a study is about. Everything but the utility is fixed when the study is made."""

    space: Space
    scale: Scale
    max_epochs: int
    initial: float
    """The untrained score, in the user's units."""
    metric: str
    seed: int
    utility: Utility
    """Bound to the goal and range of the study."""
    pool_size: int | None = 512
    """Size of an open pool; None where `configurations` are all there is."""
    configurations: tuple[Params, ...] = ()
    """The fixed pool, or what an open study tries first."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Base of all events; `kind` names it in storage."""

    kind: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class Created(Event):
    """The study's first event."""

    kind = "created"
    version: str
    space: list[dict[str, Any]]
    scale: dict[str, Any]
    max_epochs: int
    initial: float
    metric: str
    seed: int
    utility: dict[str, Any]
    pool_size: int | None
    configurations: list[dict[str, Any]]

    @classmethod
    def of(cls, problem: Problem, version: str) -> Created:
        """The event that makes a study of this problem."""
        return cls(
            version=version,
            space=problem.space.to_json(),
            scale=problem.scale.to_json(),
            max_epochs=problem.max_epochs,
            initial=problem.initial,
            metric=problem.metric,
            seed=problem.seed,
            utility=problem.utility.to_json(),
            pool_size=problem.pool_size,
            configurations=[dict(params) for params in problem.configurations],
        )

    def problem(self, utility: Utility) -> Problem:
        """The problem, with the utility as it stands now."""
        return Problem(
            space=Space.from_json(self.space),
            scale=Scale.from_json(self.scale),
            max_epochs=self.max_epochs,
            initial=self.initial,
            metric=self.metric,
            seed=self.seed,
            utility=utility,
            pool_size=self.pool_size,
            configurations=tuple(self.configurations),
        )


@dataclass(frozen=True, kw_only=True)
class UtilityChanged(Event):
    """The user has another utility now, for instance a larger budget."""

    kind = "utility_changed"
    utility: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Preferred(Event):
    """The user would rather have one outcome than another, each [spent, best score]."""

    kind = "preferred"
    first: list[float]
    second: list[float]
    choice: Literal["first", "second", "tie"] = "first"


@dataclass(frozen=True, kw_only=True)
class PoolRenewed(Event):
    """The open pool was drawn again, around these trials."""

    kind = "pool_renewed"
    generation: int
    centers: list[int]


@dataclass(frozen=True, kw_only=True)
class PaceFixed(Event):
    """`epochs_per_decision`, as measured early on or given by the user."""

    kind = "pace_fixed"
    epochs_per_decision: int
    seconds_per_decision: float | None = None
    seconds_per_epoch: float | None = None


@dataclass(frozen=True, kw_only=True)
class Decided(Event):
    """A step was handed out: train this trial to `to_epoch`."""

    kind = "decided"
    step_id: int
    trial_id: int
    params: dict[str, Any]
    from_epoch: int
    to_epoch: int
    seconds: float
    """What deciding took."""
    numbers: dict[str, Any] = field(default_factory=dict)
    lease: str = ""


@dataclass(frozen=True, kw_only=True)
class Reported(Event):
    """A score for a new epoch. The first report of an epoch stands."""

    kind = "reported"
    step_id: int
    trial_id: int
    epoch: int
    score: float
    seconds: float
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Replayed(Event):
    """An epoch was trained again. Charged after eviction, only on the bill after a crash."""

    kind = "replayed"
    trial_id: int
    epoch: int
    seconds: float
    charged: bool


@dataclass(frozen=True, kw_only=True)
class Evicted(Event):
    """A trial left memory; so many of its epochs must be trained again before it goes on."""

    kind = "evicted"
    trial_id: int
    replay_epochs: int


@dataclass(frozen=True, kw_only=True)
class Completed(Event):
    """The training function returned before its last epoch."""

    kind = "completed"
    step_id: int
    trial_id: int


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """The training function raised, or its save hook did: the trial is over."""

    kind = "failed"
    step_id: int
    trial_id: int
    error: str
    seconds: float
    charged: bool = True
    """Whether it happened in a new epoch, which is paid for, and not while an old one was saved."""
    saving: bool = False
    """Whether it was the save hook that raised."""


@dataclass(frozen=True, kw_only=True)
class Released(Event):
    """A step was given back unfinished."""

    kind = "released"
    step_id: int


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """A stopped study goes on: failures in a row are counted anew."""

    kind = "resumed"


@dataclass(frozen=True, kw_only=True)
class Stopped(Event):
    """The study stopped, with the numbers and forecasts of that moment."""

    kind = "stopped"
    reason: str
    sentence: str
    numbers: dict[str, Any] = field(default_factory=dict)


EVENTS: dict[str, type[Event]] = {
    event.kind: event
    for event in (
        Created,
        UtilityChanged,
        Preferred,
        PoolRenewed,
        PaceFixed,
        Decided,
        Reported,
        Replayed,
        Evicted,
        Completed,
        Failed,
        Released,
        Resumed,
        Stopped,
    )
}


def event_to_json(event: Event) -> str:
    """The fields of an event as strict JSON, which has no NaN: see `_spelled`."""
    fields = {name: _spelled(value) for name, value in vars(event).items()}
    return json.dumps(fields, separators=(",", ":"), allow_nan=False)


def event_from_json(kind: str, body: str) -> Event:
    """The inverse of `event_to_json`."""
    if kind not in EVENTS:
        raise StorageError(
            f"event of kind {kind!r}: this study was written by a newer version of freezethaw; "
            "upgrade to open it"
        )
    try:
        return EVENTS[kind](**json.loads(body, object_hook=_read))
    except (TypeError, ValueError, KeyError) as error:
        raise StorageError(f"a {kind!r} event cannot be read ({error}): damaged file?") from error


_FLOAT = "$float"


def _spelled(value: Any) -> Any:
    """The same with every float that is not finite as {"$float": "nan"} (or inf, -inf)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, Mapping):
        return {name: _spelled(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(part) for part in value]
    return value


def _read(data: dict[str, Any]) -> Any:
    return float(data[_FLOAT]) if data.keys() == {_FLOAT} else data


# ── decisions ↔ JSON ─────────────────────────────────────────────────────────────────────────────

_NUMBERS = ("utility_now", "utility_max", "utility_min", "regret", "threshold")


def numbers_of(decision: Decision) -> dict[str, Any]:
    """What `why` and the report need of a decision."""
    numbers: dict[str, Any] = {name: getattr(decision, name) for name in _NUMBERS}
    numbers["leaders"] = [
        {**asdict(leader), "params": dict(leader.params)} for leader in decision.leaders
    ]
    if decision.fans:
        numbers["fans"] = [asdict(fan) for fan in decision.fans]
    return numbers


def decision_of(event: Decided | Stopped) -> Decision:
    """The decision that an event records."""
    numbers: dict[str, Any] = {name: event.numbers.get(name, math.nan) for name in _NUMBERS}
    leaders = tuple(Leader(**leader) for leader in event.numbers.get("leaders", ()))
    fans = tuple(
        Fan(
            trial_id=fan["trial_id"],
            epochs=tuple(fan["epochs"]),
            levels=tuple(fan["levels"]),
            scores=tuple(tuple(row) for row in fan["scores"]),
        )
        for fan in event.numbers.get("fans", ())
    )
    if isinstance(event, Stopped):
        stop = Stop(kind=StopReason(event.reason), reason=event.sentence)
        return Decision(trial_id=None, stop=stop, leaders=leaders, fans=fans, **numbers)
    return Decision(
        trial_id=event.trial_id,
        params=event.params,
        from_epoch=event.from_epoch,
        to_epoch=event.to_epoch,
        leaders=leaders,
        fans=fans,
        **numbers,
    )


# ── the fold ─────────────────────────────────────────────────────────────────────────────────────


class Fold:
    """Folds events one by one; `history` is a frozen picture of the state so far."""

    def __init__(self) -> None:
        self.created: Created | None = None
        self.preferences: tuple[Preferred, ...] = ()
        self.last_decision: Decided | Stopped | None = None
        self.stop: Stop | None = None
        """Set while nothing new has happened since the study stopped; a replay is nothing new."""
        self.decision_seconds: list[float] = []
        """What each decision took that looked into the future."""
        self._problem: Problem | None = None
        self._curves: dict[int, Curve] = {}
        self._path: list[Point] = []
        self._pending: dict[int, Step] = {}
        self._steps: dict[int, int] = {}
        self._spent = 0.0
        self._bill = Bill()
        self._best: tuple[int, int] | None = None
        self._best_score = math.nan
        self._decisions = 0
        self._outdated: set[int] = set()
        self._failures_in_a_row = 0
        self._first_failure: str | None = None
        self._unsaved = 0
        self._first_unsaved: str | None = None
        self._pool = PoolRenewed(generation=0, centers=[])
        self._epochs_per_decision: int | None = None

    def apply(self, event: Event) -> None:
        """Fold one."""
        if not isinstance(event, Replayed | Preferred):
            self.stop = None
        getattr(self, f"_on_{event.kind}")(event)

    @property
    def problem(self) -> Problem:
        """What the study is about, with its utility as it stands now."""
        if self._problem is None:
            raise StorageError("a study's first event must be 'created': damaged file?")
        return self._problem

    @property
    def history(self) -> History:
        """A frozen picture."""
        return History(
            curves=dict(self._curves),
            spent=self._spent,
            path=tuple(self._path),
            best_trial_id=self._best[0] if self._best else None,
            best_epoch=self._best[1] if self._best else None,
            bill=self._bill,
            pending=dict(self._pending),
            decisions=self._decisions,
            failures_in_a_row=max(self._failures_in_a_row, self._unsaved),
            first_failure=self._first_failure,
            pool_generation=self._pool.generation,
            pool_centers=tuple(self._pool.centers),
            epochs_per_decision=self._epochs_per_decision,
        )

    def trial_of_step(self, step_id: int) -> int | None:
        """The trial of a step ever handed out (None: unknown step)."""
        return self._steps.get(step_id)

    @property
    def outdated_steps(self) -> set[int]:
        """Steps that are pending since before the utility was changed."""
        return self._outdated & self._pending.keys()

    def pending_step(self, step_id: int) -> Step | None:
        """A step not finished yet."""
        return self._pending.get(step_id)

    def curve(self, trial_id: int) -> Curve:
        """A started trial."""
        return self._curves[trial_id]

    def use_utility(self, utility: Utility) -> None:
        """A utility that storage cannot hold (a Python function), given again."""
        self._problem = replace(self.problem, utility=utility)

    # What each event does.

    def _on_created(self, event: Created) -> None:
        self.created = event
        self._problem = event.problem(utilities.from_stored(event.utility))

    def _on_utility_changed(self, event: UtilityChanged) -> None:
        self.use_utility(utilities.from_stored(event.utility))
        self._outdated = set(self._pending)

    def _on_preferred(self, event: Preferred) -> None:
        self.preferences = (*self.preferences, event)

    def _on_pool_renewed(self, event: PoolRenewed) -> None:
        self._pool = event

    def _on_pace_fixed(self, event: PaceFixed) -> None:
        self._epochs_per_decision = event.epochs_per_decision

    def _on_decided(self, event: Decided) -> None:
        self.last_decision = event
        self._decisions += 1
        self._add_to_bill(seconds_deciding=event.seconds)
        if event.numbers.get("leaders"):
            self.decision_seconds.append(event.seconds)
        self._steps[event.step_id] = event.trial_id
        if event.trial_id not in self._curves:
            self._curves[event.trial_id] = Curve(trial_id=event.trial_id, params=event.params)
        self._pending[event.step_id] = Step(
            step_id=event.step_id,
            trial_id=event.trial_id,
            params=event.params,
            from_epoch=event.from_epoch,
            to_epoch=event.to_epoch,
            seed=trial_seed(self.problem.seed, event.trial_id),
            lease=event.lease,
        )

    def _on_reported(self, event: Reported) -> None:
        curve = self._curves[event.trial_id]
        state = curve.state
        if not math.isfinite(event.score):
            state = TrialState.DIVERGED
        elif event.epoch >= self.problem.max_epochs:
            state = TrialState.COMPLETED
        self._curves[event.trial_id] = replace(
            curve,
            scores=(*curve.scores, event.score),
            seconds=(*curve.seconds, event.seconds),
            extra=event.extra,
            replay_epochs=0,
            state=state,
        )
        self._charge(event.seconds)
        self._add_to_bill(epochs=1, seconds_training=event.seconds)
        self._extend_path(event)
        self._failures_in_a_row, self._first_failure = 0, self._first_unsaved
        step = self._pending.get(event.step_id)
        if step and (event.epoch >= step.to_epoch or state is TrialState.DIVERGED):
            del self._pending[event.step_id]

    def _extend_path(self, event: Reported) -> None:
        """The best so far never falls; anything worse than the worst soft value counts as that.

        Which trial is the best is told by the scores themselves, the first of equal ones.
        """
        scale = self.problem.scale
        pick = max if scale.goal == "maximize" else min
        best = self._path[-1].best if self._path else scale.worst
        value = pick(best, scale.for_utility(event.score))
        self._path.append(Point(self._spent, value, event.trial_id))
        if math.isfinite(event.score) and (
            self._best is None or pick(event.score, self._best_score) != self._best_score
        ):
            self._best, self._best_score = (event.trial_id, event.epoch), event.score

    def _on_replayed(self, event: Replayed) -> None:
        self._add_to_bill(epochs_replayed=1, seconds_replaying=event.seconds)
        if event.charged:
            self._charge(event.seconds)
            curve = self._curves[event.trial_id]
            left = max(0, curve.replay_epochs - 1)
            self._curves[event.trial_id] = replace(curve, replay_epochs=left)

    def _on_evicted(self, event: Evicted) -> None:
        curve = self._curves[event.trial_id]
        self._curves[event.trial_id] = replace(curve, replay_epochs=event.replay_epochs)

    def _on_completed(self, event: Completed) -> None:
        curve = self._curves[event.trial_id]
        self._curves[event.trial_id] = replace(curve, state=TrialState.COMPLETED)
        self._pending.pop(event.step_id, None)

    def _on_failed(self, event: Failed) -> None:
        curve = self._curves[event.trial_id]
        # A trial that was trained to its end is no failure when it cannot be saved.
        completed = event.saving and curve.state is TrialState.COMPLETED
        state = TrialState.COMPLETED if completed else TrialState.FAILED
        self._curves[event.trial_id] = replace(curve, state=state, error=event.error)
        for step in [s for s in self._pending.values() if s.trial_id == event.trial_id]:
            del self._pending[step.step_id]
        if event.charged:
            self._charge(event.seconds)
        self._add_to_bill(epochs=int(event.charged), seconds_training=event.seconds)
        self._first_failure = self._first_failure or event.error
        if event.saving:
            # A score is no sign that saving works: these are counted until someone looks.
            self._unsaved += 1
            self._first_unsaved = self._first_unsaved or event.error
        else:
            self._failures_in_a_row += 1

    def _on_released(self, event: Released) -> None:
        self._pending.pop(event.step_id, None)

    def _on_resumed(self, event: Resumed) -> None:  # noqa: ARG002
        self._failures_in_a_row, self._first_failure = 0, None
        self._unsaved, self._first_unsaved = 0, None

    def _on_stopped(self, event: Stopped) -> None:
        self.last_decision = event
        self.stop = Stop(kind=StopReason(event.reason), reason=event.sentence)

    # Sums.

    def _charge(self, seconds: float) -> None:
        utility = self.problem.utility
        self._spent += price(seconds, utility.unit, utility.rate)

    def _add_to_bill(self, **more: float) -> None:
        sums = {name: getattr(self._bill, name) + value for name, value in more.items()}
        self._bill = replace(self._bill, **sums)
