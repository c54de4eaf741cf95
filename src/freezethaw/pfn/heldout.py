"""How well forecasts fit real curves: held-out log density of the network and of two baselines.

    python -m freezethaw.pfn.heldout --tables TABLE.npz ... [--weights cfbo-nt] [--tasks train]
                                     [--out results/heldout.md]

Contexts are shaped as tuning makes them: prefixes of curves, a few long and many short, 5 to 300
points in all, from a pool of configurations. Asked is what comes later in those curves, and curves
of configurations never started. A density is the mass of one of 1,000 bins times 1,000; the figures
are means of its logarithm, in nats per point: 0 for a uniform guess, 6.9 for a certain bin.

Baselines: "the last value stays" and a power law fitted to the curve, moved to pass through its
last point. Their spread is fitted on training tasks of the same table, per horizon, by likelihood:
a mixture of the histogram of the training tasks' errors, smoothed to several degrees, with a
uniform one and with a point of divergence. For never-started configurations their middle is the
untrained score, mixed with what the context's curves show, or are extrapolated to, at that epoch.
On a training task the spread is fitted on the other ones.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from freezethaw.extrapolator import UNSEEN, Context, Extrapolator, Queries
from freezethaw.pfn import weights
from freezethaw.pfn.extrapolate import PfnExtrapolator
from freezethaw.tables import CurveTable, read_table

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 1000
POOL = 512
HORIZONS = (1, 2, 4, 8, 16)
"""Where the groups of horizons begin."""
GROUPS = ("1 ahead", "2-3", "4-7", "8-15", "16+", "never started")
NEVER = len(HORIZONS)
"""The group of never-started configurations."""
METHODS = ("network", "last value", "power law")
WIDTHS = (0.0, 1.0, 4.0, 16.0, 64.0)
"""How far the histogram of errors is smoothed, in bins: components of a baseline's spread."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A context, and curves to ask for: [query] row in the pool, epoch, and what came of it."""

    task: str
    context: Context
    configs: Array
    """[pool row, column]; the context's curves come first."""
    row: Ints
    epoch: Ints
    score: Array

    @property
    def group(self) -> Ints:
        """[query]: index into `GROUPS`."""
        started = self.row < len(self.context.epochs_seen)
        seen = np.where(started, self.context.epochs_seen[np.where(started, self.row, 0)], 0)
        ahead = np.searchsorted(HORIZONS, self.epoch - seen, side="right") - 1
        return np.where(started, ahead, NEVER)


# ── cases ────────────────────────────────────────────────────────────────────────────────────────


def make_case(
    table: CurveTable, task: str, points: int, rng: np.random.Generator, queries: int = 60
) -> Case:
    """A context of about so many points, and up to `queries` per group of horizons."""
    longest = table.max_epochs
    y = table.scaled(task)[:, 1:]
    rows = rng.permutation(len(y))[: min(POOL, len(y))]
    y, configs = y[rows], table.encoded()[rows]
    started = int(np.ceil(np.exp(rng.uniform(0, np.log(min(points, len(rows) / 2))))))
    # Long curves are more often good ones: a tuner would have trained them.
    quality = np.argsort(np.argsort(y[:started, -1])) / started
    share = rng.exponential(size=started) ** rng.uniform(0.3, 2.0)
    share *= np.exp(quality * rng.uniform(0, 5))
    spare = max(0, points - started) * share / share.sum()
    seen = np.minimum(1 + spare.astype(np.int64), longest)
    context = Context(
        configs=configs[:started],
        scores=y[:started],
        epochs_seen=seen,
        initial=table.initial(task),
        max_epochs=longest,
    )
    row, epoch = np.meshgrid(np.arange(len(rows)), np.arange(1, longest + 1), indexing="ij")
    everything = Case(
        task=task,
        context=context,
        configs=configs,
        row=row.ravel(),
        epoch=epoch.ravel(),
        score=y.ravel(),
    )
    known = np.concatenate([seen, np.zeros(len(rows) - started, np.int64)])[everything.row]
    asked = (everything.epoch > known) & np.isfinite(everything.score)
    group = everything.group
    picked = []
    for each in range(len(GROUPS)):
        among = np.flatnonzero(asked & (group == each))
        picked.append(rng.permutation(among)[: queries * (1 + (each == NEVER))])
    index = np.sort(np.concatenate(picked))
    return Case(
        task=task,
        context=context,
        configs=configs,
        row=everything.row[index],
        epoch=everything.epoch[index],
        score=everything.score[index],
    )


