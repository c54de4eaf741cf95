"""The loop: ask for a step, train it, tell the scores, until a stop."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from freezethaw.acquisition import Coupling
from freezethaw.errors import ConfigError, StudyError, UtilityError
from freezethaw.extrapolator import Extrapolator
from freezethaw.live import STOPPING, View, choose_view
from freezethaw.memory import MemoryProbe
from freezethaw.prefer.file import utility_of
from freezethaw.problems import Bounds, UtilityFunction, describe_problem
from freezethaw.records import Goal, Params, Result, Step, Stop, StopReason, TrialState
from freezethaw.report.view import StudyView
from freezethaw.seeds import trial_seed
from freezethaw.sentences import last_line
from freezethaw.space import Parameter, Space
from freezethaw.stopping import Rule
from freezethaw.storage import DEFAULT_NAME, checkpoint_folder
from freezethaw.study import FINAL, Pace, Study
from freezethaw.trial import TrainFunction, check_train
from freezethaw.trials import CheckpointPolicy, Report, TrialFailed, Trials
from freezethaw.units import parse_seconds
from freezethaw.utility import SLACK, Utility
from freezethaw.views import view_of
from freezethaw.wording import amount


def tune(
    train: TrainFunction,
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
    storage: str | Path | None = None,
    name: str = DEFAULT_NAME,
    seed: int = 0,
    first: Sequence[Params] = (),
    configurations: Sequence[Params] | None = None,
    pool_size: int = 512,
    stopping: Rule | str | None = None,
    coupling: str | Coupling = "comonotone",
    weights: str | Path | Extrapolator | None = None,
    device: str = "cpu",
    epochs_per_decision: Pace = "auto",
    checkpoint: CheckpointPolicy = "switch",
    max_suspended: int = 64,
    memory_left_free: float = 0.2,
    memory_probe: MemoryProbe | None = None,
    deadline: str | float | None = None,
    max_failures: int = 3,
    quiet: bool = False,
    view: View | None = None,
) -> Result:
    """Tune `train` over `space` until going on is no longer worth its price.

    Args:
        train: a generator function: gets a `Trial`, yields its score after every epoch.
        space: names to `Float`, `Int` and `Choice`.
        max_epochs: the longest a trial is trained.
        bounds: the lowest and highest score there can be; None where there is no bound.
        goal: "maximize" or "minimize".
        initial: the score of an untrained model; default: the bad bound.
        soft: the range in which scores will mostly lie; needed where the good bound is open.
        metric: the name of the score, where `train` yields dicts.
        utility: what a result is worth, or the file of `freezethaw prefer`; None: the best score
            within the budget.
        budget: the most to spend, for `utility=None` or a callable; default 6 × max_epochs epochs.
        storage: a SQLite file; the study goes on from there when called again. None: in memory,
            without checkpoints that outlast the call: `result.best.checkpoint` is None.
        name: the study's name in the file.
        seed: of the candidates, the trials and the decisions.
        first: configurations to run before any are chosen.
        configurations: a fixed pool to choose from, in place of the whole space.
        pool_size: how many configurations of the space are candidates at a time.
        stopping: when to stop, a rule or the name of one; default `ft.stopping.adaptive()`.
        coupling: how epochs of a forecast hang together: "comonotone", "averaged", "independent".
        weights: the extrapolator: a shipped name, a file, or an object of your own.
        device: where the extrapolator runs.
        epochs_per_decision: a number, or "auto": deciding takes under 10% of the training time.
        checkpoint: when trials with a save hook are saved: "switch", "epoch" or "evict".
        max_suspended: how many frozen trials may stay in memory.
        memory_left_free: the share of host and device memory that frozen trials leave free.
        memory_probe: how free memory is measured.
        deadline: wall time after which the study pauses, as in "2h" or seconds.
        max_failures: how many trials in a row may fail before the study stops.
        quiet: show nothing.
        view: a display of your own.

    Returns:
        The best trial, the bill and the reason of the stop.
    """
    check_train(train)
    if not (view is None or isinstance(view, View)):
        raise ConfigError(f"view={view!r}: must have the methods of freezethaw.live.View")
    seconds_allowed = _seconds(deadline)
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
    study = Study.of_problem(
        problem,
        storage=storage,
        name=name,
        stopping=stopping,
        coupling=coupling,
        weights=weights,
        device=device,
        max_failures=max_failures,
        epochs_per_decision=epochs_per_decision,
    )
    display = choose_view(quiet=quiet, stream=sys.stderr) if view is None else view

    def evicted(trial_id: int, epochs: int, saved: int) -> None:
        study.evicted(trial_id, epochs - saved)

    with study:
        trials = Trials(
            train,
            max_epochs=max_epochs,
            metric=metric,
            folder=None if storage is None else checkpoint_folder(storage, name),
            checkpoint=checkpoint,
            max_suspended=max_suspended,
            memory_left_free=memory_left_free,
            probe=memory_probe,
            notify=display.note,
            on_evict=evicted,
        )
        with trials, Interrupts(display.note) as interrupts, display:
            return Loop(study, trials, display, interrupts, seconds_allowed).run()


def _seconds(deadline: str | float | None) -> float | None:
    try:
        return None if deadline is None else parse_seconds(deadline)
    except UtilityError as error:
        raise ConfigError(f"deadline={deadline!r}: {error}") from None


class Loop:
    """Runs a study's steps one after the other, in this process."""

    def __init__(
        self,
        study: Study,
        trials: Trials,
        display: View,
        interrupts: Interrupts,
        seconds_allowed: float | None,
    ) -> None:
        self.study, self.trials = study, trials
        self.display, self.interrupts = display, interrupts
        self.ends = None if seconds_allowed is None else time.monotonic() + seconds_allowed

    def run(self) -> Result:
        """Until a stop; then save the current and the best trial."""
        self.study.resume()
        self._warn_of_small_budget()
        for step in self.study.outdated():
            self.study.release(step)  # it may go beyond a smaller budget
        self._keep_best()
        try:
            while self.study.stop is None:
                if self._should_pause():
                    self._pause()
                else:
                    self._one_step()
            self.trials.finish()
            self._recover_best()
        finally:
            self.trials.finish()
        self.display.stopped(self._view())
        return self.study.result()

    def _warn_of_small_budget(self) -> None:
        utility, spent = self.study.problem.utility, self.study.history.spent
        if spent > utility.budget * SLACK:
            had = amount(spent, utility.unit)
            self.display.note(
                f"{had} had been spent when this call lowered the budget to "
                f"{amount(utility.budget, utility.unit)}"
            )

    def _one_step(self) -> None:
        """A step that is still open (after an interruption), or a new one."""
        unfinished = self.study.pending()
        step = unfinished[0] if unfinished else self._ask()
        if isinstance(step, Stop) or self._should_pause():
            return
        self.display.decided(self._view())
        try:
            self._train(step)
        except TrialFailed as failure:
            self.display.note(_failure_line(failure))
            own = failure.trial_id == step.trial_id
            self.study.fail_trial(
                failure.trial_id,
                failure.traceback,
                seconds=failure.seconds,
                step_id=step.step_id if own else -1,
                epoch=failure.epoch,
                saving=failure.saving,
            )

    def _ask(self) -> Step | Stop:
        before = self.study.history.epochs_per_decision
        step = self.study.ask()
        pace = self.study.history.epochs_per_decision
        if before is None and pace is not None and pace > 1 and self.study.measures_pace:
            self.display.note(
                f"an epoch takes little time next to a decision, so each decision is for up to "
                f"{pace} epochs; epochs_per_decision=1 decides after every one"
            )
        return step

    def _train(self, step: Step) -> None:
        """Each score is durable before the next epoch begins."""
        known = self.study.history.curves[step.trial_id].epochs
        for report in self.trials.advance(step, known):
            if report.replayed:
                self.study.replayed(step.trial_id, report.epoch, report.seconds)
            else:
                self._tell(step, report)
                self._keep_best()
                self.display.epoch(self._view(), step.trial_id, report.epoch, report.score)
            if self._should_pause() or self._is_over(step):
                return
        if self.trials.is_completed(step.trial_id) and not self._is_over(step):
            self.study.complete(step)

    def _tell(self, step: Step, report: Report) -> None:
        try:
            self.study.tell(
                step,
                report.score,
                epoch=report.epoch,
                seconds=report.seconds,
                extra=report.extra,
            )
        except StudyError:
            # The network is ahead of the study now: it must not replace the last checkpoint.
            self.trials.drop(step.trial_id)
            raise

    def _is_over(self, step: Step) -> bool:
        """Diverged trials are let go at once."""
        state = self.study.history.curves[step.trial_id].state
        if state is TrialState.DIVERGED:
            self.trials.drop(step.trial_id)
        return state is not TrialState.ACTIVE

    def _should_pause(self) -> bool:
        late = self.ends is not None and time.monotonic() > self.ends
        return self.interrupts.requested or late

    def _pause(self) -> None:
        interrupted = self.interrupts.requested
        self.study.pause(StopReason.INTERRUPTED if interrupted else StopReason.DEADLINE)

    def _keep_best(self) -> None:
        history = self.study.history
        if history.best_trial_id is not None and history.best_epoch is not None:
            self.trials.keep_best(history.best_trial_id, history.best_epoch)

    def _recover_best(self) -> None:
        """Train the best network again where a crash came between its score and its saving.

        Only when the study is at its end: a trial that goes on recovers on its way.
        """
        stop, best = self.study.stop, self.study.best()
        if stop is None or stop.kind not in FINAL or best is None or self.study.storage is None:
            return
        cannot_be_saved = self.study.history.curves[best.trial_id].error is not None
        if best.checkpoint is not None or cannot_be_saved or not self.trials.can_save:
            return
        self.display.note(
            f"the network of trial {best.trial_id} at epoch {best.epoch} was lost with the process "
            "that trained it; it is trained again, on the bill but not on what was spent"
        )
        step = Step(
            step_id=-1,
            trial_id=best.trial_id,
            params=best.params,
            from_epoch=0,
            to_epoch=best.epoch,
            seed=trial_seed(self.study.problem.seed, best.trial_id),
        )
        known = self.study.history.curves[best.trial_id].epochs
        try:
            for report in self.trials.advance(step, known):
                self.study.replayed(best.trial_id, report.epoch, report.seconds)
                if self._should_pause() or not self.trials.has_hook(best.trial_id):
                    return
        except TrialFailed as failure:
            self.display.note(f"it could not be: {failure.traceback.strip()}")

    def _view(self) -> StudyView:
        return view_of(self.study)


def _failure_line(failure: TrialFailed) -> str:
    """What a trial died of, in a line; its traceback is in the study."""
    what = "could not be saved" if failure.saving else f"failed in epoch {failure.epoch}"
    return f"trial {failure.trial_id} {what}: {last_line(failure.traceback)}"


class Interrupts:
    """The first Ctrl-C or SIGTERM asks for a pause after the epoch; a second Ctrl-C aborts.

    Handlers are set in the main thread only, and put back at the end. A signal that is ignored, as
    Ctrl-C is in a background job of a shell, stays ignored.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, notify: Any) -> None:
        self.requested = False
        self._notify = notify
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        # The signal may have come while the same stream was written to, which cannot be nested.
        with contextlib.suppress(RuntimeError):
            self._notify(STOPPING)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
