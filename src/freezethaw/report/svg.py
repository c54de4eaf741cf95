"""Axes, ticks and path data for hand-written SVG. Nothing here knows about studies.

A plot is drawn in a box of 1000 × height units that the browser stretches to any width, so all
strokes are non-scaling, dots are round-capped strokes of no length, and text lives outside.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from freezethaw.records import Goal

WIDTH = 1000

XY = tuple[float, float]


def esc(text: object) -> str:
    """Text for HTML or XML, attributes included; characters that XML cannot hold are dropped."""
    kept = (c for c in str(text) if c in "\t\n\r" or (c >= " " and not "\ud800" <= c <= "\udfff"))
    return html.escape("".join(c for c in kept if c not in "\ufffe\uffff"))


@dataclass(frozen=True)
class Axis:
    """Values from lo to hi onto 0..1."""

    lo: float
    hi: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value lies, 0..1; beyond the ends it is clipped to just outside them."""
        if self.log:
            lo, hi = math.log(self.lo), math.log(self.hi)
            value = math.log(value) if value > 0 else -math.inf
        else:
            lo, hi = self.lo, self.hi
        return min(max((value - lo) / (hi - lo), -0.02), 1.02)

    def widened(self, below: float, above: float) -> Axis:
        """The same with room for labels at its ends, in shares of its length."""
        if self.log:
            ratio = self.hi / self.lo
            return Axis(self.lo / ratio**below, self.hi * ratio**above, log=True)
        span = self.hi - self.lo
        return Axis(self.lo - below * span, self.hi + above * span)

    def holds(self, value: float) -> bool:
        """Whether the value lies on the axis."""
        return self.lo <= value <= self.hi


def score_axis(values: Iterable[float], goal: Goal) -> Axis:
    """An axis on which the good values can be told apart, whatever the bad ones are.

    One diverged loss of 5e34 must not flatten all others, so what lies far beyond the better three
    quarters is left outside. Losses over several orders of magnitude get a log axis.
    """
    array = np.array([v for v in values if math.isfinite(v)], dtype=float)
    if array.size == 0:
        return Axis(0.0, 1.0)
    losses = np.sort(array if goal == "minimize" else -array)
    good, usual = float(losses[0]), float(np.quantile(losses, 0.75))
    worst = float(losses[losses <= usual + 3 * (usual - good)][-1])
    if goal == "minimize" and good > 0 and worst > 10 * good:
        pad = (worst / good) ** 0.04
        return Axis(good / pad, worst * pad, log=True)
    pad = 0.05 * (worst - good) or max(abs(good) * 0.05, 1e-9)
    lo, hi = good - pad, worst + pad
    return Axis(lo, hi) if goal == "minimize" else Axis(-hi, -lo)


def ticks(axis: Axis, about: int = 5, steps: Sequence[float] = ()) -> list[float]:
    """Round values on an axis: multiples of 1, 2 or 5 times a power of ten, or of given steps."""
    if axis.log:
        return _log_ticks(axis, about)
    span = axis.hi - axis.lo
    fitting = [s for s in steps if span / s <= about + 1]
    step = fitting[0] if fitting else _nice(span / about)
    first = math.ceil(axis.lo / step - 1e-9)
    last = math.floor(axis.hi / step + 1e-9)
    return [0.0 if i == 0 else i * step for i in range(first, last + 1)]


def _nice(step: float) -> float:
    """The 1, 2 or 5 times a power of ten that is nearest, as ratios go."""
    power = 10.0 ** math.floor(math.log10(step))
    return min((m * power for m in (1, 2, 5, 10)), key=lambda nice: abs(math.log(nice / step)))


def _log_ticks(axis: Axis, about: int) -> list[float]:
    powers = range(math.floor(math.log10(axis.lo)), math.ceil(math.log10(axis.hi)) + 1)
    marks = (1, 2, 5) if len(powers) <= 3 else (1,)
    values = [m * 10.0**p for p in powers for m in marks if axis.holds(m * 10.0**p)]
    every = max(1, math.ceil(len(values) / (about + 2)))
    return values[::every] if len(values) > 1 else [axis.lo, axis.hi]


def num(value: float) -> str:
    """A coordinate, to a tenth of a unit, in as few characters as it takes."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def line(points: Sequence[XY]) -> str:
    """Path data through the points; a single point becomes a dot."""
    if not points:
        return ""
    data = "M" + "L".join(f"{num(x)} {num(y)}" for x, y in points)
    return data + "h0" if len(points) == 1 else data


def steps(points: Sequence[XY], end: float) -> str:
    """Path data of a staircase that holds each value until the next, and the last until `end`."""
    if not points:
        return ""
    data = f"M{num(points[0][0])} {num(points[0][1])}"
    data += "".join(f"H{num(x)}V{num(y)}" for x, y in points[1:])
    return f"{data}H{num(end)}"


def dots(points: Iterable[XY]) -> str:
    """Path data of one dot per point, to be stroked with round caps."""
    return "".join(f"M{num(x)} {num(y)}h0" for x, y in points)


def band(upper: Sequence[XY], lower: Sequence[XY]) -> str:
    """Path data of the area between two lines."""
    return line([*upper, *reversed(lower)]) + "Z"


def runs(spans: Iterable[tuple[float, float, float]]) -> str:
    """Path data of horizontal strokes: (from x, to x, y)."""
    return "".join(f"M{num(a)} {num(y)}H{num(b)}" for a, b, y in spans)


def thin(points: Sequence[XY], limit: int) -> list[XY]:
    """At most `limit` of the points, evenly chosen, the first and the last among them."""
    if len(points) <= limit:
        return list(points)
    picked = np.linspace(0, len(points) - 1, limit).round().astype(int)
    return [points[i] for i in picked]


def dodge(heights: Sequence[float], gap: float, lo: float, hi: float) -> list[float]:
    """The heights moved apart, as little as a sweep down and up finds, so that labels fit."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [0.0] * len(heights)
    floor = lo
    for i in order:
        placed[i] = max(heights[i], floor)
        floor = placed[i] + gap
    ceiling = hi
    for i in reversed(order):
        placed[i] = min(placed[i], ceiling)
        ceiling = placed[i] - gap
    return placed