def make_cases(table: CurveTable, tasks: Sequence[str], per_task: int, seed: int) -> list[Case]:
    """The same cases for the same seed, whichever other tasks are asked for."""
    cases = []
    for task in tasks:
        rng = np.random.default_rng([seed, *task.encode()])
        for points in np.geomspace(5, 300, per_task).round().astype(int):
            cases.append(make_case(table, task, int(points), rng))
    return cases


# ── the network ──────────────────────────────────────────────────────────────────────────────────


def network_densities(extrapolator: Extrapolator, case: Case) -> Array:
    """[query] log density."""
    posterior = extrapolator.condition(case.context)
    started = len(case.context.epochs_seen)
    density = np.empty(len(case.row))
    for epoch in np.unique(case.epoch):
        at = np.flatnonzero(case.epoch == epoch)
        row = case.row[at]
        queries = Queries(
            configs=case.configs[row],
            curve=np.where(row < started, row, UNSEEN),
            epochs=np.array([epoch]),
        )
        mass = posterior.forecast(queries).mass[:, 0]
        bins = mass.shape[-1]
        index = torch.from_numpy(to_bin(case.score[at], bins)).unsqueeze(-1)
        found = mass.cpu().double().gather(-1, index).squeeze(-1).numpy()
        density[at] = np.log(np.maximum(found * bins, 1e-300))
    return density


def to_bin(score: Array, bins: int = BINS) -> Ints:
    """The bin of a score."""
    return np.clip((score * bins).astype(np.int64), 0, bins - 1)


# ── baselines ────────────────────────────────────────────────────────────────────────────────────


