"""The search space: what may be tuned, under which conditions, and how a model sees it.

One configuration has three views:

- *params*: values by name; a parameter whose condition does not hold is absent;
- *latent*: a point of the unit cube, one coordinate per parameter, for drawing configurations;
- *encoded*: the columns that the extrapolator reads, in [0, 1], NaN where inactive. A number is one
  column; a choice is one-hot up to four options and ordinal, in the order given, beyond that.
"""

from __future__ import annotations

import difflib
import graphlib
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from freezethaw.errors import SpaceError
from freezethaw.records import Params, ParamValue

When: TypeAlias = Mapping[str, ParamValue | Sequence[ParamValue]]
"""Parent choices and the value, or values, that each must have: `{"optimizer": "sgd"}`."""

ONE_HOT_OPTIONS = 4
"""A choice of at most this many options is one-hot encoded."""

LARGEST_INT = 2**40
# Beyond it neighbouring integers on a log scale come too close together in [0, 1] to be told
# apart in float64, and decoding would no longer give back what was encoded.


def closest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for a near miss, else the list of what is known."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; there is {_listed(known)}"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(repr(value) for value in values) or "none"


def _plain(value: Any) -> Any:
    """Return a numpy scalar as the Python value that it stands for."""
    return value.item() if isinstance(value, np.generic) else value


def _is_number(value: Any) -> bool:
    # bool is an int in Python; as a number in a search space it is always a mistake.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max  # exact for ints of any size


def _is_scalar(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, (str, int, bool))


def _key(value: Any) -> tuple[bool, Any]:
    """Return a lookup key under which True is not 1, though 1.0 is."""
    return isinstance(value, bool), value


@dataclass(frozen=True, eq=False, repr=False)
class _Parameter(ABC):
    when: When | None = field(default=None, kw_only=True)

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "when", _read_condition(self.when))

    @property
    def _conditions(self) -> Mapping[str, tuple[ParamValue, ...]]:
        return cast("Mapping[str, tuple[ParamValue, ...]]", self.when or {})

    @abstractmethod
    def _check(self, name: str, value: Any) -> ParamValue:
        """Return the value in its canonical Python type, or raise SpaceError."""

    @abstractmethod
    def _from_latent(self, u: float) -> ParamValue: ...

    @abstractmethod
    def _to_latent(self, value: Any) -> float: ...

    @abstractmethod
    def _columns(self, name: str) -> tuple[str, ...]: ...

    @abstractmethod
    def _encode(self, value: Any) -> list[float]: ...

    @abstractmethod
    def _decode(self, row: Sequence[float]) -> ParamValue: ...

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """Return what defines the parameter besides its condition, as JSON."""

    def _to_json(self) -> dict[str, Any]:
        entry = {"type": self.kind, **self._facts()}
        if self.when:
            # One value stands alone: it is how people write it.
            entry["when"] = {
                parent: values[0] if len(values) == 1 else list(values)
                for parent, values in self._conditions.items()
            }
        return entry

    # Equality goes through JSON because Python's own calls [True, False] and [1, 0] equal.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Parameter) and self._text() == other._text()

    def __hash__(self) -> int:
        return hash(self._text())

    def _text(self) -> str:
        return json.dumps(self._to_json(), sort_keys=True)

    def __repr__(self) -> str:
        facts = self._to_json()
        bare = facts.get("choices") or f"{facts['low']!r}, {facts['high']!r}"
        log = ", log=True" if facts.get("log") else ""
        when = f", when={facts['when']!r}" if self.when else ""
        return f"{type(self).__name__}({bare}{log}{when})"


def _read_condition(when: When | None) -> dict[str, tuple[ParamValue, ...]] | None:
    if not when:
        return None
    if not isinstance(when, Mapping):
        raise SpaceError(f'when: got {when!r}; write when={{"optimizer": "sgd"}}')
    conditions = {}
    for parent, wanted in when.items():
        several = isinstance(wanted, Sequence) and not isinstance(wanted, str)
        values = tuple(_plain(value) for value in (wanted if several else [wanted]))  # type: ignore[union-attr]
        if not values:
            raise SpaceError(f"when: {parent!r} may have no value at all; name at least one")
        conditions[parent] = values
    return conditions


