"""Trials that freeze and thaw: nothing of it may show in the scores."""

from __future__ import annotations

import contextlib
import errno
import gc
import random
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from freezethaw.checkpoints import CheckpointStore
from freezethaw.errors import CheckpointError, ConfigError, TrainError
from freezethaw.executors import Executor
from freezethaw.records import Step
from freezethaw.seeds import trial_seed
from freezethaw.trials import Report, Trial, TrialFailed, Trials

MAX_EPOCHS = 6


class FakeProbe:
    """A machine whose free memory is what the test says."""

    def __init__(self) -> None:
        self.host: Callable[[], float | None] = lambda: None
        self.device: Callable[[], float | None] = lambda: None

    def host_free_fraction(self) -> float | None:
        return self.host()

    def device_free_fraction(self) -> float | None:
        return self.device()


class Bench:
    """A `Trials` under test, what it told, and the scores that the study would know."""

    def __init__(
        self,
        train: Callable[[Trial], Any],
        folder: Path | None = None,
        *,
        seed: int = 0,
        **settings: Any,
    ):
        self.seed = seed
        self.told: list[str] = []
        self.evicted: list[tuple[int, int, int]] = []
        self.probe = FakeProbe()
        self.trials = Trials(
            train,
            folder=folder,
            probe=self.probe,
            notify=self.told.append,
            on_evict=lambda *event: self.evicted.append(event),
            **{"max_epochs": MAX_EPOCHS, **settings},
        )
        self.scores: dict[int, list[float]] = {}

    def step(self, trial: int, to: int, params: dict[str, Any] | None = None) -> Step:
        known = len(self.scores.get(trial, ()))
        return Step(
            step_id=0,
            trial_id=trial,
            params={"lr": 0.1} if params is None else params,
            from_epoch=known,
            to_epoch=to,
            seed=trial_seed(self.seed, trial),
        )

    def run(self, trial: int, to: int | None = None) -> list[Report]:
        """Advance by one epoch, or up to `to`, as the tuning loop does."""
        known = self.scores.setdefault(trial, [])
        reports = []
        for report in self.trials.advance(self.step(trial, to or len(known) + 1), len(known)):
            reports.append(report)
            assert report.trial_id == trial
            if not report.replayed:
                known.append(report.score)
                assert report.epoch == len(known)
        return reports

    def in_memory(self) -> int:
        return len(self.trials._live)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "study.db.checkpoints"


def saved(folder: Path) -> dict[int, list[int]]:
    """Epochs on disk by trial, whole ones only."""
    assert not list(folder.glob("*/*.tmp-*"))
    found: dict[int, list[int]] = {}
    for path in sorted(folder.glob("trial-*/epoch-*/state.json")):
        trial, epoch = path.parts[-3], path.parts[-2]
        found.setdefault(int(trial.split("-")[1]), []).append(int(epoch.split("-")[1]))
    return found


def counting(hook: bool = True, load: bool = True) -> Callable[[Trial], Iterator[float]]:
    """Each epoch adds 1 to a "network"; the score tells whether the network is the right one."""

    def train(trial: Trial) -> Iterator[float]:
        network = {"epochs": 0}
        if hook:
            trial.on_freeze(lambda folder: (folder / "n").write_text(str(network["epochs"])))
        if load and trial.checkpoint:
            network["epochs"] = int((trial.checkpoint / "n").read_text())
        for _ in trial.epochs():
            network["epochs"] += 1
            yield 100 * trial.trial_id + network["epochs"]

    return train


def noisy_net(hook: bool) -> Callable[[Trial], Iterator[float]]:
    """A small network with dropout; draws from all three global streams in every epoch."""

    def train(trial: Trial) -> Iterator[float]:
        net = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        if hook:
            parts = (net, optimizer)
            trial.on_freeze(
                lambda folder: (
                    torch.rand(5),  # a hook that draws does not show either
                    torch.save([p.state_dict() for p in parts], folder / "net.pt"),
                )
            )
        if trial.checkpoint:
            for part, state in zip(
                (net, optimizer), torch.load(trial.checkpoint / "net.pt"), strict=True
            ):
                part.load_state_dict(state)
        for _ in trial.epochs():
            x = torch.randn(16, 4) + np.random.standard_normal() + random.gauss(0, 1)
            loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield {"score": loss.detach(), "draw": random.random()}

    return train


def alone(train: Callable[[Trial], Any], trial: int) -> list[float]:
    bench = Bench(train)
    with bench.trials:
        bench.run(trial, MAX_EPOCHS)
    return bench.scores[trial]


