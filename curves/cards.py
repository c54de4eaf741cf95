"""The card of a table: what it holds, how it was made, what to know, numbers, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from curves.assemble import describe_datasets
from curves.collect import Part
from curves.collection import Collection
from curves.costs import CostModel
from curves.tasks import Task
from freezethaw.parameters import Choice, Float, Int, Parameter
from freezethaw.tables import CurveTable

Array = NDArray[np.float64]

EARLY, MIDDLE = 3, 10
"""Epochs whose ranking of the configurations is compared with the last one's."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Of one task's curves, scaled to [0, 1]."""

    diverged: float
    """The share of runs."""
    learning: float
    """The share of runs that gain more than a tenth of what the best gains."""
    noise: float
    """The standard deviation of a point about its curve: the median over the learning runs."""
    half_gain: float
    """The epoch at which half of a run's gain is reached: the median over the learning runs."""
    past_peak: float
    """The share of learning runs whose last five epochs are clearly worse than their best five."""
    early_rank: float
    middle_rank: float
    """Rank correlations of an early epoch with the last."""


def statistics_of(table: CurveTable, task: str) -> Statistics:
    """Measure a task's curves."""
    curves = table.scaled(task)
    raw = table.curves[table.index_of(task)]
    diverged = ~np.isfinite(raw).all(axis=1)
    gains = curves.max(axis=1) - curves[:, 0]
    learning = ~diverged & (gains > 0.1 * gains.max())
    if not learning.any():
        learning = np.ones_like(learning)
    some = curves[learning]
    # Second differences take out any straight line; white noise has six times its variance there.
    noise = np.median(np.abs(np.diff(some[:, 1:], n=2, axis=1)), axis=1) / 0.6745 / np.sqrt(6)
    half = some[:, :1] + gains[learning, None] / 2
    return Statistics(
        diverged=float(diverged.mean()),
        learning=float(learning.mean()),
        noise=float(np.median(noise)),
        half_gain=float(np.median((some >= half).argmax(axis=1))),
        past_peak=_past_peak(some[:, 1:], noise),
        early_rank=_rank_correlation(curves, EARLY),
        middle_rank=_rank_correlation(curves, MIDDLE),
    )


WINDOW = 5


def _past_peak(curves: Array, noise: Array) -> float:
    """Means of five epochs, so that the best of many noisy ones is not taken for a peak."""
    window = min(WINDOW, curves.shape[1])
    means = np.lib.stride_tricks.sliding_window_view(curves, window, axis=1).mean(axis=2)
    # The noise of a score that counts rows is no less than about one of them.
    steps = np.diff(np.unique(curves.round(9)))
    row = float(steps.min()) if len(steps) else 0.0
    return float((means.max(axis=1) - means[:, -1] > 2 * np.maximum(noise, row)).mean())


def repeated(task: Task) -> float:
    """Return the share of validation rows that also stand, inputs and all, in training."""
    known = {row.tobytes() for row in task.inputs.numpy()}
    return sum(row.tobytes() in known for row in task.valid_inputs.numpy()) / len(task.valid_inputs)


def _rank_correlation(curves: Array, epoch: int) -> float:
    early, last = curves[:, min(epoch, curves.shape[1] - 1)], curves[:, -1]
    varied = len(set(early)) > 1 and len(set(last)) > 1
    return float(spearmanr(early, last).statistic) if varied else float("nan")


