"""The three charts of the report. Each returns a <figure> body: SVG for marks, HTML for text.

Colours, weights and dashes are CSS classes of `page.css`, so that light, dark and print share one
picture. Whatever belongs to one trial carries `data-t`, by which the page links the charts.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from freezethaw import wording
from freezethaw.records import Fan
from freezethaw.report import svg, words
from freezethaw.report.plot import Plot, cost_axis, cost_name, cost_ticks
from freezethaw.report.svg import XY, Axis
from freezethaw.report.view import Standing, StudyView

_MAX_POINTS = 2000
_MAX_CURVE_POINTS = 200
_MAX_FANS = 3
_SHADES = 5
_LETTER = 8
"""About the width of one in a label, in the units of a plot."""


# ---------------------------------------------------------------- what it cost, what it gave


def progress(view: StudyView) -> str:
    """The best score and the utility against cost, with the stop and the peak marked."""
    return f"{_scores(view)}{_utilities(view)}"


def _scores(view: StudyView) -> Plot:
    history, best = view.history, view.best
    seen = [point.best for point in history.path]
    trained = [(p.spent, score) for p, score in zip(history.path, epoch_scores(view), strict=True)]
    untrained = [] if view.initial is None else [view.initial]
    # Room for the label of the best, on the side to which no score lies.
    room = (0.03, 0.1) if view.goal == "maximize" else (0.1, 0.03)
    scale = svg.score_axis([*seen, *(s for _, s in trained), *untrained], view.goal)
    plot = Plot(
        name="scores",
        title=f"Best {view.metric} against cost",
        about=f"{words.standing_sentence(view)}. Best so far: "
        + (wording.number(best.best) if best and best.best is not None else "no finite score"),
        height=210,
        x=cost_axis(view),
        y=scale.widened(*room),
    )
    plot.y_ticks(4)
    _unspent(plot, view, label=True)
    if view.initial is not None and plot.y.holds(view.initial):
        row = plot.down(view.initial)
        plot.path("untrained", svg.runs([(0, svg.WIDTH, row)]))
        plot.text("note right", 1, row - 9, "untrained")
    finite = [pair for pair in trained if math.isfinite(pair[1]) and plot.y.holds(pair[1])]
    plot.path("each", svg.dots(plot.at(*pair) for pair in svg.thin(finite, 2 * _MAX_POINTS)))
    rises = (history.path[i] for i in view.improvements)
    stairs = [plot.at(p.spent, p.best) for p in rises if math.isfinite(p.best)]
    plot.path("bestline", svg.steps(stairs, svg.WIDTH * plot.x(history.spent)))
    if stairs and history.best_score is not None:
        end = plot.at(history.spent, history.best_score)
        plot.path("halo", svg.dots([end]))
        plot.path("dot best", svg.dots([end]))
        side = _side(end[0])
        text = f"best {wording.number(history.best_score)}"
        below = -14 if view.goal == "maximize" else 14
        plot.text(f"label best {side}", end[0] / svg.WIDTH, end[1] + below, text)
    plot.text("panel", 0, -16, view.metric)
    return plot


def _side(x: float) -> str:
    return "right" if x > 0.62 * svg.WIDTH else "left"


def _unspent(plot: Plot, view: StudyView, *, label: bool) -> None:
    """Shade what was not spent and draw the line at which the study stands."""
    at, _ = plot.at(view.history.spent, plot.y.lo)
    left = view.budget - view.history.spent
    if svg.WIDTH - at > 1:
        rest = f"M{svg.num(at)} 0H{svg.WIDTH}V{plot.height}H{svg.num(at)}Z"
        plot.path("unspent", rest)
    plot.path("stopline", f"M{svg.num(at)} 0V{plot.height}")
    if label:
        text = "stopped here" if view.stop is not None else "now"
        plot.text(f"note {_side(at)}", at / svg.WIDTH, -16, text)
        if math.isfinite(left) and at < 0.55 * svg.WIDTH:
            middle = (at / svg.WIDTH + 1) / 2
            text = f"{wording.amount(left, view.unit)} not spent"
            plot.text("note middle", middle, plot.height / 2, text)


def _utilities(view: StudyView) -> Plot:
    trace, ahead = _utility_trace(view), _utility_ahead(view)
    peak, now = view.peak, view.utility_now
    about = f"{view.utility_text}. Now {wording.number(now)}"
    if peak is not None:
        about += f", highest {wording.number(peak.utility)} after "
        about += wording.amount(peak.spent, view.unit)
    plot = Plot(
        name="utility",
        title="Utility against cost",
        about=about,
        height=190,
        x=cost_axis(view),
        y=svg.score_axis([u for _, u in [*trace, *ahead]], "maximize").widened(0.12, 0.2),
    )
    plot.y_ticks(4)
    _unspent(plot, view, label=False)
    plot.path("utility", svg.line([plot.at(*pair) for pair in trace]))
    plot.path("ahead", svg.line([plot.at(*pair) for pair in ahead]))
    if len(ahead) > 1:
        plot.text("note right", 1, plot.down(ahead[-1][1]) + 13, "if nothing better is found")
    marks = []
    if peak is not None and peak.utility > now + 1e-12:
        where = wording.amount(peak.spent, view.unit)
        text = f"highest {wording.number(peak.utility)} after {where}"
        marks.append((peak.spent, peak.utility, "peak", text))
    if math.isfinite(now):
        marks.append((view.history.spent, now, "now", f"{wording.number(now)} now"))
    _mark(plot, marks)
    plot.text("panel", 0, -16, "utility")
    plot.x_ticks(cost_ticks(view, plot.x), cost_name(view))
    return plot


def _mark(plot: Plot, marks: Sequence[tuple[float, float, str, str]]) -> None:
    """Dots with labels, where the lines leave room for them."""
    for i, (x, y, kind, text) in enumerate(marks):
        point = plot.at(x, y)
        plot.path("halo", svg.dots([point]))
        plot.path(f"dot {kind}", svg.dots([point]))
        # What lies ahead falls, and what lies behind a mark on the right was higher.
        first = i == 0 and len(marks) > 1
        side = "right" if i and _reaches(plot, marks[0], point) else _side(point[0])
        above = first or side == "left" or point[1] > plot.height - 24
        top = point[1] - 15 if above else point[1] + 16
        plot.text(f"label {kind} {side}", point[0] / svg.WIDTH, top, text)


def _reaches(plot: Plot, mark: tuple[float, float, str, str], point: XY) -> bool:
    """Whether a mark's label runs on to where a label above the point would begin."""
    x, y = plot.at(*mark[:2])
    width = _LETTER * len(mark[3])
    return _side(x) == "left" and x + width > point[0] and abs(y - point[1]) < 24


