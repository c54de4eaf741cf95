"""The contract with the user's training function: what it gets, and what it yields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsFloat, TypeAlias

import numpy as np

from freezethaw.errors import TrainError
from freezethaw.isolation import RandomState, loaded_torch
from freezethaw.records import Params, ParamValue

_NUMPY_KINDS: dict[str, type[bool | int | float]] = {"b": bool, "i": int, "u": int, "f": float}

SaveHook: TypeAlias = Callable[[Path], object]
TrainFunction: TypeAlias = Callable[["Trial"], Any]

_FIX = """\
write the loop as a generator that yields the score after every epoch:

    def train(trial):
        net = Net(**trial.params)
        for epoch in trial.epochs():
            fit_one_epoch(net)
            yield net.validation_accuracy()    # in place of `return score` at the end

(a function that only passes on another one's generator says `yield from other(trial)`)"""


@dataclass(kw_only=True)
class Link:
    """What the engine tells a trial, and learns from it, behind the user's back."""

    checkpoint: Path | None = None
    start_epoch: int = 0
    """How many epochs the checkpoint holds."""
    random: Callable[[], RandomState] | None = None
    """Reads the random streams at the end of the checkpoint's epoch."""
    checkpoint_was_read: bool = False
    hook: SaveHook | None = None


class Trial:
    """One configuration in training. `train(trial)` gets it; it can also be made by hand to try.

    Let `yield` be the last statement of the loop: a trial that is thawed from a checkpoint goes on
    at the top of the loop, after the epoch that was saved.
    """

    def __init__(
        self,
        params: Params,
        *,
        max_epochs: int,
        trial_id: int = 0,
        seed: int = 0,
        link: Link | None = None,
    ) -> None:
        self._params = dict(params)
        self._max_epochs = max_epochs
        self._trial_id = trial_id
        self._seed = seed
        self._link = Link() if link is None else link

    @property
    def trial_id(self) -> int:
        """The trial's number in its study."""
        return self._trial_id

    @property
    def params(self) -> dict[str, ParamValue]:
        """The configuration by name, a dict of the trial's own."""
        return self._params

    @property
    def seed(self) -> int:
        """A 32-bit seed. Python's, numpy's and torch's global streams start from it."""
        return self._seed

    @property
    def max_epochs(self) -> int:
        """The epoch after which no trial is trained further."""
        return self._max_epochs

    @property
    def checkpoint(self) -> Path | None:
        """The folder that the save hook wrote, if the trial is thawed from disk, else None."""
        self._link.checkpoint_was_read = True
        return self._link.checkpoint

    def epochs(self) -> Iterator[int]:
        """The epochs to train, 1 to `max_epochs`; after a thaw from disk, those after it.

        The random streams go on from the checkpoint when the first of them is asked for, so that
        building and loading the network draws nothing from them.
        """
        for epoch in range(self._link.start_epoch + 1, self._max_epochs + 1):
            if self._link.random is not None:
                self._link.random().restore()
                self._link.random = None
            yield epoch

    def on_freeze(self, hook: SaveHook) -> None:
        """Register `hook(folder)`, which saves the network to a folder. The last one counts.

        All its files must be written when it returns.
        """
        if not callable(hook):
            raise TrainError(
                f"trial.on_freeze got {hook!r}; it takes a function of one argument, the folder "
                "to write to: trial.on_freeze(lambda folder: net.save(folder / 'net.pt'))"
            )
        self._link.hook = hook

    def __repr__(self) -> str:
        return f"Trial({self._trial_id}, {self._params})"


def check_train(train: TrainFunction) -> None:
    """Refuse what is certainly no generator function, before anything is run.

    A lambda, or a decorated function, may return another function's generator: it is checked when
    it is called (`check_generator`).
    """
    if not callable(train):
        raise TrainError(f"train is {train!r}, which cannot be called; {_FIX}")
    function: Any = train
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = type(function).__call__
    name = getattr(function, "__qualname__", repr(function))
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TrainError(f"{name} is an async function; freezethaw runs ordinary ones: {_FIX}")
    _check_signature(train, name)
    opaque = name.endswith("<lambda>") or hasattr(function, "__wrapped__")
    plain = inspect.isfunction(function) or inspect.ismethod(function)
    if plain and not opaque and not inspect.isgeneratorfunction(function):
        raise TrainError(f"{name} is not a generator function, as it has no `yield`: {_FIX}")


def _check_signature(train: TrainFunction, name: str) -> None:
    """It is called with the trial alone."""
    try:
        signature = inspect.signature(train)
    except (TypeError, ValueError):  # some have none
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise TrainError(
            f"{name}{signature} is called as train(trial): {error}. Give it what else it needs "
            "before: functools.partial(train, data=...), or pass a bound method, Model().fit"
        ) from None


def check_generator(value: object) -> Generator[Any, None, Any]:
    """What `train(trial)` returned, which must be a generator."""
    if isinstance(value, Generator):
        return value
    if inspect.iscoroutine(value):
        value.close()  # or Python warns that it was never awaited
    raise TrainError(f"train(trial) returned {_shown(value)}, not a generator; {_FIX}")


def read_report(value: object, metric: str) -> tuple[float, dict[str, Any]]:
    """The score in what was yielded, and whatever else it carries."""
    if not isinstance(value, Mapping):
        return _score(value, "train"), {}
    if metric not in value:
        raise TrainError(
            f"train yielded a dict with the keys {sorted(map(str, value))}; one must be the "
            f'metric, "{metric}": add it, or name another with tune(metric="...")'
        )
    extra = {_key(key): _extra(key, item) for key, item in value.items() if key != metric}
    return _score(value[metric], f'train, under "{metric}",'), extra


def _score(value: object, where: str) -> float:
    number = as_number(value)
    if number is None or isinstance(number, bool):
        raise TrainError(
            f"{where} yielded {_shown(value)}; a score is a number: a float, an int, a numpy "
            "scalar or a tensor without dimensions (for one element in a list or array: x.item())"
        )
    try:
        return float(number)
    except OverflowError:
        raise TrainError(f"{where} yielded {_shown(value)}, which no float can hold") from None


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    raise TrainError(f"train yielded a dict with the key {key!r}; its keys must be text")


def _extra(key: object, value: object) -> Any:
    if value is None or isinstance(value, str):
        return value
    number = as_number(value)
    if number is None:
        raise TrainError(
            f'train yielded {_shown(value)} under "{key}"; beside the score a dict may hold '
            "numbers, text, True, False and None"
        )
    return number


def as_number(value: object) -> float | int | bool | None:
    """The plain Python number in a scalar of any library; None if it is not one."""
    if isinstance(value, bool | int | float):
        # Subclasses (np.float64, IntEnum) become the plain type, which every encoder knows.
        return next(kind(value) for kind in (bool, int, float) if isinstance(value, kind))
    torch = loaded_torch()
    if torch is not None and isinstance(value, torch.Tensor):
        return _real(value.detach().item()) if value.dim() == 0 else None
    if isinstance(value, np.ndarray | np.generic):
        kind = _NUMPY_KINDS.get(value.dtype.kind)
        return None if kind is None or value.ndim else kind(value)
    if isinstance(value, SupportsFloat):  # Fraction, Decimal, arrays of other libraries
        try:
            return float(value)
        except (TypeError, ValueError):
            return None
    return None


def _real(value: object) -> float | int | bool | None:
    return value if isinstance(value, bool | int | float) else None


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} ({type(value).__name__})"
