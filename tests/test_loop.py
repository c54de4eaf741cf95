"""The loop: real generators, real storage, a fast extrapolator."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import freezethaw as ft
from fake_extrapolators import FakeCurves
from freezethaw import report
from freezethaw.errors import (
    CheckpointError,
    ConfigError,
    ExtrapolatorError,
    MismatchError,
    ScaleError,
    StorageError,
    TellError,
    TrainError,
)
from freezethaw.live import QuietView
from freezethaw.records import StopReason, TrialState
from freezethaw.stopping import never
from freezethaw.storage import checkpoint_folder, open_log
from freezethaw.study import Study
from freezethaw.views import view_of

SPACE = {"lr": ft.Float(1e-4, 1.0, log=True), "width": ft.Int(2, 64)}
CONFIGURATIONS = [{"lr": 10.0**-n, "width": 2 + n} for n in range(5)]


def learn(trial, epoch: int) -> float:
    """A score between 0.1 and 0.9; the best is lr = 0.01. Depends on the trial's random stream."""
    top = 0.8 - 0.2 * abs(math.log10(trial.params["lr"]) + 2)
    return 0.1 + max(top, 0.05) * (1 - math.exp(-epoch / 2)) + 0.01 * random.random()


def train(trial):
    for epoch in trial.epochs():
        yield learn(trial, epoch)


def saving(trial):
    """The same, with a save hook; what was saved says which epoch it was."""
    state = {"epoch": 0}
    trial.on_freeze(lambda folder: (folder / "net.json").write_text(json.dumps(state)))
    if trial.checkpoint:
        state.update(json.loads((trial.checkpoint / "net.json").read_text()))
    for epoch in trial.epochs():
        assert state["epoch"] == epoch - 1
        state["epoch"] = epoch
        yield learn(trial, epoch)


def settings(**changes):
    given = {
        "space": SPACE,
        "max_epochs": 6,
        "bounds": (0, 1),
        "initial": 0.1,
        "utility": ft.linear(alpha=0.3, budget=30),
        "configurations": CONFIGURATIONS,
        "weights": FakeCurves(),
        "epochs_per_decision": 1,
        "quiet": True,
    }
    return given | changes


def tune(function=train, **changes):
    return ft.tune(function, **settings(**changes))


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "study.db"


def kinds(path) -> list[str]:
    return [event.kind for event in open_log(path).read()]


class FakeView(QuietView):
    """Keeps what it is shown, and can do something at each epoch."""

    def __init__(self, at_epoch=lambda n: None) -> None:
        self.shown, self.notes, self.at_epoch, self.epochs = [], [], at_epoch, 0

    def decided(self, view):
        self.shown.append("decided")

    def epoch(self, view, trial_id, epoch, score):
        self.shown.append("epoch")
        assert repr(view.history.curves[trial_id].scores[epoch - 1]) == repr(score)  # NaN too
        self.epochs += 1
        self.at_epoch(self.epochs)

    def note(self, text):
        self.notes.append(text)

    def stopped(self, view):
        self.shown.append("stopped")
        assert view.stop is not None


# ── a whole run ──────────────────────────────────────────────────────────────────────────────────


