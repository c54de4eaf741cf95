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
`inf` and `-inf`. Paths are relative to the file.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from freezethaw import stopping, utility
from freezethaw.errors import ConfigError, FreezeThawError
from freezethaw.space import Space, closest

_TABLES = frozenset({"space", "utility", "stopping"})
_NOT_IN_FILES = frozenset({"train", "view", "memory_probe", "configurations"})
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


def read_study_file(path: Path, known: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """The file as keyword arguments; `known` are the parameters of `tune`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error
    try:
        return _settings(data, known, path.parent)
    except FreezeThawError as error:
        raise type(error)(f"{path}: {error}") from error


def _settings(
    data: dict[str, Any], known: Mapping[str, inspect.Parameter], folder: Path
) -> dict[str, Any]:
    allowed = sorted(known.keys() - _NOT_IN_FILES)
    for name in data:
        if name not in allowed:
            raise ConfigError(f"unknown setting {name!r}{closest(name, allowed)}")
    settings = {name: value for name, value in data.items() if name not in _TABLES}
    if "space" in data:
        settings["space"] = read_space(data["space"])
    if "utility" in data:
        settings["utility"] = read_utility(data["utility"])
    if "stopping" in data:
        settings["stopping"] = _read_stopping(data["stopping"])
    for name in ("bounds", "soft"):
        if name in settings:
            settings[name] = tuple(settings[name])
    if "storage" in settings:
        settings["storage"] = str(folder / settings["storage"])
    return settings


def read_space(data: Any) -> Space:
    """`[space.name]` tables: the columns of a curve table's space, by name."""
    if not isinstance(data, dict) or not all(isinstance(entry, dict) for entry in data.values()):
        raise ConfigError("space: write one table per parameter, as in [space.lr]")
    return Space.from_json([{"name": name, **entry} for name, entry in data.items()])


def read_utility(data: Any) -> utility.Utility:
    """`[utility]` with `form` and what that form takes."""
    if not isinstance(data, dict) or "form" not in data:
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
    return make(**settings)


def _read_stopping(data: Any) -> stopping.Rule:
    """`stopping = "never"`, or `[stopping]` with `rule` and its settings."""
    if isinstance(data, str):
        return stopping.from_name(data)
    settings = dict(data)
    return stopping.from_name(str(settings.pop("rule", "adaptive")), **settings)
