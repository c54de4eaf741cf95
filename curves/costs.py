"""What an epoch of a network costs when it is trained alone: a fit to ordinary loops.

    seconds of an epoch = steps × (a + b × rows × multiply-adds)

`a` is what a step costs whatever it does, `b` the price of arithmetic, forward and backward. Both
are fitted to 20 configurations, timed on one thread of a CPU; a table holds the result relative to
its own mean, so the machine's speed does not matter, only the ratio of the two.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls

from curves.alone import train_alone
from curves.collection import Collection, Params
from curves.errors import CollectError
from curves.recipes import steps_per_epoch
from curves.tasks import Task

N_TIMED = 20
STEPS_TIMED = 20
REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Fitted to one collection."""

    seconds_per_step: float
    seconds_per_multiply_add: float
    median_error: float
    """Of the timed configurations, relative."""
    machine: str
    """Where it was timed."""

    def seconds(self, collection: Collection, params: Params, task: Task) -> float:
        """Return the predicted seconds of an epoch."""
        rows = min(params["batch_size"], len(task.inputs))
        per_step = self.seconds_per_step + (
            self.seconds_per_multiply_add * rows * collection.multiply_adds(params, task)
        )
        return float(steps_per_epoch(len(task.inputs), rows) * per_step)


def fit_costs(collection: Collection, tasks: list[Task]) -> CostModel:
    """Time ordinary loops of configurations from all over the space, on the tasks in turn."""
    configs = collection.draw(N_TIMED, seed=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        seconds, work = [], []
        for n, params in enumerate(configs):
            task = tasks[n % len(tasks)]
            rows = min(params["batch_size"], len(task.inputs))
            seconds.append(_seconds_per_step(collection, params, task))
            work.append([1.0, rows * collection.multiply_adds(params, task)])
    finally:
        torch.set_num_threads(threads)
    # Relative errors: a long step must not outvote the short ones.
    timed, rows_of_work = np.array(seconds), np.array(work)
    scale = rows_of_work.max(axis=0)
    found, _ = nnls(rows_of_work / scale / timed[:, None], np.ones(len(timed)))
    found = found / scale
    predicted = rows_of_work @ found
    return CostModel(
        seconds_per_step=float(found[0]),
        seconds_per_multiply_add=float(found[1]),
        median_error=float(np.median(np.abs(predicted / timed - 1))),
        machine=f"one thread of {_processor()}, torch {torch.__version__}",
    )


def _seconds_per_step(collection: Collection, params: Params, task: Task) -> float:
    """Return the median over repeats of an epoch of a few steps, without what evaluation takes."""
    rows = min(params["batch_size"], len(task.inputs))
    n = min(STEPS_TIMED, steps_per_epoch(len(task.inputs), rows))
    few = Task(
        name=task.name,
        inputs=task.inputs[: n * rows],
        targets=task.targets[: n * rows],
        valid_inputs=task.valid_inputs[:1],
        valid_targets=task.valid_targets[:1],
        n_classes=task.n_classes,
    )
    recipe = collection.recipe(params)
    taken = []
    for _ in range(REPEATS + 1):
        network = collection.network(params, task)
        begun = time.perf_counter()
        train_alone(network, few, recipe, 1)
        one = time.perf_counter() - begun
        begun = time.perf_counter()
        train_alone(network, few, recipe, 2)
        # The difference is an epoch: what is done once per run cancels.
        taken.append((time.perf_counter() - begun - one) / n)
    return max(statistics.median(taken[1:]), 1e-6)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def write_costs(path: Path, name: str, model: CostModel) -> None:
    """Put a collection's model into the file of all of them."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    known[name] = asdict(model)
    path.write_text(json.dumps(known, indent=2) + "\n")


def read_costs(path: Path, name: str) -> CostModel:
    """Return a collection's model."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    if name not in known:
        raise CollectError(f"{path}: has no costs of {name}; run `python -m curves time {name}`")
    return CostModel(**known[name])


def relative_costs(
    collection: Collection, configs: list[Params], tasks: list[Task], model: CostModel
) -> NDArray[np.float64]:
    """Return [task, configuration], with a mean of 1, to four digits."""
    seconds = [[model.seconds(collection, params, task) for params in configs] for task in tasks]
    costs = np.array(seconds)
    return np.array([float(f"{cost:.4g}") for cost in (costs / costs.mean()).ravel()]).reshape(
        costs.shape
    )
