"""How well questions find out a utility: the paper's experiments, and what a wrong one would cost.

Simulated users have a true utility, drawn as in the paper (prices uniform on [0, 1], the weights of
a mix from a Dirichlet distribution), and answer by it. Agreement is the share of fresh meaningful
pairs, neither outcome of which dominates, on which the fitted utility chooses as the true one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from freezethaw.bench.overhead import machine
from freezethaw.bench.replay import regret, replay
from freezethaw.preference import Answer, Array, Fit, Form, Outcome, Price, Stakes, fit
from freezethaw.questions import (
    Question,
    crowd_of,
    meaningful_pairs,
    next_question,
    random_question,
)
from freezethaw.tables import CurveTable, open_table

Log = Callable[[str], Any]

STAKES = Stakes(budget=300.0)
FRESH_PAIRS = 4000
FIRST = 51
"""The first epoch that the user of a trajectory is asked about, as in the paper."""
POWERS: dict[Form, float] = {"linear": 1.0, "quadratic": 2.0, "square_root": 0.5}


def draw_truth(form: Form, rng: np.random.Generator) -> Price:
    """Draw a user's price."""
    if form in POWERS:
        return Price(powers=((float(rng.random()), POWERS[form]),))
    if form == "staircase":
        edges, sizes = np.sort(rng.random(3)), rng.random() * rng.dirichlet(np.ones(3))
        return Price(steps=tuple(zip(edges.tolist(), sizes.tolist(), strict=True)))
    weights, prices = rng.dirichlet(np.ones(4)), rng.random(4)
    each = (weights * prices).tolist()
    steps = draw_truth("staircase", rng).steps
    total = sum(size for _, size in steps)
    return Price(
        powers=tuple(zip(each[:3], (1.0, 2.0, 0.5), strict=True)),
        steps=tuple((edge, each[3] * size / total) for edge, size in steps),
    )


def answer(truth: Price, question: Question, rng: np.random.Generator, wrong: float) -> Answer:
    """Answer as a user with this price would, `wrong` of the time the other way."""
    (x1, y1), (x2, y2) = (STAKES.place(outcome) for outcome in question)
    first = y1 - float(truth(x1)) > y2 - float(truth(x2))
    if rng.random() < wrong:
        first = not first
    return Answer(*question, "first" if first else "second")


def agreement(truth: Price, found: Price, rng: np.random.Generator) -> float:
    """Return the share of fresh meaningful pairs on which two prices choose alike."""
    pairs = meaningful_pairs(FRESH_PAIRS, rng)
    one, other = (pairs.advantage(price) > 0 for price in (truth, found))
    return float((one == other).mean())


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a user is asked."""

    form: Form
    questions: int
    chosen: bool
    """Chosen to tell most; otherwise drawn at random."""
    wrong: float = 0.0
    named: bool = True
    """Whether the fit knows the form."""


def ask_user(protocol: Protocol, truth: Price, rng: np.random.Generator, seed: int) -> Fit:
    """Return the utility that a user's answers make."""
    answers: list[Answer] = []
    form = protocol.form if protocol.named else None
    for _ in range(protocol.questions):
        question: Question | None = random_question(STAKES, rng)
        if protocol.chosen:
            question = next_question(answers, STAKES, crowd_of(answers, STAKES, form), seed=seed)
        assert question is not None
        answers.append(answer(truth, question, rng, protocol.wrong))
    return fit(answers, STAKES, form)


def protocols() -> list[Protocol]:
    """The rows of the table."""
    rows = []
    single: tuple[Form, ...] = ("linear", "quadratic", "square_root", "staircase")
    for form in single:
        rows += [
            Protocol(form=form, questions=30, chosen=False),
            Protocol(form=form, questions=10, chosen=True),
            Protocol(form=form, questions=10, chosen=True, named=False),
            Protocol(form=form, questions=20, chosen=True, wrong=0.1),
        ]
    rows += [
        Protocol(form="mix", questions=100, chosen=False),
        Protocol(form="mix", questions=30, chosen=False),
        Protocol(form="mix", questions=10, chosen=True),
        Protocol(form="mix", questions=10, chosen=True, named=False),
        Protocol(form="mix", questions=20, chosen=True, wrong=0.1),
    ]
    return rows


Row = dict[str, Any]


