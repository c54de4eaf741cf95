"""A study as one self-contained HTML page: no outside resources, readable without scripts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib import resources

from freezethaw import wording
from freezethaw.records import Bill, Curve, Leader, ParamValue
from freezethaw.report import charts, svg, words
from freezethaw.report.svg import esc
from freezethaw.report.text import first_failure
from freezethaw.report.view import Standing, StudyView

_MAX_PARAM_COLUMNS = 9
_MAX_SPARKS = 300
_MANY = 120


def html(view: StudyView) -> str:
    """The report: where the study stands and why, its charts, its trials and its bill."""
    many = ' class="many"' if len(view.history.curves) > _MANY else ""
    body = [
        _header(view),
        _cards(view),
        _best_params(view),
        *(_sections(view) if view.history.path else [_empty(view)]),
        _footer(view),
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{esc(view.name)}: {esc(words.standing_sentence(view))}</title>
<style>
{_resource("page.css")}</style>
</head>
<body>
<main{many}>
{"".join(part for part in body if part)}</main>
<div id="tip"></div>
<script>
{_resource("page.js")}</script>
</body>
</html>
"""


def _resource(name: str) -> str:
    return resources.files("freezethaw.report").joinpath(name).read_text(encoding="utf-8")


def _sections(view: StudyView) -> Iterable[str]:
    yield _section(
        "What it cost, what it gave",
        "Every dot is one epoch's score; the line is the best so far. Below, what it was worth: "
        f"{view.utility_text}.",
        f'<figure class="figure">{charts.progress(view)}</figure>',
    )
    yield _why(view)
    yield _section(
        "Learning curves",
        "One line per trial. " + _fans_about(view),
        _key(_CURVE_KEY, only=_curve_keys(view))
        + f'<figure class="figure ends">{charts.curves(view)}</figure>',
    )
    yield _section(
        "Where every epoch went",
        "One row per trial, in the order in which they were started. A bar is training, a thread "
        "is waiting in the freezer for a thaw.",
        _key(_RASTER_KEY, only=_raster_keys(view))
        + f'<figure class="figure">{charts.raster(view)}</figure>',
    )
    yield _section(
        "Configurations",
        f"{_capital(words.trials_sentence(view))}. The best first.",
        _trials_table(view),
        long=True,
    )
    yield _bill(view)
    yield _failure(view)


def _section(title: str, about: str, content: str, *, long: bool = False) -> str:
    kind = ' class="long"' if long else ""
    note = f'<p class="about">{esc(about)}</p>' if about else ""
    return f"<section{kind}>\n<h2>{esc(title)}</h2>{note}\n{content}\n</section>\n"


def _set(text: str) -> str:
    return esc(wording.typeset(text))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


# ---------------------------------------------------------------- the top of the page


def _header(view: StudyView) -> str:
    if view.stop is not None:
        title, because = words.stop_parts(view)
        lead = f'<p class="lead">{esc(_capital(because))}.</p>'
    else:
        title, lead = words.standing_sentence(view), ""
    verb = "maximizing" if view.goal == "maximize" else "minimizing"
    over = f"<b>{esc(view.name)}</b> · {verb} {esc(view.metric)}"
    return f'<header><p class="over">{over}</p><h1>{esc(_capital(title))}</h1>{lead}</header>\n'


def _cards(view: StudyView) -> str:
    best = view.best
    cards = []
    if best is not None and best.best is not None:
        where = f"epoch {best.best_epoch} of trial {best.trial_id}"
        cards.append(_card(f"best {view.metric}", wording.number(best.best), where, "card best"))
    if math.isfinite(view.utility_now):
        peak = view.peak
        highest = "before the first epoch" if peak is None else "the highest so far"
        if peak is not None and peak.utility > view.utility_now:
            after = wording.amount(peak.spent, view.unit)
            highest = f"highest {wording.number(peak.utility)} after {after}"
        cards.append(_card("utility now", wording.number(view.utility_now), highest))
    cards.append(_spent_card(view))
    bill = view.history.bill
    if bill.seconds > 0:
        paid, more = wording.duration(bill.seconds), _bill_note(bill)
        if view.money is not None and view.rate is not None:
            paid, more = wording.money(view.money), f"{paid} at {wording.money(view.rate)} per hour"
        cards.append(_card("whole bill", paid, more))
    return f'<div class="cards">{"".join(cards)}</div>\n'


def _bill_note(bill: Bill) -> str:
    if bill.seconds_deciding <= 0:
        return "all of it training"
    return f"{wording.percent(bill.seconds_deciding / bill.seconds)} of it deciding"


def _card(name: str, big: str, more: str, kind: str = "card", meter: str = "") -> str:
    return (
        f'<div class="{kind}"><h2>{esc(name)}</h2><div class="big">{_set(big)}</div>{meter}'
        f'<div class="more">{_set(more)}</div></div>'
    )


