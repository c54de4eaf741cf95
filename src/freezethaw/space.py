"""The search space: what may be tuned, under which conditions, and how a model sees it.

One configuration has three views:

- *params*: values by name; a parameter whose condition does not hold is absent;
- *latent*: a point of the unit cube, one coordinate per parameter, for drawing configurations;
- *encoded*: the columns that the extrapolator reads, in [0, 1], NaN where inactive. A number is one
  column; a choice is one-hot up to four options and ordinal, in the order given, beyond that.
"""

from __future__ import annotations

import graphlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from freezethaw.errors import SpaceError
from freezethaw.parameters import Choice, Float, Int, Parameter, closest, either, listed
from freezethaw.records import Params, ParamValue

__all__ = ["Choice", "Float", "Int", "Parameter", "Space", "closest"]


@dataclass(frozen=True, eq=False)
class Space:
    """An immutable, ordered set of named parameters, some of which may depend on choices."""

    parameters: Mapping[str, Parameter]
    columns: tuple[str, ...] = field(init=False, repr=False)
    """The names of the encoded columns."""
    _order: tuple[str, ...] = field(init=False, repr=False)
    """Parents before the parameters that depend on them."""
    _spans: Mapping[str, slice] = field(init=False, repr=False)
    """Which encoded columns belong to a parameter."""
    _wanted: Mapping[str, tuple[tuple[str, frozenset[int | None]], ...]] = field(
        init=False, repr=False
    )
    """The parents of a parameter and the options (by place) that each must have."""
    _text: str = field(init=False, repr=False)
    """The space as JSON text: what equality and the hash, asked for often, rest on."""

    def __post_init__(self) -> None:
        parameters = _read_parameters(self.parameters)
        columns: list[str] = []
        spans = {}
        for name, parameter in parameters.items():
            new = parameter._columns(name)
            spans[name] = slice(len(columns), len(columns) + len(new))
            columns.extend(new)
        settings = {
            "parameters": MappingProxyType(parameters),
            "columns": tuple(columns),
            "_order": _parents_first(parameters),
            "_spans": spans,
            "_wanted": {name: _places_wanted(parameters, name) for name in parameters},
        }
        for name, value in settings.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_text", json.dumps(self.to_json()))

    @classmethod
    def of(cls, space: Space | Mapping[str, Parameter]) -> Space:
        """Return a space as it is, and a mapping as a space."""
        return space if isinstance(space, Space) else cls(space)

    def __reduce__(self) -> tuple[type[Space], tuple[dict[str, Parameter]]]:
        # A mapping proxy cannot be pickled or copied.
        return Space, (dict(self.parameters),)

    def __repr__(self) -> str:
        return f"Space({dict(self.parameters)})"

    def __len__(self) -> int:
        return len(self.parameters)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Space) and self._text == other._text)

    def __hash__(self) -> int:
        return hash(self._text)

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in order."""
        return tuple(self.parameters)

    @property
    def width(self) -> int:
        """The number of encoded columns."""
        return len(self.columns)

    def is_active(self, name: str, params: Params) -> bool:
        """Whether the condition of a parameter, and those of its parents, hold."""
        if name not in self.parameters:
            raise SpaceError(f"no parameter {name!r}{closest(name, self.parameters)}")
        return self._holds(name, params)

    def _holds(self, name: str, params: Params) -> bool:
        for parent, places in self._wanted[name]:
            if parent not in params or not self._holds(parent, params):
                return False
            if cast("Choice", self.parameters[parent])._find(params[parent]) not in places:
                return False
        return True

    def validate(self, params: Params) -> dict[str, ParamValue]:
        """Return the parameters in canonical order and Python types, or raise SpaceError."""
        if not isinstance(params, Mapping):
            raise SpaceError(f"got {params!r}; parameters are a mapping from names to values")
        for name in params:
            if name not in self.parameters:
                raise SpaceError(f"no parameter {name!r}{closest(str(name), self.parameters)}")
        values: dict[str, ParamValue] = {}
        for name in self._order:
            if self._holds(name, values):
                if name not in params:
                    raise SpaceError(f"{name} is missing; give it a value{self._because(name)}")
                values[name] = self.parameters[name]._check(name, params[name])
            elif name in params:
                raise SpaceError(
                    f"{name}: got {params[name]!r}, but it exists only{self._because(name)}; "
                    "leave it out"
                )
        return {name: values[name] for name in self.parameters if name in values}

    def _because(self, name: str) -> str:
        conditions = self.parameters[name]._conditions.items()
        texts = [f"{parent} is {either(wanted)}" for parent, wanted in conditions]
        return f" when {' and '.join(texts)}" if texts else ""

    def from_unit(self, u: ArrayLike) -> dict[str, ParamValue]:
        """Return the configuration at a point of the unit cube, `u: [parameter]`."""
        point = np.asarray(u, dtype=np.float64)
        if point.shape != (len(self),) or not ((point >= 0) & (point <= 1)).all():
            raise SpaceError(
                f"got a point of shape {point.shape}: {point}; from_unit takes "
                f"{len(self)} coordinates in [0, 1], one per parameter"
            )
        coordinate = dict(zip(self.parameters, point.tolist(), strict=True))
        values: dict[str, ParamValue] = {}
        for name in self._order:
            if self._holds(name, values):
                values[name] = self.parameters[name]._from_latent(coordinate[name])
        return {name: values[name] for name in self.parameters if name in values}

    def to_unit(self, params: Params) -> NDArray[np.float64]:
        """Return the point of the unit cube, NaN where a parameter is inactive."""
        values = self.validate(params)
        return np.array(
            [
                parameter._to_latent(values[name]) if name in values else math.nan
                for name, parameter in self.parameters.items()
            ]
        )

    def encode(self, params: Params) -> NDArray[np.float64]:
        """Return the model's columns, `[column]`, in [0, 1] and NaN where inactive."""
        row = np.full(self.width, np.nan)
        for name, value in self.validate(params).items():
            row[self._spans[name]] = self.parameters[name]._encode(value)
        return row

    def encode_all(self, configurations: Sequence[Params]) -> NDArray[np.float64]:
        """Return the model's columns of several configurations, `[configuration, column]`."""
        rows = [self.encode(params) for params in configurations]
        return np.stack(rows) if rows else np.empty((0, self.width))

    def decode(self, row: ArrayLike) -> dict[str, ParamValue]:
        """Return the configuration that `encode` made this row from."""
        cells = np.asarray(row, dtype=np.float64)
        if cells.shape != (self.width,):
            raise SpaceError(
                f"got a row of shape {cells.shape}; this space has {self.width} columns"
            )
        values: dict[str, ParamValue] = {}
        for name in self._order:
            if not self._holds(name, values):
                continue
            own = cells[self._spans[name]].tolist()
            if any(map(math.isnan, own)):
                raise SpaceError(
                    f"{name}: its column is NaN, but it is active{self._because(name)}"
                )
            values[name] = self.parameters[name]._decode(own)
        return {name: values[name] for name in self.parameters if name in values}

    def to_json(self) -> list[dict[str, Any]]:
        """Return the space as JSON, in the format of curve tables."""
        return [
            {"name": name, **parameter._to_json()} for name, parameter in self.parameters.items()
        ]

    @classmethod
    def from_json(cls, data: Sequence[Mapping[str, Any]]) -> Space:
        """Read what `to_json` wrote; `log` and `when` may be missing, unknown keys are ignored."""
        if isinstance(data, (str, Mapping)) or not isinstance(data, Sequence):
            raise SpaceError(f"got {data!r}; a space in JSON is a list of parameters")
        parameters: dict[str, Parameter] = {}
        for i, entry in enumerate(data):
            name = entry.get("name") if isinstance(entry, Mapping) else None
            if not isinstance(name, str):
                raise SpaceError(f"parameter {i} is {entry!r}; it must be an object with a name")
            if name in parameters:
                raise SpaceError(f"parameter {i}: {name!r} is there already; names are unique")
            parameters[name] = _read_parameter(name, entry)
        return cls(parameters)

    def differences(
        self, other: Space, *, mine: str = "this space", theirs: str = "the other"
    ) -> list[str]:
        """Return one sentence for each difference; none if the spaces are equal."""
        sentences = []
        for name in dict.fromkeys([*self.parameters, *other.parameters]):
            if name not in other.parameters:
                sentences.append(f"{name} is in {mine} only")
            elif name not in self.parameters:
                sentences.append(f"{name} is in {theirs} only")
            else:
                here, there = self.parameters[name]._to_json(), other.parameters[name]._to_json()
                sentences += [
                    f"{name}: {fact} is {_fact(here, fact)} in {mine} "
                    f"and {_fact(there, fact)} in {theirs}"
                    for fact in dict.fromkeys([*here, *there])
                    if _fact(here, fact) != _fact(there, fact)
                ]
        if not sentences and self.names != other.names:
            sentences.append(
                f"the order is {', '.join(self.names)} in {mine} "
                f"and {', '.join(other.names)} in {theirs}"
            )
        return sentences


