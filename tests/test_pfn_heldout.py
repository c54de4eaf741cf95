"""Held-out log density: contexts and questions, baselines, and the check on real curves."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from freezethaw.extrapolator import BinnedForecast
from freezethaw.pfn import heldout
from freezethaw.pfn.extrapolate import PfnExtrapolator
from freezethaw.pfn.heldout import (
    BINS,
    GROUPS,
    METHODS,
    NEVER,
    compare,
    fit_power_law,
    fit_spread,
    guess,
    lines,
    make_case,
    make_cases,
    network_densities,
)
from freezethaw.space import Float, Space
from freezethaw.tables import CurveTable, read_table, write_table

DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="module")
def table() -> CurveTable:
    """Four tasks of 40 noisy saturating curves."""
    rng = np.random.default_rng(0)
    configs = rng.uniform(size=(40, 2))
    epochs = np.arange(31)
    rate = 1 - np.exp(-epochs / 6)
    curves = np.empty((4, 40, 31))
    for task in range(4):
        top = 0.3 + 0.5 * configs @ rng.dirichlet([1, 1])
        curves[task] = 0.1 + (top - 0.1)[:, None] * rate
    curves[:, :, 1:] += rng.normal(0, 0.004, curves[:, :, 1:].shape)
    return CurveTable(
        name="toy",
        configs=configs,
        curves=np.clip(curves, 0, 1),
        tasks=("a", "b", "c", "d"),
        test_tasks=("d",),
        space=Space({"x": Float(0, 1), "y": Float(0, 1)}),
        metric="accuracy",
        goal="maximize",
        bounds=(0, 1),
        normalize="range",
        source="made up",
        license="CC0-1.0",
    )


class Uniform:
    """An extrapolator that knows nothing."""

    def check(self, columns: int) -> None:
        pass

    def condition(self, context):
        return self

    def forecast(self, queries):
        shape = (len(queries.curve), len(queries.epochs), 250)
        return BinnedForecast(
            mass=torch.full(shape, 1 / 250), borders=torch.linspace(0, 1, 251)
        )  # fmt: skip


# ── cases ────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_asked_that_was_told(table):
    for points in (5, 40, 300):
        case = make_case(table, "a", points, np.random.default_rng(points))
        seen = case.context.epochs_seen
        told = np.concatenate([seen, np.zeros(len(case.configs) - len(seen), int)])
        assert (case.epoch > told[case.row]).all()
        assert len(set(zip(case.row, case.epoch, strict=True))) == len(case.row)
        y = table.scaled("a")
        known = {tuple(config): scores for config, scores in zip(table.encoded(), y, strict=True)}
        for row, epoch, score in zip(case.row, case.epoch, case.score, strict=True):
            assert score == known[tuple(case.configs[row])][epoch]
        assert seen.sum() <= max(points, len(seen)) + 1


def test_groups_are_by_distance(table):
    case = make_case(table, "a", 60, np.random.default_rng(0))
    for row, epoch, group in zip(case.row, case.epoch, case.group, strict=True):
        if row >= len(case.context.epochs_seen):
            assert GROUPS[group] == "never started"
            continue
        ahead = epoch - case.context.epochs_seen[row]
        low, _, high = {"1 ahead": "1-1", "16+": "16-99"}.get(
            GROUPS[group], GROUPS[group]
        ).partition("-")
        assert int(low) <= ahead <= int(high)


def test_cases_are_repeated_whichever_tasks_are_asked_for(table):
    alone, among = make_cases(table, ["c"], 2, 0), make_cases(table, ["a", "c"], 2, 0)[2:]
    for one, other in zip(alone, among, strict=True):
        assert np.array_equal(one.score, other.score)
        assert np.array_equal(one.configs, other.configs)


# ── densities ────────────────────────────────────────────────────────────────────────────────────


def test_a_uniform_guess_is_worth_nothing(table):
    case = make_case(table, "a", 40, np.random.default_rng(0))
    assert network_densities(Uniform(), case) == pytest.approx(0, abs=1e-6)


def test_a_power_law_is_found():
    t = np.arange(1, 61, dtype=float)
    y = 0.9 - 0.6 * t**-0.5
    found = fit_power_law(y[:12], np.arange(13, 61))
    assert found == pytest.approx(y[12:], abs=1e-9)


@pytest.mark.parametrize("scores", [[0.3], [0.3, 0.5]])
def test_of_two_points_the_last_stays(scores):
    assert fit_power_law(np.array(scores), np.array([7, 9])).tolist() == [scores[-1]] * 2


def test_the_baselines_go_through_the_last_point(table):
    case = make_case(table, "a", 40, np.random.default_rng(0))
    own = np.flatnonzero(case.group < NEVER)
    last = case.context.scores[np.arange(len(case.context.epochs_seen)),
                               case.context.epochs_seen - 1]  # fmt: skip
    assert guess(case, "last value").middle[own].tolist() == last[case.row[own]].tolist()
    never = case.group == NEVER
    assert (guess(case, "last value").middle[never] == case.context.initial).all()


def test_a_spread_is_a_distribution():
    """Its densities over all bins are on average 1, wherever the middle lies."""
    rng = np.random.default_rng(0)
    middle = rng.uniform(size=400)
    score = np.clip(middle + rng.normal(0, 0.02, 400), 0, 1)
    nothing = np.zeros((400, len(heldout.WIDTHS)))
    spread = fit_spread(middle, score, nothing, np.repeat([0, 1], 200))
    bins = (np.arange(BINS) + 0.5) / BINS
    for at in (0.0, 0.003, 0.5, 0.999):
        density = spread.densities(np.full(BINS, at), bins, np.zeros((BINS, nothing.shape[1])))
        # What the pooled part would have is missing here: it has no curves.
        pooled = spread.weights[len(heldout.WIDTHS) + 2 :].sum()
        assert density.mean() == pytest.approx(1 - pooled, abs=1e-6)
    # Near the truth it is worth about log(1 / (σ √(2πe))) nats.
    found = np.log(spread.densities(middle, score, nothing)).mean()
    assert found == pytest.approx(-math.log(0.02 * math.sqrt(2 * math.pi * math.e)), abs=0.25)


def test_a_task_is_judged_by_the_others(table):
    """On a test task, the spread comes from training tasks alone."""
    scores = compare(table, Uniform(), test=True, per_task=2)
    assert set(scores.task) == {0}
    assert np.isfinite(scores.density).all()
    train = compare(table, Uniform(), test=False, per_task=2)
    assert set(train.task) == {0, 1, 2}
    started = list(range(NEVER))
    network, last, _ = train.mean(started)
    assert network == pytest.approx(0, abs=1e-6)
    assert last > 0.2  # it knows more than nothing


def test_means_are_over_tasks_of_means_within():
    scores = heldout.Scores(
        task=np.array([0, 0, 0, 1]),
        group=np.array([0, 0, 1, 0]),
        density=np.array([[1.0], [3.0], [50.0], [6.0]]),
    )
    assert scores.mean([0]).tolist() == [4.0]


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


def test_the_page_says_how_it_was_made(table, tmp_path, monkeypatch, capsys):
    write_table(tmp_path / "toy.npz", table)
    out = tmp_path / "results" / "heldout.md"
    words = ["--tables", str(tmp_path / "toy.npz"), "--tasks", "train", "test", "--per-task", "1"]
    monkeypatch.setattr(sys, "argv", ["heldout", *words, "--out", str(out)])
    monkeypatch.setattr(PfnExtrapolator, "load", lambda *_: Uniform())
    heldout.main()
    page = out.read_text()
    assert "python -m freezethaw.pfn.heldout --tables toy.npz --tasks train test" in page
    assert str(tmp_path) not in page.partition("--out")[0]
    assert "## toy, training tasks" in page
    assert "## toy, test tasks" in page
    assert "| **all started** |" in capsys.readouterr().out


def test_lines_leave_out_what_was_not_asked():
    scores = heldout.Scores(
        task=np.array([0]), group=np.array([2]), density=np.array([[1.0, 2.0, 3.0]])
    )
    rows = list(lines(scores))
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| 4-7", "| **all started**"]
    assert rows[0].count("|") == rows[2].count("|") == len(METHODS) + 3


# ── the weights that ship ────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("name", ["taskset", "lcbench_surrogate"])
def test_the_shipped_network_beats_both_baselines(name):
    """On training tasks of real curves, started and never started; test tasks are for results/."""
    file = DATA / f"{name}.npz"
    if not file.exists():
        pytest.skip(f"{file} is not part of the repository")
    scores = compare(read_table(file), PfnExtrapolator.load(), test=False, per_task=4)
    for groups in (list(range(NEVER)), [NEVER]):
        network, last, power = scores.mean(groups)
        assert network > max(last, power) + 0.05
