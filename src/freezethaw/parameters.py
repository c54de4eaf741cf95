"""The parameters that a search space is made of: floats, integers and choices, with conditions."""

from __future__ import annotations

import difflib
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np

from freezethaw.errors import SpaceError
from freezethaw.records import ParamValue

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
    return f"; did you mean {near[0]!r}?" if near else f"; there is {listed(known)}"


def listed(values: Iterable[object]) -> str:
    """The values as they would be written in Python, for messages."""
    return ", ".join(repr(value) for value in values) or "none"


def plain(value: Any) -> Any:
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
        values = tuple(plain(value) for value in (wanted if several else [wanted]))  # type: ignore[union-attr]
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
            value = plain(getattr(self, side))
            if not _is_number(value):
                raise SpaceError(f"{self._me}: {side} is {value!r}; it must be a finite number")
            object.__setattr__(self, side, value)
        if not isinstance(self.log, bool):
            raise SpaceError(f"{self._me}: log is {self.log!r}; it must be True or False")
        if not self.low < self.high:
            raise SpaceError(
                f"{self._me}: low must be below high; leave a constant out of the space"
            )

    @property
    def _me(self) -> str:
        log = ", log=True" if self.log is True else ""
        return f"{type(self).__name__}({self.low!r}, {self.high!r}{log})"

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
        value = plain(value)
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
        value = plain(value)
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
        options = tuple(plain(option) for option in self.options)
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
            return self._index.get(_key(plain(value)))
        except TypeError:  # unhashable, so it is none of the options
            return None

    def _check(self, name: str, value: Any) -> ParamValue:
        i = self._find(value)
        if i is None:
            texts = [option for option in self.options if isinstance(option, str)]
            near = difflib.get_close_matches(str(value), texts, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise SpaceError(f"{name}: got {value!r}; it must be {either(self.options)}{hint}")
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


def either(values: Sequence[object]) -> str:
    """'a', or 'one of a, b'."""
    return repr(values[0]) if len(values) == 1 else f"one of {listed(values)}"


Parameter: TypeAlias = Float | Int | Choice
"""What a space is made of."""
