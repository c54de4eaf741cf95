"""What the tuner itself costs: deciding, writing, opening, memory.

Training is not run here: its time is told (`tell(seconds=...)`), deciding and storing are real.
"""

from __future__ import annotations

import math
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from freezethaw.candidates import OpenPool
from freezethaw.events import Created, Decided, Event, Problem, Reported
from freezethaw.policy import Policy
from freezethaw.problems import describe_problem
from freezethaw.records import Curve, History, Point, Step, Stop
from freezethaw.space import Choice, Float, Int, Space
from freezethaw.stopping import never
from freezethaw.storage import create_log
from freezethaw.study import Study, load_extrapolator
from freezethaw.utility import linear

Row = dict[str, Any]

SPACE = Space(
    {
        "lr": Float(1e-5, 1.0, log=True),
        "batch_size": Int(16, 512, log=True),
        "width": Int(16, 1024, log=True),
        "depth": Int(1, 6),
        "dropout": Float(0.0, 0.8),
        "weight_decay": Float(1e-7, 1e-1, log=True),
        "optimizer": Choice(["sgd", "adam"]),
        "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"}),
    }
)
MAX_EPOCHS = 50


def measure(*, quick: bool, log: Callable[[str], Any] | None = None) -> list[Row]:
    """All measurements, a row each; `quick` is toy size."""
    rows: list[Row] = []

    def add(more: list[Row]) -> None:
        for row in more:
            rows.append(row)
            if log:
                log(f"{row['what']}: {row['value']:.4g} {row['unit']}")

    sizes = (20, 40) if quick else (100, 150, 200, 400, 700, 1000)
    add(measure_decisions(sizes, repeats=2 if quick else 7))
    add(measure_shares((0.2, 20.0) if quick else (0.2, 1.0, 20.0), budget=40 if quick else 300))
    add(measure_storage(epochs=300 if quick else 10_000))
    add(measure_memory(budget=40 if quick else 300))
    return rows


def problem(budget: float = 1e6) -> Problem:
    """The default live study: 512 candidates of 8 hyperparameters, 50 epochs."""
    return describe_problem(
        SPACE,
        max_epochs=MAX_EPOCHS,
        bounds=(0, 1),
        initial=0.1,
        utility=linear(alpha=0.1 * budget / 300, budget=budget),
    )


def history_of(points: int, asked: Problem) -> History:
    """A study in the middle: a few long curves and many short ones, `points` scores in all."""
    pool = OpenPool(space=asked.space, seed=0, goal="maximize", size=512).candidates(History())
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(0.2, size=512), MAX_EPOCHS - 1)
    curves, left = {}, points
    for trial_id, params, length in zip(pool.ids, pool.params, lengths, strict=True):
        n = min(int(length), left)
        left -= n
        if n == 0:
            break
        top = rng.uniform(0.2, 0.9)
        epochs = np.arange(1, n + 1)
        scores = 0.1 + (top - 0.1) * (1 - np.exp(-epochs / 8)) + rng.normal(0, 0.005, n)
        curves[trial_id] = Curve(
            trial_id=trial_id,
            params=params,
            scores=tuple(np.clip(scores, 0, 1).tolist()),
            seconds=(1.0,) * n,
        )
    best = max(max(curve.scores) for curve in curves.values())
    path = (Point(1.0, 0.1, 0), Point(float(points), best, 0))
    return History(curves=curves, path=path, spent=float(points), decisions=points)


