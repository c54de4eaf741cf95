"""A study as plain text, as JSON, and the last decision explained."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from freezethaw import wording
from freezethaw.records import Leader, StopReason
from freezethaw.report import words
from freezethaw.report.view import Standing, StudyView
from freezethaw.sentences import last_line


def summary(view: StudyView) -> str:
    """A study in a few lines: where it stands and why, the best, the utility, the bill."""
    lines = [f"{wording.printable(view.name)}: {words.standing_sentence(view)}", ""]
    lines += [f"  {name:<9}{text}" for name, text in facts(view)]
    if failure := first_failure(view):
        lines += ["", *(f"  {line}" for line in failure.splitlines())]
    return "\n".join(lines)


def facts(view: StudyView) -> list[tuple[str, str]]:
    """What a summary says, line by line: (what, text)."""
    rows = [("best", _best_text(view))]
    if view.best is not None and view.best.curve.params:
        rows.append(("params", wording.params(view.best.curve.params)))
    rows += [
        ("utility", _utility_text(view)),
        ("trials", words.trials_sentence(view)),
        *(("failed", text) for text in _failed_text(view)),
        ("bill", words.bill_sentence(view)),
    ]
    if view.storage is not None:
        rows.append(("study", wording.printable(view.storage)))
    if view.writer is not None:
        rows.append(("running", f"in {wording.printable(view.writer)}"))
    return rows


def first_failure(view: StudyView) -> str | None:
    """The traceback to show in full: the first of the failures that stopped a study."""
    if view.stop is None or view.stop.kind is not StopReason.FAILURES:
        return None
    return (view.history.first_failure or "").strip() or None


def _failed_text(view: StudyView) -> Iterator[str]:
    """What the first failed trial died of."""
    if failed := view.failed:
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        yield f"trial {failed[0].trial_id}: {last_line(failed[0].error)}{more}"


def _best_text(view: StudyView) -> str:
    best = view.best
    if best is None or best.best is None:
        return "no score yet" if not view.history.curves else "no finite score yet"
    score = f"{wording.printable(view.metric)} {wording.number(best.best)}"
    return f"{score} at epoch {best.best_epoch} of trial {best.trial_id} ({view.goal}d)"


def _utility_text(view: StudyView) -> str:
    now, peak = view.utility_now, view.peak
    if not math.isfinite(now):
        return wording.printable(view.utility_text)
    text = f"{wording.number(now)} now"
    if peak is not None and peak.utility > now:
        where = wording.amount(peak.spent, view.unit)
        text += f", highest {wording.number(peak.utility)} after {where}"
    return f"{text} ({wording.printable(view.utility_text)})"


# ---------------------------------------------------------------- why


def why(view: StudyView) -> RenderableType:
    """The last decision for a terminal: a sentence, and the leading candidates in a table."""
    parts: list[RenderableType] = [Text(words.choice_sentence(view))]
    if regret := words.regret_sentence(view):
        parts.append(Text(regret))
    if view.decision is not None and view.decision.leaders:
        parts += [Text(), _leaders_table(view, view.decision.leaders)]
    return Group(*parts)


def _leaders_table(view: StudyView, leaders: tuple[Leader, ...]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    heads = ("trial", "seen", "until", "gain", "chance", "price")
    rows = [
        (
            str(leader.trial_id),
            str(leader.epochs_seen),
            str(leader.target_epoch),
            wording.signed(leader.gain),
            wording.percent(leader.chance),
            words.price(leader, view.unit),
        )
        for leader in leaders
    ]
    for i, head in enumerate(heads):
        # The numbers keep their width; only the parameters give way.
        width = max(len(text) for text in (head, *(row[i] for row in rows)))
        table.add_column(head, justify="right", width=width)
    table.add_column("params", no_wrap=True, overflow="ellipsis", ratio=1)
    for i, (row, leader) in enumerate(zip(rows, leaders, strict=True)):
        params = Text(wording.params(leader.params))
        table.add_row(*row, params, style="bold" if i == 0 else "")
    return table


def why_json(view: StudyView) -> dict[str, Any]:
    """The last decision for a script."""
    decision = view.decision
    if decision is None:
        return {"sentence": words.choice_sentence(view), "action": None, "leaders": []}
    stopped = view.stop or decision.stop
    answer = {
        "sentence": words.choice_sentence(view),
        "limit": words.regret_sentence(view),
        "action": "stop" if stopped is not None else "train",
        "reason": None if stopped is None else stopped.kind.value,
        "trial_id": decision.trial_id,
        "from_epoch": decision.from_epoch,
        "to_epoch": decision.to_epoch,
        "utility_now": decision.utility_now,
        "utility_max": decision.utility_max,
        "utility_min": decision.utility_min,
        "regret": decision.regret,
        "threshold": decision.threshold,
        "leaders": [
            {
                "trial_id": leader.trial_id,
                "params": leader.params,
                "epochs_seen": leader.epochs_seen,
                "target_epoch": leader.target_epoch,
                "expected_gain": leader.gain,
                "chance": leader.chance,
                "cost": leader.cost,
            }
            for leader in decision.leaders
        ],
    }
    return _strict(answer)  # type: ignore[no-any-return]


# ---------------------------------------------------------------- JSON


def to_json(view: StudyView) -> dict[str, Any]:
    """Where a study stands, for a script: strict JSON, so what is no number is null."""
    peak = view.peak
    answer = {
        "name": view.name,
        "sentence": words.standing_sentence(view),
        "metric": view.metric,
        "goal": view.goal,
        "unit": view.unit,
        "spent": view.history.spent,
        "budget": view.budget,
        "max_epochs": view.max_epochs,
        "initial": view.initial,
        "best": _best_json(view.best),
        "utility": {
            "text": view.utility_text,
            "now": view.utility_now,
            "highest": None if peak is None else peak.utility,
            "highest_at": None if peak is None else peak.spent,
        },
        "stop": view.stop and {"kind": view.stop.kind.value, "reason": words.stop_sentence(view)},
        "decision": None if view.decision is None else why_json(view),
        "bill": _bill_json(view),
        "counts": view.counts(),
        "trials": [_trial_json(standing) for standing in view.standings],
        "storage": view.storage,
        "writer": view.writer,
        "started_at": view.started_at,
    }
    return _strict(answer)  # type: ignore[no-any-return]


def _best_json(best: Standing | None) -> dict[str, Any] | None:
    if best is None:
        return None
    return {
        "trial_id": best.trial_id,
        "params": best.curve.params,
        "score": best.best,
        "epoch": best.best_epoch,
    }


def _bill_json(view: StudyView) -> dict[str, Any]:
    bill = view.history.bill
    return {
        "epochs": bill.epochs,
        "epochs_replayed": bill.epochs_replayed,
        "seconds": bill.seconds,
        "seconds_training": bill.seconds_training,
        "seconds_replaying": bill.seconds_replaying,
        "seconds_deciding": bill.seconds_deciding,
        "rate": view.rate,
        "money": view.money,
    }


def _trial_json(standing: Standing) -> dict[str, Any]:
    curve = standing.curve
    return {
        "trial_id": curve.trial_id,
        "state": standing.state,
        "params": curve.params,
        "epochs": curve.epochs,
        "last": curve.scores[-1] if curve.scores else None,
        "best": standing.best,
        "best_epoch": standing.best_epoch,
        "seconds": sum(curve.seconds),
        "error": curve.error,
    }


def _strict(value: Any) -> Any:
    """The same in plain JSON types; NaN and infinities, which JSON does not have, become null."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): _strict(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    if isinstance(value, int):
        return int(value)
    if isinstance(value, PurePath):
        return str(value)
    number = float(value)
    return number if math.isfinite(number) else None