def measure_agreement(n_users: int, log: Log) -> list[Row]:
    """Ask users by every protocol."""
    rows = []
    with _workers() as pool:
        for protocol in protocols():
            found = list(pool.map(partial(agreement_of, protocol), range(n_users), chunksize=10))
            median, low = statistics.median(found), float(np.quantile(found, 0.1))
            rows.append({**vars(protocol), "users": n_users, "median": median, "tenth": low})
            log(f"{protocol}: median agreement {median:.1%}, a tenth of users below {low:.1%}")
    return rows


def _workers() -> ProcessPoolExecutor:
    """A process per core, each of one thread."""
    return ProcessPoolExecutor(
        mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    )


def agreement_of(protocol: Protocol, user: int) -> float:
    """Ask one user and return the agreement."""
    rng = np.random.default_rng([user, *protocol.form.encode()])
    truth = draw_truth(protocol.form, rng)
    result = ask_user(protocol, truth, rng, user)
    return agreement(truth, result.price, rng)


def measure_speed(repeats: int, log: Log) -> list[Row]:
    """Time a fit to 1,000 pairs and the choice of a question."""
    rng = np.random.default_rng(0)
    truth = draw_truth("mix", rng)
    many = [answer(truth, random_question(STAKES, rng), rng, 0.0) for _ in range(1000)]
    few = many[:10]
    fit_seconds: dict[str, float] = {}
    forms: tuple[Form | None, ...] = ("linear", "power", "staircase", "mix", None)
    for form in forms:
        begun = time.perf_counter()
        fit(many, STAKES, form)
        fit_seconds[form or "form found"] = time.perf_counter() - begun
    asking = []
    for seed in range(repeats):
        begun = time.perf_counter()
        next_question(few, STAKES, crowd_of(few, STAKES), seed=seed)
        asking.append(time.perf_counter() - begun)
    rows = [
        {"what": f"fit to 1,000 pairs, {form}", "seconds": seconds, "limit": 1.0}
        for form, seconds in fit_seconds.items()
    ]
    rows.append({"what": "choosing a question", "seconds": statistics.median(asking), "limit": 0.2})
    for row in rows:
        log(f"{row['what']}: {row['seconds']:.3f} s")
    return rows


def measure_regret(n_users: int, n_configs: int, tasks: Sequence[str], log: Log) -> list[Row]:
    """Run studies with the true utility and with the one found in ten questions; judge by the true.

    On test tasks of the table that comes with the library.
    """
    rows = []
    with _workers() as pool:
        for row in pool.map(partial(regrets_of, n_configs, tasks), range(n_users)):
            rows.append(row)
            log(f"user {row['user']} ({row['form']}, {row['task']}): {_told(row)}")
    return rows


def regrets_of(n_configs: int, tasks: Sequence[str], user: int) -> Row:
    """Ask one user ten questions, and run a study by each of the two utilities."""
    table = open_table("tabular")
    form: Form = list(POWERS)[user % len(POWERS)]
    rng = np.random.default_rng([user, 99])
    truth = draw_truth(form, rng)
    protocol = Protocol(form=form, questions=10, chosen=True, named=False)
    found = ask_user(protocol, truth, rng, user)
    chosen = np.sort(rng.choice(len(table.configs), n_configs, replace=False))
    row = _two_runs(table, tasks[user % len(tasks)], chosen, truth, found)
    return {"user": user, "form": form, **row}


def _two_runs(
    table: CurveTable, task: str, chosen: NDArray[np.int64], truth: Price, found: Fit
) -> Row:
    right = truth.utility(STAKES)
    curves = table.scaled(task)[chosen]
    row: Row = {"task": task, "fitted_form": found.form}
    for name, utility in (("true", right), ("fitted", found.utility)):
        run = replay(table, task, chosen, utility)
        row[name] = regret(right, run.spent, run.best, curves)
        row[f"{name}_epochs"] = run.spent
    return row


def _told(row: Row) -> str:
    return (
        f"regret {100 * row['true']:.1f} with the true utility ({row['true_epochs']:.0f} epochs), "
        f"{100 * row['fitted']:.1f} with the fitted one ({row['fitted_epochs']:.0f})"
    )


