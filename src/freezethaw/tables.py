"""Curve tables: learning curves of many configurations on several tasks, in one `.npz` file.

A run that diverged is NaN (or ±inf) from that epoch on. A finite value after it is refused: what a
run does after it diverged is nobody's learning curve, and reading it as one would hide a mistake
in the table.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from freezethaw.errors import ScaleError, SpaceError, TableError
from freezethaw.records import Goal, ParamValue
from freezethaw.scale import Scale
from freezethaw.space import Choice, Int, Space, closest

Array: TypeAlias = NDArray[np.float64]

FOLDERS_VARIABLE = "FREEZETHAW_TABLES"
"""The environment variable that lists folders with tables."""

_OWN_FOLDERS = (
    Path(__file__).parent / "data",  # in every installation
    Path(__file__).parents[2] / "curves" / "tables",  # in a checkout of the repository
)
"""Where the tables are that this project made itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CurveTable:
    """A checked curve table; its arrays are float64 and read-only."""

    name: str
    configs: Array
    """[configuration, parameter], natural units, a choice as its index, NaN where inactive."""
    curves: Array
    """[task, configuration, epoch 0..T], the raw metric."""
    tasks: tuple[str, ...]
    space: Space
    metric: str
    goal: Goal
    bounds: tuple[float, float]
    normalize: Literal["range", "initial"]
    source: str
    license: str
    lengths: NDArray[np.int64] | None = None
    """[task, configuration], the epochs observed; None: all."""
    test_tasks: tuple[str, ...] = ()
    soft: Array | None = None
    """[task, 2], soft bounds instead of those that `normalize` derives."""
    cost: Array | None = None
    """[task, configuration], the relative cost of an epoch."""
    train_curves: Array | None = None
    """Like `curves`: the training loss."""

    def __post_init__(self) -> None:
        for name in ("configs", "curves", "soft", "cost", "train_curves"):
            self._freeze(name, np.float64)
        self._freeze("lengths", np.int64)
        _check_texts(self)
        _check_shapes(self)
        _check_configs(self)
        _check_curves(self)
        for task in self.tasks:
            self.scale(task)

    def _freeze(self, name: str, dtype: type[np.generic]) -> None:
        value = getattr(self, name)
        if value is None:
            return
        try:
            array = np.array(value, dtype=dtype)
        except (TypeError, ValueError) as error:
            raise TableError(f"{name}: {error}; it must hold numbers") from None
        if name == "lengths" and not np.array_equal(array, value):
            raise TableError("lengths: holds fractions or NaN; it must hold whole numbers")
        array.setflags(write=False)
        object.__setattr__(self, name, array)

    @property
    def max_epochs(self) -> int:
        """T: the number of epochs after the untrained epoch 0."""
        return int(self.curves.shape[2]) - 1

    @property
    def train_tasks(self) -> tuple[str, ...]:
        """The tasks that are no test tasks: all that choices may be made on."""
        return tuple(task for task in self.tasks if task not in self.test_tasks)

    def index_of(self, task: str) -> int:
        """Return the place of a task, or raise TableError with the nearest name."""
        if task not in self.tasks:
            raise TableError(f"{self.name} has no task {task!r}{closest(task, self.tasks)}")
        return self.tasks.index(task)

    def params(self, n: int) -> dict[str, ParamValue]:
        """Return configuration n by name."""
        return dict(self._params[n])

    @cached_property
    def _params(self) -> list[dict[str, ParamValue]]:
        return [_read_config(self.space, n, row) for n, row in enumerate(self.configs.tolist())]

    def encoded(self) -> Array:
        """Return the model's columns of all configurations, `[configuration, column]`."""
        return self._encoded

    @cached_property
    def _encoded(self) -> Array:
        encoded = self.space.encode_all(self._params)
        encoded.setflags(write=False)
        return encoded

    def scale(self, task: str) -> Scale:
        """Return the map between a task's metric and [0, 1]."""
        m = self.index_of(task)
        try:
            return Scale(goal=self.goal, hard=self.bounds, soft=self._soft(m))
        except ScaleError as error:
            raise TableError(
                f"task {task}: normalize={self.normalize!r} makes no scale: {error}; "
                "set soft [task, 2] in the table"
            ) from None

    def _soft(self, m: int) -> tuple[float, float]:
        if self.soft is not None:
            return self.soft[m, 0].item(), self.soft[m, 1].item()
        initial = self._raw_initial(m)
        if self.normalize == "initial":
            low, high = self.bounds
            return (low, initial) if self.goal == "minimize" else (initial, high)
        trained = self.curves[m, :, 1:]
        trained = trained[np.isfinite(trained)]
        return float(min(trained.min(), initial)), float(max(trained.max(), initial))

    def _raw_initial(self, m: int) -> float:
        """ȳ₀ in the user's units: the mean over configurations that could be evaluated at all."""
        untrained = self.curves[m, :, 0]
        return float(untrained[np.isfinite(untrained)].mean())

    def initial(self, task: str) -> float:
        """Return the scaled ȳ₀: what an untrained network is worth on this task."""
        return self.scale(task).to_unit(self._raw_initial(self.index_of(task)))

    def scaled(self, task: str) -> Array:
        """Return a task's curves in [0, 1], higher better, `[configuration, epoch 0..T]`.

        Epoch 0 is ȳ₀ for every configuration. A run that diverged is worth 0 from there on; NaN
        is what was not observed.
        """
        m = self.index_of(task)
        raw: Array = self.curves[m]
        scaled = self.scale(task).to_unit(raw)
        scaled[:, 0] = self.initial(task)
        scaled[~self.observed(task)] = np.nan
        return scaled

    def observed(self, task: str) -> NDArray[np.bool_]:
        """Return which points of a task's curves were observed, diverged or not."""
        return _observed(self, self.index_of(task))