# ---------------------------------------------------------------- interleaving must not show


@pytest.mark.parametrize("hook", [True, False])
@pytest.mark.parametrize("max_suspended", [64, 0])
def test_interleaved_trials_score_as_each_alone(hook: bool, max_suspended: int):
    """In memory, through eviction and a thaw from disk, and through training again."""
    train = noisy_net(hook)
    bench = Bench(train, max_suspended=max_suspended)
    order = [3, 5, 5, 3, 3, 5, 3, 5, 3, 3, 5, 5]
    replayed = []
    with bench.trials:
        for trial in order:
            torch.rand(1), random.random(), np.random.rand()  # the caller draws as well
            replayed += [report for report in bench.run(trial) if report.replayed]
    assert bench.scores == {3: alone(train, 3), 5: alone(train, 5)}
    assert bench.scores[3] != bench.scores[5]
    assert bool(replayed) == (max_suspended == 0 and not hook)
    for report in replayed:
        assert report.score == bench.scores[report.trial_id][report.epoch - 1]
    assert bool(bench.evicted) == (max_suspended == 0)


def test_a_new_process_goes_on_where_the_last_one_stopped(folder: Path):
    train = noisy_net(hook=True)
    first = Bench(train, folder)
    first.run(3, 2), first.run(5, 3), first.run(3, 4)
    first.trials.finish()
    second = Bench(train, folder)
    second.scores = first.scores
    assert second.trials.replay_epochs(3, 4) == 0
    second.run(3, MAX_EPOCHS), second.run(5, MAX_EPOCHS)
    second.trials.close()
    assert second.scores == {3: alone(train, 3), 5: alone(train, 5)}


def test_a_trial_starts_from_its_seed_and_knows_it():
    def train(trial: Trial) -> Iterator[dict[str, float]]:
        for epoch in trial.epochs():
            yield {"score": random.random(), "seed": trial.seed, "epoch": epoch}

    bench = Bench(train)
    one, other = bench.run(1)[0], bench.run(2)[0]
    assert one.extra["seed"] != other.extra["seed"]
    assert one.score == random.Random(one.extra["seed"]).random()
    assert one.extra["epoch"] == 1
    assert one.extra["seed"] == trial_seed(0, 1)
    assert Bench(train, seed=1).run(1)[0].extra["seed"] == trial_seed(1, 1)


def test_a_trials_seed_never_changes():
    assert trial_seed(0, 12) == 0x2383BF77
    assert len({trial_seed(study, trial) for study in range(20) for trial in range(20)}) == 400


def test_modes_are_the_trials_own_through_failure_and_end():
    def train(trial: Trial) -> Iterator[float]:
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            for epoch in trial.epochs():
                if trial.trial_id == 2 and epoch == 2:
                    raise ValueError("boom")
                yield float(torch.is_inference_mode_enabled() and torch.is_autocast_enabled("cpu"))

    def is_clean() -> bool:
        return torch.is_grad_enabled() and not (
            torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu")
        )

    bench = Bench(train)
    for trial in (1, 2, 1, 3):
        bench.run(trial)
        assert is_clean()
    with pytest.raises(TrialFailed):
        bench.run(2)
    assert is_clean()
    bench.run(3, MAX_EPOCHS)
    assert is_clean()
    bench.trials.close()
    assert is_clean()
    assert {score for scores in bench.scores.values() for score in scores} == {1.0}


# ---------------------------------------------------------------- freezing and thawing


def test_a_suspended_trial_goes_on_by_being_asked():
    bench = Bench(counting(hook=False))
    for trial in (1, 2, 1, 1, 2):
        assert [r.replayed for r in bench.run(trial)] == [False]
        assert bench.trials.replay_epochs(trial, len(bench.scores[trial])) == 0
    assert bench.scores == {1: [101, 102, 103], 2: [201, 202]}
    assert bench.in_memory() == 2


def test_several_epochs_are_reported_one_by_one():
    bench = Bench(counting())
    assert [r.epoch for r in bench.run(1, 3)] == [1, 2, 3]
    assert [r.epoch for r in bench.run(1, 3)] == []
    assert [r.epoch for r in bench.run(1, 99)] == [4, 5, 6]  # never beyond max_epochs
    assert bench.in_memory() == 0