class Net(torch.nn.Module):
    """y = a x + b, with as much momentum as one likes."""

    def __init__(self, lr: float, optimizer: str, momentum: float = 0.0) -> None:
        super().__init__()
        self.line = torch.nn.Linear(1, 1)
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
        more = {"momentum": momentum} if optimizer == "sgd" else {}
        self.optimizer = kind(self.parameters(), lr=lr, **more)

    def fit_one_epoch(self) -> None:
        x = torch.rand(32, 1)
        loss = (self.line(x) - (3 * x - 1)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def accuracy(self) -> float:
        x = torch.linspace(0, 1, 64).unsqueeze(1)
        return math.exp(-(self.line(x) - (3 * x - 1)).square().mean().item())

    def save(self, file: Path) -> None:
        torch.save([self.state_dict(), self.optimizer.state_dict()], file)

    def load(self, file: Path) -> None:
        weights, moments = torch.load(file)
        self.load_state_dict(weights)
        self.optimizer.load_state_dict(moments)


def test_the_example_of_the_docs(path):
    space = {
        "lr": ft.Float(1e-3, 1.0, log=True),
        "optimizer": ft.Choice(["sgd", "adam"]),
        "momentum": ft.Float(0.0, 0.99, when={"optimizer": "sgd"}),
    }

    def train(trial):
        net = Net(**trial.params)
        trial.on_freeze(lambda folder: net.save(folder / "net.pt"))
        if trial.checkpoint:
            net.load(trial.checkpoint / "net.pt")
        for _epoch in trial.epochs():
            net.fit_one_epoch()
            yield net.accuracy()

    result = ft.tune(
        train,
        space,
        max_epochs=10,
        bounds=(0, 1),
        utility=ft.linear(alpha=0.3, budget=40),
        storage=path,
        pool_size=8,
        weights=FakeCurves(),
        epochs_per_decision=1,
        quiet=True,
    )
    assert result.stop.kind in (StopReason.NOT_WORTH_IT, StopReason.NO_GAIN)
    assert 0 < result.spent <= 40
    scores = [s for curve in result.history.curves.values() for s in curve.scores]
    assert result.best.score == max(scores)
    assert len(scores) == result.spent == result.bill.epochs
    net = Net(**result.best.params)
    net.load(result.best.checkpoint / "net.pt")
    assert net.accuracy() == pytest.approx(result.best.score, abs=1e-6)
    with Study.open(path) as study:
        assert study.result().best == result.best


def test_the_shipped_weights_do(path):
    result = tune(weights=None, storage=path, utility=ft.linear(alpha=1, budget=12), max_epochs=4)
    assert result.best is not None
    assert 1 <= result.spent <= 12
    assert result.bill.seconds_deciding > 0


def test_the_best_checkpoint_is_of_the_best_epoch(path):
    def rise_and_fall(trial):
        for score, epoch in zip(saving(trial), trial.epochs(), strict=False):
            yield score if epoch <= 3 else 0.05

    result = tune(
        rise_and_fall, storage=path, stopping=never(), utility=ft.hard_budget(24), max_epochs=6,
        epochs_per_decision=2,
    )  # fmt: skip
    best = result.best
    assert best.epoch <= 3
    assert result.history.curves[best.trial_id].epochs > best.epoch
    assert json.loads((best.checkpoint / "net.json").read_text()) == {"epoch": best.epoch}


def test_in_memory_no_checkpoint_outlasts_the_call(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = tune(saving)
    assert result.best.score > 0.5
    assert result.best.checkpoint is None
    assert result.storage is None
    assert list(tmp_path.iterdir()) == []


def test_without_a_hook_there_is_no_checkpoint(path):
    result = tune(storage=path)
    assert result.best.checkpoint is None


def test_the_same_seed_gives_the_same_study():
    one, two = tune(seed=3), tune(seed=3)
    assert one.history.path == two.history.path
    assert one.stop == two.stop
    other = tune(seed=4)
    assert other.history.path != one.history.path


def test_dicts_carry_more_than_the_score(path):
    def both(trial):
        for epoch in trial.epochs():
            yield {"accuracy": learn(trial, epoch), "loss": math.nan, "note": "ok"}

    result = tune(both, metric="accuracy", storage=path)
    extra = result.history.curves[result.best.trial_id].extra
    assert math.isnan(extra["loss"])
    assert extra["note"] == "ok"
    with Study.open(path) as study:
        assert "accuracy" in study.to_records()[0]
        assert repr(study.history.curves[result.best.trial_id].extra) == repr(extra)


def test_a_dict_without_the_metric():
    def wrong(trial):
        yield {"acc": 0.5}

    with pytest.raises(TrainError, match="accuracy"):
        tune(wrong, metric="accuracy")


def test_returning_early_completes_the_trial(path):
    def short(trial):
        for epoch in trial.epochs():
            yield learn(trial, epoch)
            if epoch == 2:
                return

    result = tune(short, storage=path, stopping=never(), utility=ft.hard_budget(99))
    assert result.stop.kind is StopReason.NO_CANDIDATES
    curves = result.history.curves.values()
    assert {(curve.state, curve.epochs) for curve in curves} == {(TrialState.COMPLETED, 2)}
    assert result.spent == 10
    assert kinds(path).count("completed") == 5


def test_first_comes_first(path):
    first = [{"lr": 0.5, "width": 7}, {"lr": 1e-3, "width": 60}]
    result = tune(configurations=None, pool_size=8, first=first, storage=path)
    params = [curve.params for curve in result.history.curves.values()]
    assert params[:2] == first


def test_the_view_sees_it_all(path):
    view = FakeView()
    result = tune(storage=path, view=view)
    assert view.shown[-1] == "stopped"
    assert view.shown.count("epoch") == result.spent
    assert view.shown.count("decided") == result.history.decisions


# ── what cannot work ─────────────────────────────────────────────────────────────────────────────


def test_not_a_generator_is_refused_before_anything_is_made(path):
    def plain(trial):
        return 0.5

    with pytest.raises(TrainError, match="no `yield`"):
        tune(plain, storage=path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"deadline": "soon"}, ConfigError, "deadline='soon'"),
        ({"deadline": -1}, ConfigError, "deadline=-1"),
        ({"checkpoint": "often"}, ConfigError, "checkpoint is 'often'"),
        ({"max_suspended": -1}, ConfigError, "max_suspended"),
        ({"coupling": "loose"}, ConfigError, "coupling"),
        ({"max_epochs": 0}, ConfigError, "max_epochs"),
    ],
)
def test_wrong_settings_leave_nothing_locked(path, changes, error, words):
    with pytest.raises(error, match=words):
        tune(storage=path, **changes)
    assert tune(storage=path).best is not None


