"""One plotting area of the report, and the axis of cost that several of them share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from freezethaw import wording
from freezethaw.report import svg
from freezethaw.report.svg import XY, Axis, esc
from freezethaw.report.view import StudyView

_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200)


@dataclass
class Plot:
    """One plotting area: marks in a stretching SVG, text in HTML on top, so that it never shrinks.

    Heights are pixels; widths are shares of whatever the page gives.
    """

    name: str
    title: str
    about: str
    """What the picture shows, for those who do not see it."""
    height: int
    x: Axis
    y: Axis
    marks: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> XY:
        """Values to SVG units."""
        return svg.WIDTH * self.x(x), self.down(y)

    def down(self, y: float) -> float:
        """A value to pixels from the top."""
        return self.height * (1 - self.y(y))

    def path(self, kind: str, data: str, *, trial: int | None = None, tip: str = "") -> None:
        """Add path data drawn in the style of a CSS class."""
        if data:
            link = "" if trial is None else f' data-t="{trial}"'
            title = f"<title>{esc(tip)}</title>" if tip else ""
            self.marks.append(f'<path class="{kind}" d="{data}"{link}>{title}</path>')

    def text(self, kind: str, share: float, top: float, text: str) -> None:
        """Add text at a share of the width and a height in pixels."""
        place = f"left:{svg.num(100 * share)}%;top:{svg.num(top)}px"
        self.texts.append(
            f'<span class="{kind}" style="{place}">{esc(wording.typeset(text))}</span>'
        )

    def y_ticks(self, about: int = 5) -> None:
        """Draw horizontal grid lines and their numbers."""
        values = svg.ticks(self.y, about)
        rows = [self.down(value) for value in values]
        self.path("grid", svg.runs((0, svg.WIDTH, row) for row in rows))
        for text, row in zip(_tick_texts(values), rows, strict=True):
            self.text("ytick", 0, row, text)

    def x_ticks(self, labels: Sequence[tuple[float, str]], name: str) -> None:
        """Write the numbers under the axis, and what they are."""
        for i, (value, text) in enumerate(labels):
            # Every other number gives way on a narrow screen.
            kind = "xtick" if i % 2 == 0 else "xtick odd"
            self.text(kind, self.x(value), self.height + 6, text)
        self.text("xname", 1, self.height + 24, name)

    def __str__(self) -> str:
        return (
            f'<div class="plot" style="height:{self.height}px">'
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {svg.WIDTH} {self.height}" '
            f'preserveAspectRatio="none" role="img" '
            f'aria-labelledby="{self.name}-title {self.name}-about">'
            f'<title id="{self.name}-title">{esc(self.title)}</title>'
            f'<desc id="{self.name}-about">{esc(self.about)}</desc>'
            f"{''.join(self.marks)}</svg>"
            f'<div class="texts" aria-hidden="true">{"".join(self.texts)}</div></div>'
        )


def _tick_texts(values: Sequence[float]) -> list[str]:
    """The numbers of an axis, with as few digits as say each exactly."""
    slack = 0.01 * min((abs(b - a) for a, b in itertools.pairwise(values)), default=math.inf)
    texts: list[str] = []
    for digits in range(3, 10):
        texts = [wording.number(value, digits) for value in values]
        said = (float(text.replace(",", "")) for text in texts)
        if all(abs(x - value) <= slack for x, value in zip(said, values, strict=True)):
            break
    return texts


def cost_ticks(view: StudyView, axis: Axis) -> list[tuple[float, str]]:
    """Round costs on an axis, in words."""
    steps: Sequence[float] = ()
    if view.unit == "seconds" and axis.hi <= 86400:
        steps = _TIME_STEPS
    if view.unit == "epochs" and axis.hi <= 5:
        steps = (1,)
    values = svg.ticks(axis, 6, steps)
    if view.unit == "epochs":
        return [(value, f"{value:,.0f}") for value in values]
    return [(value, wording.amount(value, view.unit)) for value in values]


def cost_name(view: StudyView) -> str:
    """What an axis of cost is called."""
    return {"epochs": "epochs spent", "seconds": "time spent", "money": "money spent"}[view.unit]


def cost_axis(view: StudyView) -> Axis:
    """From nothing to the budget; to a little beyond what was spent if that was a small part."""
    spent = max(view.history.spent, view.history.path[-1].spent)
    whole = view.budget if math.isfinite(view.budget) and view.budget <= 4 * spent else 1.25 * spent
    return Axis(0.0, max(whole, spent) or 1.0)