def write_card(
    folder: Path,
    collection: Collection,
    table: CurveTable,
    tasks: Sequence[Task],
    parts: Sequence[Part],
    costs: CostModel,
    n_bytes: int,
) -> None:
    """Write `<name>.md` and `<name>.svg` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{table.name}.svg").write_text(draw(table), encoding="utf-8")
    text = card(collection, table, tasks, parts, costs, n_bytes)
    (folder / f"{table.name}.md").write_text(text, encoding="utf-8")


def card(
    collection: Collection,
    table: CurveTable,
    tasks: Sequence[Task],
    parts: Sequence[Part],
    costs: CostModel,
    n_bytes: int,
) -> str:
    """Return a table's card."""
    dates = sorted({str(part.made["date"]) for part in parts})
    devices = sorted({f"{part.made['device']}, torch {part.made['torch']}" for part in parts})
    products = sorted({str(part.made["products"]) for part in parts})
    datasets = list(dict.fromkeys(task.dataset for task in collection.tasks))
    n_tasks, n_configs, n_points = table.curves.shape
    lines = [
        f"# {table.name}: {collection.title}",
        "",
        f"{n_tasks} tasks × {n_configs} configurations × {n_points - 1} epochs and the untrained "
        f"network; {table.metric}, {table.goal}d; {n_bytes / 1e6:.2f} MB; licence "
        f"{table.license}.",
        "",
        f"Collected {' to '.join([dates[0], dates[-1]] if len(dates) > 1 else dates)} on "
        f"{'; '.join(devices)} by `python -m curves collect {table.name}`, `python -m curves "
        f"tables {table.name}`.",
        "",
        f"![Sixteen curves of every task]({table.name}.svg)",
        "",
        "## Search space",
        "",
        "| hyperparameter | values |",
        "|---|---|",
        *(f"| {name} | {_values(p)} |" for name, p in table.space.parameters.items()),
        "",
        "Drawn uniformly from all of the space (`batch_size` from "
        f"{', '.join(map(str, collection.batch_sizes))}): many runs are bad, some diverge, and "
        "both are in the table. The configurations are the same in every task.",
        "",
        "## Tasks",
        "",
        _statistics_table(collection, table, tasks),
        "",
        "*learning*: runs that gain more than a tenth of what the best gains, and the next three "
        "columns are about them. *noise*: standard deviation of a point about its curve, scaled "
        "units. *half*: the epoch at which half of the gain is reached, median. *past peak*: runs "
        "whose last five epochs are worse, on average, than their best five by more than twice "
        "the noise. *twice*: validation rows that also stand among the training rows, as the data "
        "sets hold them more than once. *rank*: Spearman's "
        f"correlation of the scores at epoch {EARLY} and {MIDDLE} with the last, over all runs.",
        "",
        "## Data",
        "",
        *(f"- {line}" for line in describe_datasets(datasets)),
        "",
        "## To know",
        "",
        *(f"- {quirk}" for quirk in (*collection.quirks, *_COMMON_QUIRKS)),
        "- `cost` is predicted, not measured: a step's own cost and its multiply-adds, fitted to "
        "twenty configurations timed in an ordinary loop on a CPU (`curves/costs.json`), relative "
        f"to the table's mean. Half of the twenty are foretold within {costs.median_error:.0%}.",
        f"- Matrix products were computed in {' and '.join(products)}.",
        "",
    ]
    return "\n".join(lines)


_COMMON_QUIRKS = (
    "A run whose loss, in training or validation, is not finite any more is NaN from there on.",
    "Scores and losses are rounded to the digits of float16 (about three), also beyond its range.",
    "`train_curves` is the mean loss of an epoch's batches, with dropout and label smoothing where "
    "there are any; at epoch 0 it is the untrained network's loss on all training rows.",
    "Only full batches are trained on: the rest of an epoch's rows waits for the next shuffle.",
)


def _values(parameter: Parameter) -> str:
    match parameter:
        case Choice():
            text = " or ".join(map(str, parameter.options))
        case Float() | Int():
            kind = "whole numbers " if isinstance(parameter, Int) else ""
            text = f"{kind}{parameter.low:g} to {parameter.high:g}"
            text += ", logarithmic" if parameter.log else ""
    conditions = (parameter.when or {}).items()
    return text + "".join(f"; only with {name} {_either(wanted)}" for name, wanted in conditions)


def _either(values: object) -> str:
    return " or ".join(map(str, values)) if isinstance(values, tuple) else str(values)