def measure_decisions(sizes: tuple[int, ...], repeats: int) -> list[Row]:
    """Seconds per decision by context size, interleaved: the machine's mood hits all alike."""
    asked = problem()
    policy = Policy(problem=asked, extrapolator=load_extrapolator(None, "cpu"), rule=never())
    pool = OpenPool(space=asked.space, seed=0, goal="maximize", size=512)
    histories = {size: history_of(size, asked) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    for repeat in range(repeats + 1):
        for size, history in histories.items():
            began = time.perf_counter()
            policy.decide(history, pool.candidates(history))
            if repeat:  # the first round warms up
                times[size].append(time.perf_counter() - began)
    medians = {size: statistics.median(values) for size, values in times.items()}
    rows = [
        _row(f"decision, {size} context points", median, "s", "≤ 0.6" if size == 150 else "")
        for size, median in medians.items()
    ]
    small, large = min(sizes), max(sizes)
    growth = medians[large] / medians[small]
    rule = f"≤ {large / small:g} (linear)"
    rows.append(_row(f"decision, {large} against {small} points", growth, "×", rule))
    return rows


def measure_shares(epoch_seconds: tuple[float, ...], budget: int) -> list[Row]:
    """Deciding and storing as a share of the training time, with the pace chosen by itself."""
    rows = []
    for seconds in epoch_seconds:
        with tempfile.TemporaryDirectory() as folder:
            study = Study.of_problem(
                problem(budget), storage=Path(folder) / "study.db", stopping=never()
            )
            rng = np.random.default_rng(0)
            began = time.perf_counter()
            with study:
                while not isinstance(step := study.ask(), Stop):
                    _tell_all(study, step, seconds, rng)
                own = time.perf_counter() - began
                history = study.history
        trained = history.bill.epochs * seconds
        pace = history.epochs_per_decision or 1
        rows.append(_row(f"epochs per decision, {seconds:g} s epochs", pace, "epochs"))
        rows.append(
            _row(f"overhead, {seconds:g} s epochs", 100 * own / trained, "% of training", "≤ 10")
        )
    return rows


def _tell_all(study: Study, step: Step, seconds: float, rng: np.random.Generator) -> None:
    top = 0.3 + 0.6 * rng.random()
    for epoch in range(step.from_epoch + 1, step.to_epoch + 1):
        study.tell(step, 0.1 + (top - 0.1) * (1 - math.exp(-epoch / 8)), seconds=seconds)


def measure_storage(epochs: int) -> list[Row]:
    """Opening a long study and telling it one more score."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.db"
        _write_long_study(path, epochs)
        opening, telling = [], []
        for _ in range(5):
            began = time.perf_counter()
            study = Study.open(path)
            opening.append(time.perf_counter() - began)
            study.close()
        with Study.open(path) as study:
            step = study.pending()[0]
            for _ in range(21):
                began = time.perf_counter()
                study.tell(step, 0.5, seconds=1.0)
                telling.append(time.perf_counter() - began)
    return [
        _row(f"opening a study of {epochs:,} epochs", statistics.median(opening), "s", "< 1"),
        _row(f"telling at {epochs:,} epochs", 1000 * statistics.median(telling), "ms", "< 5"),
    ]


def _write_long_study(path: Path, epochs: int) -> None:
    asked = problem()
    pool = OpenPool(space=asked.space, seed=0, goal="maximize", size=512).candidates(History())
    events: list[Event] = [Created.of(asked, "bench")]
    leader = {"trial_id": 0, "params": dict(pool.params[0]), "epochs_seen": 3, "target_epoch": 9,
              "gain": 0.1, "chance": 0.5, "cost": 6.0}  # fmt: skip
    for step in range(epochs):
        trial, epoch = divmod(step, MAX_EPOCHS - 28)
        decided = Decided(
            step_id=step,
            trial_id=pool.ids[trial],
            params=dict(pool.params[trial]),
            from_epoch=epoch,
            to_epoch=epoch + 1 if step < epochs - 1 else MAX_EPOCHS,
            seconds=0.3,
            numbers={"regret": 0.1, "leaders": [leader] * 5},
        )
        events.append(decided)
        if step < epochs - 1:
            score = 0.1 + 0.001 * epoch
            events.append(
                Reported(
                    step_id=step,
                    trial_id=pool.ids[trial],
                    epoch=epoch + 1,
                    score=score,
                    seconds=1.0,
                )
            )
    log = create_log(path, "default")
    log.begin(events)
    log.close()


def measure_memory(budget: int) -> list[Row]:
    """Peak resident memory of a process that runs a study, without any network of the user's."""
    code = (
        "from freezethaw.bench import overhead\n"
        f"overhead.measure_shares((1.0,), budget={budget})\n"
        "print(overhead.peak_bytes())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak = int(done.stdout.splitlines()[-1]) / 2**20
    return [_row(f"peak memory of a study of {budget} epochs", peak, "MiB", "< 1000")]


def peak_bytes() -> int:
    """The most memory that this process has had resident."""
    status = Path("/proc/self/status")
    if status.exists():  # what `getrusage` says there includes the process that started this one
        line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _row(what: str, value: float, unit: str, limit: str = "") -> Row:
    return {"what": what, "value": value, "unit": unit, "limit": limit}


def machine() -> str:
    """What the absolute times were measured on."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [x for x in cpuinfo.read_text().splitlines() if x.startswith("model name")]
        name = models[0].partition(":")[2].strip() if models else name
    python = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{name}, {torch.get_num_threads()} threads, {python}"


def to_markdown(rows: list[Row]) -> str:
    """The table for results/."""
    lines = [
        "# What the tuner itself costs",
        "",
        "Made by `freezethaw bench overhead --out results/overhead.md`. Medians; default live pool",
        "(512 configurations × 50 epochs). Training time is told, not spent; deciding and storing",
        f"are real. Measured on: {machine()}.",
        "",
        "| what | measured | | asked |",
        "|---|---:|---|---|",
    ]
    lines += [f"| {r['what']} | {r['value']:.3g} | {r['unit']} | {r['limit']} |" for r in rows]
    return "\n".join(lines) + "\n"
