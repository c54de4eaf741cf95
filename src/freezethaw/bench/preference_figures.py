"""The paper's two figures about utilities from preferences, as SVG.

Lines of equal utility, true and fitted, by form and number of pairs; and a user who always prefers
what lies above a trajectory: the utility fitted to such answers should be highest about where the
trajectory saturates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from freezethaw.bench.preference import (
    STAKES,
    answer,
    draw_truth,
    meaningful_answers,
    same_cost_answers,
)
from freezethaw.bench.replay import replay
from freezethaw.preference import Answer, Array, Fit, Form, Price, fit
from freezethaw.questions import random_question
from freezethaw.tables import open_table
from freezethaw.utility import hard_budget

COLUMNS: tuple[Form, ...] = ("linear", "quadratic", "square_root", "mix")
ROWS = (30, 100, 1000)
WIDTH, HEIGHT, GAP, TOP = 190, 150, 26, 24
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}path{fill:none;stroke-width:1.4}"
    ".box{fill:#f6f7f9}.true{stroke:#1f5fd6}.fitted{stroke:#c2410c;stroke-dasharray:4 3}"
    ".path{stroke:#111}.utility{stroke:#1f5fd6;stroke-dasharray:4 3}.star{fill:#e0a800}"
)


def contours() -> str:
    """Return the grid of true and fitted lines of equal utility."""
    plots = []
    for column, form in enumerate(COLUMNS):
        rng = np.random.default_rng([column, 4])
        truth = draw_truth(form, rng)
        answers = [answer(truth, random_question(STAKES, rng), rng, 0.0) for _ in range(ROWS[-1])]
        for row, n in enumerate(ROWS):
            found = fit(answers[:n], STAKES, form).price
            title = f"{form.replace('_', ' ')}, {n:,} pairs"
            lines = _levels(truth, "true") + _levels(found, "fitted")
            plots.append(_placed(column, row, title, lines))
    label = "Lines of equal utility, score against cost: true (blue) and fitted (orange, dashed)"
    return _page(len(COLUMNS), len(ROWS), label, plots)


def _levels(price: Price, kind: str) -> str:
    x = np.linspace(0, 1, 80)
    lines = [_line(x, level + price(x), kind) for level in np.arange(-0.8, 1.0, 0.2)]
    return "".join(lines)


def _line(x: Array, y: Array, kind: str) -> str:
    points = [
        f"{WIDTH * a:.1f} {TOP + HEIGHT * (1 - b):.1f}"
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
        if -0.001 <= b <= 1.001
    ]
    return f'<path class="{kind}" d="M{"L".join(points)}"/>' if len(points) > 1 else ""


def _placed(column: int, row: int, title: str, inside: str) -> str:
    x, y = GAP + column * (WIDTH + GAP), GAP + row * (HEIGHT + TOP + GAP)
    return (
        f'<g transform="translate({x} {y})"><text y="15">{title}</text>'
        f'<rect class="box" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>{inside}</g>'
    )


def _page(n_columns: int, n_rows: int, label: str, plots: Sequence[str]) -> str:
    width = n_columns * (WIDTH + GAP) + GAP
    height = n_rows * (HEIGHT + TOP + GAP) + GAP + 20
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{label}"><style>{STYLE}</style>'
        f'<path d="M0 0H{width}V{height}H0Z" style="fill:#fff"/>{"".join(plots)}'
        f'<text x="{GAP}" y="{height - 14}">{label}</text></svg>\n'
    )


def best_so_far(task: str, n_configs: int = 128) -> Array:
    """Return the best score after each of 300 epochs of a study that does not look at the cost."""
    table = open_table("tabular")
    rows = np.sort(np.random.default_rng(0).choice(len(table.configs), n_configs, replace=False))
    run = replay(table, task, rows, hard_budget(STAKES.budget))
    best = np.full(int(STAKES.budget) + 1, run.best)
    best[0] = table.initial(task)
    for point in reversed(run.path):
        best[int(point.spent)] = point.best
    return best


def trajectory(best: Array) -> str:
    """Return the figure of the user who prefers what lies above a trajectory."""
    plots = []
    protocols = (("as printed", same_cost_answers), ("meaningful pairs", meaningful_answers))
    for column, (title, protocol) in enumerate(protocols):
        answers = protocol(best, np.random.default_rng(0))
        found, at = fitted_peak(best, answers)
        x = np.arange(len(best)) / STAKES.budget
        worth = best - found.price(x)
        star = (
            f'<circle class="star" cx="{WIDTH * x[at]:.1f}" '
            f'cy="{TOP + HEIGHT * (1 - worth[at]):.1f}" r="5"/>'
        )
        price = found.parameters[0]
        said = f"α in {price.low:.2f} to {price.high:.2f}, highest at epoch {at}"
        lines = _line(x, best, "path") + _line(x, worth, "utility") + star
        below = f'<text y="{TOP + HEIGHT + 16}" style="font-size:10px">{said}</text>'
        plots.append(_placed(column, 0, title, lines + below))
    label = "Best score (black), the fitted utility (blue), where it is highest"
    return _page(2, 1, label, plots)


def fitted_peak(best: Array, answers: Sequence[Answer]) -> tuple[Fit, int]:
    """Return the fit, and after how many epochs the trajectory is worth most by it."""
    found = fit(answers, STAKES, "linear", lapse=0.0)
    worth = best - found.price(np.arange(len(best)) / STAKES.budget)
    return found, int(worth[1:].argmax()) + 1


def write_figures(folder: Path, task: str) -> list[Path]:
    """Write both figures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "preference-contours.svg": contours(),
        "preference-trajectory.svg": trajectory(best_so_far(task)),
    }
    for name, page in pages.items():
        (folder / name).write_text(page, encoding="utf-8")
    return [folder / name for name in pages]