def _utility_trace(view: StudyView) -> list[XY]:
    """Utility after each epoch; a user's own function is called a bounded number of times."""
    path = view.history.path
    # Both sides of each rise, and an even choice of the rest.
    sides = [side for i in view.improvements for side in (max(i - 1, 0), i)]
    picked = {*_some(sides), *_some(range(len(path)))}
    pairs = [(path[i].spent, view.utility_at(path[i].spent, path[i].best)) for i in sorted(picked)]
    return [pair for pair in pairs if math.isfinite(pair[1])]


def _some(indices: Sequence[int]) -> list[int]:
    return [
        indices[int(i)] for i, _ in svg.thin([(i, 0) for i in range(len(indices))], _MAX_POINTS)
    ]


def _utility_ahead(view: StudyView) -> list[XY]:
    """What going on would cost if nothing better were found, to the end of the axis."""
    best, axis = view.history.best_score, cost_axis(view)
    spent, end = view.history.spent, min(axis.hi, view.budget)
    if best is None or end <= spent:
        return []
    at = [spent + (end - spent) * i / 40 for i in range(41)]
    pairs = [(b, view.utility_at(b, best)) for b in at]
    return [pair for pair in pairs if math.isfinite(pair[1])]


def epoch_scores(view: StudyView) -> list[float]:
    """The score of each epoch on the path, in the order in which they were trained."""
    seen: defaultdict[int, Iterator[float]] = defaultdict(lambda: iter(()))
    seen.update({trial: iter(curve.scores) for trial, curve in view.history.curves.items()})
    return [next(seen[point.trial_id], math.nan) for point in view.history.path]


# ---------------------------------------------------------------- learning curves


def curves(view: StudyView) -> str:
    """All learning curves, thin; the best and the leading ones strong, with their forecasts."""
    fans = _fans(view)
    shown = _highlighted(view, fans)
    scores = [s for c in view.history.curves.values() for s in c.scores]
    ahead = [s for fan in fans for s in _inner(fan)]
    longest = max((c.epochs for c in view.history.curves.values()), default=1)
    plot = Plot(
        name="curves",
        title=f"Learning curves: {view.metric} against epochs",
        about=_curves_about(view, fans),
        height=380,
        x=Axis(0.0, float(max(view.max_epochs, longest, 1))),
        y=svg.score_axis([*scores, *ahead], view.goal),
    )
    plot.y_ticks(6)
    steps = (1,) if plot.x.hi <= 8 else ()
    labels = [(t, f"{t:,.0f}") for t in svg.ticks(plot.x, 8, steps)]
    plot.x_ticks(labels, "epochs of training")
    ranks = {trial: rank for rank, trial in enumerate(shown)}
    for standing in reversed(view.standings):
        if standing.trial_id not in ranks:
            _curve(plot, standing, "curve")
    for fan in reversed(fans):
        _fan(plot, view, fan, ranks[fan.trial_id])
    ends = [_strong_curve(plot, view, fans, trial, rank) for trial, rank in ranks.items()]
    _end_labels(plot, view, [end for end in ends if end is not None])
    return str(plot)


