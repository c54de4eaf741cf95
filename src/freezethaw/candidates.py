"""Pools: which configurations a decision chooses among.

A pool is a pure function of its own fields and the history. A configuration keeps its id for the
life of a study. A started trial is a candidate while it is active; an unstarted configuration is
one while no trial has had the same parameters.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from freezethaw.errors import ConfigError
from freezethaw.records import Curve, Goal, History, Params, TrialState
from freezethaw.space import Choice, Space

Array: TypeAlias = NDArray[np.float64]
Key: TypeAlias = tuple[Any, ...]
"""A configuration as the values of all parameters in order, `_ABSENT` where inactive."""

_ABSENT: Final = object()

TRIALS_PER_GENERATION = 12
"""A pool is drawn anew once this many of its configurations have been started."""

FRUITLESS_GENERATIONS = 8
"""A pool is drawn anew at most so often in a row without a configuration that is new."""

CENTERS = 5
"""How many of the best trials a new generation searches around."""

FIRST_STEP, STEP_SHRINK, SMALLEST_STEP = 0.15, 0.7, 0.02
"""Standard deviation of local steps in the unit cube: at first, from one to the next, at least."""

CHOICE_CHANCE = 0.1
"""The chance that a local step draws a choice anew (at least one in each step, on average)."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The configurations that may be trained next, by ascending id."""

    ids: tuple[int, ...]
    params: tuple[Params, ...]
    encoded: Array = field(compare=False, repr=False)
    """[candidate, column]"""

    def __len__(self) -> int:
        return len(self.ids)

    def __contains__(self, trial_id: object) -> bool:
        return trial_id in self._rows

    def index_of(self, trial_id: int) -> int:
        """Return the row of a configuration; KeyError if it is no candidate."""
        return self._rows[trial_id]

    @cached_property
    def _rows(self) -> dict[int, int]:
        return {trial_id: row for row, trial_id in enumerate(self.ids)}


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """That a new generation of configurations is due, and the trials that it is drawn around."""

    generation: int
    centers: tuple[int, ...]


