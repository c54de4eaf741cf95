"""A running study is killed (kill -9) at random moments, and goes on as if nothing had happened.

The whole process is real: a network that trains, its checkpoints, SQLite, the shipped
extrapolator. What counts is what the killed process had said to be durable.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import crashing_study
from freezethaw.events import Decided, Reported
from freezethaw.storage import checkpoint_folder, open_log
from freezethaw.study import Study


@dataclass
class Run:
    """What one process printed before it ended."""

    told: list[tuple[int, int, float]]
    finished: bool
    seconds: float
    """Since it began."""


def run(path: Path, policy: str, kill_after: float | None = None) -> Run:
    """Run the study in a process, to its end or until it is killed so long after it began."""
    command = [sys.executable, crashing_study.__file__, str(path), policy]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        began = time.monotonic()
        timer = None if kill_after is None else threading.Timer(kill_after, process.kill)
        if timer:
            timer.start()
        out = process.stdout.read()
        seconds = time.monotonic() - began
        if timer:
            timer.cancel()
    # The last line may be cut where the process was killed.
    lines = [line.split() for line in out.splitlines(keepends=True) if line.endswith("\n")]
    told = [(int(t), int(e), float(s)) for word, t, e, s in (x for x in lines if x[0] == "told")]
    finished = any(line[0] == "ends" for line in lines)
    # Killed after its last line is finished too.
    assert finished or process.returncode == -9, out
    return Run(told, finished, seconds)


def scores(path: Path) -> list[tuple[int, int, float]]:
    events = open_log(path).read()
    return [(e.trial_id, e.epoch, e.score) for e in events if isinstance(e, Reported)]


def decisions(path: Path) -> list[dict]:
    """Everything about each decision but how long it took."""
    events = [e for e in open_log(path).read() if isinstance(e, Decided)]
    return [{k: repr(v) for k, v in vars(event).items() if k != "seconds"} for event in events]


@dataclass
class Reference:
    """The study without a crash. Checkpoints change no score, so it stands for every policy."""

    path: Path
    seconds: float


def whole_again(
    path: Path, policy: str, rng: random.Random, kills: int, reference: Reference
) -> int:
    """Kill the study so often, at random moments, and let it finish; how many kills hit it."""
    hits = 0
    for _ in range(kills):
        ended = run(path, policy, kill_after=rng.uniform(0, 0.6 * reference.seconds))
        if ended.told:  # it may have been killed before there was a study
            known, n = scores(path), len(ended.told)
            # Nothing that was reported is lost; the last score may be stored and not yet reported.
            assert ended.told in (known[len(known) - n :], known[len(known) - n - 1 : -1])
        if ended.finished:
            return hits
        hits += 1
    assert run(path, policy).finished
    return hits


def check_same(path: Path, reference: Reference) -> None:
    """As if nothing had happened: no epoch lost, none counted twice, the same decisions."""
    assert scores(path) == scores(reference.path)
    assert decisions(path) == decisions(reference.path)
    with Study.open(path) as study, Study.open(reference.path) as undisturbed:
        history, expected = study.history, undisturbed.history
        assert history.spent == expected.spent == history.bill.epochs
        assert history.path == expected.path
        assert study.stop == undisturbed.stop
        best = study.best()
    assert best is not None
    assert best.checkpoint is not None
    net = crashing_study.Net(**best.params)
    crashing_study.load(net, best.checkpoint)
    assert net.fit() == best.score  # the best model is that of the best epoch
    leftovers = [p for p in checkpoint_folder(path, "default").rglob("*tmp*") if p.is_dir()]
    assert not leftovers


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the processes, so that a saved network scores the same here
    path = tmp_path_factory.mktemp("reference") / "study.db"
    ended = run(path, "epoch")
    assert ended.finished
    yield Reference(path, ended.seconds)
    torch.set_num_threads(threads)


def test_killed_at_five_random_moments(tmp_path, reference):
    path = tmp_path / "study.db"
    hits = whole_again(path, "epoch", random.Random(0), 5, reference)
    assert hits >= 2  # the others found it finished
    check_same(path, reference)
    with Study.open(path) as study:  # one epoch per kill at most, as each was saved
        assert study.history.bill.epochs_replayed <= hits


@pytest.mark.parametrize("policy", ["switch", "evict"])
def test_with_seldom_checkpoints_scores_stand(tmp_path, reference, policy):
    """Epochs are trained again, on the bill but not in what was spent."""
    path = tmp_path / "study.db"
    whole_again(path, policy, random.Random(1), 2, reference)
    check_same(path, reference)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["epoch", "switch", "evict"])
def test_killed_at_fifty_random_moments(tmp_path, reference, policy):
    began, hits, seed = time.monotonic(), 0, 100
    while hits < 50:
        path = tmp_path / f"{seed}" / "study.db"
        path.parent.mkdir()
        hits += whole_again(path, policy, random.Random(seed), 5, reference)
        check_same(path, reference)
        seed += 1
        assert time.monotonic() - began < 3600