def test_an_out_of_bounds_score_leaves_a_study_that_goes_on(path):
    calls = []

    def wild(trial):
        for score, epoch in zip(saving(trial), trial.epochs(), strict=False):
            calls.append((trial.trial_id, epoch))
            yield 7.0 if len(calls) == 6 else score

    with pytest.raises(TellError, match=r"got 7; scores must lie in \[0, 1\]"):
        tune(wild, storage=path, checkpoint="epoch")
    with Study.open(path) as study:
        assert study.history.spent == 5
        assert len(study.pending()) == 1
    trial, epoch = calls[-1]
    result = tune(wild, storage=path, checkpoint="epoch")
    assert calls[6] == (trial, epoch)  # thawed from its last checkpoint: nothing is trained twice
    assert result.bill.epochs_replayed == 0
    assert result.spent == result.bill.epochs


def test_a_full_disk_pauses_the_study(path):
    def full(trial):
        def hook(folder):
            raise OSError(28, "No space left on device")

        trial.on_freeze(hook)
        yield from train(trial)

    with pytest.raises(CheckpointError, match=r"the disk is full.*freezethaw clean"):
        tune(full, storage=path)
    with Study.open(path) as study:
        assert study.history.spent >= 1
    result = tune(saving, storage=path)
    assert result.stop.kind is not StopReason.FAILURES


# ── trials that fail or diverge ──────────────────────────────────────────────────────────────────


def test_a_trial_that_raises_is_charged_and_kept_out(path):
    def fragile(trial):
        for epoch in trial.epochs():
            if trial.trial_id == 1 and epoch == 2:
                raise ValueError("layer too wide")
            yield learn(trial, epoch)

    result = tune(fragile, storage=path, stopping=never(), utility=ft.hard_budget(14))
    curve = result.history.curves[1]
    assert (curve.state, curve.epochs) == (TrialState.FAILED, 1)
    assert "ValueError: layer too wide" in curve.error
    assert "fragile" in curve.error
    assert result.spent == 14
    assert sum(c.epochs for c in result.history.curves.values()) == 13
    assert result.bill.epochs == 14
    assert result.best.trial_id != 1 or result.best.epoch == 1


def test_a_save_hook_that_raises_costs_no_epoch(path):
    def unsavable(trial):
        def hook(folder):
            raise ValueError("cannot save")

        if trial.trial_id == 2:
            trial.on_freeze(hook)
        yield from train(trial)

    result = tune(unsavable, storage=path, stopping=never(), utility=ft.hard_budget(14))
    assert result.history.curves[2].state is TrialState.FAILED
    assert "cannot save" in result.history.curves[2].error
    assert sum(c.epochs for c in result.history.curves.values()) == 14 == result.bill.epochs


def test_failures_in_a_row_stop_the_study_and_it_goes_on_when_fixed(path):
    broken = True

    def train(trial):
        if broken:
            raise RuntimeError(f"no data for trial {trial.trial_id}")
        for epoch in trial.epochs():
            yield learn(trial, epoch)

    result = tune(train, storage=path, max_failures=2)
    assert result.stop.kind is StopReason.FAILURES
    failed = list(result.history.curves)
    assert len(failed) == 2
    assert f"no data for trial {failed[0]}" in result.history.first_failure
    assert result.best is None
    broken = False
    result = tune(train, storage=path, max_failures=2)
    assert result.stop.kind is not StopReason.FAILURES
    assert result.best.trial_id not in failed
    assert kinds(path).count("resumed") == 1


