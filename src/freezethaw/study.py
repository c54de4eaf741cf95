"""A study: owns the events, folds them into a history, asks the policy, takes the scores.

`ask` and `tell` are the whole engine; `tune` is a loop around them that also runs the training.
"""

from __future__ import annotations

import math
import statistics
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsFloat

from freezethaw import storage as storages
from freezethaw.acquisition import Coupling, coupling_from_name
from freezethaw.candidates import FixedPool, OpenPool, Pool
from freezethaw.checkpoints import CheckpointStore
from freezethaw.checkpoints import clean as clean_checkpoints
from freezethaw.errors import ConfigError, MismatchError, StudyError, TellError
from freezethaw.events import (
    Completed,
    Created,
    Decided,
    Event,
    Evicted,
    Failed,
    Fold,
    PaceFixed,
    PoolRenewed,
    Problem,
    Released,
    Replayed,
    Reported,
    Resumed,
    Stopped,
    UtilityChanged,
    decision_of,
    numbers_of,
)
from freezethaw.extrapolator import Extrapolator
from freezethaw.isolation import plain_torch
from freezethaw.policy import Policy
from freezethaw.prefer import trajectory
from freezethaw.prefer.file import utility_of
from freezethaw.problems import Bounds, UtilityFunction, describe_problem, differences
from freezethaw.records import (
    Best,
    Decision,
    Goal,
    History,
    Params,
    Result,
    Step,
    Stop,
    StopReason,
    TrialState,
)
from freezethaw.sentences import stop_sentence
from freezethaw.space import Parameter, Space
from freezethaw.stopping import Rule, stopping_rule
from freezethaw.told import read_epoch, read_extra, read_number
from freezethaw.utility import Custom, Unavailable, Utility

if TYPE_CHECKING:
    import pandas as pd

    from freezethaw.preference import Fit

OVERHEAD = 0.1
"""`epochs_per_decision="auto"` keeps deciding under this share of the training time …"""
GROWTH = 2.25
"""… when decisions come to cost so much more than the first ones: contexts grow, the first few
decisions are made after every epoch, and steps may end early."""
MEASURED_DECISIONS = 2
FINAL = frozenset(
    {
        StopReason.NOT_WORTH_IT,
        StopReason.NO_GAIN,
        StopReason.NOTHING_AT_STAKE,
        StopReason.BUDGET_SPENT,
        StopReason.NO_CANDIDATES,
    }
)
"""Reasons that stand until the utility changes; the others only paused the study."""

WAITING = frozenset({StopReason.NO_CANDIDATES, StopReason.BUDGET_SPENT})
"""Reasons that may pass when a pending step is finished: it holds a trial and its cost."""

Pace = int | Literal["auto"]