def _fans(view: StudyView) -> list[Fan]:
    known = view.history.curves
    fans = [] if view.decision is None else [f for f in view.decision.fans if f.epochs]
    return [fan for fan in fans if fan.trial_id in known and fan.scores][:_MAX_FANS]


def _highlighted(view: StudyView, fans: Iterable[Fan]) -> list[int]:
    """Ids of the best trial and then those with a forecast, each once."""
    best = [] if view.best is None else [view.best.trial_id]
    return list(dict.fromkeys([*best, *(fan.trial_id for fan in fans)]))


def _inner(fan: Fan) -> list[float]:
    """The forecast without its outermost tails, which must not stretch the axis."""
    return [
        s for q, row in zip(fan.levels, fan.scores, strict=True) if 0.2 <= q <= 0.8 for s in row
    ]


def _curves_about(view: StudyView, fans: Sequence[Fan]) -> str:
    text = words.trials_sentence(view)
    if view.best is not None and view.best.best is not None:
        text += f". Trial {view.best.trial_id} reaches {wording.number(view.best.best)}"
        text += f" at epoch {view.best.best_epoch}"
    for fan in fans:
        middle = fan.scores[_median(fan)][-1]
        text += f". Trial {fan.trial_id} is expected at {wording.number(middle)}"
        text += f" by epoch {fan.epochs[-1]}"
    return text + "."


def _curve_points(plot: Plot, standing: Standing) -> list[XY]:
    scores = enumerate(standing.curve.scores, start=1)
    points = [plot.at(t, s) for t, s in scores if math.isfinite(s)]
    return svg.thin(points, _MAX_CURVE_POINTS)


def _curve(plot: Plot, standing: Standing, kind: str) -> None:
    points = _curve_points(plot, standing)
    tip = f"trial {standing.trial_id}: {wording.params(standing.curve.params)}"
    plot.path(kind, svg.line(points), trial=standing.trial_id, tip=tip)
    if points and standing.state in {"diverged", "failed"}:
        plot.path("broken", svg.dots(points[-1:]), trial=standing.trial_id)