class Heavy:
    """Something that one can see leaving memory."""

    alive = 0

    def __init__(self) -> None:
        Heavy.alive += 1

    def __del__(self) -> None:
        Heavy.alive -= 1


@pytest.mark.parametrize("worst", [math.nan, math.inf])
def test_diverged_trials_leave_memory_at_once(path, worst):
    seen = []

    def diverging(trial):
        net = Heavy()
        for epoch in trial.epochs():
            assert net
            yield learn(trial, epoch) if epoch == 1 else worst

    view = FakeView(lambda n: seen.append(Heavy.alive))
    result = tune(
        diverging, storage=path, stopping=never(), utility=ft.hard_budget(99), view=view,
        epochs_per_decision=3,
    )  # fmt: skip
    assert result.stop.kind is StopReason.NO_CANDIDATES
    states = {(c.state, c.epochs) for c in result.history.curves.values()}
    assert states == {(TrialState.DIVERGED, 2)}
    assert result.spent == 10
    assert result.best.epoch == 1
    assert seen == [1] * 10  # the one in training, none besides
    assert Heavy.alive == 0


# ── going on ─────────────────────────────────────────────────────────────────────────────────────


def test_a_finished_study_returns_at_once(path):
    first = tune(saving, storage=path)
    before = kinds(path)

    def never_called(trial):
        raise AssertionError
        yield

    class FakeUnused(FakeCurves):
        def condition(self, context):
            raise AssertionError

    again = tune(never_called, storage=path, weights=FakeUnused())
    assert again == first
    assert kinds(path) == before
    again = tune(never_called, storage=path, deadline=0)
    assert again.stop == first.stop


def test_a_crash_before_the_best_was_saved_costs_the_bill_only(path):
    first = tune(saving, storage=path)
    shutil.rmtree(first.best.checkpoint.parent)
    view = FakeView()
    again = tune(saving, storage=path, view=view)
    assert again.stop == first.stop
    assert json.loads((again.best.checkpoint / "net.json").read_text()) == {
        "epoch": again.best.epoch
    }
    assert (again.spent, again.history.path) == (first.spent, first.history.path)
    assert again.bill.epochs_replayed == first.bill.epochs_replayed + again.best.epoch
    assert any("was lost with the process that trained it" in note for note in view.notes)
    settled = kinds(path)
    assert tune(saving, storage=path) == again
    assert kinds(path) == settled


def test_an_interrupt_leaves_the_best_for_the_next_time(path):
    first = tune(saving, storage=path)
    assert first.best.epoch >= 2
    shutil.rmtree(first.best.checkpoint.parent)

    def interrupted(trial):
        for score in saving(trial):
            os.kill(os.getpid(), signal.SIGTERM)
            yield score

    assert tune(interrupted, storage=path).best.checkpoint is None
    again = tune(saving, storage=path)
    assert again.best.checkpoint.is_dir()
    assert again.bill.epochs_replayed == first.bill.epochs_replayed + again.best.epoch
    assert again.stop == first.stop


@pytest.mark.parametrize("function", [train, "raises"])
def test_a_best_that_cannot_be_saved_again_is_told(path, function):
    first = tune(saving, storage=path)
    shutil.rmtree(first.best.checkpoint.parent)

    def raises(trial):
        yield 1 / 0

    view = FakeView()
    again = tune(raises if function == "raises" else function, storage=path, view=view)
    assert again.best.checkpoint is None
    assert again.stop == first.stop
    assert ("ZeroDivisionError" in "".join(view.notes)) == (function == "raises")


def test_a_larger_budget_thaws_from_checkpoints(path):
    asked = {"storage": path, "stopping": never(), "epochs_per_decision": 2}
    first = tune(saving, utility=ft.hard_budget(8), **asked)
    assert first.stop.kind is StopReason.BUDGET_SPENT
    second = tune(saving, utility=ft.hard_budget(20), **asked)
    assert second.spent == 20
    assert second.bill.epochs_replayed == 0
    assert second.history.path[:8] == first.history.path
    whole = tune(saving, **(asked | {"storage": path.with_name("other.db")}),
                 utility=ft.hard_budget(20))  # fmt: skip
    assert {i: c.scores for i, c in second.history.curves.items()} == {
        i: c.scores for i, c in whole.history.curves.items()
    }


