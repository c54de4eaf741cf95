"""Trials that freeze and thaw: suspended generators, their checkpoints, and their eviction.

Freezing a trial is not asking its generator for the next value. `Trials` owns the generators of a
study: it thaws the trial that is to be trained (in memory, from a checkpoint, or from the start),
asks it for one epoch after the other, and saves and closes trials as its limits demand.
"""

from __future__ import annotations

import functools
import gc
import shutil
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from freezethaw import isolation
from freezethaw.checkpoints import Checkpoint, CheckpointStore, HookFailedError
from freezethaw.errors import CheckpointError, ConfigError, TrainError
from freezethaw.isolation import Isolation, loaded_torch
from freezethaw.memory import MemoryProbe, SystemMemory
from freezethaw.records import Params, Step
from freezethaw.trial import (
    Link,
    TrainFunction,
    Trial,
    check_generator,
    check_train,
    read_report,
)

__all__ = ["CheckpointPolicy", "Report", "Trial", "TrialFailed", "Trials"]

CheckpointPolicy: TypeAlias = Literal["switch", "epoch", "evict"]
"""When a trial with a save hook is saved: when another one is chosen, after every epoch, or only
when it is evicted. Always also at the end, and before the best trial is trained further."""

OnEvict: TypeAlias = Callable[[int, int, int], None]
"""Told after an eviction: trial id, epochs trained, epoch of its newest checkpoint (0: none)."""

_CLOSE_ATTEMPTS = 10
_NOTICEABLE_FRACTION = 0.001
_LOWER_BY_FRACTION = 0.02


@dataclass(frozen=True, kw_only=True)
class Report:
    """One epoch trained."""

    trial_id: int
    epoch: int
    score: float
    extra: Mapping[str, Any]
    """What the yielded dict held beside the score."""
    seconds: float
    """Wall time of the epoch; the first after a start or a thaw includes the setup."""
    replayed: bool
    """Whether the study knows a score for this epoch; that one stands."""


class TrialFailed(Exception):  # noqa: N818 (what happened to a trial, not a fault of the tool)
    """The user's code raised, so this trial is over; the study goes on. Its memory is free.

    `trial_id` need not be the trial being advanced: saving another one may have failed.
    """

    def __init__(
        self, trial_id: int, epoch: int, seconds: float, text: str, *, saving: bool = False
    ) -> None:
        super().__init__(f"trial {trial_id} failed in epoch {epoch}: {text.strip()}")
        self.trial_id = trial_id
        self.epoch = epoch
        """The epoch that was being trained, or had been when its saving failed."""
        self.seconds = seconds
        """Time spent since the last report."""
        self.traceback = text
        """The traceback from the user's first frame on, or a message."""
        self.saving = saving
        """Whether it was the save hook that raised."""