def test_a_dropped_iterator_leaves_the_trial_frozen_there():
    bench = Bench(counting(hook=False))
    for report in bench.trials.advance(bench.step(1, to=5), 0):
        if report.epoch == 2:
            break
    bench.scores[1] = [101, 102]
    assert [r.score for r in bench.run(1)] == [103]


def test_a_trial_let_go_in_the_middle_of_a_step_is_not_started_anew():
    bench = Bench(counting(hook=False))
    seen = []
    for report in bench.trials.advance(bench.step(1, to=5), 0):
        seen.append(report.score)
        if report.epoch == 2:
            bench.trials.finish()
    assert seen == [101, 102]


def test_a_report_that_the_study_lost_is_trained_again():
    bench = Bench(counting())
    bench.run(1, 3)
    bench.scores[1].pop()  # the caller failed before it stored the third
    assert [(r.epoch, r.score, r.replayed) for r in bench.run(1)] == [
        (1, 101, True),
        (2, 102, True),
        (3, 103, False),
    ]


def test_seconds_are_the_time_of_the_epoch_alone():
    def train(trial: Trial) -> Iterator[float]:
        time.sleep(0.05)
        for _ in trial.epochs():
            time.sleep(0.02)
            yield 0.0

    bench = Bench(train)
    first, second = [], []
    for report in bench.trials.advance(bench.step(1, to=2), 0):
        (second if first else first).append(report.seconds)
        time.sleep(0.1)
    assert 0.07 <= first[0] < 0.12
    assert 0.02 <= second[0] < 0.07


def test_returning_early_completes_the_trial():
    def train(trial: Trial) -> Iterator[float]:
        for epoch in trial.epochs():
            yield epoch
            if epoch == 2:
                return

    bench = Bench(train)
    assert len(bench.run(1, 2)) == 2
    assert not bench.trials.is_completed(1)
    assert bench.run(1, 5) == []
    assert bench.trials.is_completed(1)
    assert not bench.trials.is_completed(2)
    assert bench.in_memory() == 0


def test_a_loop_of_the_users_own_is_not_asked_beyond_the_last_epoch():
    asked = []

    def train(trial: Trial) -> Iterator[float]:
        for epoch in range(1, 1000):
            asked.append(epoch)
            yield epoch

    bench = Bench(train)
    assert len(bench.run(1, 1000)) == MAX_EPOCHS
    assert len(asked) == MAX_EPOCHS


def test_changed_params_change_nothing_else(folder: Path):
    def train(trial: Trial) -> Iterator[float]:
        trial.on_freeze(lambda folder: None)
        assert trial.checkpoint is None or trial.params == {"lr": 0.1}
        trial.params["lr"] = 7.0
        yield from trial.epochs()

    bench = Bench(train, folder)
    bench.run(1), bench.run(2)
    again = Bench(train, folder)
    again.scores = bench.scores
    assert [r.epoch for r in again.run(1)] == [2]  # its checkpoint is of the parameters given


# ---------------------------------------------------------------- failures


def test_the_users_exception_ends_the_trial_and_not_the_study():
    def train(trial: Trial) -> Iterator[float]:
        yield 0.5
        time.sleep(0.01)
        if trial.trial_id == 1:
            raise ZeroDivisionError("in the second epoch")
        yield 0.6

    bench = Bench(train)
    bench.run(1), bench.run(2)
    with pytest.raises(TrialFailed) as caught:
        bench.run(1)
    failure = caught.value
    assert (failure.trial_id, failure.epoch) == (1, 2)
    assert failure.seconds >= 0.01
    assert failure.traceback.splitlines()[1].strip().startswith(f'File "{__file__}"')
    assert failure.traceback.endswith("ZeroDivisionError: in the second epoch\n")
    assert failure.__context__ is None
    assert bench.run(2)[0].score == 0.6


def test_a_failed_trial_frees_its_memory():
    class Net:
        pass

    nets = []

    def train(trial: Trial) -> Iterator[float]:
        net = Net()
        net.itself = net  # type: ignore[attr-defined]
        nets.append(weakref.ref(net))
        trial.on_freeze(lambda folder: net and None)
        yield 0.5
        raise ValueError("boom")

    bench = Bench(train)
    bench.run(1)
    with pytest.raises(TrialFailed):
        bench.run(1)
    assert nets[0]() is None
    assert bench.in_memory() == 0


def test_a_call_that_raises_is_a_failed_trial():
    def fail(trial: Trial) -> Iterator[float]:
        raise ValueError("no data")

    with pytest.raises(TrialFailed, match="no data") as caught:
        Bench(lambda trial: fail(trial)).run(1)
    assert caught.value.epoch == 1