def test_a_different_space_is_refused(path):
    tune(storage=path)
    with pytest.raises(MismatchError, match="lr"):
        tune(storage=path, space=SPACE | {"lr": ft.Float(1e-4, 2.0, log=True)})


def test_the_deadline_pauses_and_the_next_call_goes_on(path):
    def slow(trial):
        for score in train(trial):
            time.sleep(0.05)
            yield score

    asked = {"storage": path, "stopping": never(), "utility": ft.hard_budget(12)}
    first = tune(slow, **asked, deadline="0.3s")
    assert first.stop.kind is StopReason.DEADLINE
    assert 1 <= first.spent < 12
    assert "deadline" in first.stop.reason
    second = tune(slow, **asked)
    assert second.stop.kind is StopReason.BUDGET_SPENT
    assert second.spent == 12
    assert second.history.path[: len(first.history.path)] == first.history.path


def test_no_time_at_all(path):
    result = tune(storage=path, deadline=0)
    assert result.stop.kind is StopReason.DEADLINE
    assert result.spent == 0
    assert result.best is None
    assert tune(storage=path).best is not None


def test_eviction_is_charged(path):
    """Trials without a hook are trained again, which costs."""
    asked = {"stopping": never(), "utility": ft.hard_budget(60)}
    result = tune(storage=path, max_suspended=0, view=FakeView(), **asked)
    assert result.bill.epochs_replayed > 0
    assert result.spent == result.bill.epochs + result.bill.epochs_replayed
    assert kinds(path).count("replayed") == result.bill.epochs_replayed
    undisturbed = tune(**asked)
    for trial_id, curve in result.history.curves.items():
        other = undisturbed.history.curves.get(trial_id)
        n = min(curve.epochs, other.epochs if other else 0)
        assert n == 0 or curve.scores[:n] == other.scores[:n]


def test_with_a_hook_eviction_costs_nothing(path):
    asked = {"stopping": never(), "utility": ft.hard_budget(25)}
    result = tune(saving, storage=path, max_suspended=0, checkpoint="evict", **asked)
    assert result.bill.epochs_replayed == 0
    undisturbed = tune(saving, **asked)
    assert result.history.path == undisturbed.history.path


def test_clean_keeps_what_is_needed(path):
    asked = {"storage": path, "stopping": never()}
    first = tune(saving, utility=ft.hard_budget(12), **asked)
    junk = checkpoint_folder(path, "default") / "trial-000999" / "epoch-0001"
    junk.mkdir(parents=True)
    (junk / "net.json").write_text("x" * 1000)
    with Study.open(path) as study:
        assert study.clean() >= 1000
    assert not junk.exists()
    assert first.best.checkpoint.is_dir()
    second = tune(saving, utility=ft.hard_budget(20), **asked)
    assert second.bill.epochs_replayed == 0
    with Study.open(path) as study:
        assert study.clean(only_best=True) > 0
        assert study.best().checkpoint.is_dir()


def test_the_training_function_may_change_directory(tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)

    def wandering(trial):
        os.chdir(elsewhere)
        yield from saving(trial)

    result = tune(wandering, storage="study.db", checkpoint="epoch")
    assert result.best.checkpoint.is_dir()
    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / "study.db").is_file()
    assert result.storage == "study.db"