class _Retrain(Exception):  # noqa: N818
    """The trial must be started again; `seconds` were spent in vain."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


@dataclass(kw_only=True)
class _Live:
    """A trial in memory."""

    trial: Trial
    trial_id: int
    params: Params
    """As the study knows them; the user may have changed `trial.params`."""
    link: Link
    isolation: Isolation
    epoch: int
    generator: Generator[Any, None, Any] | None = None
    """None until its first epoch."""
    seconds_lost: float = 0.0
    """Spent on an attempt that had to be started again; charged to the next report."""


class Trials:
    """The generators of a study, suspended and running, and their checkpoints.

    `folder` is where checkpoints are kept; None keeps them in a temporary folder until `close`.
    """

    def __init__(
        self,
        train: TrainFunction,
        *,
        max_epochs: int,
        metric: str = "score",
        folder: Path | None = None,
        checkpoint: CheckpointPolicy = "switch",
        max_suspended: int = 64,
        memory_left_free: float = 0.2,
        probe: MemoryProbe | None = None,
        notify: Callable[[str], None] = warnings.warn,
        on_evict: OnEvict | None = None,
    ) -> None:
        check_train(train)
        _check_settings(checkpoint, max_suspended, memory_left_free)
        self._train = train
        self._max_epochs = max_epochs
        self._metric = metric
        self._folder = folder
        self._policy = checkpoint
        self._max_suspended = max_suspended
        self._memory_left_free = memory_left_free
        self._memory_mark = memory_left_free
        self._probe = SystemMemory() if probe is None else probe
        self._notify = notify
        self._on_evict = on_evict
        self._live: dict[int, _Live] = {}  # least recently run first
        self._current: int | None = None
        self._completed: set[int] = set()
        self._best: tuple[int, int] | None = None
        self._former_bests: set[tuple[int, int]] = set()
        self._checkpoints_are_read = True
        self._told: set[str] = set()
        self._evicted: set[int] = set()
        """By this object; what a crash lost is not charged."""
        self._remove_folder: Callable[[], object] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ training

    def advance(self, step: Step, known_epochs: int) -> Iterator[Report]:
        """Train one trial until `step.to_epoch`, a report per epoch; replay what was lost first.

        Where the study knows more epochs than `step.to_epoch`, all of it is replay. Ends early when
        the training function returns (see `is_completed`). Ask for the next report only when the
        last one is durable: `checkpoint="epoch"` saves in between. The iterator may be dropped at
        any report; the trial then stays frozen there.

        Raises `TrialFailed` when the user's code raises, `TrainError` when it breaks the contract,
        `CheckpointError` when the disk is full or cannot be written.
        """
        self._save_previous(step.trial_id)
        live = self._thaw(step, known_epochs)
        while live.epoch < min(step.to_epoch, self._max_epochs):
            self._before_epoch(live)
            try:
                report = self._train_epoch(live, known_epochs)
            except _Retrain as again:
                live = self._start(step, known_epochs, again.seconds)
                continue
            if report is None:
                self._completed.add(step.trial_id)
                self._discard(live)
                return
            known_epochs = max(known_epochs, report.epoch)
            yield report
            if self._live.get(step.trial_id) is not live:
                return  # `finish` or `close` was called meanwhile
            if self._policy == "epoch":
                self._save(live)
        if live.epoch >= self._max_epochs:
            self._retire(live)

    def replay_epochs(self, trial_id: int, known_epochs: int) -> int:
        """How many known epochs `advance` would have to train again before the first new one."""
        live = self._live.get(trial_id)
        if live is not None and live.epoch <= known_epochs:
            return known_epochs - live.epoch
        checkpoint = self._newest(trial_id, known_epochs)
        return known_epochs - (0 if checkpoint is None else checkpoint.epoch)

    def is_completed(self, trial_id: int) -> bool:
        """Whether the training function has returned by itself."""
        return trial_id in self._completed

    # ------------------------------------------------------------------ the best model

    def keep_best(self, trial_id: int, epoch: int) -> None:
        """Say which trial and epoch are the best so far: that network is saved before it changes.

        To be called after every report that is the best so far, and first of all when a study is
        opened again. The former best is kept until the new one is durable.
        """
        if self._best == (trial_id, epoch):
            return
        if self._best is not None:
            self._former_bests.add(self._best)
        self._best = (trial_id, epoch)
        if self._store.get(trial_id, epoch) is not None:
            self._let_older_go(trial_id, epoch)

    @property
    def can_save(self) -> bool:
        """Whether a trial of this study, in this process or an earlier one, had a save hook."""
        return self._store.exists()

    def has_hook(self, trial_id: int) -> bool:
        """Whether the trial is in memory and has a save hook."""
        live = self._live.get(trial_id)
        return live is not None and live.link.hook is not None

    def best_checkpoint(self, trial_id: int, epoch: int) -> Path | None:
        """The folder in which the hook saved that epoch's network; None if it did not."""
        checkpoint = self._store.get(trial_id, epoch)
        return None if checkpoint is None else checkpoint.files

    # ------------------------------------------------------------------ the end

    def drop(self, trial_id: int) -> None:
        """Let go of a trial that will not be trained further, such as a diverged one."""
        live = self._live.get(trial_id)
        if live is not None:
            self._discard(live)
            _reclaim_memory()

    def finish(self, current_trial_id: int | None = None) -> None:
        """Save the current trial and the best, then let go of all. Checkpoints stay.

        The current one is the last that was advanced unless another is given. A hook that raises
        is told: there is nothing left to train for which the trial would have to fail. Both are
        tried and everything is let go before a full disk is raised as a `CheckpointError`.
        """
        current = self._current if current_trial_id is None else current_trial_id
        best = None if self._best is None else self._best[0]
        errors: list[CheckpointError] = []
        try:
            for trial_id in dict.fromkeys((best, current)):
                live = None if trial_id is None else self._live.get(trial_id)
                if live is not None:
                    try:
                        self._save(live)
                    except CheckpointError as error:
                        errors.append(error)
                    except TrialFailed as failure:
                        self._notify(f"a network could not be saved: {failure.traceback.strip()}")
        finally:
            self._discard_all()
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Let go of all trials without saving, and remove the temporary folder if there is one."""
        self._discard_all()
        self._remove_folder()

    # ------------------------------------------------------------------ thawing

    def _thaw(self, step: Step, known_epochs: int) -> _Live:
        live = self._live.get(step.trial_id)
        if live is not None and live.epoch > min(known_epochs, step.to_epoch):
            self._discard(live)  # ahead of the study: the score of its last epoch was not kept
            live = None
        if live is None:
            return self._start(step, known_epochs)
        self._live[step.trial_id] = self._live.pop(step.trial_id)
        return live

    def _start(self, step: Step, known_epochs: int, seconds_lost: float = 0.0) -> _Live:
        """A trial from its newest checkpoint or from the start; its generator is made later."""
        self._store.discard_unusable(step.trial_id, step.params, after=known_epochs)
        wanted = min(known_epochs, step.to_epoch)
        checkpoint = self._newest(step.trial_id, wanted)
        while checkpoint is not None and not checkpoint.is_intact():
            self._notify(f"{checkpoint.folder} is damaged and will not be used")
            self._store.discard(checkpoint)
            checkpoint = self._newest(step.trial_id, wanted)
        if checkpoint is None and known_epochs:
            self._tell_of_retraining(step.trial_id, known_epochs)
            evicted = step.trial_id in self._evicted and not self._checkpoints_are_read
            if evicted and self._on_evict is not None:
                self._on_evict(step.trial_id, known_epochs, 0)  # what was saved is of no use
        link = Link()
        if checkpoint is not None:
            link = Link(
                checkpoint=checkpoint.files,
                start_epoch=checkpoint.epoch,
                random=checkpoint.random,
            )
        live = self._new(step, link)
        live.seconds_lost = seconds_lost
        self._live[step.trial_id] = live
        return live

    def _new(self, step: Step, link: Link) -> _Live:
        trial = Trial(
            step.params,
            max_epochs=self._max_epochs,
            trial_id=step.trial_id,
            seed=step.seed,
            link=link,
        )
        return _Live(
            trial=trial,
            trial_id=step.trial_id,
            params=step.params,
            link=link,
            isolation=Isolation(step.seed),
            epoch=link.start_epoch,
        )

    def _newest(self, trial_id: int, known_epochs: int) -> Checkpoint | None:
        if not self._checkpoints_are_read or not known_epochs:
            return None
        return self._store.newest(trial_id, at_most=known_epochs)

    # ------------------------------------------------------------------ one epoch

    def _before_epoch(self, live: _Live) -> None:
        if self._best == (live.trial_id, live.epoch):
            self._save(live)
        self._make_room(live)

    def _train_epoch(self, live: _Live, known_epochs: int) -> Report | None:
        """Ask the generator for one epoch. None: it returned instead."""
        start = time.perf_counter()
        try:
            if live.generator is None:
                live.generator = check_generator(self._call(live, self._train, live.trial))
            value = self._call(live, next, live.generator)
            score, extra = read_report(value, self._metric)
        except StopIteration:
            if live.epoch:
                return None
            self._discard(live)
            raise TrialFailed(
                live.trial_id,
                1,
                time.perf_counter() - start + live.seconds_lost,
                "train(trial) returned without yielding a score; it must yield one per epoch",
            ) from None
        except TrainError:
            self._discard(live)
            raise
        seconds = time.perf_counter() - start + live.seconds_lost
        self._refuse_unread_checkpoint(live, seconds)
        live.seconds_lost = 0.0
        live.epoch += 1
        if live.link.hook is not None:
            self._store.make()
        return Report(
            trial_id=live.trial_id,
            epoch=live.epoch,
            score=score,
            extra=extra,
            seconds=seconds,
            replayed=live.epoch <= known_epochs,
        )

    def _call(self, live: _Live, function: Callable[..., Any], *args: object) -> Any:
        """Run the user's code. What it raises ends the trial, not the study."""
        start = time.perf_counter()
        try:
            return live.isolation.run(function, *args)
        except StopIteration:
            raise
        except Exception as error:
            others_hold_memory = _is_out_of_memory(error) and len(self._live) > 1
            text = _users_traceback(error)
        except BaseException:  # Ctrl-C went through the generator: there is nothing to thaw
            self._discard(live)
            raise
        # Out here nothing refers to the error any more, so its frames and the network go.
        seconds = time.perf_counter() - start + live.seconds_lost
        self._discard(live)
        _reclaim_memory()
        if others_hold_memory:
            while victim := self._victim(live):
                self._evict(victim)
            raise _Retrain(seconds)
        raise TrialFailed(live.trial_id, live.epoch + 1, seconds, text)

    def _refuse_unread_checkpoint(self, live: _Live, seconds: float) -> None:
        """A thawed trial that did not look at its checkpoint has started anew: count it so."""
        first = live.epoch == live.link.start_epoch
        if not first or live.link.checkpoint is None or live.link.checkpoint_was_read:
            return
        self._checkpoints_are_read = False
        self._told.add("retraining")  # what follows says it better
        self._tell_once(
            "unread",
            f"train did not read trial.checkpoint of trial {live.trial_id}, so frozen trials "
            "cannot be thawed from disk and are trained again from the start. At the start of "
            "train: if trial.checkpoint: net.load(trial.checkpoint / ...)",
        )
        self._discard(live)
        raise _Retrain(seconds)

    # ------------------------------------------------------------------ saving

    def _save_previous(self, trial_id: int) -> None:
        """Before another trial is trained (with "epoch": before any), save the last one."""
        previous = None if self._current is None else self._live.get(self._current)
        switched = self._policy == "switch" and self._current != trial_id
        if previous is not None and previous.epoch >= self._max_epochs:
            self._retire(previous)  # its iterator was dropped at the last report
        elif previous is not None and (switched or self._policy == "epoch"):
            self._save(previous)
        self._current = trial_id

    def _retire(self, live: _Live) -> None:
        """Save a trial that has been trained to its end, and let it go."""
        self._save(live)
        self._discard(live)
        _reclaim_memory()

    def _save(self, live: _Live) -> None:
        """Save a trial that has a hook, unless its newest checkpoint is of this epoch."""
        trial_id, hook, random = live.trial_id, live.link.hook, live.isolation.random
        if hook is None or random is None or live.epoch == 0:
            return
        failure = None
        if self._store.get(trial_id, live.epoch) is None:
            # What the hook draws must not count: when a trial is saved must not show in its scores.
            try:
                self._store.save(
                    trial_id,
                    live.epoch,
                    live.params,
                    random,
                    lambda folder: live.isolation.run_aside(hook, folder),
                )
            except HookFailedError as error:
                failure = TrialFailed(
                    trial_id, live.epoch, live.seconds_lost, error.traceback, saving=True
                )
        if failure is not None:
            self._discard(live)
            raise failure
        self._let_older_go(trial_id, live.epoch)

    def _let_older_go(self, trial_id: int, epoch: int) -> None:
        """Now that this checkpoint is durable, delete those that it replaces."""
        trials = {trial_id}
        if self._best == (trial_id, epoch):
            trials |= {former for former, _ in self._former_bests}
            self._former_bests.clear()
        for each in trials:
            newest = self._store.newest(each)
            kept = {e for t, e in self._former_bests if t == each}
            if self._best is not None and self._best[0] == each:
                kept.add(self._best[1])
            self._store.keep_only(each, kept if newest is None else kept | {newest.epoch})

    # ------------------------------------------------------------------ eviction

    def _make_room(self, running: _Live) -> None:
        """Evict until the limits in count and in memory are met, or nothing more helps."""
        while len(self._live) - 1 > self._max_suspended and (victim := self._victim(running)):
            self._evict(victim)
        free = self._free_fraction()
        if free >= self._memory_left_free:
            self._memory_mark = self._memory_left_free
        while free < self._memory_mark and (victim := self._victim(running)):
            self._evict(victim)
            before, free = free, self._free_fraction()
            if free - before < _NOTICEABLE_FRACTION:
                # Somebody else holds the memory. Evicting all the rest would only cost epochs, so
                # wait until even less is left.
                self._memory_mark = free - _LOWER_BY_FRACTION
                self._tell_once(
                    "memory",
                    f"only {free:.0%} of the memory is free, and evicting a frozen trial freed "
                    "none: other programs, or the running trial, hold it",
                )

    def _free_fraction(self) -> float:
        known = (self._probe.host_free_fraction(), self._probe.device_free_fraction())
        return min((free for free in known if free is not None), default=1.0)

    def _victim(self, running: _Live) -> _Live | None:
        """Who goes first: trials that can be saved, the least recently run of them."""
        others = [live for live in self._live.values() if live is not running]
        hooked = [live for live in others if live.link.hook is not None]
        return next(iter(hooked or others), None)

    def _evict(self, live: _Live) -> None:
        trial_id, epoch = live.trial_id, live.epoch
        self._save(live)
        if live.link.hook is None:
            self._tell_of_retraining(trial_id, epoch)
        self._discard(live)
        _reclaim_memory()
        self._evicted.add(trial_id)
        if self._on_evict is not None:
            checkpoint = self._newest(trial_id, epoch)
            self._on_evict(trial_id, epoch, 0 if checkpoint is None else checkpoint.epoch)

    def _discard_all(self) -> None:
        self._current = None
        if not self._live:
            return
        for live in list(self._live.values()):
            self._discard(live)
        _reclaim_memory()

    def _discard(self, live: _Live) -> None:
        """Close a generator and drop all that refers to the user's objects."""
        self._live.pop(live.trial_id, None)
        live.link.hook = None
        generator, live.generator = live.generator, None
        if generator is None:
            return
        complaint = ""
        # A generator that yields while it is closed (in a `finally`) has to be closed again.
        for _ in range(_CLOSE_ATTEMPTS):
            try:
                live.isolation.run(generator.close)
            except Exception as error:
                complaint = f"{type(error).__name__}: {error}"
            else:
                break
        if complaint:
            self._tell_once("close", f"closing trial {live.trial_id} raised {complaint}")

    # ------------------------------------------------------------------ small things

    @functools.cached_property
    def _store(self) -> CheckpointStore:
        if self._folder is not None:
            return CheckpointStore(self._folder)
        folder = Path(tempfile.mkdtemp(prefix="freezethaw-"))
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return CheckpointStore(folder)

    def _tell_of_retraining(self, trial_id: int, epochs: int) -> None:
        self._tell_once(
            "retraining",
            f"trial {trial_id} was let go after {epochs} epochs without a checkpoint; to go on, it "
            "is trained again from the start, and so is every such trial. A save hook avoids it: "
            'trial.on_freeze(lambda folder: net.save(folder / "net.pt")) and, at the start of '
            'train, if trial.checkpoint: net.load(trial.checkpoint / "net.pt")',
        )

    def _tell_once(self, topic: str, text: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            self._notify(text)


def _check_settings(policy: str, max_suspended: int, memory_left_free: float) -> None:
    if policy not in ("switch", "epoch", "evict"):
        raise ConfigError(
            f'checkpoint is {policy!r}; it must be "switch" (saved when another trial is chosen), '
            '"epoch" or "evict"'
        )
    if max_suspended < 0:
        raise ConfigError(f"max_suspended is {max_suspended}; it must be 0 or more")
    if not 0 <= memory_left_free < 1:
        raise ConfigError(f"memory_left_free is {memory_left_free}; it must lie in [0, 1)")


def _is_out_of_memory(error: Exception) -> bool:
    torch = loaded_torch()
    return isinstance(error, MemoryError) or (
        torch is not None and isinstance(error, torch.cuda.OutOfMemoryError)
    )


def _users_traceback(error: Exception) -> str:
    """The traceback without the frames of this package that led to the user's code."""
    own = {__file__, isolation.__file__}
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))


def _reclaim_memory() -> None:
    """Networks are full of reference cycles, and torch keeps freed device memory to itself."""
    gc.collect()
    torch = loaded_torch()
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
