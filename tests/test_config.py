"""study.toml: what it may say, and what it is told when it says it wrongly."""

import inspect
import math

import pytest

import freezethaw as ft
from freezethaw import config, stopping, utility
from freezethaw.config import read_study_file
from freezethaw.errors import ConfigError, FreezeThawError, SpaceError, UtilityError
from freezethaw.space import Space

NEEDED = "max_epochs = 50\nbounds = [0, 1]\n"


@pytest.fixture
def read(tmp_path):
    def write_and_read(text: str):
        (tmp_path / "study.toml").write_text(text, encoding="utf-8")
        return read_study_file(tmp_path / "study.toml")

    return write_and_read


def test_the_whole_file(read, tmp_path):
    (tmp_path / "own.safetensors").touch()
    settings = read(
        """
        max_epochs = 50
        bounds = [-inf, 0]
        soft = [-4, 0]
        goal = "maximize"
        initial = -4.0
        metric = "log likelihood"
        storage = "runs/study.db"
        weights = "own.safetensors"
        first = [{ lr = 0.1, optimizer = "adam" }]
        epochs_per_decision = "auto"
        deadline = "2h"
        quiet = true

        [stopping]
        rule = "fixed"
        delta = 0.1

        [utility]
        form = "linear"
        alpha = 0.1
        budget = 300

        [space.lr]
        type = "float"
        low = 1e-5
        high = 1e-1
        log = true

        [space.optimizer]
        type = "choice"
        choices = ["sgd", "adam"]

        [space.momentum]
        type = "float"
        low = 0.0
        high = 0.99
        when = { optimizer = "sgd" }
        """
    )
    assert settings.pop("space") == Space(
        {
            "lr": ft.Float(1e-5, 1e-1, log=True),
            "optimizer": ft.Choice(["sgd", "adam"]),
            "momentum": ft.Float(0.0, 0.99, when={"optimizer": "sgd"}),
        }
    )
    assert settings.pop("utility") == ft.linear(alpha=0.1, budget=300)
    assert settings.pop("stopping") == stopping.fixed(0.1)
    assert settings.pop("bounds") == (-math.inf, 0)
    assert settings.pop("soft") == (-4, 0)
    # Paths are relative to the file.
    assert settings.pop("storage") == str(tmp_path / "runs/study.db")
    assert settings.pop("weights") == str(tmp_path / "own.safetensors")
    assert settings == {
        "max_epochs": 50,
        "goal": "maximize",
        "initial": -4.0,
        "metric": "log likelihood",
        "first": [{"lr": 0.1, "optimizer": "adam"}],
        "epochs_per_decision": "auto",
        "deadline": "2h",
        "quiet": True,
    }


def test_a_little_is_enough(read):
    assert read(NEEDED) == {"max_epochs": 50, "bounds": (0, 1)}


def test_shipped_weights_are_no_path(read):
    assert read('weights = "cfbo-nt"\n' + NEEDED)["weights"] == "cfbo-nt"


@pytest.mark.parametrize("rule", ["adaptive", "never"])
def test_a_stopping_rule_by_its_name(read, rule):
    assert read(f'stopping = "{rule}"\n' + NEEDED)["stopping"] == getattr(stopping, rule)()


def test_settings_are_keywords_of_tune():
    assert config._KINDS.keys() <= inspect.signature(ft.tune).parameters.keys()


def test_every_utility_can_be_written():
    # A mix has parts of its own, and a file cannot hold a function.
    assert utility._FORMS.keys() - config._UTILITIES.keys() == {"mix", "custom"}


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("bounds = [0, 1]", ConfigError, "max_epochs and bounds are needed"),
        ("max_epoch = 3\n" + NEEDED, ConfigError, "unknown setting 'max_epoch'.*'max_epochs'"),
        (NEEDED + "seed = 1.5", ConfigError, "seed is 1.5; it must be a whole number"),
        (NEEDED + "seed = true", ConfigError, "seed is True; it must be a whole number"),
        (NEEDED + "initial = 'low'", ConfigError, "initial is 'low'; it must be a number"),
        (NEEDED + "quiet = 1", ConfigError, "quiet is 1; it must be true or false"),
        (NEEDED + "soft = [0]", ConfigError, r"soft is \[0\]; write two numbers"),
        ("max_epochs = 3\nbounds = ['a', 1]", ConfigError, "write two numbers"),
        ("max_epochs = 3\nbounds = [true, 1]", ConfigError, "write two numbers"),
        ("max_epochs = = 3", ConfigError, "not TOML"),
        (NEEDED + "[utility]\nalpha = 0.1", ConfigError, 'a table with form = "linear"'),
        (NEEDED + "[utility]\nform = 'linaer'", ConfigError, "'linaer'.*'linear'"),
        (
            NEEDED + "[utility]\nform = 'linear'\nalfa = 1",
            ConfigError,
            "form 'linear': .*it takes alpha, budget",
        ),
        (
            NEEDED + "[utility]\nform = 'linear'\nalpha = -1\nbudget = 3",
            UtilityError,
            "alpha=-1: the price",
        ),
        (
            NEEDED + "[utility]\nform = 'linear'\nalpha = 1\nbudget = '2h'",
            UtilityError,
            "write budget=7200, unit='seconds'",
        ),
        (NEEDED + "[space]\nlr = 3", ConfigError, r"one table per parameter, as in \[space.lr\]"),
        (NEEDED + "[space.lr]\ntype = 'float'\nlow = 1", SpaceError, "lr.*high"),
        (NEEDED + "[space.lr]\ntype = 'flaot'\nlow = 1\nhigh = 2", SpaceError, "lr.*'flaot'"),
        (NEEDED + "stopping = 'soon'", ConfigError, "'soon'"),
        (NEEDED + "[stopping]\nrule = 'fixed'\nbeta = 1", ConfigError, "beta"),
    ],
)
def test_what_is_wrong_is_told_with_the_file(read, text, error, words):
    with pytest.raises(error, match=rf"(?s)study\.toml: .*{words}"):
        read(text)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read .No such file"):
        read_study_file(tmp_path / "nowhere.toml")
    (tmp_path / "latin.toml").write_bytes(b'metric = "\xe9"')
    with pytest.raises(FreezeThawError, match=r"latin\.toml: not TOML"):
        read_study_file(tmp_path / "latin.toml")