def _spent_card(view: StudyView) -> str:
    share = view.history.spent / view.budget if view.budget > 0 else 1.0
    width = svg.num(100 * min(max(share, 0.0), 1.0)) if math.isfinite(share) else "0"
    meter = f'<div class="meter" aria-hidden="true"><i style="width:{width}%"></i></div>'
    more = f"{wording.percent(share)} of {wording.amount(view.budget, view.unit)}"
    return _card("spent", wording.amount(view.history.spent, view.unit), more, meter=meter)


def _best_params(view: StudyView) -> str:
    if view.best is None or not view.best.curve.params:
        return ""
    items = "".join(
        f"<div><dt>{esc(name)}</dt><dd>{esc(wording.param(value))}</dd></div>"
        for name, value in view.best.curve.params.items()
    )
    return _section("The best configuration", "", f'<dl class="params">{items}</dl>')


def _empty(view: StudyView) -> str:
    about = "No epoch has been reported yet, so there is nothing to draw."
    return _section("No scores yet", about, "") + _failure(view)


# ---------------------------------------------------------------- why


def _why(view: StudyView) -> str:
    if view.decision is None:
        return ""
    title = "Why it stopped" if view.stop is not None else "What it does next, and why"
    # The header has said the stop already.
    choice = "" if view.stop is not None else words.choice_sentence(view)
    about = [choice, words.regret_sentence(view) or ""]
    if view.decision.leaders:
        about.append("These were the leading candidates, with what going on with each promised:")
    rows = "".join(_leader_row(view, leader) for leader in view.decision.leaders)
    heads = ("Trial", "Epochs seen", "Until epoch", "Expected gain", "Chance", "Price")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    head += '<th scope="col" class="word">Configuration</th>'
    table = _table("leaders", "Leading candidates", head, rows) if rows else ""
    return _section(title, " ".join(part for part in about if part), table)


def _leader_row(view: StudyView, leader: Leader) -> str:
    cells = (
        leader.epochs_seen,
        leader.target_epoch,
        wording.signed(leader.gain),
        wording.percent(leader.chance),
        words.price(leader, view.unit),
    )
    return (
        f'<tr data-t="{leader.trial_id}"><th scope="row">{leader.trial_id}</th>'
        + "".join(f"<td>{_set(str(cell))}</td>" for cell in cells)
        + f'<td class="word free">{esc(wording.params(leader.params))}</td></tr>\n'
    )


def _table(name: str, label: str, head: str, rows: str, foot: str = "", kind: str = "") -> str:
    footer = f"<tfoot>{foot}</tfoot>" if foot else ""
    return (
        f'<div class="scroll {kind}" tabindex="0" role="region" aria-label="{esc(label)}">'
        f'<table id="{name}"><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>{footer}'
        "</table></div>"
    )


# ---------------------------------------------------------------- keys of the charts

_CURVE_KEY = {
    "curve": '<svg viewBox="0 0 26 12"><path class="k-curve" d="M0 6H26"/></svg>a trial',
    "best": '<svg viewBox="0 0 26 12"><path class="k-best" d="M0 6H26"/></svg>the best',
    "fan": '<svg viewBox="0 0 26 12"><path class="k-fan" d="M0 6L26 0V12Z"/>'
    '<path class="k-median" d="M0 6H26"/></svg>forecast: median and bands',
    "broken": '<svg viewBox="0 0 26 12"><path class="k-lost" d="M10 6h7"/></svg>diverged or failed',
}
_RASTER_KEY = {
    "ramp": 'training: worse <svg class="ramp bar" viewBox="0 0 70 12">'
    + "".join(f'<path class="s{i}" d="M{14 * i} 6h14"/>' for i in range(5))
    + "</svg>better score",
    "thread": '<svg viewBox="0 0 26 12"><path class="k-thread" d="M0 6H26"/></svg>frozen',
    "lost": '<svg class="bar" viewBox="0 0 26 12"><path class="lost" d="M0 6h26"/></svg>diverged',
}


def _key(items: dict[str, str], only: Iterable[str]) -> str:
    parts = "".join(f"<li>{items[name]}</li>" for name in only)
    return f'<ul class="key" aria-hidden="true">{parts}</ul>'


def _curve_keys(view: StudyView) -> list[str]:
    fans = view.decision is not None and bool(view.decision.fans)
    broken = {"diverged", "failed"} & view.counts().keys()
    return ["curve", "best", *(["fan"] if fans else []), *(["broken"] if broken else [])]


def _raster_keys(view: StudyView) -> list[str]:
    scores = (s for curve in view.history.curves.values() for s in curve.scores)
    return ["ramp", "thread", *([] if all(map(math.isfinite, scores)) else ["lost"])]


def _fans_about(view: StudyView) -> str:
    fans = view.decision.fans if view.decision is not None else ()
    if not fans:
        return "The best is strong."
    levels = fans[0].levels
    inner = f"{wording.percent(levels[-1] - levels[0])} of the forecast's mass"
    when = "the study stopped" if view.stop is not None else "the last decision"
    return (
        "The best one and the leading candidates are strong; their fans are what was "
        f"forecast when {when}: the widest band holds {inner}."
    )


