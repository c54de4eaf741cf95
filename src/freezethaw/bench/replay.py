"""A study on a curve table: its scores are looked up instead of trained for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freezethaw.problems import describe_problem
from freezethaw.records import Point, Stop
from freezethaw.scale import Scale
from freezethaw.study import Study
from freezethaw.tables import Array, CurveTable
from freezethaw.utility import Utility


@dataclass(frozen=True, kw_only=True)
class Run:
    """Where a study on a table went."""

    path: tuple[Point, ...]
    stop: Stop

    @property
    def spent(self) -> float:
        """Epochs at the stop."""
        return self.path[-1].spent

    @property
    def best(self) -> float:
        """The best scaled score at the stop."""
        return self.path[-1].best


def replay(
    table: CurveTable,
    task: str,
    rows: NDArray[np.int64],
    utility: Utility,
    *,
    seed: int = 0,
    **engine: Any,
) -> Run:
    """Run a study on some configurations of a task, in scaled units, an epoch per decision."""
    curves = table.scaled(task)[rows]
    problem = describe_problem(
        table.space,
        max_epochs=table.max_epochs,
        bounds=(0.0, 1.0),
        scale=Scale.unit(),
        initial=table.initial(task),
        utility=utility,
        configurations=[table.params(int(n)) for n in rows],
        seed=seed,
    )
    with Study.of_problem(problem, epochs_per_decision=1, **engine) as study:
        while True:
            step = study.ask()
            if isinstance(step, Stop):
                return Run(path=study.history.path, stop=step)
            for epoch in range(step.from_epoch + 1, step.to_epoch + 1):
                study.tell(step, float(curves[step.trial_id, epoch]), seconds=1.0)


def regret(utility: Utility, spent: float, best: float, curves: Array) -> float:
    """Eq. 8: how far a stop is from the best that these curves allow, 0 to 1."""
    epochs = np.arange(1, curves.shape[1])
    reached = np.maximum.accumulate(curves[:, 1:], axis=1)
    highest = float(np.max(utility(np.broadcast_to(epochs, reached.shape), reached)))
    lowest = float(utility(utility.budget, float(curves[:, 1].min())))
    return (highest - float(utility(spent, best))) / (highest - lowest)