def fit_power_law(y: Array, ahead: Ints) -> Array:
    """a − b·t^−c fitted by least squares to epochs 1..n, a in [0, 1], moved through the last point.

    c is the best of a grid. Fewer than three points: the last value.
    """
    if len(y) < 3:
        return np.full(len(ahead), y[-1])
    t = np.arange(1, len(y) + 1, dtype=np.float64)
    best: tuple[float, Array] = (np.inf, np.full(len(ahead), y[-1]))
    for c in (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0):
        u = t**-c
        centred = u - u.mean()
        b = -float(centred @ y) / float(centred @ centred)
        a = float(np.clip(y.mean() + b * u.mean(), 0, 1))
        b = float((a - y) @ u) / float(u @ u)
        error = float(((a - b * u - y) ** 2).sum())
        if error < best[0] - 1e-12:
            best = error, y[-1] + b * (float(len(y)) ** -c - ahead.astype(np.float64) ** -c)
    return np.clip(best[1], 0, 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Guess:
    """A baseline's view of a case, before it has a spread."""

    middle: Array
    """[query]"""
    pooled: Array
    """[query, width]: density of the smoothed scores of the context's curves at that epoch."""


def guess(case: Case, method: str) -> Guess:
    """The baseline's forecast of each query."""
    context, started = case.context, len(case.context.epochs_seen)
    longest = context.max_epochs
    curves = np.empty((started, longest))
    for n, seen in enumerate(context.epochs_seen):
        y = context.scores[n, :seen]
        later = np.arange(seen + 1, longest + 1)
        rest = np.full(len(later), y[-1]) if method == "last value" else fit_power_law(y, later)
        curves[n] = np.concatenate([y, rest])
    own = case.row < started
    row = np.where(own, case.row, 0)
    middle = np.where(own, curves[row, case.epoch - 1], context.initial)
    pooled = np.zeros((len(case.row), len(WIDTHS)))
    bins, kernels = to_bin(case.score), np.array([_kernel(width) for width in WIDTHS])
    for i in np.flatnonzero(~own):
        away = np.abs(to_bin(curves[:, case.epoch[i] - 1]) - bins[i])
        pooled[i] = kernels[:, away].mean(axis=1) * BINS
    return Guess(middle=middle, pooled=pooled)


def _kernel(width: float) -> Array:
    """Mass of a Laplace-like kernel at a distance of 0, 1, 2, … bins."""
    distance = np.arange(2 * BINS, dtype=np.float64)
    mass = np.exp(-distance / width) if width > 0 else (distance == 0).astype(np.float64)
    total: Array = mass / (mass[0] + 2 * mass[1:].sum())
    return total


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """Errors of a baseline at one horizon, as a mixture whose parts are smoothed histograms."""

    parts: Array
    """[width, offset in bins + BINS]: mass."""
    weights: Array

    def densities(self, middle: Array, score: Array, pooled: Array) -> Array:
        """[query], not logarithmic."""
        return components(self.parts, middle, score, pooled) @ self.weights


def components(parts: Array, middle: Array, score: Array, pooled: Array) -> Array:
    """[query, component] densities: smoothed errors, uniform, diverged to 0, pooled curves."""
    at, found = to_bin(middle), to_bin(score)
    # What a histogram puts beyond the range belongs to the outermost bins.
    below = parts.cumsum(axis=1)
    lowest = below[:, BINS - at]
    highest = 1 - below[:, BINS + (BINS - 1 - at) - 1]
    inside = parts[:, BINS + found - at]
    errors = np.where(found == 0, lowest, np.where(found == BINS - 1, highest, inside)).T * BINS
    uniform = np.ones((len(found), 1))
    diverged = np.where(found == 0, float(BINS), 0.0)[:, None]
    return np.concatenate([errors, uniform, diverged, pooled], axis=1)


def _smoothed(offsets: Ints) -> Array:
    """[width, offset]: the histogram of errors, smoothed to each degree."""
    histogram = np.bincount(offsets + BINS, minlength=2 * BINS + 1).astype(np.float64)
    histogram /= max(1.0, histogram.sum())
    parts = []
    for width in WIDTHS:
        side = _kernel(width)[: BINS + 1]
        parts.append(np.convolve(histogram, np.concatenate([side[:0:-1], side]), mode="same"))
    smooth: Array = np.maximum(np.array(parts), 0.0)
    return smooth


def fit_spread(middle: Array, score: Array, pooled: Array, task: Ints) -> Spread:
    """Mixture weights by likelihood (EM), each task judged by histograms of the other tasks."""
    offsets = to_bin(score) - to_bin(middle)
    seen = np.empty((len(score), len(WIDTHS) + 2 + pooled.shape[1]))
    for each in np.unique(task):
        own = task == each
        rest = offsets[~own] if (~own).any() else offsets
        seen[own] = components(_smoothed(rest), middle[own], score[own], pooled[own])
    share = np.full(seen.shape[1], 1 / seen.shape[1])
    for _ in range(150):
        part = seen * share
        share = (part / np.maximum(part.sum(axis=1, keepdims=True), 1e-300)).mean(axis=0)
    share = 0.999 * share + 0.001 * (np.arange(len(share)) == len(WIDTHS))  # never impossible
    return Spread(parts=_smoothed(offsets), weights=share)


# ── the comparison ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Log densities of every method at every query of a table."""

    task: Ints
    group: Ints
    density: Array
    """[query, method]"""

    def mean(self, groups: Sequence[int]) -> Array:
        """[method]: over tasks of the mean over a task's queries."""
        inside = np.isin(self.group, groups)
        means = [
            self.density[inside & (self.task == each)].mean(axis=0)
            for each in np.unique(self.task[inside])
        ]
        over_tasks: Array = np.array(means).mean(axis=0)
        return over_tasks


def compare(
    table: CurveTable, extrapolator: Extrapolator, *, test: bool, per_task: int = 8, seed: int = 0
) -> Scores:
    """All three methods on the training or the test tasks of a table."""
    training = make_cases(table, table.train_tasks, per_task, seed)
    asked = make_cases(table, table.test_tasks, per_task, seed) if test else training
    names = sorted({case.task for case in asked})
    density = [np.concatenate([network_densities(extrapolator, case) for case in asked])]
    for method in METHODS[1:]:
        density.append(_baseline(training, asked, method))
    return Scores(
        task=np.concatenate([np.full(len(case.row), names.index(case.task)) for case in asked]),
        group=np.concatenate([case.group for case in asked]),
        density=np.stack(density, axis=1),
    )


def _baseline(training: Sequence[Case], asked: Sequence[Case], method: str) -> Array:
    """[query] log density, with spreads fitted on training tasks other than the query's."""
    names = sorted({case.task for case in training})
    fitted_on = _Flat(training, method, names)
    told = fitted_on if asked is training else _Flat(asked, method, names)
    density = np.empty(len(told.score))
    for each in np.unique(told.task):
        for group in range(len(GROUPS)):
            at = (told.task == each) & (told.group == group)
            # A test task is -1: nothing of it is among the training tasks.
            fit = (fitted_on.task != each) & (fitted_on.group == group)
            if at.any():
                spread = fit_spread(*(part[fit] for part in fitted_on.parts))
                middle, score, pooled, _ = (part[at] for part in told.parts)
                density[at] = spread.densities(middle, score, pooled)
    return np.log(np.maximum(density, 1e-300))


class _Flat:
    """All queries of several cases, with a baseline's guesses, in arrays."""

    def __init__(self, cases: Sequence[Case], method: str, names: Sequence[str]) -> None:
        guesses = [guess(case, method) for case in cases]
        self.group = np.concatenate([case.group for case in cases])
        self.score = np.concatenate([case.score for case in cases])
        self.task = np.concatenate(
            [
                np.full(len(case.row), names.index(case.task) if case.task in names else -1)
                for case in cases
            ]
        )
        middle = np.concatenate([each.middle for each in guesses])
        pooled = np.concatenate([each.pooled for each in guesses])
        self.parts = (middle, self.score, pooled, self.task)


def lines(scores: Scores) -> Iterator[str]:
    """The comparison as a Markdown table."""
    yield "| queries | points | " + " | ".join(METHODS) + " |"
    yield "| --- | ---: | " + " | ".join("---:" for _ in METHODS) + " |"
    started = list(range(NEVER))
    for name, groups in (
        *((name, [i]) for i, name in enumerate(GROUPS[:NEVER])),
        ("**all started**", started),
        (GROUPS[NEVER], [NEVER]),
    ):
        inside = np.isin(scores.group, groups)
        if inside.any():
            figures = " | ".join(f"{mean:.2f}" for mean in scores.mean(groups))
            yield f"| {name} | {inside.sum()} | {figures} |"


def page(sections: Sequence[str], command: str) -> str:
    """The page for results/."""
    return "\n".join(
        [
            "# How well forecasts fit real curves",
            "",
            f"Made by `{command}`.",
            "",
            "Held-out log density in nats per score, higher is better; 0 is a uniform guess. Means",
            "over tasks of the mean over a task's queries. `src/freezethaw/pfn/heldout.py` says",
            "how contexts are drawn, and what the two baselines are given.",
            *sections,
            "",
        ]
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, nargs="+", required=True, help="files or folders")
    parser.add_argument("--weights", default=weights.DEFAULT, help="a shipped name or a file")
    parser.add_argument(
        "--tasks", nargs="+", choices=("train", "test"), default=["train"], help="default: train"
    )
    parser.add_argument("--per-task", type=int, default=8, help="contexts per task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="also write a page to this file")
    given = parser.parse_args()
    extrapolator = PfnExtrapolator.load(given.weights, given.device)
    sections = []
    for path in given.tables:
        for file in sorted(path.glob("*.npz")) if path.is_dir() else [path]:
            for kind in given.tasks:
                scores = compare(
                    read_table(file),
                    extrapolator,
                    test=kind == "test",
                    per_task=given.per_task,
                    seed=given.seed,
                )
                title = f"## {file.stem}, {'test' if kind == 'test' else 'training'} tasks"
                sections.append("\n".join(["", title, "", *lines(scores)]))
                print(sections[-1], flush=True)
    if given.out is not None:
        asked = [Path(word).name if ".npz" in word else word for word in sys.argv[1:]]
        command = " ".join(["python -m freezethaw.pfn.heldout", *asked])
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(page(sections, command), encoding="utf-8")


if __name__ == "__main__":
    main()