def measure(*, quick: bool, log: Log) -> dict[str, list[Row]]:
    """All of it; `quick` is toy size."""
    tasks = open_table("tabular").test_tasks
    return {
        "agreement": measure_agreement(3 if quick else 200, log),
        "speed": measure_speed(2 if quick else 20, log),
        "regret": measure_regret(
            1 if quick else 15, 8 if quick else 128, tasks[:1] if quick else tasks, log
        ),
    }


# ── the paper's simulated user, who prefers whatever lies above a trajectory ─────────────────────


def same_cost_answers(best: Array, rng: np.random.Generator) -> list[Answer]:
    """Answers as the paper prints them: above a trajectory or below it, at the same cost.

    One outcome is better and no dearer: a cost that is taken off both says nothing about itself.
    """
    answers = []
    for b in range(FIRST, len(best)):
        up = Outcome(float(b), float(rng.uniform(best[b], 1.0)))
        down = Outcome(float(b), float(rng.uniform(0.0, best[b])))
        answers.append(Answer(up, down, "first"))
    return answers


def meaningful_answers(best: Array, rng: np.random.Generator) -> list[Answer]:
    """Answers of the same user about outcomes of different costs, neither of which dominates.

    The upper one may be the dearer; it is the cheaper one where the trajectory rises enough to
    leave room for a lower one that is dearer and better.
    """
    answers = []
    for b in range(FIRST, len(best)):
        other = int(rng.integers(FIRST, len(best)))
        early, late = sorted((b, other))
        if early == late:
            continue
        up = Outcome(float(late), float(rng.uniform(best[late], 1.0)))
        down = Outcome(float(early), float(rng.uniform(0.0, best[early])))
        answers.append(Answer(up, down, "first"))
        if best[late] > best[early]:
            low, high = np.sort(rng.uniform(best[early], best[late], 2)).tolist()
            answers.append(Answer(Outcome(float(early), low), Outcome(float(late), high), "first"))
    return answers


# ── pages ────────────────────────────────────────────────────────────────────────────────────────


def to_markdown(found: dict[str, list[Row]]) -> str:
    """The page for results/."""
    lines = [
        "# How well questions find out a utility",
        "",
        "Made by `freezethaw bench preference --out results/preference.md`. Simulated users, their "
        "true utilities drawn as in the paper. *Agreement*: the share of fresh meaningful pairs on "
        "which the fitted utility chooses as the true one. *Form*: whether the fit knows the form "
        "or finds it. Before any answer, chosen questions guess at prices much as the simulated "
        f"users draw theirs; random ones do not guess. Measured on: {machine()}.",
        "",
        "| true form | questions | | wrong | form | median agreement | tenth of users below |",
        "|---|---:|---|---:|---|---:|---:|",
    ]
    for r in found["agreement"]:
        lines.append(
            f"| {r['form'].replace('_', ' ')} | {r['questions']} "
            f"| {'chosen' if r['chosen'] else 'random'} | {r['wrong']:.0%} "
            f"| {'known' if r['named'] else 'found'} | {r['median']:.1%} | {r['tenth']:.1%} |"
        )
    users = found["agreement"][0]["users"]
    lines += ["", f"{users} users per row.", "", "| what | seconds | asked |", "|---|---:|---:|"]
    lines += [f"| {r['what']} | {r['seconds']:.3f} | < {r['limit']:g} |" for r in found["speed"]]
    true, fitted = (
        100 * statistics.mean(r[name] for r in found["regret"]) for name in ("true", "fitted")
    )
    loss = fitted - true
    lines += [
        "",
        "## What it means for tuning",
        "",
        "Studies on the test tasks of `tabular` (128 configurations, weights `cfbo-nt`), with the "
        "true utility and with the one fitted to ten chosen questions, form found; normalised "
        "regret × 100 at the stop, both by the true utility (Eq. 8). Mean with the true one "
        f"{true:.1f}, with the fitted one {fitted:.1f}: {'a loss' if loss >= 0 else 'a gain'} of "
        f"{abs(loss):.2f} over {len(found['regret'])} users.",
        "",
        "| user | task | true | epochs | fitted | epochs |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {r['user']} | {r['task']} | {100 * r['true']:.1f} | {r['true_epochs']:.0f} "
        f"| {100 * r['fitted']:.1f} | {r['fitted_epochs']:.0f} |"
        for r in found["regret"]
    ]
    return "\n".join(lines) + "\n"
