"""A collection: one search space, the networks that it describes, and the tasks they learn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from torch import nn

from curves.recipes import Recipe
from curves.stacks import Initial, Stack
from curves.tasks import DataSet, Task, TaskRecipe
from freezethaw.records import Goal
from freezethaw.space import Choice, Float, Space

Params: TypeAlias = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Collection:
    """All that is needed to make one curve table."""

    name: str
    title: str
    """What the networks are, in half a sentence."""
    space: Space
    batch_sizes: tuple[int, ...]
    """The values of `batch_size` that are drawn: networks of one batch size train together."""
    tasks: tuple[TaskRecipe, ...]
    test_datasets: tuple[str, ...]
    """Whole data sets: all tasks made of them are test tasks."""
    make_task: Callable[[TaskRecipe, DataSet], Task]
    recipe: Callable[[Params], Recipe]
    stack: Callable[[Sequence[Params], Task, Initial], Stack]
    """Many networks, side by side."""
    network: Callable[[Params, Task], nn.Module]
    """One of them, as anyone would write it; called as `network(inputs, drop)`."""
    multiply_adds: Callable[[Params, Task], float]
    """Of one network for one row, forward."""
    quirks: tuple[str, ...] = ()
    """What a reader of the table should know."""
    score: Literal["accuracy", "loss"] = "accuracy"
    splits: int = 2
    """Groups per batch size: more of them waste less on padding, and start more kernels."""

    @property
    def metric(self) -> str:
        """The name of the score in the table."""
        return {"accuracy": "validation accuracy", "loss": "validation log loss"}[self.score]

    @property
    def goal(self) -> Goal:
        """Whether higher scores are better."""
        return "maximize" if self.score == "accuracy" else "minimize"

    @property
    def test_tasks(self) -> tuple[str, ...]:
        """The tasks made of test data sets."""
        return tuple(task.name for task in self.tasks if task.dataset in self.test_datasets)

    def draw(self, n: int, seed: int = 0) -> list[Params]:
        """Return configurations from all over the space; a smaller n gives the first of them."""
        rng = np.random.default_rng([seed, *self.name.encode()])
        return [self._draw_one(rng) for _ in range(n)]

    def _draw_one(self, rng: np.random.Generator) -> Params:
        params = dict(self.space.from_unit(rng.random(len(self.space))))
        for name, value in params.items():
            parameter = self.space.parameters[name]
            if isinstance(parameter, Float):
                # Short numbers: a table is read by people too.
                params[name] = min(max(float(f"{value:.4g}"), parameter.low), parameter.high)
        batch_size = int(rng.choice(self.batch_sizes))
        return self.space.validate({**params, "batch_size": batch_size})

    def row(self, params: Params) -> list[float]:
        """Return a configuration as the row of a table."""
        return [self._number(name, params) for name in self.space.names]

    def _number(self, name: str, params: Params) -> float:
        if name not in params:
            return float("nan")
        parameter = self.space.parameters[name]
        if isinstance(parameter, Choice):
            return float(parameter.options.index(params[name]))
        return float(params[name])

    def groups(self, configs: Sequence[Params], task: Task) -> list[list[int]]:
        """Return which configurations train side by side: one batch size, alike in size."""
        groups = []
        for batch_size in self.batch_sizes:
            members = [n for n, params in enumerate(configs) if params["batch_size"] == batch_size]
            members.sort(key=lambda n: self.multiply_adds(configs[n], task))
            groups += [part.tolist() for part in np.array_split(members, self.splits) if len(part)]
        return groups
