"""The benchmark of questions: simulated users, studies on a table, the paper's figures."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import freezethaw as ft
from fake_extrapolators import FakeCurves
from freezethaw.bench import preference_figures as figures
from freezethaw.bench.preference import (
    POWERS,
    STAKES,
    Protocol,
    agreement,
    answer,
    ask_user,
    draw_truth,
    meaningful_answers,
    same_cost_answers,
    to_markdown,
)
from freezethaw.bench.replay import regret, replay
from freezethaw.cli import app
from freezethaw.preference import FORMS, Answer, Outcome, Price, fit, trivial
from freezethaw.records import StopReason
from freezethaw.tables import open_table

RISING = 0.2 + 0.7 * (1 - np.exp(-np.arange(301) / 60))


@pytest.mark.parametrize("form", [form for form in FORMS if form != "power"])
def test_true_utilities_are_drawn_as_in_the_paper(form):
    totals = []
    for seed in range(200):
        price = draw_truth(form, np.random.default_rng(seed))
        assert price(0.0) == 0.0
        assert (np.diff(price(np.linspace(0, 1, 30))) >= 0).all()
        totals.append(float(price(1.0)))
    assert 0 <= min(totals) < max(totals) <= 1
    assert np.mean(totals) == pytest.approx(0.5, abs=0.07)


def test_users_answer_by_their_utility_and_sometimes_slip():
    truth = Price(powers=((0.5, 1.0),))
    question = Outcome(30, 0.5), Outcome(270, 0.7)  # 0.45 against 0.25
    rng = np.random.default_rng(0)
    assert answer(truth, question, rng, 0.0) == Answer(*question, "first")
    slips = [answer(truth, question, rng, 0.1).choice == "second" for _ in range(1000)]
    assert np.mean(slips) == pytest.approx(0.1, abs=0.03)


def test_agreement_is_a_share_of_choices():
    rng = np.random.default_rng(0)
    one = Price(powers=((0.5, 1.0),))
    assert agreement(one, one, rng) == 1.0
    # Who would pay anything disagrees with whoever pays nothing wherever the dearer is better.
    assert agreement(Price(), Price(powers=((1e6, 1.0),)), rng) < 0.01


def test_asking_is_the_same_for_the_same_user():
    protocol = Protocol(form="quadratic", questions=5, chosen=True)
    truth = draw_truth("quadratic", np.random.default_rng(1))
    prices = [ask_user(protocol, truth, np.random.default_rng(2), 0).price for _ in range(2)]
    assert prices[0] == prices[1]


def test_a_study_on_a_table_and_its_regret():
    table = open_table("tabular")
    rows = np.arange(6)
    utility = ft.linear(alpha=0.2, budget=40)
    run = replay(
        table, "vehicle", rows, utility, weights=FakeCurves(), stopping=ft.stopping.never()
    )
    assert run.stop.kind is StopReason.BUDGET_SPENT
    assert run.spent == 40
    curves = table.scaled("vehicle")[rows]
    assert run.best <= curves[:, 1:].max() + 1e-12
    best = max(utility(t, curves[n, 1 : t + 1].max()) for n in range(6) for t in range(1, 41))
    worst = utility(40, curves[:, 1].min())
    wanted = (best - utility(run.spent, run.best)) / (best - worst)
    assert regret(utility, run.spent, run.best, curves) == pytest.approx(wanted)
    assert 0 <= wanted <= 1


def test_pairs_of_the_same_cost_say_nothing_about_cost():
    answers = same_cost_answers(RISING, np.random.default_rng(0))
    assert len(answers) == 250
    assert all(trivial(answer, STAKES) for answer in answers)
    price = fit(answers, STAKES, "linear").parameters[0]
    assert (price.low, price.value) == (0.0, 0.0)
    assert price.high > 1.0  # as unsure as before any answer


def test_meaningful_pairs_put_the_best_point_where_the_trajectory_saturates():
    answers = meaningful_answers(RISING, np.random.default_rng(0))
    assert not any(trivial(answer, STAKES) for answer in answers)
    found, at = figures.fitted_peak(RISING, answers)
    assert found.parameters[0].low > 0.1
    half, most = 60 * np.log(2), 60 * np.log(20)
    assert half < at < most


def test_the_figures_are_drawn():
    grid = figures.contours()
    assert grid.count("<g ") == 12
    assert grid.count('class="true"') == pytest.approx(grid.count('class="fitted"'), abs=8)
    page = figures.trajectory(RISING)
    assert page.count('class="star"') == 2
    assert "as printed" in page


def test_the_page_says_what_was_measured():
    row = {"form": "mix", "questions": 10, "chosen": True, "wrong": 0.0, "named": True}
    found = {
        "agreement": [{**row, "users": 7, "median": 0.987, "tenth": 0.95}],
        "speed": [{"what": "choosing a question", "seconds": 0.0261, "limit": 0.2}],
        "regret": [
            {"user": 0, "task": "vehicle", "true": 0.02, "true_epochs": 60.0, "fitted": 0.025,
             "fitted_epochs": 66.0, "fitted_form": "linear"},
        ],
    }  # fmt: skip
    page = to_markdown(found)
    assert "| mix | 10 | chosen | 0% | known | 98.7% | 95.0% |" in page
    assert "| choosing a question | 0.026 | < 0.2 |" in page
    assert "a loss of 0.50 over 1 users" in page
    assert "| 0 | vehicle | 2.0 | 60 | 2.5 | 66 |" in page


def test_every_single_form_has_its_power():
    assert set(POWERS) < set(FORMS)


@pytest.mark.slow
def test_the_command_runs_at_toy_size():
    result = CliRunner().invoke(app, ["bench", "preference", "--quick", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {row["users"] for row in found["agreement"]} == {3}
