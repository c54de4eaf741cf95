"""The demo: its network learns, goes on from a checkpoint, and its last words are true."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap

import pytest
import torch

import freezethaw as ft
from fake_extrapolators import FakeCurves
from freezethaw import demo
from freezethaw.errors import ConfigError
from freezethaw.trial import Link, Trial

GOOD = {
    "lr": 0.05, "batch_size": 64, "channels": 8, "dropout": 0.1, "weight_decay": 1e-5,
    "optimizer": "sgd", "momentum": 0.9,
}  # fmt: skip

pytest.importorskip("sklearn")


def train(params, epochs: int, link: Link | None = None) -> list[float]:
    torch.manual_seed(0)
    trial = Trial(params, max_epochs=demo.MAX_EPOCHS, link=link)
    generator = demo.train(trial)
    return [next(generator) for _ in range(epochs)]


def test_the_network_learns():
    scores = train(GOOD, 6)
    assert scores[-1] > 0.6
    assert scores[-1] > scores[0]
    bad = {**GOOD, "lr": min(demo.SPACE["lr"].low, 1e-5), "momentum": 0.0}
    assert train(bad, 2)[-1] < 0.3


def test_there_are_five_hyperparameters_one_of_them_conditional():
    assert len(demo.SPACE) >= 5
    assert any(parameter.when for parameter in demo.SPACE.values())


def test_it_goes_on_from_a_checkpoint(tmp_path):
    first = Link()
    train(GOOD, 3, first)
    first.hook(tmp_path)
    again = train(GOOD, 1, Link(checkpoint=tmp_path, start_epoch=3))
    assert again[0] > train(GOOD, 1)[0] + 0.1


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    demo.digits.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'freezethaw\[demo\]'"):
        demo.digits()


def test_the_whole_demo_in_small(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("freezethaw.study.load_extrapolator", lambda *_: FakeCurves())
    monkeypatch.setattr(demo, "UTILITY", ft.linear(alpha=0.1, budget=8))
    folder = tmp_path / "demo"
    result = demo.run_demo(folder, seed=0, fresh=False, quiet=True)
    assert result.best.checkpoint.joinpath("state.pt").exists()
    assert (folder / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    told = capsys.readouterr().out
    assert str(folder / "report.html") in told
    assert f"freezethaw why {folder / 'study.db'}" in told
    # The lines to write next are Python, and `tune` takes what they give.
    code = textwrap.dedent(told[told.index("    import freezethaw") :])
    call = ast.parse(code).body[-1].value
    assert {word.arg for word in call.keywords} <= inspect.signature(ft.tune).parameters.keys()
    # Once more it only reports; fresh, it starts again.
    with ft.Study.open(folder / "study.db") as study:
        epochs = study.history.bill.epochs
    demo.run_demo(folder, seed=0, fresh=False, quiet=True)
    with ft.Study.open(folder / "study.db") as study:
        assert study.history.bill.epochs == epochs
    (folder / "thesis.txt").touch()
    demo.run_demo(folder, seed=1, fresh=True, quiet=True)
    with ft.Study.open(folder / "study.db") as study:
        assert study.problem.seed == 1
    assert (folder / "thesis.txt").exists()  # nothing of others is removed