def _fact(entry: Mapping[str, Any], name: str) -> str:
    # As text, so that true is not 1.
    return json.dumps(entry[name], sort_keys=True) if name in entry else "absent"


def _read_parameters(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    if not isinstance(parameters, Mapping) or not parameters:
        raise SpaceError(f"got {parameters!r}; a space needs at least one parameter by name")
    for name, parameter in parameters.items():
        if not isinstance(name, str) or not name:
            raise SpaceError(f"got {name!r} as a name; a parameter is named by a text")
        if not isinstance(parameter, Float | Int | Choice):
            raise SpaceError(
                f"{name}: got {parameter!r}; use Float(low, high), Int(low, high) or Choice([...])"
            )
    for name, parameter in parameters.items():
        for parent, wanted in parameter._conditions.items():
            _check_condition(parameters, name, parent, wanted)
    return dict(parameters)


def _check_condition(
    parameters: Mapping[str, Parameter], name: str, parent: str, wanted: Sequence[ParamValue]
) -> None:
    if parent not in parameters:
        raise SpaceError(
            f"{name}: depends on {parent!r}, which is not in the space"
            f"{closest(str(parent), parameters)}"
        )
    choice = parameters[parent]
    if not isinstance(choice, Choice):
        raise SpaceError(
            f"{name}: depends on {parent}, which is {choice!r}; only a Choice can be a condition"
        )
    for value in wanted:
        if choice._find(value) is None:
            raise SpaceError(
                f"{name}: exists when {parent} is {value!r}, which is no option of {parent}; "
                f"it has {listed(choice.options)}"
            )


def _places_wanted(
    parameters: Mapping[str, Parameter], name: str
) -> tuple[tuple[str, frozenset[int | None]], ...]:
    return tuple(
        (parent, frozenset(cast("Choice", parameters[parent])._find(value) for value in wanted))
        for parent, wanted in parameters[name]._conditions.items()
    )


def _parents_first(parameters: Mapping[str, Parameter]) -> tuple[str, ...]:
    graph = {name: parameter._conditions.keys() for name, parameter in parameters.items()}
    try:
        return tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        circle = " → ".join(error.args[1])
        raise SpaceError(
            f"the conditions go round in a circle: {circle}; drop one of them"
        ) from None


def _read_parameter(name: str, entry: Mapping[str, Any]) -> Parameter:
    kind, when = entry.get("type"), entry.get("when")
    needed = {"float": ("low", "high"), "int": ("low", "high"), "choice": ("choices",)}
    if kind not in needed:
        raise SpaceError(f"{name}: type is {kind!r}; it must be {either(list(needed))}")
    for key in needed[kind]:
        if entry.get(key) is None:
            raise SpaceError(f"{name}: has no {key!r}; type {kind!r} needs it")
    try:
        if kind == "choice":
            return Choice(entry["choices"], when=when)
        number = Float if kind == "float" else Int
        return number(entry["low"], entry["high"], log=bool(entry.get("log")), when=when)
    except SpaceError as error:
        raise SpaceError(f"{name}: {error}") from None