def _fan(plot: Plot, view: StudyView, fan: Fan, rank: int) -> None:
    """Nested bands of the forecast, from the last score seen, and its median."""
    seen = [s for s in view.history.curves[fan.trial_id].scores if math.isfinite(s)]
    start = [plot.at(fan.epochs[0] - 1, seen[-1])] if seen else []
    for i in range(len(fan.levels) // 2):
        pair = (fan.scores[i], fan.scores[-1 - i])
        lower, upper = (
            [*start, *(plot.at(t, s) for t, s in zip(fan.epochs, row, strict=True))] for row in pair
        )
        if not math.isnan(sum(y for _, y in [*lower, *upper])):
            plot.path(f"fan c{rank}", svg.band(upper, lower), trial=fan.trial_id)
    middle = zip(fan.epochs, fan.scores[_median(fan)], strict=True)
    line = [*start, *(plot.at(t, s) for t, s in middle if not math.isnan(s))]
    plot.path(f"median c{rank}", svg.line(line), trial=fan.trial_id)


def _median(fan: Fan) -> int:
    return min(range(len(fan.levels)), key=lambda i: abs(fan.levels[i] - 0.5))


def _strong_curve(
    plot: Plot, view: StudyView, fans: Sequence[Fan], trial: int, rank: int
) -> tuple[XY, int, int] | None:
    """A highlighted curve; where its label goes: at the end of its forecast or of itself."""
    standing = next(s for s in view.standings if s.trial_id == trial)
    points = _curve_points(plot, standing)
    _curve(plot, standing, f"strong c{rank}")
    if points:
        plot.path("halo", svg.dots(points[-1:]))
        plot.path(f"dot c{rank}", svg.dots(points[-1:]), trial=trial)
    for fan in fans:
        last = fan.scores[_median(fan)][-1]
        if fan.trial_id == trial and not math.isnan(last):
            return plot.at(fan.epochs[-1], last), trial, rank
    return (points[-1], trial, rank) if points else None


def _end_labels(plot: Plot, view: StudyView, ends: Sequence[tuple[XY, int, int]]) -> None:
    tops = svg.dodge([xy[1] for xy, _, _ in ends], 17, 4, plot.height - 4)
    best = None if view.best is None else view.best.trial_id
    for ((x, _), trial, rank), top in zip(ends, tops, strict=True):
        text = f"#{trial} best" if trial == best else f"#{trial}"
        plot.text(f"label end c{rank}", x / svg.WIDTH, top, text)


# ---------------------------------------------------------------- where every epoch went


def raster(view: StudyView) -> str:
    """One row per trial in the order of their starts: bars of training, threads of waiting."""
    rows = {trial: i for i, trial in enumerate(view.history.curves)}
    pitch = min(max(620 / max(len(rows), 1), 0.6), 16.0)
    plot = Plot(
        name="raster",
        title="Where every epoch went",
        about=_raster_about(view),
        height=max(round(pitch * len(rows)), 24),
        x=Axis(0.0, max(view.history.path[-1].spent, view.history.spent) or 1.0),
        y=Axis(float(len(rows)), 0.0),
    )
    plot.x_ticks(cost_ticks(view, plot.x), cost_name(view))
    shades: dict[tuple[int, str], list[tuple[float, float, float]]] = defaultdict(list)
    threads: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    until: dict[int, float] = {}
    for trial, shade, start, end in _stretches(view):
        if trial not in rows:
            continue
        a, row = plot.at(start, rows[trial] + 0.5)
        b, _ = plot.at(end, 0)
        if trial in until and a - until[trial] > 0.05:
            threads[trial].append((until[trial], a, row))
        shades[trial, shade].append((a, b, row))
        until[trial] = b
    for trial, gaps in threads.items():
        plot.path("frozen", svg.runs(gaps), trial=trial)
    for (trial, shade), spans in shades.items():
        plot.path(f"ran {shade}", svg.runs(spans), trial=trial)
    _row_labels(plot, view, rows, pitch)
    return f'<div class="raster" style="--bar:{svg.num(max(pitch * 0.72, 0.6))}px">{plot}</div>'


def _raster_about(view: StudyView) -> str:
    switches = sum(a.trial_id != b.trial_id for a, b in itertools.pairwise(view.history.path))
    epochs, trials = len(view.history.path), len(view.history.curves)
    return (
        f"{wording.count(epochs, 'epoch')} over {wording.count(trials, 'trial')}; "
        f"training moved from one trial to another {wording.count(switches, 'time')}."
    )


def _stretches(view: StudyView) -> Iterator[tuple[int, str, float, float]]:
    """(trial, shade, from, to) of each unbroken stretch of epochs of one trial and one shade."""
    scores = epoch_scores(view)
    axis = svg.score_axis(scores, view.goal)
    shades = [_shade(axis, view, score) for score in scores]
    keys = [(p.trial_id, shade) for p, shade in zip(view.history.path, shades, strict=True)]
    start, i = 0.0, 0
    for (trial, shade), group in itertools.groupby(keys):
        i += sum(1 for _ in group)
        end = view.history.path[i - 1].spent
        yield trial, shade, start, end
        start = end


def _shade(axis: Axis, view: StudyView, score: float) -> str:
    """A class by score: s0 (worst) to s4 (best); `lost` where it diverged."""
    if not math.isfinite(score):
        return "lost"
    share = axis(score) if view.goal == "maximize" else 1 - axis(score)
    return f"s{min(max(int(share * _SHADES), 0), _SHADES - 1)}"


def _row_labels(plot: Plot, view: StudyView, rows: dict[int, int], pitch: float) -> None:
    """Number as many rows as there is room for, and the best one always."""
    best = None if view.best is None else view.best.trial_id
    least = math.ceil(14 / pitch)
    every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 1000, 10**9) if n >= least)
    for trial, i in rows.items():
        clear = best is None or abs(i - rows.get(best, -99)) >= every or trial == best
        if trial == best or (i % every == 0 and clear):
            kind = "ytick best" if trial == best else "ytick"
            plot.text(kind, 0, (i + 0.5) * pitch, f"#{trial}")


def spark(view: StudyView, standing: Standing, axis: Axis) -> str:
    """A curve the size of a word, for the table."""
    points = [
        (100 * t / max(view.max_epochs, 1), 20 * (1 - axis(s)))
        for t, s in enumerate(standing.curve.scores, start=1)
        if math.isfinite(s)
    ]
    data = svg.line(svg.thin(points, 24))
    path = f'<path d="{data}"/>' if data else ""
    return (
        '<svg class="spark" viewBox="-2 -2 104 24" preserveAspectRatio="none" '
        f'aria-hidden="true">{path}</svg>'
    )