# ── the user's process ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("weights", [FakeCurves(), None], ids=["fake", "shipped"])
def test_nothing_in_the_process_is_changed(path, weights):
    def messy(trial):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        with torch.no_grad():
            yield from saving(trial)

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    expected = random.random(), np.random.random(), torch.rand(1).item()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    try:
        tune(messy, storage=path, weights=weights, utility=ft.linear(alpha=1, budget=8))
        assert torch.get_default_dtype() is torch.float64
    finally:
        torch.set_default_dtype(dtype)
    assert (random.random(), np.random.random()) == expected[:2]
    assert torch.rand(1).item() == pytest.approx(expected[2])
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_it_runs_outside_the_main_thread(path):
    results = []
    thread = threading.Thread(target=lambda: results.append(tune(saving, storage=path)))
    handler = signal.getsignal(signal.SIGINT)
    thread.start()
    thread.join()
    assert results[0].best.checkpoint.is_dir()
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.fixture
def _ctrl_c_raises():
    """Shells start background jobs, such as a whole test run, with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_ctrl_c_raises")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_epoch(path, number):
    view = FakeView(lambda n: os.kill(os.getpid(), number) if n == 4 else None)
    result = tune(saving, storage=path, view=view)
    assert result.stop.kind is StopReason.INTERRUPTED
    assert result.spent == 4
    assert view.notes == ["stopping after this epoch; press Ctrl-C again to abort at once"]
    assert result.best.checkpoint.is_dir()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    whole = tune(saving, storage=path)
    undisturbed = tune(saving)
    assert whole.history.path == undisturbed.history.path
    assert whole.bill.epochs_replayed == 0


def test_an_ignored_ctrl_c_stays_ignored(path):
    """A background job of a shell must not be stopped by a Ctrl-C meant for another one."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        view = FakeView(lambda n: os.kill(os.getpid(), signal.SIGINT))
        result = tune(storage=path, view=view)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.stop.kind is StopReason.NOT_WORTH_IT
    assert view.notes == []


def test_a_second_sigterm_is_still_polite(path):
    def twice(n):
        if n == 4:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    assert tune(storage=path, view=FakeView(twice)).stop.kind is StopReason.INTERRUPTED


SCRIPT = """
import signal, sys, time
sys.path.insert(0, {tests!r})
from test_loop import saving, settings
import freezethaw as ft

signal.signal(signal.SIGINT, signal.default_int_handler)

def slow(trial):
    for score in saving(trial):
        print("training", flush=True)
        time.sleep({seconds})
        yield score

try:
    result = ft.tune(slow, **settings(storage={path!r}))
except KeyboardInterrupt:
    print("aborted", flush=True)
    raise
print("result", result.stop.kind.value, int(result.spent), flush=True)
"""


def start(path, seconds) -> subprocess.Popen:
    code = SCRIPT.format(tests=str(Path(__file__).parent), path=str(path), seconds=seconds)
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(process: subprocess.Popen, epochs: int) -> None:
    for _ in range(epochs):
        assert process.stdout.readline() == "training\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_from_outside_pauses(path, number):
    process = start(path, 0.5)
    wait_for(process, 3)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert out == "result interrupted 3\n", err
    assert process.returncode == 0
    with Study.open(path) as study:
        assert study.stop.kind is StopReason.INTERRUPTED
        assert study.history.spent == 3