def _statistics_table(collection: Collection, table: CurveTable, tasks: Sequence[Task]) -> str:
    better = max if table.goal == "maximize" else min
    lines = [
        "| task | data set | rows | best | median end | diverged | learning | noise | half "
        f"| past peak | twice | rank {EARLY} | rank {MIDDLE} |",
        "|" + "---|" * 2 + "---:|" * 11,
    ]
    for recipe, task, curves in zip(collection.tasks, tasks, table.curves, strict=True):
        found = statistics_of(table, recipe.name)
        mark = " (test)" if recipe.name in table.test_tasks else ""
        best = better(curves[:, 1:][np.isfinite(curves[:, 1:])].tolist())
        ends = np.where(np.isfinite(curves[:, -1]), curves[:, -1], np.nan)
        lines.append(
            f"| {recipe.name}{mark} | {recipe.dataset} | {len(task.inputs)} | {best:.3f} "
            f"| {np.nanmedian(ends):.3f} | {found.diverged:.1%} | {found.learning:.0%} "
            f"| {found.noise:.4f} | {found.half_gain:.0f} | {found.past_peak:.0%} "
            f"| {repeated(task):.0%} "
            f"| {found.early_rank:.2f} | {found.middle_rank:.2f} |"
        )
    return "\n".join(lines)


# ── the picture ──────────────────────────────────────────────────────────────────────────────────

N_DRAWN = 16
PER_ROW = 4
WIDTH, HEIGHT, GAP, TOP = 220, 130, 18, 22


def draw(table: CurveTable) -> str:
    """Return a picture of the first runs of every task: a plot each, in the table's own units."""
    n_rows = -(-len(table.tasks) // PER_ROW)
    width = PER_ROW * (WIDTH + GAP) + GAP
    height = n_rows * (HEIGHT + TOP + GAP) + GAP
    plots = []
    for place, task in enumerate(table.tasks):
        x = GAP + (place % PER_ROW) * (WIDTH + GAP)
        y = GAP + (place // PER_ROW) * (HEIGHT + TOP + GAP)
        plots.append(f'<g transform="translate({x} {y})">{_plot(table, task)}</g>')
    style = (
        "text{font:11px system-ui,sans-serif;fill:#333}.axis{fill:#777}"
        "path{fill:none;stroke-width:1.1;stroke-linejoin:round}rect{fill:#f6f7f9}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="Learning curves of {table.name}"><style>{style}</style>'
        f'<path d="M0 0H{width}V{height}H0Z" style="fill:#fff"/>{"".join(plots)}</svg>\n'
    )


def _plot(table: CurveTable, task: str) -> str:
    curves = table.curves[table.index_of(task)]
    # Where most runs end sets the scale: one that explodes would flatten all others.
    shown = curves[np.isfinite(curves)]
    low, high = np.quantile(shown, [0.0, 0.98] if table.goal == "minimize" else [0.0, 1.0])
    pad = 0.03 * (high - low)
    bottom, top = low - pad, high + pad
    # From the worst to the best, so that a picture shows the spread and not an accident.
    order = np.argsort(np.nan_to_num(table.scaled(task)[:, -1]))
    chosen = order[np.linspace(0, len(order) - 1, N_DRAWN).round().astype(int)]
    lines = []
    for rank, n in enumerate(chosen):
        hue = 215 - 190 * rank / max(1, len(chosen) - 1)
        points = [
            f"{WIDTH * epoch / table.max_epochs:.1f} "
            f"{TOP + HEIGHT * (top - min(max(value, bottom), top)) / (top - bottom):.1f}"
            for epoch, value in enumerate(curves[n].tolist())
            if np.isfinite(value)
        ]
        if len(points) > 1:
            lines.append(f'<path stroke="hsl({hue:.0f} 70% 45%)" d="M{"L".join(points)}"/>')
    mark = " (test)" if task in table.test_tasks else ""
    return (
        f'<rect y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>{"".join(lines)}'
        f'<text y="14">{task}{mark}</text>'
        f'<text class="axis" x="{WIDTH}" y="14" text-anchor="end">{low:.2f} to {high:.2f}</text>'
    )