def test_a_trial_that_yields_nothing_has_failed():
    def train(trial: Trial) -> Iterator[float]:
        if trial.params["lr"] > 1:
            yield 0.0

    with pytest.raises(TrialFailed, match="without yielding a score"):
        Bench(train).run(1)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through(stop: type[BaseException]):
    def train(trial: Trial) -> Iterator[float]:
        with torch.no_grad():
            yield 0.5
            raise stop

    bench = Bench(train)
    bench.run(1)
    with pytest.raises(stop):
        bench.run(1)
    assert torch.is_grad_enabled()
    assert bench.in_memory() == 0
    bench.trials.finish()


def test_a_broken_contract_stops_the_study():
    def train(trial: Trial) -> Iterator[Any]:
        try:
            yield 0.5
            yield "0.5"
        finally:
            closed.append(True)

    closed: list[bool] = []
    bench = Bench(train)
    bench.run(1)
    with pytest.raises(TrainError, match="a score is a number"):
        bench.run(1)
    assert closed == [True]
    with pytest.raises(TrainError, match=r"returned 0\.5"):
        Bench(lambda trial: 0.5).run(1)

    def returns(trial: Trial) -> float:
        return 0.5

    with pytest.raises(TrainError, match="not a generator function"):
        Bench(returns)


def test_out_of_memory_that_frozen_trials_cause_is_tried_again_without_them():
    room = 2
    nets: weakref.WeakSet[Any] = weakref.WeakSet()

    class Net:
        def __init__(self) -> None:
            if len(nets) >= room:
                raise MemoryError
            nets.add(self)

    def train(trial: Trial) -> Iterator[float]:
        net = Net()
        for epoch in trial.epochs():
            yield epoch if net else 0

    bench = Bench(train)
    for trial in (1, 2, 3):
        bench.run(trial)
    assert bench.scores == {1: [1], 2: [1], 3: [1]}
    assert bench.evicted == [(1, 1, 0), (2, 1, 0)]
    room = 0
    bench.trials.close()
    gc.collect()
    with pytest.raises(TrialFailed, match="MemoryError"):
        bench.run(4)


def test_epochs_reported_before_memory_ran_out_are_not_reported_as_new_again():
    fail_in = [3]

    def train(trial: Trial) -> Iterator[float]:
        for epoch in trial.epochs():
            if trial.trial_id == 1 and epoch in fail_in:
                fail_in.clear()
                raise MemoryError
            yield epoch

    bench = Bench(train)
    bench.run(2)
    assert [(r.epoch, r.replayed) for r in bench.run(1, 4)] == [
        (1, False),
        (2, False),
        (1, True),
        (2, True),
        (3, False),
        (4, False),
    ]