def read_table(path: str | os.PathLike[str]) -> CurveTable:
    """Read and check a curve table. Nothing in the file is executed."""
    path = Path(path)
    try:
        # Opened here because np.load leaves a damaged file open.
        with path.open("rb") as stream:
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise TableError(f"{path}: is a single array; a curve table is an .npz of several")
            data = {key: _load(path, file, key) for key in _KEYS if key in file.files}
    except FileNotFoundError:
        raise TableError(f"{path}: there is no such file") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise TableError(f"{path}: cannot be read as .npz: {error}") from None
    missing = [key for key in _REQUIRED if key not in data]
    if missing:
        raise TableError(f"{path}: has no {', '.join(missing)}; a curve table needs them")
    try:
        return CurveTable(name=path.stem, **_parse(data))
    except TableError as error:
        raise TableError(f"{path}: {error}") from None


def write_table(path: str | os.PathLike[str], table: CurveTable) -> None:
    """Write a curve table; a file of that name is replaced only by a complete one.

    Numbers are stored in the shortest type that holds all of an array's exactly.
    """
    data: dict[str, Any] = {key: getattr(table, key) for key in _KEYS}
    data["space"] = json.dumps(table.space.to_json())
    data["bounds"] = json.dumps([b if math.isfinite(b) else None for b in table.bounds])
    for key in _NAME_LISTS:
        data[key] = np.array(data[key], dtype=np.str_)
    path = Path(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            present = {key: _narrow(value) for key, value in data.items() if value is not None}
            np.savez_compressed(file, allow_pickle=False, **present)
        partial.replace(path)
    except OSError as error:
        raise TableError(f"{path}: cannot be written: {error}") from None
    finally:
        partial.unlink(missing_ok=True)


def open_table(
    name_or_path: str | os.PathLike[str], *, folder: str | os.PathLike[str] | None = None
) -> CurveTable:
    """Read a table by path, or by a bare name such as `tabular`.

    A name is looked up in `folder`, the folders listed in $FREEZETHAW_TABLES, ./tables, and among
    the tables that come with freezethaw.
    """
    text = os.fspath(name_or_path)
    if not isinstance(name_or_path, str) or text.endswith(".npz") or Path(text).name != text:
        return read_table(text)
    listed = os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)
    folders = [Path(f) for f in [folder or "", *listed] if f] + [Path("tables")]
    files = [place / f"{text}.npz" for place in (*folders, *_OWN_FOLDERS)]
    for file in files:
        if file.is_file():
            return read_table(file)
    known = sorted({file.stem for place in folders for file in place.glob("*.npz")} | _own_tables())
    raise TableError(
        f"no table {text!r}{closest(text, known)}; looked for "
        f"{', '.join(str(place / text) + '.npz' for place in folders)}, and among those that come "
        f"with freezethaw ({', '.join(sorted(_own_tables()))}); "
        f"give a path, or name the folder in ${FOLDERS_VARIABLE}"
    )