def test_a_second_ctrl_c_aborts(path):
    process = start(path, 30)
    wait_for(process, 1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert out == "aborted\n", err
    assert "KeyboardInterrupt" in err
    with Study.open(path) as study:
        assert study.history.spent == 0
        assert len(study.pending()) == 1
    assert tune(saving, storage=path).best is not None


# ── what goes wrong is told, and early ───────────────────────────────────────────────────────────


class Notes(QuietView):
    """A display that keeps its notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def never_saved(trial):
    def save(folder):
        raise AttributeError("Net has no statedict")

    trial.on_freeze(save)
    for epoch in trial.epochs():
        yield learn(trial, epoch)


def test_a_broken_save_hook_stops_the_study(path):
    """A score after a score: still, none of these networks can be kept."""
    notes = Notes()
    result = tune(never_saved, storage=path, view=notes, stopping="never")
    assert result.stop.kind is StopReason.FAILURES
    assert "Net has no statedict" in result.stop.reason
    assert result.spent < 20
    assert any("could not be saved: AttributeError: Net has no statedict" in n for n in notes.notes)
    # Someone has looked: it goes on.
    again = tune(saving, storage=path, stopping="never")
    assert again.stop.kind is StopReason.NO_CANDIDATES
    assert again.spent > result.spent


def test_a_trial_that_was_trained_to_its_end_stays_so(path):
    result = tune(never_saved, storage=path, max_epochs=1, max_failures=2)
    assert {curve.state for curve in result.history.curves.values()} == {TrialState.COMPLETED}


def test_every_failure_is_noted(path):
    def sometimes(trial):
        if trial.trial_id % 2:
            raise RuntimeError("CUDA out of memory (pretend)")
        yield from train(trial)

    notes = Notes()
    result = tune(sometimes, storage=path, view=notes, stopping="never")
    assert result.stop.kind is StopReason.NO_CANDIDATES
    failed = [c.trial_id for c in result.history.curves.values() if c.state is TrialState.FAILED]
    assert [n for n in notes.notes if "failed in epoch 1: RuntimeError: CUDA out" in n]
    assert failed
    with Study.open(path) as study:
        assert f"trial {failed[0]}: RuntimeError: CUDA out" in report.summary(view_of(study))
        assert "CUDA out of memory (pretend)" in report.html(view_of(study))


def test_in_memory_nothing_is_trained_twice():
    trained = []

    def counting(trial):
        for score in train(trial):
            trained.append(trial.trial_id)
            yield score

    notes = Notes()
    result = tune(counting, view=notes, utility=ft.hard_budget(5))
    assert len(trained) == result.bill.epochs == 5
    assert notes.notes == []


def test_a_smaller_budget_is_kept_to(path):
    def interrupted(trial):
        for epoch, score in zip(trial.epochs(), train(trial), strict=False):
            if epoch == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            yield score

    settings = {"storage": path, "epochs_per_decision": 6, "stopping": "never"}
    first = tune(interrupted, utility=ft.linear(alpha=0.3, budget=30), **settings)
    assert (first.stop.kind, first.spent) == (StopReason.INTERRUPTED, 2)
    second = tune(train, utility=ft.linear(alpha=0.04, budget=4), **settings)
    assert second.spent <= 4
    notes = Notes()
    tune(train, utility=ft.linear(alpha=0.01, budget=1), view=notes, **settings)
    assert "4 epochs had been spent when this call lowered the budget to 1 epoch" in notes.notes


def test_another_function_as_utility_goes_on(path):
    """It has the same name; only its values tell."""
    given = {"storage": path, "budget": 30}
    first = tune(utility=lambda spent, best: best - 2.0 * spent / 30, **given)
    assert first.spent < 30
    same = tune(utility=lambda spent, best: best - 2.0 * spent / 30, **given)
    assert same.spent == first.spent
    second = tune(utility=lambda spent, best: best - 0.001 * spent / 30, **given)
    assert second.spent > first.spent


def test_replays_of_what_was_evicted_are_charged_though_it_was_saved(path):
    """`train` never looks at its checkpoint, which comes out at the first thaw."""

    def deaf(trial):
        trial.on_freeze(lambda folder: (folder / "net").touch())
        for epoch in range(1, trial.max_epochs + 1):
            yield learn(trial, epoch)

    result = tune(deaf, storage=path, max_suspended=0, stopping="never", quiet=True)
    assert result.bill.epochs_replayed > 0
    assert result.spent == result.bill.epochs + result.bill.epochs_replayed


def test_a_pace_is_noted(path, monkeypatch):
    notes = Notes()
    monkeypatch.setattr("freezethaw.study.OVERHEAD", 1e-6)
    result = tune(storage=path, epochs_per_decision="auto", stopping="never", view=notes)
    assert result.history.epochs_per_decision > 1
    assert any("epochs_per_decision=1 decides after every one" in note for note in notes.notes)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"stopping": "soon"}, ConfigError, "'soon': known are adaptive"),
        ({"stopping": 0.2}, ConfigError, r"stopping=0.2: pass ft\.stopping\.adaptive"),
        ({"view": 3}, ConfigError, "view=3: must have the methods"),
        ({"device": "gpu", "weights": None}, ExtrapolatorError, "device='gpu'"),
        ({"storage": "sqlite:///s.db"}, StorageError, "pass a path, as in storage='study.db'"),
        ({"storage": "/"}, StorageError, "a folder; name a file in it"),
        ({"bounds": ("0", "1")}, ScaleError, "pass bounds="),
        ({"initial": "0.1"}, ScaleError, "initial is '0.1'; it must be a number"),
    ],
)
def test_mistakes_make_no_study(tmp_path, changes, error, words):
    with pytest.raises(error, match=words):
        tune(**{"storage": tmp_path / "study.db", **changes})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: (yield 0.5), "missing|too many"),
        (lambda trial, data: (yield 0.5), "data"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_at_once(function, words):
    with pytest.raises(TrainError, match=rf"is called as train\(trial\): .*{words}"):
        tune(function)


def test_torch_settings_of_the_process_do_not_matter():
    plain = tune(weights=None, utility=ft.hard_budget(4))
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.inference_mode(), torch.device("meta"):
            strange = tune(weights=None, utility=ft.hard_budget(4))
    finally:
        torch.set_default_dtype(before)
    assert strange.history.path == plain.history.path
