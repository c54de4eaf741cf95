"""Puts the parts of a collection together into one curve table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from curves.collect import Part, Settings, is_there, load_tasks, part_path, read_part
from curves.collection import Collection
from curves.costs import CostModel, relative_costs
from curves.errors import CollectError
from curves.sources import SOURCES
from freezethaw.tables import CurveTable

Array = NDArray[np.float64]

LICENSE = "Apache-2.0"


def assemble(
    collection: Collection,
    data: Path,
    parts: Path,
    settings: Settings,
    costs: CostModel,
) -> CurveTable:
    """Return the table of a collection; every task must be there, made in one way."""
    missing = [
        recipe.name
        for recipe in collection.tasks
        if not is_there(collection, recipe, data, parts, settings)
    ]
    if missing:
        raise CollectError(
            f"{collection.name}: {', '.join(missing)} not collected yet; "
            f"run `python -m curves collect {collection.name}`"
        )
    found = [read_part(part_path(parts, collection, task.name)) for task in collection.tasks]
    configs = collection.draw(settings.n_configs, settings.seed)
    curves, train_curves = zip(*(read_curves(collection, part) for part in found), strict=True)
    return CurveTable(
        name=collection.name,
        configs=np.array([collection.row(params) for params in configs]),
        curves=np.stack(curves),
        train_curves=np.stack(train_curves),
        tasks=tuple(task.name for task in collection.tasks),
        test_tasks=collection.test_tasks,
        space=collection.space,
        metric=collection.metric,
        goal=collection.goal,
        bounds=(0.0, 1.0) if collection.score == "accuracy" else (0.0, np.inf),
        # Some losses of bad runs are beyond all measure: they must not set the scale.
        normalize="range" if collection.score == "accuracy" else "initial",
        cost=relative_costs(collection, configs, load_tasks(collection, data), costs),
        source=_source(collection),
        license=LICENSE,
    )


def read_curves(collection: Collection, part: Part) -> tuple[Array, Array]:
    """Return scores and training losses, NaN from the epoch at which a run diverged.

    It has diverged when a loss, of training or of validation, is not finite any more.
    """
    scores = part.valid_accuracies if collection.score == "accuracy" else part.valid_losses
    finite = np.isfinite(part.valid_losses) & np.isfinite(part.train_losses)
    alive = np.logical_and.accumulate(finite, axis=1)
    return (
        np.where(alive, shorten(scores), np.nan),
        np.where(alive, shorten(part.train_losses), np.nan),
    )


def shorten(values: NDArray[np.float32]) -> Array:
    """Round to what float16 holds, or, beyond its range, to as many digits in float32."""
    smallest, largest = float(np.finfo(np.float16).tiny), float(np.finfo(np.float16).max)
    middle = np.clip(values, -largest, largest).astype(np.float16).astype(np.float64)
    mantissa, exponent = np.frexp(values.astype(np.float64))
    digits = 2.0 ** (np.finfo(np.float16).nmant + 1)
    other = np.ldexp(np.round(mantissa * digits) / digits, exponent)
    # Rounding up must not leave the range of float32.
    edge = float(np.finfo(np.float32).max)
    other = np.where(np.isfinite(values), np.clip(other, -edge, edge), values)
    size = np.abs(values)
    return np.where((smallest <= size) & (size <= largest), middle, other)


def _source(collection: Collection) -> str:
    datasets = dict.fromkeys(task.dataset for task in collection.tasks)
    origins = dict.fromkeys(_origin(name) for name in datasets)
    return f"collected by freezethaw: {collection.title}; data: {'; '.join(origins)}"


def _origin(dataset: str) -> str:
    source = SOURCES.get(dataset)
    return f"{source.origin} ({source.license})" if source else dataset


def describe_datasets(names: Sequence[str]) -> list[str]:
    """Return a line about each data set: where it comes from, its licence, its other names."""
    lines = []
    for name in names:
        source = SOURCES.get(name)
        if source is None:
            lines.append(name)
            continue
        twin = f"; also known: {source.twin}" if source.twin else ""
        lines.append(f"{name}: {source.origin}, {source.package}, licence {source.license}{twin}")
    return lines