@pytest.mark.parametrize(
    "setting",
    [{"checkpoint": "always"}, {"max_suspended": -1}, {"memory_left_free": 1.5}],
)
def test_settings_are_checked(setting: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        Bench(counting(), **setting)


# ---------------------------------------------------------------- closing


def test_what_a_generator_does_when_it_is_closed_is_survived():
    def train(trial: Trial) -> Iterator[float]:
        try:
            for epoch in trial.epochs():
                try:
                    yield epoch
                except GeneratorExit:
                    if trial.trial_id == 1:
                        continue  # ignores it, once
                    if trial.trial_id == 2:
                        raise ValueError("cannot close the file") from None
                    raise
                if trial.trial_id == 1 and epoch > 3:
                    return
        finally:
            try:
                if trial.trial_id == 3:
                    yield 0.0
            finally:
                closed.append(trial.trial_id)

    closed: list[int] = []
    for trial in (1, 2, 3, 4):
        bench = Bench(train)
        bench.run(trial)
        bench.trials.close()
        assert closed[-1] == trial
        assert bench.in_memory() == 0
        assert len(bench.told) == (trial != 4)
    assert len(closed) == 4


def test_closing_finds_the_trials_modes():
    seen = []

    def train(trial: Trial) -> Iterator[float]:
        with torch.no_grad():
            try:
                yield 0.0
            finally:
                seen.append(torch.is_grad_enabled())

    bench = Bench(train)
    bench.run(1)
    bench.trials.close()
    assert seen == [False]
    assert torch.is_grad_enabled()


# ---------------------------------------------------------------- checkpoints


def test_switch_saves_when_another_trial_is_chosen(folder: Path):
    bench = Bench(counting(), folder, checkpoint="switch")
    bench.run(1), bench.run(1)
    assert saved(folder) == {}
    bench.run(2)
    assert saved(folder) == {1: [2]}
    bench.run(1)
    assert saved(folder) == {1: [2], 2: [1]}
    bench.run(2)
    assert saved(folder) == {1: [3], 2: [1]}  # the older went


def test_epoch_saves_once_the_report_has_been_handled(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    on_disk = [saved(folder) for _ in bench.trials.advance(bench.step(1, to=3), 0)]
    assert on_disk == [{}, {1: [1]}, {1: [2]}]
    assert saved(folder) == {1: [3]}


def test_epoch_saves_an_iterator_that_was_dropped_later(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    next(iter(bench.trials.advance(bench.step(1, to=3), 0)))
    assert saved(folder) == {}
    bench.scores[1] = [101]
    next(iter(bench.trials.advance(bench.step(1, to=3), 1)))
    assert saved(folder) == {1: [1]}


def test_evict_saves_only_then_and_at_the_end(folder: Path):
    bench = Bench(counting(), folder, checkpoint="evict", max_suspended=1)
    bench.run(1), bench.run(2)
    assert saved(folder) == {}
    bench.run(3)
    assert saved(folder) == {1: [1]}
    assert bench.evicted == [(1, 1, 1)]
    bench.trials.finish()
    assert saved(folder) == {1: [1], 3: [1]}


def test_without_a_hook_nothing_is_written(folder: Path):
    bench = Bench(counting(hook=False), folder, max_suspended=0, checkpoint="epoch")
    bench.run(1), bench.run(2)
    bench.trials.keep_best(1, 1)
    assert not bench.trials.can_save
    assert (bench.trials.has_hook(1), bench.trials.best_checkpoint(1, 1)) == (False, None)
    bench.run(1)
    bench.trials.finish()
    assert not folder.exists()


def test_a_hook_may_come_late_and_the_last_one_counts(folder: Path):
    def train(trial: Trial) -> Iterator[float]:
        for epoch in trial.epochs():
            yield epoch
            if epoch < 4:
                trial.on_freeze(lambda folder, e=epoch: (folder / "by").write_text(str(e)))

    bench = Bench(train, folder)
    bench.run(1)
    assert not bench.trials.has_hook(1)
    bench.run(2)
    assert saved(folder) == {}
    bench.run(1, 3), bench.run(2)
    assert bench.trials.has_hook(1)
    assert saved(folder) == {1: [3]}
    path = bench.trials.best_checkpoint(1, 3)
    assert path is not None
    assert (path / "by").read_text() == "2"


def test_thawing_from_disk_reads_the_newest_that_the_study_knows(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    bench.run(1, 4)
    bench.trials.close()
    again = Bench(counting(), folder)
    again.scores = {1: [101, 102, 103, 104]}
    assert again.trials.replay_epochs(1, 4) == 0
    assert again.trials.replay_epochs(1, 3) == 3  # the checkpoint is ahead of the study
    assert [(r.epoch, r.score, r.replayed) for r in again.run(1)] == [(5, 105, False)]
    again.trials.close()


def test_epochs_after_the_checkpoint_are_replayed(folder: Path):
    bench = Bench(counting(), folder)
    bench.run(1, 2), bench.run(2), bench.run(1, 4)
    again = Bench(counting(), folder)  # the process was killed: epochs 3 and 4 are not on disk
    again.scores = bench.scores
    assert again.trials.replay_epochs(1, 4) == 2
    assert [(r.epoch, r.score, r.replayed) for r in again.run(1)] == [
        (3, 103, True),
        (4, 104, True),
        (5, 105, False),
    ]
    assert again.told == []


def test_a_checkpoint_ahead_of_the_study_is_deleted(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    bench.run(1, 4)
    again = Bench(counting(), folder)
    again.scores = {1: [101, 102]}
    assert [r.replayed for r in again.run(1)] == [True, True, False]
    assert saved(folder) == {}


def test_what_another_study_left_in_the_folder_is_not_used(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    bench.run(1, 4)
    again = Bench(counting(), folder)
    reports = list(again.trials.advance(again.step(1, to=1, params={"lr": 0.2}), 0))
    assert [r.score for r in reports] == [101]
    assert saved(folder) == {}


def test_a_damaged_checkpoint_is_told_and_passed_over(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    bench.run(1, 2)
    bench.trials.keep_best(1, 2)
    bench.run(1, 4)
    assert saved(folder) == {1: [2, 4]}
    (folder / "trial-000001/epoch-0004/files/n").write_text("9")
    again = Bench(counting(), folder)
    again.scores = bench.scores
    assert [r.score for r in again.run(1)] == [103, 104, 105]
    assert len(again.told) == 1
    assert "epoch-0004 is damaged" in again.told[0]


def test_the_checkpoint_stays_while_a_thawed_trial_may_still_read_it(folder: Path):
    def train(trial: Trial) -> Iterator[float]:
        trial.on_freeze(lambda folder: (folder / "n").write_text("x"))
        for epoch in trial.epochs():
            if trial.checkpoint:
                assert (trial.checkpoint / "n").exists()
            yield epoch

    bench = Bench(train, folder, checkpoint="epoch")
    bench.run(1, 2)
    again = Bench(train, folder)
    again.scores = bench.scores
    again.run(1, 4)
    assert saved(folder) == {1: [2]}
    again.run(2)
    assert saved(folder) == {1: [4]}


def test_a_trial_that_ignores_its_checkpoint_is_counted_from_the_start(folder: Path):
    bench = Bench(counting(load=False), folder, max_suspended=0)
    bench.run(1, 2), bench.run(2)
    reports = bench.run(1)
    assert [(r.epoch, r.score, r.replayed) for r in reports] == [
        (1, 101, True),
        (2, 102, True),
        (3, 103, False),
    ]
    assert len(bench.told) == 1
    assert "did not read trial.checkpoint" in bench.told[0]
    assert bench.trials.replay_epochs(2, 1) == 1  # from now on this is known
    bench.run(2)
    assert bench.evicted[-1] == (1, 3, 0)


def test_an_in_memory_study_has_checkpoints_until_it_is_closed():
    bench = Bench(counting(), max_suspended=0)
    bench.run(1), bench.run(2)
    path = bench.trials.best_checkpoint(1, 1)
    assert path is not None
    assert bench.run(1)[0].score == 102
    bench.trials.finish()
    assert (root := path.parents[2]).exists()
    bench.trials.close()
    assert not root.exists()


def test_a_hook_that_raises_fails_its_trial_not_the_one_chosen(folder: Path):
    def train(trial: Trial) -> Iterator[float]:
        if trial.trial_id == 1:
            trial.on_freeze(lambda folder: 1 / 0)
        yield from trial.epochs()

    bench = Bench(train, folder)
    bench.run(1), bench.run(1)
    with pytest.raises(TrialFailed, match="the save hook of trial 1") as caught:
        bench.run(2)
    assert (caught.value.trial_id, caught.value.epoch) == (1, 2)
    assert "ZeroDivisionError" in caught.value.traceback
    assert bench.in_memory() == 0
    assert [r.epoch for r in bench.run(2)] == [1]
    assert saved(folder) == {}


def test_a_full_disk_stops_the_study_and_loses_nothing(folder: Path):
    full = True

    def write(folder: Path) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def train(trial: Trial) -> Iterator[float]:
        trial.on_freeze(write)
        yield from trial.epochs()

    bench = Bench(train, folder)
    bench.run(1)
    with pytest.raises(CheckpointError, match="the disk is full"):
        bench.run(2)
    assert bench.in_memory() == 1
    full = False
    assert [r.epoch for r in bench.run(2)] == [1]
    assert saved(folder) == {1: [1]}
    full = True
    with pytest.raises(CheckpointError, match="the disk is full"):
        bench.trials.finish()
    assert bench.in_memory() == 0


# ---------------------------------------------------------------- the best model


def test_the_best_is_saved_before_it_is_trained_further(folder: Path):
    bench = Bench(counting(), folder, checkpoint="evict")
    bench.run(1, 2)
    bench.trials.keep_best(1, 2)
    assert saved(folder) == {}
    bench.run(1, 4)
    assert saved(folder) == {1: [2]}
    path = bench.trials.best_checkpoint(1, 2)
    assert path is not None
    assert (path / "n").read_text() == "2"
    bench.trials.finish(1)
    assert saved(folder) == {1: [2, 4]}


def test_the_best_within_a_step_is_saved_as_it_goes(folder: Path):
    bench = Bench(counting(), folder, checkpoint="evict")
    on_disk = []
    for report in bench.trials.advance(bench.step(1, to=4), 0):
        if report.epoch in (1, 3):
            bench.trials.keep_best(1, report.epoch)
        on_disk.append(saved(folder))
    assert on_disk == [{}, {1: [1]}, {1: [1]}, {1: [3]}]


def test_the_former_best_goes_once_the_new_one_is_durable(folder: Path):
    bench = Bench(counting(), folder)
    bench.run(1, 2)
    bench.trials.keep_best(1, 2)
    bench.run(1, 3), bench.run(2)
    assert saved(folder) == {1: [2, 3]}
    bench.trials.keep_best(2, 1)
    assert saved(folder) == {1: [2, 3]}  # trial 2 is in memory only
    bench.run(2)
    assert saved(folder) == {1: [3], 2: [1]}
    bench.run(1, 4)  # the switch saves trial 2 at epoch 2, the newest
    assert saved(folder) == {1: [3], 2: [1, 2]}
    bench.trials.keep_best(1, 4)
    bench.trials.finish()
    assert saved(folder) == {1: [4], 2: [2]}


def test_a_best_that_is_saved_already_releases_the_former_at_once(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    bench.run(1)
    bench.trials.keep_best(1, 1)
    bench.run(1, 3), bench.run(2)
    assert saved(folder) == {1: [1, 3], 2: [1]}
    bench.trials.keep_best(2, 1)
    assert saved(folder) == {1: [3], 2: [1]}


def test_a_study_opened_again_keeps_its_best(folder: Path):
    bench = Bench(counting(), folder)
    bench.run(1, 2)
    bench.trials.keep_best(1, 2)
    bench.run(1, 3)
    bench.trials.finish()
    again = Bench(counting(), folder, checkpoint="epoch")
    again.scores = bench.scores
    again.trials.keep_best(1, 2)
    assert again.trials.can_save
    assert not again.trials.has_hook(1)
    again.run(1, 5)
    assert saved(folder) == {1: [2, 5]}


def test_the_best_is_trained_again_from_below_where_the_study_is(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    bench.run(1, 5)
    bench.trials.keep_best(1, 3)
    bench.trials.finish()
    assert saved(folder) == {1: [5]}  # epoch 3 was the best, and its saving never came
    again = Bench(counting(), folder)
    again.trials.keep_best(1, 3)
    reports = list(again.trials.advance(again.step(1, to=3), 5))
    assert [(r.epoch, r.score, r.replayed) for r in reports] == [
        (epoch, bench.scores[1][epoch - 1], True) for epoch in (1, 2, 3)
    ]
    again.trials.finish()
    assert saved(folder) == {1: [3, 5]}


def test_the_last_epoch_is_saved_and_the_trial_let_go(folder: Path):
    bench = Bench(counting(), folder, checkpoint="evict")
    for report in bench.trials.advance(bench.step(1, to=MAX_EPOCHS), 0):
        bench.trials.keep_best(1, report.epoch)
    assert saved(folder) == {1: [MAX_EPOCHS]}
    assert bench.in_memory() == 0


def test_a_trial_left_at_its_last_report_is_let_go_at_the_next_switch(folder: Path):
    bench = Bench(counting(), folder, checkpoint="evict")
    for report in bench.trials.advance(bench.step(1, to=MAX_EPOCHS), 0):
        if report.epoch == MAX_EPOCHS:
            break
    assert bench.in_memory() == 1
    bench.run(2)
    assert bench.in_memory() == 1
    assert saved(folder) == {1: [MAX_EPOCHS]}


def test_a_dropped_trial_is_closed_and_not_saved(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    seen = []
    for report in bench.trials.advance(bench.step(1, to=3), 0):
        seen.append(report.epoch)
        bench.trials.drop(1)
        bench.trials.drop(1)
    assert seen == [1]
    assert bench.in_memory() == 0
    assert saved(folder) == {}


def test_at_the_end_the_current_and_the_best_are_saved_though_one_fails(folder: Path):
    def train(trial: Trial) -> Iterator[float]:
        trial.on_freeze(lambda folder: 1 / (trial.trial_id - 1))
        yield from trial.epochs()

    bench = Bench(train, folder, checkpoint="evict")
    for trial in (1, 2, 3):
        bench.run(trial)
    bench.trials.keep_best(1, 1)
    bench.trials.finish(2)
    assert len(bench.told) == 1
    assert "the save hook of trial 1 raised" in bench.told[0]
    assert "ZeroDivisionError" in bench.told[0]
    assert saved(folder) == {2: [1]}
    assert bench.in_memory() == 0


# ---------------------------------------------------------------- eviction


def hooked_if_even(trial: Trial) -> Iterator[float]:
    return counting(hook=trial.trial_id % 2 == 0)(trial)


def run_in_turn(bench: Bench, trials: list[int]) -> list[int]:
    """Run one epoch of each; return who was evicted."""
    for trial in trials:
        bench.run(trial)
    return [trial for trial, _, _ in bench.evicted]


def test_the_least_recently_run_goes_first_and_those_with_a_hook_before_all():
    bench = Bench(lambda trial: hooked_if_even(trial), max_suspended=3)
    assert run_in_turn(bench, [1, 2, 4, 6, 2]) == []
    assert run_in_turn(bench, [8]) == [4]
    assert run_in_turn(bench, [3]) == [4, 6]
    assert run_in_turn(bench, [5]) == [4, 6, 2]
    assert bench.evicted[-1] == (2, 2, 2)
    assert run_in_turn(bench, [7]) == [4, 6, 2, 8]
    assert bench.told == []
    assert run_in_turn(bench, [9]) == [4, 6, 2, 8, 1]  # only now one without a hook
    assert bench.evicted[-1] == (1, 1, 0)
    assert len(bench.told) == 1
    assert run_in_turn(bench, [1]) == [4, 6, 2, 8, 1, 3]
    assert len(bench.told) == 1  # told once
    assert bench.scores[1] == [101, 102]


@pytest.mark.parametrize("where", ["host", "device"])
def test_memory_that_runs_short_evicts_until_enough_is_free(where: str):
    bench = Bench(counting(hook=False))
    setattr(bench.probe, where, lambda: 1 - 0.199 * bench.in_memory())
    assert run_in_turn(bench, [1, 2, 3, 4]) == []
    assert run_in_turn(bench, [5]) == [1]
    assert run_in_turn(bench, [2, 3]) == [1]
    setattr(bench.probe, where, lambda: 1 - 0.3 * bench.in_memory())
    assert run_in_turn(bench, [3]) == [1, 4, 5]
    assert bench.in_memory() == 2


def test_memory_that_others_hold_does_not_cost_all_frozen_trials():
    bench = Bench(counting(hook=False))
    run_in_turn(bench, [1, 2, 3, 4, 5])
    free = 0.10
    bench.probe.host = lambda: free
    assert run_in_turn(bench, [5, 4, 5, 4]) == [1]
    assert any("freed none" in text for text in bench.told)
    free = 0.07  # even less: worth another try
    assert run_in_turn(bench, [5, 4]) == [1, 2]
    free = 0.5
    assert run_in_turn(bench, [5]) == [1, 2]
    free = 0.15  # after it had recovered, the limit is the old one
    assert run_in_turn(bench, [5]) == [1, 2, 3]


def test_eviction_frees_the_network():
    nets = []

    def train(trial: Trial) -> Iterator[float]:
        net = torch.nn.Linear(2, 2)
        nets.append(weakref.ref(net))
        trial.on_freeze(lambda folder: torch.save(net.state_dict(), folder / "net.pt"))
        if trial.checkpoint:
            net.load_state_dict(torch.load(trial.checkpoint / "net.pt"))
        yield from trial.epochs()

    bench = Bench(train, max_suspended=0)
    bench.run(1), bench.run(2)
    assert nets[0]() is None
    assert nets[1]() is not None


def test_an_evicted_trial_without_a_hook_costs_its_epochs_again():
    bench = Bench(counting(hook=False), max_suspended=0)
    bench.run(1, 3), bench.run(2)
    assert bench.trials.replay_epochs(1, 3) == 3
    assert [r.replayed for r in bench.run(1)] == [True, True, True, False]
    assert bench.scores[1] == [101, 102, 103, 104]
    assert bench.trials.replay_epochs(1, 4) == 0


def test_a_replay_that_was_broken_off_goes_on():
    bench = Bench(counting(hook=False), max_suspended=0)
    bench.run(1, 3), bench.run(2)
    with contextlib.closing(bench.trials.advance(bench.step(1, to=4), 3)) as reports:  # type: ignore[type-var]
        assert next(reports).replayed
    assert bench.trials.replay_epochs(1, 3) == 2
    assert [r.epoch for r in bench.run(1)] == [2, 3, 4]


def test_trials_are_an_executor():
    executor: Executor = Bench(counting()).trials
    assert executor.is_completed(1) is False


def test_a_store_on_the_folder_agrees(folder: Path):
    bench = Bench(counting(), folder, checkpoint="epoch")
    bench.run(1, 2)
    newest = CheckpointStore(folder).newest(1)
    assert newest is not None
    assert newest.files == bench.trials.best_checkpoint(1, 2)
