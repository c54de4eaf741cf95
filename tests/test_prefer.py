"""Asking in the terminal, the utility file, and where it is used."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import freezethaw as ft
from fake_extrapolators import FakeCurves
from freezethaw.cli import app
from freezethaw.config import read_study_file
from freezethaw.errors import MismatchError, PreferenceError
from freezethaw.prefer.file import UtilityFile, read_file, read_utility, write_file
from freezethaw.prefer.screen import ask_all, show_end
from freezethaw.prefer.session import Session
from freezethaw.prefer.words import a_piece, picture, remarks, sentence
from freezethaw.preference import Answer, Fit, Outcome, Price, Stakes, fit
from freezethaw.study import Study

STAKES = Stakes(budget=300)
TRUTH = Price(powers=((0.3, 1.0),))
SPACE = {"lr": ft.Float(1e-4, 1e-1, log=True)}


def choose(session, price=TRUTH):
    (x1, y1), (x2, y2) = map(session.stakes.place, session.question)
    return "first" if y1 - price(x1) > y2 - price(x2) else "second"


def answered(path, n=6, **settings):
    session = Session(path, STAKES, **settings)
    for _ in range(n):
        session.answer(choose(session))
    return session


def run(arguments, keys=""):
    return CliRunner().invoke(app, ["prefer", *arguments], input=keys)


def text_of(result):
    error = f"{type(result.exception).__name__}: {result.exception}" if result.exception else ""
    return result.output + error


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────


def test_every_answer_is_saved_and_a_session_goes_on(tmp_path):
    path = tmp_path / "utility.json"
    session = Session(path, STAKES, metric="accuracy")
    for n in range(1, 5):
        session.answer(choose(session))
        assert len(read_file(path).answers) == n
    again = Session.resume(path)
    assert again.answers == session.answers
    assert again.question == session.question
    assert again.fit.price == session.fit.price
    assert again.metric == "accuracy"


def test_undo_asks_the_same_question_again(tmp_path):
    session = answered(tmp_path / "utility.json", 3)
    last = session.answers[-1]
    assert session.undo()
    assert session.question == (last.first, last.second)
    assert len(read_file(session.path).answers) == 2
    session.answer("tie")
    assert session.answers[-1].choice == "tie"
    for _ in range(3):
        session.undo()
    assert not session.undo()
    assert session.fit is None
    assert read_file(session.path).utility is None


def test_an_answer_that_cannot_be_saved_is_not_taken(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    session = answered(folder / "utility.json", 2)
    before = session.question
    (folder / "utility.json").unlink()
    folder.rmdir()
    with pytest.raises(PreferenceError, match="cannot be written"):
        session.answer("first")
    assert len(session.answers) == 2
    assert session.question == before


def test_answers_of_ones_own_are_added(tmp_path):
    session = Session(tmp_path / "utility.json", STAKES)
    session.add(Answer(Outcome(10, 0.5), Outcome(200, 0.6), "first"))
    assert session.fit.price(1.0) > 0.1
    with pytest.raises(PreferenceError, match="spent 400"):
        session.add(Answer(Outcome(10, 0.5), Outcome(400, 0.6), "first"))
    assert len(session.answers) == 1


def test_answers_against_reason_are_named_and_left_out(tmp_path):
    session = answered(tmp_path / "utility.json", 4)
    before = session.fit.price
    session.add(Answer(Outcome(10, 0.6), Outcome(200, 0.5), "second"))
    assert session.fit.price == before
    assert session.remarks[0].startswith("Answer 5 prefers an outcome that costs more and is no")


# ── words ────────────────────────────────────────────────────────────────────────────────────────


def made(price, stakes=STAKES, form="linear"):
    return Fit(
        form=form, stakes=stakes, tau=0.05, price=price, samples=(price,) * 3, parameters=(),
        log_likelihood=0.0, n_answers=1,
    )  # fmt: skip


def test_a_utility_in_a_sentence():
    hours = Stakes(budget=72_000, unit="seconds")
    assert sentence(made(Price(powers=((0.08, 1.0),)), hours)) == (
        "An hour is worth 0.4 points to you (between 0.4 and 0.4)."
    )
    assert sentence(made(Price(powers=((0.3, 1.0),)))) == (
        "20 epochs are worth 2 points to you (between 2 and 2)."
    )
    losses = Stakes(budget=20, unit="money", rate=2.5, goal="minimize", bounds=(0, 4))
    assert sentence(made(Price(powers=((0.5, 1.0),)), losses)).startswith(
        "$2 is worth 0.2 of score"
    )
    assert "the first 20 epochs 0.13, the last 20 epochs 3.9" in sentence(
        made(Price(powers=((0.3, 2.0),)), form="quadratic")
    )
    assert sentence(made(Price(steps=((0.5, 0.1), (0.8, 0.2))), form="staircase")) == (
        "To you, going beyond 150 epochs costs 10 points and going beyond 240 epochs costs 20 "
        "points; in between, spending costs nothing."
    )
    unsure = dataclasses.replace(made(Price()), samples=(Price(powers=((0.6, 1.0),)),) * 3)
    assert sentence(unsure) == "20 epochs are worth at most 4 points to you."
    assert sentence(made(Price())).startswith("Cost hardly matters to you within 300 epochs")


@pytest.mark.parametrize(
    ("budget", "unit", "piece"),
    [
        (300, "epochs", (20.0, "20 epochs")), (7, "epochs", (1.0, "1 epoch")),
        (36_000, "seconds", (3600.0, "an hour")), (1800, "seconds", (60.0, "a minute")),
        (20, "money", (2.0, "$2")), (500_000, "seconds", (86_400.0, "a day")),
    ],
)  # fmt: skip
def test_pieces_that_people_think_in(budget, unit, piece):
    stakes = Stakes(budget=budget, unit=unit, rate=1.0 if unit == "money" else None)
    assert a_piece(stakes) == piece


def test_odd_answers_are_remarked_on():
    pair = Outcome(30, 0.4), Outcome(200, 0.6)
    always = [Answer(*pair, "second")] * 5
    assert remarks(always, STAKES)[0].startswith("Every answer prefers the better outcome: none")
    never = [Answer(*pair, "first")] * 5
    assert remarks(never, STAKES)[0].startswith("Every answer prefers the cheaper outcome: none")
    ties = [Answer(*pair, "tie")] * 5
    assert "Every answer is 'I cannot say'" in remarks(ties, STAKES)[0]
    both = [Answer(*pair, "first"), Answer(*pair, "second")]
    assert remarks(both, STAKES)[0].startswith("Answers 1 and 2 contradict each other: 40% for 30")
    assert remarks(always[:2], STAKES) == []
    early = [Answer(*pair, "second"), Answer(*pair, "tie"), Answer(*pair, "first")]
    assert "No question went beyond 200 epochs" not in " ".join(remarks(early, STAKES))
    long = Stakes(budget=1000)
    assert "No question went beyond 200 epochs" in " ".join(remarks(early, long))


def test_the_picture_rises_to_the_price():
    lines = picture(made(Price(powers=((0.3, 1.0),)))).splitlines()
    assert "+32 points" in lines[0]
    assert lines[0].rstrip().endswith("●") or lines[1].rstrip().endswith("●")
    assert "●" in lines[-3][:30]
    assert lines[-1].strip().startswith("0 epochs")
    assert lines[-1].endswith("300 epochs")


# ── the terminal ─────────────────────────────────────────────────────────────────────────────────


def asked_with(keys, session, most=10):
    pressed = iter(keys)
    console = Console(file=open(os.devnull, "w"), width=80)  # noqa: PTH123, SIM115
    with console.file:
        return ask_all(session, most, console, read_key=lambda: next(pressed))


def test_one_key_per_answer(tmp_path):
    session = Session(tmp_path / "utility.json", STAKES)
    assert not asked_with("1x20u=q", session)  # x is no key
    assert [a.choice for a in session.answers] == ["first", "second", "tie"]
    assert asked_with("12", session, most=5)
    assert len(session.answers) == 5


def test_asking_ends_when_another_answer_would_hardly_change_a_choice(tmp_path):
    session = Session(tmp_path / "utility.json", STAKES, form="linear")
    while not session.is_enough:
        session.answer(choose(session))
    assert 6 <= len(session.answers) <= 12
    assert asked_with("", session, most=100)


def test_the_end_shows_the_sentence_the_picture_and_the_line_to_paste(tmp_path):
    session = answered(tmp_path / "utility.json", 8, form="linear")
    console = Console(record=True, width=100, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.file:
        show_end(session, console, done=True)
    text = console.export_text()
    assert sentence(session.fit) in text.replace("\n", " ")
    assert "░" in text
    assert f'utility="{session.path}"' in text.replace("\n", "")


def test_the_command_asks_saves_and_goes_on(tmp_path):
    out = tmp_path / "u.json"
    first = run(["--budget", "300", "--out", str(out)], "1\n2\nq\n")
    assert first.exit_code == 0, text_of(first)
    assert "Question 3 of at most 10" in first.output
    assert "Saved. The same command goes on from here." in first.output
    second = run(["--budget", "300", "--out", str(out), "--json"], "1\n" * 3)
    assert second.exit_code == 0, text_of(second)
    found = json.loads(second.stdout)
    assert found["answers"] == 5
    assert found["utility"]["form"] in ("power", "staircase", "mix")
    assert read_utility(out).to_json() == found["utility"]
    again = run(["--out", str(out), "--fresh", "--budget", "20h"], "q\n")
    assert "No answers, no utility" in again.output
    assert len(read_file(tmp_path / "u.json~").answers) == 5
    assert read_file(out).stakes == Stakes(budget=72_000, unit="seconds")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "what may be spent"),
        (["--budget", "0"], "budget=0: needs a finite budget above 0"),
        (["--budget", "soon"], "cost 'soon': write money"),
        (["--budget", "$20"], "money needs --rate"),
        (["--budget", "300", "--goal", "win"], "--goal win: it is maximize or minimize"),
        (["--budget", "300", "--form", "cubic"], "--form cubic: known are linear"),
        (["--budget", "300", "--bounds", "1", "0"], "low below high"),
        (["--budget", "300", "--questions", "0"], "--questions 0: needs at least one"),
        (["--study", "absent.db"], "absent.db"),
        (["--study", "a.db", "--budget", "3"], "--budget beside --study: a study's own"),
        (["--budget", "3", "--name", "a"], "--name names a study"),
        (["--budget", "2h", "--rate", "$2/h"], "give the budget in money"),
        (["--budget", "1"], "nothing to ask within 1 epochs"),
    ],
)
def test_bad_options_are_one_clear_message(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(arguments)
    assert result.exit_code != 0
    assert message in text_of(result)
    assert list(tmp_path.iterdir()) == []


def test_a_price_of_an_hour_makes_a_budget_in_money(tmp_path):
    out = tmp_path / "u.json"
    run(["--budget", "300", "--rate", "$2.5/h", "--out", str(out)], "q\n")
    assert read_file(out).stakes == Stakes(budget=300, unit="money", rate=2.5)


def test_fresh_replaces_nothing_that_is_no_utility_file(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("print(1)")
    result = run(["--budget", "300", "--out", str(path), "--fresh"], "1\n")
    assert "cannot be read" in text_of(result)
    assert path.read_text() == "print(1)"


def test_two_sessions_on_one_file_do_not_undo_each_other(tmp_path):
    path = answered(tmp_path / "u.json", 2).path
    one, other = Session.resume(path), Session.resume(path)
    one.answer("first")
    with pytest.raises(PreferenceError, match="was changed by somebody else meanwhile"):
        other.answer("second")
    assert len(read_file(path).answers) == 3
    assert len(other.answers) == 2


def test_a_form_and_a_metric_named_later_are_kept(tmp_path):
    path = answered(tmp_path / "u.json", 8).path
    result = run(["--out", str(path), "--form", "quadratic", "--metric", "f1", "--json"], "q\n")
    found, content = json.loads(result.stdout), read_file(path)
    assert (content.form, content.metric) == ("quadratic", "f1")
    assert content.utility.to_json() == found["utility"]
    run(["--out", str(path), "--form", "any"], "q\n")
    assert read_file(path).form is None


def test_what_the_command_line_says_otherwise_is_not_ignored(tmp_path):
    path = answered(tmp_path / "u.json", 2).path
    for arguments in (["--goal", "minimize"], ["--bounds", "0", "5"]):
        result = run(["--out", str(path), *arguments], "1\n")
        assert "holds answers about a score from 0 to 1 to maximize" in text_of(result)


def test_answers_about_something_else_are_not_mixed(tmp_path):
    path = answered(tmp_path / "u.json", 2).path
    result = run(["--budget", "100", "--out", str(path)], "1\n")
    assert "holds answers about a score from 0 to 1 to maximize within 300 epochs" in text_of(
        result
    )
    assert len(read_file(path).answers) == 2


# ── the file ─────────────────────────────────────────────────────────────────────────────────────


def test_a_file_comes_back_as_it_was_written(tmp_path):
    stakes = Stakes(budget=20, unit="money", rate=2.5, goal="minimize", bounds=(0.5, 4))
    answers = (Answer(Outcome(1, 2.0), Outcome(9, 1.0), "tie"),)
    content = UtilityFile(
        stakes=stakes,
        metric="loss",
        form="mix",
        answers=answers,
        utility=fit(answers, stakes).utility,
    )
    write_file(tmp_path / "u.json", content)
    assert read_file(tmp_path / "u.json") == content
    assert [file.name for file in tmp_path.iterdir()] == ["u.json"]


def spoilt(path, **changes):
    data = json.loads(path.read_text())
    for key, value in changes.items():
        if value is None:
            del data[key]
        else:
            data[key] = value
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "other"}, "is no utility file; `freezethaw prefer` makes them"),
        ({"version": 2}, "is of version 2; this freezethaw reads version 1: update it"),
        ({"budget": 0}, "budget=0: needs a finite budget above 0"),
        ({"budget": 400}, r"the utility's budget, unit and rate are \(300, 'epochs', None\)"),
        ({"goal": "win"}, "goal 'win'"),
        ({"bounds": [1, 0]}, "low below high"),
        ({"bounds": None}, "has no 'bounds'"),
        ({"answers": [[1, 2]]}, "was it edited by hand"),
        ({"answers": [[1, 0.5, 2, 0.6, "left"]]}, "choice 'left'"),
        ({"answers": [[1, 0.5, 999, 0.6, "first"]]}, "spent 999"),
        ({"utility": {"form": "magic"}}, "utility form 'magic'"),
        ({"utility": {"form": "power", "budget": 300, "alpha": -1}}, "alpha=-1"),
        ({"form": "cubic"}, "form 'cubic'"),
        ({"unit": "parsecs"}, "unit 'parsecs'"),
        ({"metric": 5}, "metric 5"),
    ],
)
def test_a_file_that_was_spoilt_is_refused(changes, message, tmp_path):
    path = answered(tmp_path / "u.json", 3).path
    spoilt(path, **changes)
    with pytest.raises(PreferenceError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_absent_or_no_json(tmp_path):
    with pytest.raises(PreferenceError, match="there is no such file; `freezethaw prefer` makes"):
        read_file(tmp_path / "u.json")
    (tmp_path / "u.json").write_text('{"format": ')
    with pytest.raises(PreferenceError, match="cannot be read"):
        read_file(tmp_path / "u.json")


# ── in studies ───────────────────────────────────────────────────────────────────────────────────


def train(trial):
    for epoch in trial.epochs():
        yield min(0.99, 0.1 + 0.05 * epoch)


def tune(path, **settings):
    options = {"max_epochs": 5, "bounds": (0, 1), "weights": FakeCurves(), "quiet": True}
    return ft.tune(train, SPACE, utility=path, **{**options, **settings})


def test_a_study_takes_the_file(tmp_path):
    path = answered(tmp_path / "u.json", 8, form="linear").path
    storage = tmp_path / "study.db"
    result = tune(str(path), storage=storage)
    assert result.spent <= 300
    with Study.open(storage) as study:
        assert study.problem.utility.to_json() == read_utility(path).to_json()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"goal": "minimize"}, "questions were about a score to maximize, and this study's is to"),
        ({"bounds": (0, 0.5)}, r"about scores from 0 to 1, and this study's lie in \[0, 0.5\]"),
        ({"metric": "f1"}, "questions were about 'accuracy', and this study's metric is 'f1'"),
    ],
)
def test_a_file_about_another_score_is_refused(settings, message, tmp_path):
    path = answered(tmp_path / "u.json", 3, metric="accuracy").path
    with pytest.raises(PreferenceError, match=message):
        tune(path, **settings)


def test_a_file_without_answers_is_refused(tmp_path):
    session = Session(tmp_path / "u.json", STAKES)
    session.save()
    with pytest.raises(PreferenceError, match="holds no answers yet"):
        tune(session.path)


def test_a_study_file_names_it_beside_itself(tmp_path):
    answered(tmp_path / "u.json", 3)
    (tmp_path / "study.toml").write_text('max_epochs = 5\nbounds = [0, 1]\nutility = "u.json"\n')
    settings = read_study_file(tmp_path / "study.toml")
    assert settings["utility"] == str(tmp_path / "u.json")


def test_a_study_learns_what_is_preferred_from_code(tmp_path):
    storage = tmp_path / "study.db"
    with Study.create(
        SPACE, max_epochs=5, bounds=(0, 1), utility=ft.linear(alpha=0.1, budget=300),
        storage=storage, weights=FakeCurves(),
    ) as study:  # fmt: skip
        study.prefer((30, 0.5), (250, 0.6))
        found = study.prefer((60, 0.5), (200, 0.58))
        assert found.n_answers == 2
        assert found.price(1.0) > 0.1
        with pytest.raises(PreferenceError, match="spent 999"):
            study.prefer((999, 0.5), (20, 0.6))
        with pytest.raises(PreferenceError, match="the other way round"):
            study.prefer((250, 0.5), (20, 0.6))
        with pytest.raises(PreferenceError, match="says nothing about what cost is worth"):
            study.prefer((20, 0.6), (250, 0.5))
        with pytest.raises(PreferenceError, match=r"a pair of numbers, \(spent, score\)"):
            study.prefer(0.9, 0.8)
    with Study.open(storage, weights=FakeCurves()) as study:
        found = study.prefer((20, 0.3), (280, 0.5), equal=True)
        assert found.n_answers == 3
        study.use_utility(found.utility)
        assert study.problem.utility.to_json()["alpha"] == pytest.approx(found.price(1.0), rel=0.01)
        study.use_utility(ft.hard_budget(210))  # what was said of 280 epochs is out of it now
        assert study.prefer((20, 0.3), (200, 0.4)).n_answers == 2
        with pytest.raises(MismatchError, match="counts its cost in epochs"):
            study.use_utility(ft.linear(alpha=0.1, budget=300, unit="seconds"))


def test_questions_about_a_studys_own_trajectory(tmp_path, monkeypatch):
    storage, out = tmp_path / "study.db", tmp_path / "u.json"
    tune(ft.linear(alpha=0.01, budget=20), storage=storage)
    result = run(["--study", str(storage), "--out", str(out), "--json"], "1\n2\n1\nq\n")
    assert result.exit_code == 0, text_of(result)
    with Study.open(storage) as study:
        path = {(point.spent, round(point.best, 9)) for point in study.history.path}
    content = read_file(out)
    assert content.stakes.budget == 20
    assert len(content.answers) >= 1
    for answer in content.answers:
        for outcome in (answer.first, answer.second):
            assert (round(outcome.spent, 9), round(outcome.best, 9)) in path


def test_a_study_that_has_hardly_begun_cannot_be_asked_about(tmp_path):
    storage = tmp_path / "study.db"
    tune(ft.linear(alpha=0.01, budget=2), storage=storage)
    result = run(["--study", str(storage), "--out", str(tmp_path / "u.json")])
    assert "questions about it need 3 different outcomes" in text_of(result)
    assert not (tmp_path / "u.json").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions")
def test_where_nothing_can_be_written_is_known_before_the_first_question(tmp_path):
    result = run(["--budget", "300", "--out", str(tmp_path / "absent" / "u.json")], "1\n")
    assert "cannot be written" in text_of(result)
    assert "Question 1" not in result.output
    assert not Path(tmp_path / "absent").exists()
