"""The command line: what it prints, what it returns, what it says of mistakes."""

import json
import subprocess
import sys
from importlib.metadata import version
from types import SimpleNamespace

import pytest
from rich.console import Console
from typer.testing import CliRunner

import freezethaw as ft
from fake_extrapolators import FakeCurves
from freezethaw import cli, demo
from freezethaw.bench import overhead
from freezethaw.storage import checkpoint_folder

TRAIN = """
import json
import freezethaw as ft

space = {"lr": ft.Float(0.1, 1.0)}

def train(trial):
    print("training", trial.trial_id)
    trial.on_freeze(lambda folder: (folder / "net.json").write_text("{}"))
    for epoch in trial.epochs():
        yield 0.1 + 0.1 * epoch * trial.params["lr"]

def broken(trial):
    raise ZeroDivisionError("no net")
    yield

def returns(trial):
    return 0.5
"""
STUDY = """
max_epochs = 3
bounds = [0, 1]
initial = 0.1
storage = "study.db"
epochs_per_decision = 1

[utility]
form = "linear"
alpha = 0.2
budget = 5
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("freezethaw.study.load_extrapolator", lambda *_: FakeCurves())
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "train", raising=False)
    return tmp_path


def call(*arguments: str, code: int = 0):
    result = CliRunner().invoke(cli.app, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def run(*arguments: str, target: str = "train.py:train", code: int = 0):
    return call("run", target, "--config", "study.toml", *arguments, code=code)


# ── run ──────────────────────────────────────────────────────────────────────────────────────────


def test_run_tunes_and_goes_on(folder):
    assert "training" in run().stdout
    again = json.loads(run("--json").stdout)
    assert again["stop"]["kind"] in ("not_worth_it", "no_gain", "budget_spent")
    assert again["spent"] <= 5
    assert again["unit"] == "epochs"
    assert again["best"]["params"].keys() == {"lr"}
    assert (folder / again["best"]["checkpoint"] / "net.json").exists()
    with ft.Study.open("study.db") as study:
        assert study.history.spent == again["spent"]


def test_json_is_all_that_stands_on_stdout(folder):
    result = run("--json", "--storage", "other.db")
    assert json.loads(result.stdout)["storage"].endswith("other.db")
    assert "training" in result.stderr


def test_a_larger_budget_goes_on_at_the_same_price(folder):
    spent = json.loads(run("--json", "--budget", "3").stdout)["spent"]
    assert spent <= 3
    run("--budget", "6")
    with ft.Study.open("study.db") as study:
        # 0.2 for 5 epochs, so 0.24 for 6.
        assert study.problem.utility.budget == 6
        assert study.problem.utility.alpha == pytest.approx(0.24)


def test_the_budget_of_a_rate_of_exchange_is_fixed(folder):
    text = STUDY.partition("[utility]")[0]
    text += '[utility]\nform = "worth"\ngain = "1%"\ncost = "9 epochs"\n'
    (folder / "study.toml").write_text(text)
    with pytest.raises(ft.FreezeThawError, match=r"--budget 3: .*change gain or cost"):
        run("--budget", "3")


def test_too_many_failures_are_exit_status_1(folder):
    result = run(target="train.py:broken", code=1)
    assert "ZeroDivisionError: no net" in result.output


def test_an_interrupt_is_exit_status_130():
    assert cli.EXIT_CODES[ft.StopReason.INTERRUPTED] == 130


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("train", "'train': write the file and the function, as in train.py:train"),
        ("train:train", "write the file and the function"),
        ("nothing.py:train", "nothing.py: no such file"),
        ("train.py:trian", "train.py: has no function 'trian'"),
        ("train.py:returns", "yield"),
    ],
)
def test_what_is_no_training_function(folder, target, words):
    with pytest.raises(ft.FreezeThawError, match=words):
        run(target=target)


def test_a_file_without_a_space(folder):
    (folder / "train.py").write_text(TRAIN.replace("space =", "where ="))
    with pytest.raises(ft.FreezeThawError, match=r"no \[space.…\] tables, and train.py has no"):
        run()


# ── looking at a study ───────────────────────────────────────────────────────────────────────────


def test_status_why_report_clean(folder):
    run()
    assert "stopped after" in call("status", "study.db").stdout
    assert json.loads(call("status", "study.db", "--json").stdout)["spent"] > 0
    assert "lr" in call("why", "study.db").stdout
    assert isinstance(json.loads(call("why", "study.db", "--json").stdout), dict)
    assert call("report", "study.db").stdout == "study.html\n"
    assert (folder / "study.html").read_text().startswith("<!doctype html>")
    call("report", "study.db", "--out", "elsewhere.html")
    assert (folder / "elsewhere.html").exists()
    assert call("clean", "study.db").stdout.startswith("freed ")
    call("clean", "study.db", "--all")
    saved = sorted(checkpoint_folder(folder / "study.db", "default").rglob("net.json"))
    assert len(saved) == 1


def test_reports_of_two_studies_do_not_overwrite_each_other(folder):
    run("--name", "one"), run("--name", "two")
    pages = {call("report", "study.db", "--name", name).stdout for name in ("one", "two")}
    assert pages == {"study.one.html\n", "study.two.html\n"}
    with pytest.raises(ft.FreezeThawError, match=r"one.*two"):
        call("status", "study.db")


@pytest.mark.parametrize("command", ["status", "why", "report", "clean"])
def test_a_study_that_is_not_there(folder, command):
    with pytest.raises(ft.FreezeThawError, match=r"nothing\.db"):
        call(command, "nothing.db")
    assert not (folder / "nothing.db").exists()


def test_a_page_that_cannot_be_written(folder):
    run()
    with pytest.raises(ft.FreezeThawError, match="cannot be written"):
        call("report", "study.db", "--out", "no/such/folder.html")


# ── the rest ─────────────────────────────────────────────────────────────────────────────────────


def test_the_version():
    assert call("--version").stdout.strip() == version("freezethaw")


def test_errors_of_ours_are_one_message(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from freezethaw.cli import main; main()",
            "status",
            "no[b]where.db",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error:")
    assert "no[b]where.db" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_command_helps():
    group = ("bench", "overhead")
    for words in (["demo"], ["run"], ["status"], ["why"], ["report"], ["clean"], group):
        assert "Usage" in call(*words, "--help").stdout


def test_overhead_at_toy_size(monkeypatch, tmp_path):
    rows = [{"what": "deciding", "value": 0.123456, "unit": "s", "limit": "≤ 0.6"}]
    monkeypatch.setattr(overhead, "measure", lambda quick, log: rows if quick else [])
    assert json.loads(call("bench", "overhead", "--quick", "--json").stdout) == rows
    call("bench", "overhead", "--quick", "--out", str(tmp_path / "table.md"))
    assert "| deciding | 0.123 | s | ≤ 0.6 |" in (tmp_path / "table.md").read_text()


def test_the_demo_is_told_what_was_asked(monkeypatch, tmp_path):
    asked = {}

    def run_demo(folder, **more):
        asked.update(more, folder=folder)
        return SimpleNamespace(stop=ft.Stop(kind=ft.StopReason.INTERRUPTED, reason=""))

    monkeypatch.setattr(demo, "run_demo", run_demo)
    call("demo", "--folder", str(tmp_path), "--seed", "3", "--fresh", "--quiet", code=130)
    assert asked == {"folder": tmp_path, "seed": 3, "fresh": True, "quiet": True}


def test_escaping_is_undone_by_the_console(capsys):
    Console().print(cli._escape("a [bold]b[/] c"), highlight=False)
    assert capsys.readouterr().out == "a [bold]b[/] c\n"