class Study:
    """One study. Make it with `Study.create`, or find it again with `Study.open`.

    It can be read while another process writes to it; it takes the writer's lock when it first
    writes, and gives it back on `close` (or at the end of a `with` block).
    """

    def __init__(
        self,
        log: storages.Log,
        fold: Fold,
        *,
        storage: str | None,
        stopping: Rule | str | None = None,
        coupling: str | Coupling = "comonotone",
        weights: str | Path | Extrapolator | None = None,
        device: str = "cpu",
        max_failures: int = 3,
        epochs_per_decision: Pace = "auto",
    ) -> None:
        if epochs_per_decision != "auto" and not _is_count(epochs_per_decision):
            raise ConfigError(
                f"epochs_per_decision={epochs_per_decision!r}: 'auto' or a number of at least 1"
            )
        if not _is_count(max_failures):
            raise ConfigError(f"max_failures={max_failures!r}: must be at least 1")
        self._log, self._fold = log, fold
        self._storage = storage
        # Now: the training function may change directory.
        self._folder = storages.checkpoint_folder(storage, log.name) if storage else None
        self._rule = stopping_rule(stopping)
        self._coupling = coupling_from_name(coupling) if isinstance(coupling, str) else coupling
        self._weights, self._device = weights, device
        self._extrapolator: Extrapolator | None = None
        self._max_failures = max_failures
        self._pace = epochs_per_decision
        self._locked = False
        self._clocks: dict[int, float] = {}
        self._pool = _pool(fold.problem)

    # ── making and opening ───────────────────────────────────────────────────────────────────────

    @classmethod
    def create(
        cls,
        space: Space | Mapping[str, Parameter],
        *,
        max_epochs: int,
        bounds: Bounds,
        goal: Goal = "maximize",
        initial: float | None = None,
        soft: tuple[float, float] | None = None,
        metric: str = "score",
        utility: Utility | UtilityFunction | str | Path | None = None,
        budget: float | None = None,
        seed: int = 0,
        first: Sequence[Params] = (),
        configurations: Sequence[Params] | None = None,
        pool_size: int = 512,
        storage: str | Path | None = None,
        name: str = storages.DEFAULT_NAME,
        **engine: Any,
    ) -> Study:
        """A new study; `storage=None` keeps it in memory. `engine`: see `Study.open`."""
        problem = describe_problem(
            space,
            max_epochs=max_epochs,
            bounds=bounds,
            goal=goal,
            initial=initial,
            soft=soft,
            metric=metric,
            utility=utility_of(utility, goal=goal, bounds=bounds, metric=metric),
            budget=budget,
            seed=seed,
            first=first,
            configurations=configurations,
            pool_size=pool_size,
        )
        return cls.of_problem(problem, storage=storage, name=name, **engine)

    @classmethod
    def of_problem(
        cls,
        problem: Problem,
        *,
        storage: str | Path | None = None,
        name: str = storages.DEFAULT_NAME,
        **engine: Any,
    ) -> Study:
        """The study of this problem: made, or opened where it exists and is the same."""
        path = None if storage is None else str(storage)
        if storage is not None and storages.study_exists(storage, name):
            study = cls.open(storage, name, **engine)
            try:
                study._refuse_differences(problem)
                study.use_utility(problem.utility)
            except BaseException:
                study.close()
                raise
            return study
        created = Created.of(problem, _version())
        fold = Fold()
        fold.apply(created)
        fold.use_utility(problem.utility)
        study = cls(storages.create_log(storage, name), fold, storage=path, **engine)
        study._load_extrapolator()  # a space beyond its limits makes no study
        study._log.begin([created])
        study._locked = True
        return study

    @classmethod
    def open(cls, storage: str | Path, name: str | None = None, **engine: Any) -> Study:
        """A study that exists, to read or to go on with.

        `engine` are the settings of the decisions, which are not stored: `stopping` (a rule or its
        name), `coupling`, `weights` (a shipped name, a file or an extrapolator), `device`,
        `max_failures`, `epochs_per_decision`.
        """
        log = storages.open_log(storage, name)
        return cls(log, _fold(log), storage=str(storage), **engine)

    def _refuse_differences(self, asked: Problem) -> None:
        unlike = differences(self._fold.problem, asked)
        if unlike:
            raise MismatchError(
                f"{self._storage}: study {self.name!r} was made differently: "
                + "; ".join(unlike)
                + ". Use the same settings to go on with it, or another name= or storage="
                + ("" if self.history.path else "; it has no score yet: deleting it loses nothing")
            )

    def use_utility(self, utility: Utility) -> None:
        """Go on under another utility, for instance with a larger budget."""
        self._lock()
        present = self._fold.problem.utility
        if utility.unit != present.unit:
            raise MismatchError(
                f"study {self.name!r} counts its cost in {present.unit}, the utility in "
                f"{utility.unit}: what was spent cannot be converted; use another name="
            )
        if utility.to_json() != present.to_json():
            self._append(UtilityChanged(utility=utility.to_json()))
        if isinstance(utility, Custom):
            self._fold.use_utility(utility)

    def prefer(
        self, better: tuple[float, float], worse: tuple[float, float], *, equal: bool = False
    ) -> Fit:
        """Prefer one (spent, score) to another; the utility so far, for `use_utility`."""
        said = trajectory.preferred(self.problem, better, worse, equal=equal)
        found = trajectory.fit_of(self.problem, (*self._fold.preferences, said))
        self._lock()
        self._append(said)
        return found

    def __repr__(self) -> str:
        where = "in memory" if self._storage is None else self._storage
        return f"Study({self.name!r}, {where}, {self.history.bill.epochs} epochs)"

    def close(self) -> None:
        """Let others write to the study."""
        self._log.close()
        self._locked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    @property
    def name(self) -> str:
        """The study's name in its storage."""
        return self._log.name

    @property
    def created(self) -> float:
        """When the study was made, in seconds since 1970."""
        return self._log.created

    @property
    def storage(self) -> str | None:
        """The file that holds the study; None in memory."""
        return self._storage

    @property
    def writer(self) -> str | None:
        """Another process that writes to the study now: "process 123 on host"."""
        if self._storage is None or self._locked:
            return None
        return storages.writer(self._storage, self.name)

    @property
    def problem(self) -> Problem:
        """What the study is about, with its utility as it stands now."""
        return self._fold.problem

    @property
    def history(self) -> History:
        """All that is known."""
        return self._fold.history

    @property
    def stop(self) -> Stop | None:
        """Why the study stopped; None while it has not, or has gone on since."""
        return self._fold.stop

    @property
    def last_decision(self) -> Decision | None:
        """The last decision with its numbers, as `why` shows it."""
        event = self._fold.last_decision
        return None if event is None else decision_of(event)

    @property
    def checkpoints(self) -> CheckpointStore | None:
        """Where saved networks are; None in memory."""
        return None if self._folder is None else CheckpointStore(self._folder)

    def needed_checkpoints(self, only_best: bool = False) -> set[tuple[int, int]]:
        """(trial, epoch) of the checkpoints that going on, or the best model, still needs."""
        store, history = self.checkpoints, self.history
        needed = set()
        if history.best_trial_id is not None and history.best_epoch is not None:
            needed.add((history.best_trial_id, history.best_epoch))
        for curve in history.curves.values():
            newest = store.newest(curve.trial_id, at_most=curve.epochs) if store else None
            if newest and curve.state is TrialState.ACTIVE and not only_best:
                needed.add((curve.trial_id, newest.epoch))
        return needed

    def clean(self, only_best: bool = False) -> int:
        """Delete the checkpoints that are not needed any more; return the bytes that are free."""
        self._lock()
        if self._folder is None:
            return 0
        return clean_checkpoints(self._folder, self.needed_checkpoints(only_best))

    def best(self) -> Best | None:
        """The best trial so far and where its model is."""
        history = self.history
        if history.best_trial_id is None or history.best_epoch is None:
            return None
        curve = history.curves[history.best_trial_id]
        store = self.checkpoints
        saved = store.get(curve.trial_id, history.best_epoch) if store else None
        return Best(
            trial_id=curve.trial_id,
            params=curve.params,
            score=curve.scores[history.best_epoch - 1],
            epoch=history.best_epoch,
            checkpoint=saved.files if saved else None,
        )

    def result(self) -> Result:
        """What `tune` returns: the state of the study as it stands."""
        history = self.history
        stop = self.stop or Stop(kind=StopReason.INTERRUPTED, reason="the study has not stopped")
        return Result(
            best=self.best(),
            spent=history.spent,
            unit=self.problem.utility.unit,
            bill=history.bill,
            stop=stop,
            history=history,
            study=self.name,
            storage=self._storage,
        )

    def to_records(self) -> list[dict[str, Any]]:
        """One dict per reported epoch: trial, epoch, score, seconds, state and parameters."""
        return [
            {
                "trial_id": curve.trial_id,
                "epoch": epoch,
                self.problem.metric: score,
                "seconds": seconds,
                "state": str(curve.state),
                **{f"params.{name}": value for name, value in curve.params.items()},
            }
            for curve in self.history.curves.values()
            for epoch, (score, seconds) in enumerate(
                zip(curve.scores, curve.seconds, strict=True), start=1
            )
        ]

    def to_dataframe(self) -> pd.DataFrame:
        """`to_records` as a pandas DataFrame."""
        try:
            import pandas as pd
        except ImportError:
            raise ConfigError(
                "to_dataframe() needs pandas: pip install 'freezethaw[pandas]', or use to_records()"
            ) from None
        return pd.DataFrame(self.to_records())

    # ── ask and tell ─────────────────────────────────────────────────────────────────────────────

    def ask(self) -> Step | Stop:
        """The next step, or why there is none. A stop stands until the utility changes."""
        self._lock()
        if self.stop is not None:
            return self.stop
        self._fix_pace()
        self._renew_pool()
        history = self.history
        policy = self._policy()
        began = time.perf_counter()
        candidates = self._pool.candidates(history)
        with plain_torch():
            decision = policy.decide(history, candidates)
        seconds = time.perf_counter() - began
        if decision.stop is not None:
            if history.pending and decision.stop.kind in WAITING:
                raise StudyError(
                    f"{len(history.pending)} steps are being trained, and nothing else can be "
                    "before their scores are told: tell them, or release a step, and ask again"
                )
            self._append_stop(decision.stop, decision)
            return decision.stop
        return self._hand_out(decision, seconds)

    def _hand_out(self, decision: Decision, seconds: float) -> Step:
        assert decision.trial_id is not None
        assert decision.params is not None
        step_id = self._fold.history.decisions
        self._append(
            Decided(
                step_id=step_id,
                trial_id=decision.trial_id,
                params=dict(decision.params),
                from_epoch=decision.from_epoch,
                to_epoch=decision.to_epoch,
                seconds=seconds,
                numbers=numbers_of(decision),
            )
        )
        self._clocks[step_id] = time.perf_counter()
        return self._pending(step_id)

    def outdated(self) -> list[Step]:
        """Pending steps that were handed out under another utility."""
        return [self._pending(step_id) for step_id in sorted(self._fold.outdated_steps)]

    def pending(self) -> list[Step]:
        """Steps handed out and not finished, oldest first."""
        return [self._pending(step_id) for step_id in self._fold.history.pending]

    def _pending(self, step_id: int) -> Step:
        step = self._fold.pending_step(step_id)
        assert step is not None
        done = self._fold.curve(step.trial_id).epochs
        store = self.checkpoints
        saved = store.newest(step.trial_id, at_most=done) if store else None
        return replace(step, from_epoch=done, checkpoint=saved.files if saved else None)

    def tell(
        self,
        step: Step | int,
        score: SupportsFloat,
        *,
        epoch: int | None = None,
        seconds: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> bool:
        """Report the score of the step's next epoch; durable when this returns.

        Without `epoch`, each call reports the next one. With it, an epoch that has a score already
        is ignored (False: the first report stands) and one that leaves a gap is refused. `seconds`
        default to the time since the step was handed out or last told. NaN and ±inf mean that the
        trial diverged: it is over.
        """
        self._lock()
        step_id = _id(step)
        trial_id = self._fold.trial_of_step(step_id)
        if trial_id is None:
            raise TellError(f"step {step_id}: the study {self.name!r} never handed it out")
        curve = self._fold.curve(trial_id)
        following = curve.epochs + 1
        if epoch is not None:
            epoch = read_epoch(epoch, trial_id)
        value = self._read_score(score, trial_id, following if epoch is None else epoch)
        if epoch is not None and 1 <= epoch <= curve.epochs:
            return False
        if self._fold.pending_step(step_id) is None:
            last = f", the last score {curve.scores[-1]:g}" if curve.scores else ""
            raise TellError(
                f"step {step_id} is finished: trial {trial_id} is {curve.state} with "
                f"{curve.epochs} epochs{last}; ask() for another step"
            )
        if epoch is not None and epoch != following:
            raise TellError(
                f"trial {trial_id}: epoch {epoch} told after epoch {curve.epochs}; "
                f"epochs are told in order, tell epoch {following} first"
            )
        self._append(
            Reported(
                step_id=step_id,
                trial_id=trial_id,
                epoch=following,
                score=value,
                seconds=self._seconds(step_id, seconds),
                extra=read_extra(extra or {}),
            )
        )
        self._clocks[step_id] = time.perf_counter()
        return True

    def _read_score(self, score: SupportsFloat, trial_id: int, epoch: int) -> float:
        value = read_number(score)
        if value is None:
            raise TellError(
                f"trial {trial_id}, epoch {epoch}: got {score!r}; a score is a number: a float, "
                "a numpy scalar or a tensor without dimensions"
            )
        outside = self.problem.scale.check_bounds(value, trial=trial_id, epoch=epoch)
        if outside:
            raise TellError(outside)
        low, high = self.problem.scale.hard
        return min(max(value, low), high) if math.isfinite(value) else value

    def _seconds(self, step_id: int, given: float | None) -> float:
        """As given, or since this process handed the step out or last told it."""
        if given is not None:
            seconds = read_number(given)
            if seconds is None or not (math.isfinite(seconds) and seconds >= 0):
                raise TellError(f"seconds={given!r}: must be a number of at least 0")
            return seconds
        if step_id in self._clocks:
            return time.perf_counter() - self._clocks[step_id]
        if self.problem.utility.unit == "epochs":
            return 0.0
        raise TellError(
            f"step {step_id} was handed out by another process, and the study counts "
            f"{self.problem.utility.unit}: say with seconds= how long the epoch took"
        )

    def fail(
        self, step: Step | int, error: str | BaseException, *, seconds: float | None = None
    ) -> None:
        """The training of this step raised: its trial is over, the epoch it was in is charged."""
        self._lock()
        pending = self._unfinished(step)
        if isinstance(error, BaseException):
            error = "".join(traceback.format_exception(error))
        seconds = self._seconds(pending.step_id, seconds)
        self.fail_trial(pending.trial_id, error, seconds=seconds, step_id=pending.step_id)

    def fail_trial(
        self,
        trial_id: int,
        error: str,
        *,
        seconds: float,
        step_id: int = -1,
        epoch: int | None = None,
        saving: bool = False,
    ) -> None:
        """A trial is over, whether a step held it or not (its save hook may have raised).

        `epoch` is the one that it was in: a new one is charged, one with a score is paid for.
        `saving` says that it was its save hook that raised.
        """
        self._lock()
        self._append(
            Failed(
                step_id=step_id,
                trial_id=trial_id,
                error=error,
                seconds=seconds,
                charged=epoch is None or epoch > self._fold.curve(trial_id).epochs,
                saving=saving,
            )
        )

    def complete(self, step: Step | int) -> None:
        """The trial of this step has ended by itself, before its last epoch."""
        self._lock()
        pending = self._unfinished(step)
        self._append(Completed(step_id=pending.step_id, trial_id=pending.trial_id))

    def release(self, step: Step | int) -> None:
        """Give a step back unfinished: its trial can be chosen again."""
        self._lock()
        self._append(Released(step_id=self._unfinished(step).step_id))

    def _unfinished(self, step: Step | int) -> Step:
        pending = self._fold.pending_step(_id(step))
        if pending is None:
            raise TellError(f"step {_id(step)}: not a step that was handed out and is unfinished")
        return pending

    # ── what the executor tells ──────────────────────────────────────────────────────────────────

    def replayed(self, trial_id: int, epoch: int, seconds: float) -> None:
        """An epoch with a score was trained again; charged if eviction, not a crash, lost it."""
        self._lock()
        curve = self._fold.curve(trial_id)
        charged = curve.epochs - epoch < curve.replay_epochs
        self._append(Replayed(trial_id=trial_id, epoch=epoch, seconds=seconds, charged=charged))

    def evicted(self, trial_id: int, replay_epochs: int) -> None:
        """A trial left memory; that many epochs must be trained again before it goes on."""
        self._lock()
        if self._fold.curve(trial_id).state is TrialState.ACTIVE and replay_epochs:
            self._append(Evicted(trial_id=trial_id, replay_epochs=replay_epochs))

    def pause(self, kind: StopReason) -> Stop:
        """Stop for a reason outside the method: interrupted, or past a deadline."""
        self._lock()
        utility = self.problem.utility
        sentence = stop_sentence(kind, self.history.spent, utility.budget, utility.unit)
        stop = Stop(kind=kind, reason=sentence)
        self._append_stop(stop, self.last_decision)
        return stop

    def resume(self) -> None:
        """Go on with a study that was only paused (interrupted, deadline, failures)."""
        self._lock()
        if self.stop is not None and self.stop.kind not in FINAL:
            self._append(Resumed())

    def _append_stop(self, stop: Stop, decision: Decision | None) -> None:
        numbers = numbers_of(decision) if decision else {}
        self._append(Stopped(reason=stop.kind.value, sentence=stop.reason, numbers=numbers))

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _lock(self) -> None:
        """Become the writer; another one may have written since we read."""
        if self._locked:
            return
        try:
            self._log.lock()
            fold = _fold(self._log)
        except BaseException:
            self._log.close()
            raise
        mine = self._fold.problem.utility
        if isinstance(fold.problem.utility, Unavailable) and isinstance(mine, Custom):
            fold.use_utility(mine)
        self._fold, self._locked = fold, True

    def _append(self, event: Event) -> None:
        """Durable first, then known."""
        self._lock()
        self._log.append([event])
        self._fold.apply(event)

    def _policy(self) -> Policy:
        if isinstance(self.problem.utility, Unavailable):
            raise ConfigError(
                f"study {self.name!r} has the utility {self.problem.utility.describe()}, a Python "
                "function; pass it again with use_utility() before asking"
            )
        return Policy(
            problem=self.problem,
            extrapolator=self._load_extrapolator(),
            rule=self._rule,
            coupling=self._coupling,
            max_failures=self._max_failures,
        )

    @property
    def measures_pace(self) -> bool:
        """Whether `epochs_per_decision` is "auto"."""
        return self._pace == "auto"

    def _load_extrapolator(self) -> Extrapolator:
        if self._extrapolator is None:
            with plain_torch():
                extrapolator = load_extrapolator(self._weights, self._device)
            extrapolator.check(self.problem.space.width)
            self._extrapolator = extrapolator
        return self._extrapolator

    def _renew_pool(self) -> None:
        while (renewal := self._pool.renewal(self.history)) is not None:
            self._append(PoolRenewed(generation=renewal.generation, centers=list(renewal.centers)))

    def _fix_pace(self) -> None:
        """Fix `epochs_per_decision` once, as given or as soon as it can be measured."""
        history = self.history
        if history.epochs_per_decision is not None:
            if self._pace not in ("auto", history.epochs_per_decision):
                self._append(PaceFixed(epochs_per_decision=int(self._pace)))
            return
        if self._pace != "auto":
            self._append(PaceFixed(epochs_per_decision=self._pace))
            return
        deciding = self._fold.decision_seconds[1:]  # the first one also warms up
        training = [s for curve in history.curves.values() for s in curve.seconds if s > 0]
        if len(deciding) < MEASURED_DECISIONS or not training:
            return
        per_decision, per_epoch = statistics.median(deciding), statistics.median(training)
        wanted = per_decision * GROWTH / (OVERHEAD * per_epoch)
        self._append(
            PaceFixed(
                epochs_per_decision=min(max(1, math.ceil(wanted)), self.problem.max_epochs),
                seconds_per_decision=per_decision,
                seconds_per_epoch=per_epoch,
            )
        )


def load_extrapolator(weights: str | Path | Extrapolator | None, device: str) -> Extrapolator:
    """Weights by name or file, or an extrapolator of the user's own."""
    if weights is not None and not isinstance(weights, str | Path):
        return weights
    from freezethaw.pfn.extrapolate import PfnExtrapolator
    from freezethaw.pfn.weights import DEFAULT

    return PfnExtrapolator.load(DEFAULT if weights is None else weights, device=device)


def _fold(log: storages.Log) -> Fold:
    fold = Fold()
    for event in log.read():
        fold.apply(event)
    return fold


def _id(step: Step | int) -> int:
    return step.step_id if isinstance(step, Step) else step


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _pool(problem: Problem) -> Pool:
    if problem.pool_size is None:
        return FixedPool(problem.space, problem.configurations)
    return OpenPool(
        space=problem.space,
        seed=problem.seed,
        goal=problem.scale.goal,
        size=problem.pool_size,
        first=problem.configurations,
    )


def _version() -> str:
    try:
        return version("freezethaw")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"
