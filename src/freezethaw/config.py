"""`study.toml`: the settings of `ft.tune` in a file, for `freezethaw run`.

    max_epochs = 50
    bounds = [0, 1]
    initial = 0.1
    storage = "study.db"

    [utility]
    form = "linear"
    alpha = 0.1
    budget = 300

    [space.lr]
    type = "float"
    low = 1e-5
    high = 1e-1
    log = true

    [space.momentum]
    type = "float"
    low = 0.0
    high = 0.99
    when = { optimizer = "sgd" }

Every keyword of `ft.tune` that is text, a number or a list can stand at the top. Bounds may be
`inf` and `-inf`. Paths are relative to the file. `stopping` is a rule's name, or a table with
`rule` and its settings.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from freezethaw import stopping, utility
from freezethaw.errors import ConfigError, FreezeThawError
from freezethaw.space import Space, closest

_KINDS: dict[str, tuple[type, ...]] = {
    "space": (dict,),
    "max_epochs": (int,),
    "bounds": (list,),
    "goal": (str,),
    "initial": (int, float),
    "soft": (list,),
    "metric": (str,),
    "utility": (dict, str),
    "budget": (int, float),
    "storage": (str,),
    "name": (str,),
    "seed": (int,),
    "first": (list,),
    "pool_size": (int,),
    "stopping": (str, dict),
    "coupling": (str,),
    "weights": (str,),
    "device": (str,),
    "epochs_per_decision": (int, str),
    "checkpoint": (str,),
    "max_suspended": (int,),
    "memory_left_free": (int, float),
    "deadline": (int, float, str),
    "max_failures": (int,),
    "quiet": (bool,),
}
"""What a file may hold: the settings of `tune` that are no Python objects."""
_WORDS = {int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "a table",
          bool: "true or false"}  # fmt: skip
_UTILITIES: dict[str, Callable[..., utility.Utility]] = {
    "linear": utility.linear,
    "quadratic": utility.quadratic,
    "square_root": utility.square_root,
    "power": utility.power,
    "staircase": utility.staircase,
    "hard_budget": utility.hard_budget,
    "worth": utility.worth,
    "makarova": utility.makarova,
    "wilson": utility.wilson,
}


def read_study_file(path: Path) -> dict[str, Any]:
    """The file as keyword arguments of `tune`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    try:
        return _settings(data, path.parent)
    except FreezeThawError as error:
        raise type(error)(f"{path}: {error}") from error


def _settings(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    for name, value in data.items():
        _check_kind(name, value)
    settings = dict(data)
    if "max_epochs" not in data or "bounds" not in data:
        raise ConfigError(
            "max_epochs and bounds are needed: how long a trial is trained at most, and between "
            "which values the score can lie, as in bounds = [0, 1]"
        )
    readers: dict[str, Callable[[Any], Any]] = {
        "space": read_space,
        "utility": lambda value: _read_utility(value, folder),
        "stopping": _read_stopping,
    }
    for name, read in readers.items():
        if name in data:
            settings[name] = read(data[name])
    for name in ("bounds", "soft"):
        if name in data:
            settings[name] = _read_pair(name, data[name])
    if "storage" in data:
        settings["storage"] = str(folder / data["storage"])
    if "weights" in data and (folder / data["weights"]).is_file():
        settings["weights"] = str(folder / data["weights"])
    return settings


def _check_kind(name: str, value: Any) -> None:
    if name not in _KINDS:
        raise ConfigError(f"unknown setting {name!r}{closest(name, _KINDS)}")
    kinds = _KINDS[name]
    # A bool is an int to Python.
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        named = [kind for kind in kinds if kind is not int or float not in kinds]
        wanted = " or ".join(_WORDS[kind] for kind in named)
        raise ConfigError(f"{name} is {value!r}; it must be {wanted}")


def _read_pair(name: str, values: list[Any]) -> tuple[float, float]:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(values) != 2 or len(numbers) != 2:
        raise ConfigError(f"{name} is {values}; write two numbers, as in {name} = [0, 1]")
    return numbers[0], numbers[1]


def read_space(data: dict[str, Any]) -> Space:
    """`[space.name]` tables: the columns of a curve table's space, by name."""
    if not all(isinstance(entry, dict) for entry in data.values()):
        raise ConfigError("space: write one table per parameter, as in [space.lr]")
    return Space.from_json([{"name": name, **entry} for name, entry in data.items()])


def read_utility(data: dict[str, Any]) -> utility.Utility:
    """`[utility]` with `form` and what that form takes."""
    if "form" not in data:
        raise ConfigError(
            'utility: write a table with form = "linear" (or another) and its settings'
        )
    settings = dict(data)
    form = settings.pop("form")
    if form not in _UTILITIES:
        raise ConfigError(f"utility form {form!r}{closest(str(form), _UTILITIES)}")
    make = _UTILITIES[form]
    try:
        inspect.signature(make).bind(**settings)
    except TypeError as error:
        takes = ", ".join(inspect.signature(make).parameters)
        raise ConfigError(f"utility form {form!r}: {error}; it takes {takes}") from error
    try:
        return make(**settings)
    except TypeError as error:
        raise ConfigError(f"utility form {form!r}: {error}") from error


def _read_utility(data: str | dict[str, Any], folder: Path) -> utility.Utility | str:
    return str(folder / data) if isinstance(data, str) else read_utility(data)


def _read_stopping(data: str | dict[str, Any]) -> stopping.Rule:
    settings = {"rule": data} if isinstance(data, str) else dict(data)
    return stopping.from_name(str(settings.pop("rule", "adaptive")), **settings)