@dataclass(frozen=True, eq=False, repr=False)
class _Number(_Parameter):
    low: float
    high: float
    log: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("low", "high"):
            value = _plain(getattr(self, side))
            if not _is_number(value):
                raise SpaceError(f"{self._me}: {side} is {value!r}; it must be a finite number")
            object.__setattr__(self, side, value)
        if not self.low < self.high:
            raise SpaceError(
                f"{self._me}: low must be below high; leave a constant out of the space"
            )

    @property
    def _me(self) -> str:
        return f"{type(self).__name__}({self.low!r}, {self.high!r}{', log=True' * self.log})"

    def _outside(self, name: str, value: Any) -> SpaceError:
        return SpaceError(
            f"{name}: got {value!r}; it must lie in [{self.low!r}, {self.high!r}]; "
            "change the value, or the bounds of the space"
        )

    def _fraction(self, value: float) -> float:
        """Where a value lies between low (0) and high (1), on the log scale if there is one."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def _at(self, fraction: float) -> float:
        # The ends are returned as they are: exp(log(high / low)) may miss high / low by a hair.
        if fraction <= 0:
            return self.low
        if fraction >= 1:
            return self.high
        if self.log:
            value = self.low * math.exp(fraction * math.log(self.high / self.low))
        else:
            value = self.low + fraction * (self.high - self.low)
        return min(max(value, self.low), self.high)

    def _columns(self, name: str) -> tuple[str, ...]:
        return (name,)

    def _encode(self, value: Any) -> list[float]:
        return [self._fraction(value)]

    def _facts(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "log": self.log}


@dataclass(frozen=True, eq=False, repr=False)
class Float(_Number):
    """A real number in [low, high], searched on a log scale if `log`."""

    kind = "float"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "low", float(self.low))
        object.__setattr__(self, "high", float(self.high))
        if self.log and self.low <= 0:
            raise SpaceError(f"{self._me}: a log scale needs low > 0; raise low or drop log=True")
        if not math.isfinite(self.high - self.low):
            raise SpaceError(f"{self._me}: high - low overflows; narrow the range")
        if self.log and not 0 < math.log(self.high / self.low) < math.inf:
            raise SpaceError(
                f"{self._me}: high / low is 1 or overflows as a float; change the range"
            )

    def _check(self, name: str, value: Any) -> float:
        value = _plain(value)
        if not _is_number(value):
            raise SpaceError(f"{name}: got {value!r}; it must be a finite number")
        if not self.low <= value <= self.high:
            raise self._outside(name, value)
        return float(value)

    def _from_latent(self, u: float) -> float:
        return self._at(u)

    def _to_latent(self, value: Any) -> float:
        return self._fraction(value)

    def _decode(self, row: Sequence[float]) -> float:
        return self._at(row[0])


@dataclass(frozen=True, eq=False, repr=False)
class Int(_Number):
    """An integer in [low, high], both included, searched on a log scale if `log`."""

    low: int
    high: int
    kind = "int"
    _cells: Float = field(init=False)

    # In the cube each integer k owns the cell [k - ½, k + ½], on the log scale if there is one:
    # cells of one size in a linear range, and no integer, not even an end, is drawn too rarely.

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("low", "high"):
            value = getattr(self, side)
            if value != int(value) or abs(value) > LARGEST_INT:
                raise SpaceError(
                    f"{self._me}: {side} must be a whole number of at most 2**40 in size; "
                    "use Float, or a larger unit"
                )
            object.__setattr__(self, side, int(value))
        if self.log and self.low < 1:
            raise SpaceError(f"{self._me}: a log scale needs low >= 1; raise low or drop log=True")
        cells = Float(self.low - 0.5, self.high + 0.5, log=self.log)
        object.__setattr__(self, "_cells", cells)

    def _check(self, name: str, value: Any) -> int:
        value = _plain(value)
        if not _is_number(value) or value != int(value):
            raise SpaceError(f"{name}: got {value!r}; it must be a whole number")
        if not self.low <= value <= self.high:
            raise self._outside(name, value)
        return int(value)

    def _from_latent(self, u: float) -> int:
        return self._nearest(self._cells._at(u))

    def _to_latent(self, value: Any) -> float:
        return self._cells._fraction(value)

    def _decode(self, row: Sequence[float]) -> int:
        return self._nearest(self._at(row[0]))

    def _nearest(self, value: float) -> int:
        # floor(v + ½), as round() sends halves to even numbers and makes cells unequal.
        return min(max(math.floor(value + 0.5), self.low), self.high)


@dataclass(frozen=True, eq=False, repr=False)
class Choice(_Parameter):
    """One of several options, each a str, int, float, bool or None."""

    options: Sequence[ParamValue]
    kind = "choice"
    _index: dict[tuple[bool, Any], int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.options, (str, Mapping)) or not isinstance(self.options, Iterable):
            raise SpaceError(f'Choice: got {self.options!r}; give a list: Choice(["sgd", "adam"])')
        options = tuple(_plain(option) for option in self.options)
        object.__setattr__(self, "options", options)
        if len(options) < 2:
            raise SpaceError(
                f"Choice({list(options)!r}): needs two options or more; "
                "leave a constant out of the space"
            )
        for i, option in enumerate(options):
            if not _is_scalar(option):
                raise SpaceError(
                    f"Choice: option {option!r} is no str, int, finite float, bool or None; "
                    "choose by a name and look the object up in the training function"
                )
            if option in options[:i]:
                raise SpaceError(
                    f"Choice({list(options)!r}): {option!r} equals an option before it "
                    "(True == 1 in Python); make the options distinct, as text if need be"
                )
        object.__setattr__(self, "_index", {_key(option): i for i, option in enumerate(options)})

    def _find(self, value: Any) -> int | None:
        try:
            return self._index.get(_key(_plain(value)))
        except TypeError:  # unhashable, so it is none of the options
            return None

    def _check(self, name: str, value: Any) -> ParamValue:
        i = self._find(value)
        if i is None:
            texts = [option for option in self.options if isinstance(option, str)]
            near = difflib.get_close_matches(str(value), texts, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SpaceError(f"{name}: got {value!r}; it must be {_either(self.options)}{hint}")
        return self.options[i]

    def _from_latent(self, u: float) -> ParamValue:
        return self.options[min(int(u * len(self.options)), len(self.options) - 1)]

    def _to_latent(self, value: Any) -> float:
        return (self._place(value) + 0.5) / len(self.options)

    def _place(self, value: Any) -> int:
        return self._index[_key(value)]

    @property
    def _one_hot(self) -> bool:
        return len(self.options) <= ONE_HOT_OPTIONS

    def _columns(self, name: str) -> tuple[str, ...]:
        return tuple(f"{name}={option}" for option in self.options) if self._one_hot else (name,)

    def _encode(self, value: Any) -> list[float]:
        place = self._place(value)
        if self._one_hot:
            return [float(i == place) for i in range(len(self.options))]
        return [place / (len(self.options) - 1)]

    def _decode(self, row: Sequence[float]) -> ParamValue:
        if self._one_hot:
            return self.options[max(range(len(row)), key=row.__getitem__)]
        last = len(self.options) - 1
        return self.options[min(max(math.floor(row[0] * last + 0.5), 0), last)]

    def _facts(self) -> dict[str, Any]:
        return {"choices": list(self.options)}


def _either(values: Sequence[object]) -> str:
    return repr(values[0]) if len(values) == 1 else f"one of {_listed(values)}"


Parameter: TypeAlias = Float | Int | Choice
"""What a space is made of."""


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
        texts = [f"{parent} is {_either(wanted)}" for parent, wanted in conditions]
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
                f"it has {_listed(choice.options)}"
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
        raise SpaceError(f"{name}: type is {kind!r}; it must be {_either(list(needed))}")
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