# ---------------------------------------------------------------- trials and bill


def _trials_table(view: StudyView) -> str:
    names = list(dict.fromkeys(n for c in view.history.curves.values() for n in c.params))
    columns = names if len(names) <= _MAX_PARAM_COLUMNS else []
    axis = svg.score_axis(
        (s for c in view.history.curves.values() for s in c.scores), goal=view.goal
    )
    head = '<th scope="col">Trial</th><th scope="col" data-fixed class="word">Curve</th>'
    head += f'<th scope="col">Best {esc(view.metric)}</th>'
    head += "".join(f'<th scope="col">{name}</th>' for name in ("At epoch", "Epochs"))
    head += '<th scope="col" class="word">State</th><th scope="col">Time</th>'
    head += '<th scope="col">Money</th>' if view.rate is not None else ""
    head += "".join(f'<th scope="col">{esc(name)}</th>' for name in columns)
    head += "" if columns or not names else '<th scope="col" class="word">Configuration</th>'
    rows = []
    for i, standing in enumerate(view.standings):
        spark = charts.spark(view, standing, axis) if i < _MAX_SPARKS else ""
        cells = _trial_cells(view, standing, spark) + _param_cells(standing.curve, columns)
        top = view.best is not None and standing.trial_id == view.best.trial_id
        kind = ' class="top"' if top else ""
        rows.append(f'<tr data-t="{standing.trial_id}"{kind}>{cells}</tr>\n')
    return _table("trials", "Configurations", head, "".join(rows))


def _trial_cells(view: StudyView, standing: Standing, spark: str) -> str:
    curve, seconds = standing.curve, sum(standing.curve.seconds)
    cells = f'<th scope="row">{standing.trial_id}</th><td class="word">{spark}</td>'
    if standing.best is None:
        cells += _NONE + _NONE
    else:
        cells += f'<td data-v="{float(standing.best)!r}">{_set(wording.number(standing.best))}</td>'
        cells += f"<td>{standing.best_epoch}</td>"
    cells += f'<td>{curve.epochs}</td><td class="word">{esc(standing.state)}</td>'
    cells += f'<td data-v="{seconds:.6g}">{esc(wording.duration(seconds))}</td>'
    if view.rate is not None:
        paid = view.rate * seconds / 3600
        cells += f'<td data-v="{paid:.6g}">{esc(wording.money(paid))}</td>'
    return cells


_NONE = '<td class="none">–</td>'


def _param_cells(curve: Curve, columns: list[str]) -> str:
    if not columns:
        text = esc(wording.params(curve.params))
        return f'<td class="word free">{text}</td>' if text else ""
    return "".join(
        _param_cell(curve.params[name]) if name in curve.params else _NONE for name in columns
    )


def _param_cell(value: ParamValue) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return f'<td data-v="{float(value)!r}">{_set(wording.param(value))}</td>'
    return f"<td>{esc(wording.param(value))}</td>"


def _bill(view: StudyView) -> str:
    bill = view.history.bill
    if bill.seconds <= 0:
        return ""
    epochs = {"training": f"{bill.epochs:,}", "replaying": f"{bill.epochs_replayed:,}"}
    parts = [(n, s) for n, s in words.bill_parts(view) if s > 0 or n == "training"]
    rows = "".join(
        _bill_row(view, _capital(name), epochs.get(name, ""), seconds) for name, seconds in parts
    )
    head = '<th scope="col" class="word">For</th><th scope="col">Epochs</th>'
    head += '<th scope="col">Time</th><th scope="col">Share</th>'
    head += '<th scope="col">Money</th>' if view.rate is not None else ""
    about = "Replaying is training again what a freeze or a crash had lost." * bool(
        bill.seconds_replaying
    )
    foot = _bill_row(view, "Total", "", bill.seconds)
    return _section("Bill", about, _table("bill", "Bill", head, rows, foot, "bill"))


def _bill_row(view: StudyView, name: str, epochs: str, seconds: float) -> str:
    share = wording.percent(seconds / view.history.bill.seconds)
    row = f'<th scope="row" class="word">{esc(name)}</th><td>{esc(epochs)}</td>'
    row += f"<td>{esc(wording.duration(seconds))}</td><td>{esc(share)}</td>"
    if view.rate is not None:
        row += f"<td>{esc(wording.money(view.rate * seconds / 3600))}</td>"
    return f"<tr>{row}</tr>\n"


def _failure(view: StudyView) -> str:
    failure = first_failure(view)
    if failure is None and view.failed:
        failure = (view.failed[0].error or "").strip()
    if failure is None:
        return ""
    return _section("The first failure", "", f"<pre>{esc(failure)}</pre>", long=True)


def _footer(view: StudyView) -> str:
    parts = ["Made by freezethaw"]
    if view.started_at is not None:
        parts.append(f"study started {view.started_at.replace('T', ' ')}")
    if view.storage is not None:
        parts.append(f"kept in {view.storage}")
    return f"<footer>{esc(' · '.join(parts))}</footer>\n"
