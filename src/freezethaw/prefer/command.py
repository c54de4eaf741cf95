"""`freezethaw prefer`: from options to a session, asked on a screen or a page, to its end."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from freezethaw.errors import PreferenceError
from freezethaw.prefer.file import read_file
from freezethaw.prefer.screen import ask_all, show_end
from freezethaw.prefer.server import PreferServer
from freezethaw.prefer.session import Session
from freezethaw.prefer.trajectory import outcomes_of, stakes_of
from freezethaw.prefer.words import sentence
from freezethaw.preference import FORMS, Form, Outcome, Stakes
from freezethaw.records import Goal
from freezethaw.study import Study
from freezethaw.units import parse_cost, parse_rate


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The options of the command."""

    budget: str | None
    goal: str | None
    bounds: tuple[float, float] | None
    rate: str | None
    metric: str | None
    form: str | None
    study: Path | None
    name: str | None
    questions: int
    out: Path
    fresh: bool
    seed: int
    web: bool
    port: int


def ask(asked: Asked, console: Console) -> dict[str, Any]:
    """Ask, on a screen or on a page; what was found."""
    if asked.questions < 1:
        raise PreferenceError(f"--questions {asked.questions}: needs at least one")
    session = _session(asked, console)
    if asked.web:
        done = _on_a_page(session, asked, console)
    else:
        try:
            done = ask_all(session, asked.questions, console)
        except KeyboardInterrupt:
            done = False
    show_end(session, console, done=done)
    found = session.fit
    return {
        "path": str(session.path),
        "answers": len(session.answers),
        "enough": session.is_enough,
        "doubt": session.doubt,
        "form": found.form if found else None,
        "utility": found.utility.to_json() if found else None,
        "sentence": sentence(found) if found else None,
        "remarks": session.remarks,
    }


def _session(asked: Asked, console: Console) -> Session:
    _check_options(asked)
    stakes, among = _stakes(asked)
    form = _form(asked.form)
    if asked.out.exists() and asked.fresh:
        read_file(asked.out)  # anything else of that name is not ours to replace
        asked.out.replace(asked.out.with_name(f"{asked.out.name}~"))
    if asked.out.exists():
        session = Session.resume(asked.out, among=among, seed=asked.seed)
        if stakes is None:
            stakes = _as_asked(asked, session.stakes)
        if stakes != session.stakes:
            raise PreferenceError(
                f"{asked.out}: holds answers about {_about(session.stakes)}, and now it is "
                f"{_about(stakes)}; give another --out, or --fresh to begin anew"
            )
        if asked.form is not None or asked.metric is not None:
            session.form = session.form if asked.form is None else form
            session.metric = asked.metric or session.metric
            session.save()
        if session.answers:
            said = f"Going on with {len(session.answers)} answers of {asked.out}."
            console.print(said, markup=False)
        return session
    if stakes is None:
        raise PreferenceError("what may be spent? Give --budget 300, --budget 20h or --study FILE")
    session = Session(
        asked.out, stakes, metric=asked.metric, form=form, among=among, seed=asked.seed
    )
    if session.question is None:
        raise PreferenceError(
            f"nothing to ask within {stakes.budget:g} {stakes.unit}: two different amounts are "
            "needed; give a larger budget"
        )
    session.save()  # whether it can be written should be known before the first question
    return session


def _check_options(asked: Asked) -> None:
    given = {
        "--budget": asked.budget, "--goal": asked.goal, "--bounds": asked.bounds,
        "--rate": asked.rate,
    }  # fmt: skip
    beside = [name for name, value in given.items() if value is not None]
    if asked.study is not None and beside:
        raise PreferenceError(
            f"{', '.join(beside)} beside --study: a study's own budget, goal and bounds count"
        )
    if asked.name is not None and asked.study is None:
        raise PreferenceError("--name names a study: give its file with --study")


def _as_asked(asked: Asked, stakes: Stakes) -> Stakes:
    """Return a file's stakes with what the command line says otherwise, without a budget."""
    goal = stakes.goal if asked.goal is None else _goal(asked.goal)
    return replace(stakes, goal=goal, bounds=asked.bounds or stakes.bounds)


def _about(stakes: Stakes) -> str:
    low, high = stakes.bounds
    return (
        f"a score from {low:g} to {high:g} to {stakes.goal} within {stakes.budget:g} {stakes.unit}"
    )


def _stakes(asked: Asked) -> tuple[Stakes | None, list[Outcome]]:
    if asked.study is not None:
        with Study.open(asked.study, asked.name) as study:
            stakes = stakes_of(study.problem)
            return stakes, outcomes_of(study.history, stakes)
    if asked.budget is None:
        return None, []
    rate = parse_rate(asked.rate)
    try:
        budget, unit = parse_cost(float(asked.budget))
        if rate is not None:
            unit = "money"  # a bare number beside a price is an amount of it
    except ValueError:
        budget, unit = parse_cost(asked.budget)
    if unit == "seconds" and rate is not None:
        raise PreferenceError(
            f"--budget {asked.budget} with --rate: give the budget in money, or leave the rate out"
        )
    if unit == "money" and rate is None:
        raise PreferenceError(f"--budget {asked.budget}: money needs --rate '$2.5/h' beside it")
    return Stakes(
        budget=budget,
        goal=_goal(asked.goal or "maximize"),
        bounds=asked.bounds or (0.0, 1.0),
        unit=unit,
        rate=rate if unit == "money" else None,
    ), []


def _goal(goal: str) -> Goal:
    if goal not in ("maximize", "minimize"):
        raise PreferenceError(f"--goal {goal}: it is maximize or minimize")
    chosen: Goal = "maximize" if goal == "maximize" else "minimize"
    return chosen


def _form(form: str | None) -> Form | None:
    if form == "any":
        return None
    for known in FORMS:
        if form == known:
            return known
    if form is not None:
        raise PreferenceError(f"--form {form}: known are {', '.join(FORMS)}, any")
    return None


def _on_a_page(session: Session, asked: Asked, console: Console) -> bool:
    with PreferServer(session, asked.questions, asked.port) as server:
        console.print(f"The questions are at {server.address}", highlight=False, soft_wrap=True)
        console.print("Ctrl-C ends; every answer is saved.")
        webbrowser.open(server.address)
        try:
            server.done.wait()
        except KeyboardInterrupt:
            return False
    return True