class Pool(Protocol):
    """Where candidates come from."""

    def candidates(self, history: History) -> Candidates:
        """Return the configurations that may be trained next."""
        ...

    def renewal(self, history: History) -> Renewal | None:
        """Return the renewal that is due, for the study to log; None while there is none."""
        ...


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Configurations with everything that is computed from them once."""

    ids: tuple[int, ...]
    params: tuple[Params, ...]
    keys: tuple[Key, ...]
    encoded: Array


def _block(space: Space, ids: Iterable[int], configurations: Iterable[Params]) -> _Block:
    params = tuple(configurations)
    encoded = space.encode_all(params)
    encoded.setflags(write=False)
    keys = tuple(_key(space, configuration) for configuration in params)
    return _Block(ids=tuple(ids), params=params, keys=keys, encoded=encoded)


def _key(space: Space, params: Params) -> Key:
    return tuple(params.get(name, _ABSENT) for name in space.names)


def _params(space: Space, key: Key) -> dict[str, Any]:
    return {
        name: value for name, value in zip(space.names, key, strict=True) if value is not _ABSENT
    }


def _is_open(curve: Curve) -> bool:
    return curve.state is TrialState.ACTIVE


@dataclass(frozen=True)
class FixedPool:
    """A given list of configurations, ids 0..N-1 (the paper's case). It is never renewed."""

    space: Space
    configurations: Sequence[Params] = field(repr=False)

    def __post_init__(self) -> None:
        valid = tuple(self.space.validate(params) for params in self.configurations)
        object.__setattr__(self, "configurations", valid)

    @cached_property
    def _whole(self) -> _Block:
        return _block(self.space, range(len(self.configurations)), self.configurations)

    @cached_property
    def _everything(self) -> Candidates:
        whole = self._whole
        return Candidates(ids=whole.ids, params=whole.params, encoded=whole.encoded)

    def candidates(self, history: History) -> Candidates:
        """Return all configurations whose trial is not finished."""
        finished = {i for i, curve in history.curves.items() if not _is_open(curve)}
        if not finished:
            return self._everything
        whole = self._whole
        rows = [row for row, i in enumerate(whole.ids) if i not in finished]
        return Candidates(
            ids=tuple(whole.ids[row] for row in rows),
            params=tuple(whole.params[row] for row in rows),
            encoded=whole.encoded[rows],
        )

    def renewal(self, history: History) -> None:
        """Return None: the configurations are given."""


@dataclass(frozen=True, kw_only=True)
class OpenPool:
    """Configurations drawn from a space, in generations of `size`.

    Generation 0 is a scrambled Sobol sequence. Half of a later one is such a sequence too; the
    other half are steps from the best trials. Configuration i of generation g has the id
    `len(first) + g * size + i`; those given as `first` have the ids before and stay candidates
    until they are started.

    A new generation is due once `TRIALS_PER_GENERATION` configurations of the present one (all,
    if `size` is less) have been started, or nothing in it is left to start. A small space runs
    out: after `FRUITLESS_GENERATIONS` without a new configuration no other is drawn. A generation
    takes effect when the study logs it, that is when
    `history.pool_generation` and `history.pool_centers` say so.
    """

    space: Space
    seed: int
    goal: Goal
    size: int = 512
    first: Sequence[Params] = ()

    def __post_init__(self) -> None:
        if self.size < 2:
            raise ConfigError(f"size is {self.size}; a pool draws at least 2 configurations")
        if self.seed < 0:
            raise ConfigError(f"seed is {self.seed}; it must be 0 or more")
        if self.goal not in ("maximize", "minimize"):
            raise ConfigError(f"goal is {self.goal!r}; it must be 'maximize' or 'minimize'")
        first = tuple(self.space.validate(params) for params in self.first)
        object.__setattr__(self, "first", first)

    @cached_property
    def _first(self) -> _Block:
        return _block(self.space, range(len(self.first)), self.first)

    def candidates(self, history: History) -> Candidates:
        """Return the active trials and the unstarted configurations of the present generation."""
        chosen = [
            (trial_id, curve.params, _encode(self.space, _key(self.space, curve.params)))
            for trial_id, curve in history.curves.items()
            if _is_open(curve)
        ]
        chosen += self._unstarted(history)
        chosen.sort(key=lambda item: item[0])
        rows = [row for _, _, row in chosen]
        return Candidates(
            ids=tuple(trial_id for trial_id, _, _ in chosen),
            params=tuple(params for _, params, _ in chosen),
            encoded=np.stack(rows) if rows else np.empty((0, self.space.width)),
        )

    def renewal(self, history: History) -> Renewal | None:
        """Return the next generation if enough of the present one has been started."""
        present = history.pool_generation
        started = [self._generation_of(trial_id) for trial_id in history.curves]
        enough = started.count(present) >= min(TRIALS_PER_GENERATION, self.size)
        fruitless = present - max(started, default=-1)
        if not enough and fruitless >= FRUITLESS_GENERATIONS:
            return None
        if not enough and next(self._unstarted(history), None) is not None:
            return None
        return Renewal(generation=present + 1, centers=self._best(history))

    def _unstarted(self, history: History) -> Iterator[tuple[int, Params, Array]]:
        """Given configurations and those of the present generation, each set of values once."""
        seen = {_key(self.space, curve.params) for curve in history.curves.values()}
        for block in (self._first, self._present(history)):
            for row, (trial_id, key) in enumerate(zip(block.ids, block.keys, strict=True)):
                if trial_id not in history.curves and key not in seen:
                    seen.add(key)
                    yield trial_id, block.params[row], block.encoded[row]

    def _generation_of(self, trial_id: int) -> int:
        """Of the configuration; −1 for those given."""
        return (trial_id - len(self.first)) // self.size if trial_id >= len(self.first) else -1

    def _start(self, generation: int) -> int:
        return len(self.first) + generation * self.size

    def _best(self, history: History) -> tuple[int, ...]:
        """The trials with the best scores so far, ties to the lower id."""
        sign = -1 if self.goal == "maximize" else 1
        best = [
            (min(scores), trial_id)
            for trial_id, curve in history.curves.items()
            if (scores := [sign * score for score in curve.scores if math.isfinite(score)])
        ]
        return tuple(trial_id for _, trial_id in sorted(best)[:CENTERS])

    def _present(self, history: History) -> _Block:
        generation = history.pool_generation
        centers = tuple(
            _key(self.space, history.curves[trial_id].params) for trial_id in history.pool_centers
        )
        return _generation(
            self.space, self.seed, self.size, self._start(generation), generation, centers
        )


# The caches below hold results of pure functions: a decision asks for the same generation again
# and again, and drawing one takes longer than everything else here.


@lru_cache(maxsize=4096)
def _encode(space: Space, key: Key) -> Array:
    row = space.encode(_params(space, key))
    row.setflags(write=False)
    return row


@lru_cache(maxsize=8)
def _generation(
    space: Space, seed: int, size: int, start: int, generation: int, centers: tuple[Key, ...]
) -> _Block:
    rng = np.random.default_rng([seed, generation])
    n_local = size // 2 if centers else 0
    points = _sobol(len(space), size - n_local, rng)
    if n_local:
        around = np.stack([space.to_unit(_params(space, key)) for key in centers])
        around = around[np.arange(n_local) % len(around)]
        points = np.concatenate([points, _steps(space, around, generation, rng)])
    return _block(space, range(start, start + size), map(space.from_unit, points))


# scipy 1.15 renamed the argument; passing the generator gives the same points under both names.
_RNG_NAME = "rng" if "rng" in inspect.signature(qmc.Sobol).parameters else "seed"


def _sobol(n_dimensions: int, n: int, rng: np.random.Generator) -> Array:
    sampler = qmc.Sobol(n_dimensions, scramble=True, **{_RNG_NAME: rng})
    # Sobol points are balanced in powers of two only: draw that many and leave the last out.
    points: Array = sampler.random_base2(math.ceil(math.log2(n)))[:n]
    return points


def _steps(space: Space, around: Array, generation: int, rng: np.random.Generator) -> Array:
    """Return one random step from each point of the unit cube, `around: [point, parameter]`."""
    width = max(FIRST_STEP * STEP_SHRINK ** (generation - 1), SMALLEST_STEP)
    moved = _reflect(around + width * rng.standard_normal(around.shape))
    anew = rng.random(around.shape)
    redraw = rng.random(around.shape) < max(CHOICE_CHANCE, 1 / len(space))
    is_choice = np.array([isinstance(p, Choice) for p in space.parameters.values()])
    points = np.where(is_choice, np.where(redraw, anew, around), moved)
    # A coordinate that was inactive has no place to step from, and a redrawn choice may need it.
    return np.where(np.isnan(around), anew, points)


def _reflect(points: Array) -> Array:
    """Fold the real line into [0, 1] as mirrors at 0 and 1 would."""
    folded: Array = 1 - np.abs(1 - np.mod(points, 2))
    return folded
