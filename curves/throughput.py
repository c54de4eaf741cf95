"""How much faster many networks train side by side than one after the other, on one device."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from curves.alone import train_alone
from curves.collect import Settings, collect
from curves.collection import Collection
from curves.tasks import Task, load_dataset

N_ALONE = 8
EPOCHS = 5


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Networks times epochs per second, validation included."""

    collection: str
    task: str
    rows: int
    together: float
    alone: float

    @property
    def ratio(self) -> float:
        """How many times faster."""
        return self.together / self.alone


def measure(collection: Collection, data: Path, settings: Settings) -> Throughput:
    """Time the collection's first task; what is compiled once per machine is not counted."""
    recipe = collection.tasks[0]
    task = collection.make_task(recipe, load_dataset(data, recipe.dataset))
    task = task.to(torch.device(settings.device), torch.float32)
    _seconds_together(collection, data, replace(settings, n_epochs=1))
    seconds = _seconds_together(collection, data, replace(settings, n_epochs=EPOCHS))
    return Throughput(
        collection=collection.name,
        task=recipe.name,
        rows=len(task.inputs),
        together=settings.n_configs * EPOCHS / seconds,
        alone=N_ALONE / _seconds_alone(collection, task, settings),
    )


def _seconds_together(collection: Collection, data: Path, settings: Settings) -> float:
    first = [collection.tasks[0].name]
    with tempfile.TemporaryDirectory() as parts:
        begun = time.perf_counter()
        collect(collection, data, Path(parts), settings, only=first, say=lambda _: None)
        return time.perf_counter() - begun


def _seconds_alone(collection: Collection, task: Task, settings: Settings) -> float:
    """An epoch of each of the first configurations: a run of two less a run of one."""
    total = 0.0
    for params in collection.draw(N_ALONE, settings.seed):
        recipe = collection.recipe(params)
        taken = []
        for n_epochs in (1, 1, 2):  # the first one warms up
            network = collection.network(params, task).to(settings.device)
            begun = time.perf_counter()
            train_alone(network, task, recipe, n_epochs)
            taken.append(time.perf_counter() - begun)
        total += max(taken[2] - taken[1], 1e-9)
    return total


def table_of(results: list[Throughput], machine: str, command: str) -> str:
    """Return the results as a page."""
    lines = [
        "# Collecting curves: networks side by side against one by one",
        "",
        f"`{command}` on {machine}: networks × epochs per second on a collection's first task, "
        f"validation included. One by one: an ordinary PyTorch loop over {N_ALONE} configurations, "
        "on the same device. What is compiled once per machine is not counted, recording the "
        "graphs is.",
        "",
        "| collection | task | rows | side by side | one by one | ratio |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for r in results:
        lines.append(
            f"| {r.collection} | {r.task} | {r.rows:,} | {r.together:,.0f} | {r.alone:,.1f} "
            f"| {r.ratio:,.0f} |"
        )
    return "\n".join([*lines, ""])