def _own_tables() -> set[str]:
    return {file.stem for place in _OWN_FOLDERS for file in place.glob("*.npz")}


def _narrow(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype != np.float64:
        return value
    for dtype in (np.float16, np.float32):
        with np.errstate(over="ignore", under="ignore"):
            short = value.astype(dtype)
        if np.array_equal(short, value, equal_nan=True):
            return short
    return value


_KEYS = tuple(field.name for field in fields(CurveTable) if field.name != "name")
_OPTIONAL = ("lengths", "test_tasks", "soft", "cost", "train_curves")
_REQUIRED = tuple(key for key in _KEYS if key not in _OPTIONAL)
_TEXTS = ("metric", "goal", "normalize", "source", "license")
_NAME_LISTS = ("tasks", "test_tasks")


def _load(path: Path, file: Mapping[str, NDArray[Any]], key: str) -> NDArray[Any]:
    try:
        return file[key]
    except ValueError as error:
        # numpy's refusal of pickled objects, or a damaged member.
        raise TableError(f"{path}: {key} cannot be read: {error}") from None


def _parse(data: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return the fields of a CurveTable from the arrays of a file."""
    values: dict[str, Any] = dict(data)
    for key in (*_TEXTS, "space", "bounds"):
        if data[key].dtype.kind != "U" or data[key].ndim != 0:
            raise TableError(f"{key}: is {_kind(data[key])}; it must be one text")
        values[key] = data[key].item()
    for key in _NAME_LISTS:
        if key in data:
            # An empty list of names has no type of its own.
            if data[key].ndim != 1 or (data[key].dtype.kind != "U" and data[key].size):
                raise TableError(f"{key}: is {_kind(data[key])}; it must be a list of texts")
            values[key] = tuple(map(str, data[key].tolist()))
    values["bounds"] = _read_bounds(_read_json("bounds", values["bounds"]))
    try:
        values["space"] = Space.from_json(_read_json("space", values["space"]))
    except SpaceError as error:
        raise TableError(f"space: {error}") from None
    return values


def _kind(array: NDArray[Any]) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _read_json(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TableError(f"{key}: {text[:60]!r} is no JSON: {error}") from None


def _read_bounds(bounds: Any) -> tuple[float, float]:
    valid = isinstance(bounds, list) and len(bounds) == 2
    if not valid or not all(b is None or isinstance(b, (int, float)) for b in bounds):
        raise TableError(f"bounds: got {bounds!r}; they are [low, high], null where unbounded")
    low, high = bounds
    return (-math.inf if low is None else float(low), math.inf if high is None else float(high))


def _check_texts(table: CurveTable) -> None:
    if table.goal not in ("maximize", "minimize"):
        raise TableError(f"goal: got {table.goal!r}; it must be 'maximize' or 'minimize'")
    if table.normalize not in ("range", "initial"):
        raise TableError(f"normalize: got {table.normalize!r}; it must be 'range' or 'initial'")
    if len(set(table.tasks)) != len(table.tasks) or not table.tasks:
        raise TableError(f"tasks: got {list(table.tasks)}; names must be there and differ")
    for task in table.test_tasks:
        if task not in table.tasks:
            raise TableError(f"test_tasks: {task!r} is no task{closest(task, table.tasks)}")
    if not table.bounds[0] < table.bounds[1]:
        raise TableError(f"bounds: got {table.bounds}; low must be below high")


def _check_shapes(table: CurveTable) -> None:
    if table.configs.ndim != 2 or table.configs.shape[1] != len(table.space):
        raise TableError(
            f"configs: has shape {table.configs.shape}; it must be [configuration, parameter], "
            f"with the {len(table.space)} parameters of space"
        )
    if table.curves.ndim != 3 or table.curves.shape[2] < 2:
        raise TableError(
            f"curves: has shape {table.curves.shape}; it must be [task, configuration, epoch], "
            "with epoch 0 and one more or more"
        )
    pairs = (len(table.tasks), len(table.configs))
    expected = {
        "curves": (*pairs, table.curves.shape[2]),
        "lengths": pairs,
        "cost": pairs,
        "train_curves": (*pairs, table.curves.shape[2]),
        "soft": (len(table.tasks), 2),
    }
    for key, shape in expected.items():
        array = getattr(table, key)
        if array is not None and array.shape != shape:
            raise TableError(
                f"{key}: has shape {array.shape}; {len(table.tasks)} tasks and "
                f"{len(table.configs)} configurations need {shape}"
            )
    if not table.configs.size:
        raise TableError("configs: is empty; a table needs a configuration")


def _check_configs(table: CurveTable) -> None:
    _ = table._params  # reading is the check


def _read_config(space: Space, n: int, row: Sequence[float]) -> dict[str, ParamValue]:
    params: dict[str, ParamValue] = {}
    try:
        for (name, parameter), value in zip(space.parameters.items(), row, strict=True):
            if math.isnan(value):
                continue
            if isinstance(parameter, Choice):
                if not (value.is_integer() and 0 <= value < len(parameter.options)):
                    raise SpaceError(
                        f"{name}: got {value!r}; a choice is stored as its index, "
                        f"0 to {len(parameter.options) - 1}"
                    )
                params[name] = parameter.options[int(value)]
            else:
                whole = isinstance(parameter, Int) and value.is_integer()
                params[name] = int(value) if whole else value
        return space.validate(params)
    except SpaceError as error:
        raise TableError(f"configs, row {n}: {error}") from None


def _check_curves(table: CurveTable) -> None:
    lengths = table.lengths
    if lengths is not None and not ((lengths >= 0) & (lengths <= table.max_epochs)).all():
        wrong = lengths[(lengths < 0) | (lengths > table.max_epochs)][0]
        raise TableError(f"lengths: got {wrong}; they count epochs, 0 to {table.max_epochs}")
    finite = np.isfinite(table.curves)
    _refuse(
        table,
        finite & ~np.stack([_observed(table, m) for m in range(len(table.tasks))]),
        "is a score beyond the configuration's length; make it NaN, or correct lengths",
    )
    _refuse(
        table,
        # A step from not finite to finite.
        np.diff(finite.astype(np.int8), axis=2, prepend=np.int8(1)) > 0,
        "follows NaN or inf; a run that diverged stays so: make the rest NaN",
    )
    low, high = table.bounds
    with np.errstate(invalid="ignore"):
        outside = finite & ((table.curves < low) | (table.curves > high))
    _refuse(table, outside, f"is outside the bounds [{low}, {high}]; correct one of them")
    for task, known in zip(table.tasks, finite, strict=True):
        for when, part in (("at", known[:, 0]), ("after", known[:, 1:])):
            if not part.any():
                raise TableError(
                    f"curves: task {task} has no finite score {when} epoch 0; drop the task"
                )
    if table.cost is not None and not (np.isfinite(table.cost) & (table.cost > 0)).all():
        raise TableError("cost: holds values that are not above 0 and finite; correct them")


def _refuse(table: CurveTable, wrong: NDArray[np.bool_], rule: str) -> None:
    if wrong.any():
        m, n, epoch = np.argwhere(wrong)[0].tolist()
        raise TableError(
            f"curves: task {table.tasks[m]}, configuration {n}, epoch {epoch}: "
            f"{table.curves[m, n, epoch].item()!r} {rule}"
        )


def _observed(table: CurveTable, m: int) -> NDArray[np.bool_]:
    """[configuration, epoch] of task m: epoch 0 and as many epochs as `lengths` says."""
    n_points = table.max_epochs + 1
    if table.lengths is None:
        return np.ones((len(table.configs), n_points), dtype=np.bool_)
    observed: NDArray[np.bool_] = np.arange(n_points) <= table.lengths[m, :, None]
    return observed
