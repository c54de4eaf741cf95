"""`freezethaw bench overhead`: that it measures what it says. How fast things are is no test."""

from __future__ import annotations

import pytest

from fake_extrapolators import FakeCurves
from freezethaw.bench import overhead


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(overhead, "load_extrapolator", lambda *_: FakeCurves())
    monkeypatch.setattr("freezethaw.study.load_extrapolator", lambda *_: FakeCurves())


@pytest.mark.parametrize("points", [1, 20, 1000])
def test_a_history_has_the_points_it_should(points):
    history = overhead.history_of(points, overhead.problem())
    assert sum(curve.epochs for curve in history.curves.values()) == points
    assert history.best_score == max(max(curve.scores) for curve in history.curves.values())


def test_decisions_are_measured_at_every_size(fast):
    rows = overhead.measure_decisions((20, 40), repeats=1)
    assert [row["what"] for row in rows] == [
        "decision, 20 context points",
        "decision, 40 context points",
        "decision, 40 against 20 points",
    ]
    assert rows[2]["value"] == pytest.approx(rows[1]["value"] / rows[0]["value"])
    assert rows[2]["limit"] == "≤ 2 (linear)"


def test_the_share_falls_with_longer_epochs(fast):
    rows = overhead.measure_shares((0.5, 50.0), budget=30)
    share = {row["what"]: row["value"] for row in rows}
    assert 0 < share["overhead, 50 s epochs"] < share["overhead, 0.5 s epochs"]


def test_the_long_study_is_a_study(tmp_path):
    overhead._write_long_study(tmp_path / "study.db", 60)
    with overhead.Study.open(tmp_path / "study.db") as study:
        assert study.history.bill.epochs == 59
        assert len(study.pending()) == 1
    rows = overhead.measure_storage(epochs=60)
    assert [row["unit"] for row in rows] == ["s", "ms"]
    assert all(row["value"] > 0 for row in rows)


def test_memory_is_of_a_process_of_its_own():
    ballast = bytearray(b"x" * (300 << 20))
    assert overhead.peak_bytes() > len(ballast)
    (row,) = overhead.measure_memory(budget=4)
    assert 100 < row["value"] < 1000


def test_the_table_shows_measured_against_asked():
    rows = [
        overhead._row("deciding", 0.123456, "s", "≤ 0.6"),
        overhead._row("peak memory", 512.25, "MiB", "< 1000"),
    ]
    page = overhead.to_markdown(rows)
    assert "| deciding | 0.123 | s | ≤ 0.6 |" in page
    assert "| peak memory | 512 | MiB | < 1000 |" in page
    assert overhead.machine() in page
    assert "freezethaw bench overhead --out results/overhead.md" in page


@pytest.mark.slow
def test_everything_is_measured():
    told = []
    rows = overhead.measure(quick=True, log=told.append)
    assert len(told) == len(rows)
    assert {"s", "×", "epochs", "% of training", "ms", "MiB"} == {row["unit"] for row in rows}
    assert all(row["value"] > 0 for row in rows)
