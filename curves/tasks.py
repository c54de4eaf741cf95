"""Tasks: a data set, split and scaled, as the tensors that networks are trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from curves.errors import CollectError

VALID_SHARE = 1 / 3
"""Of a data set's rows, class by class."""
PIECE = 64
"""Characters of text that a network sees at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What the networks of a task learn from, and what they are scored on."""

    name: str
    inputs: Tensor
    """[row, …]: numbers, or whole numbers that stand for characters."""
    targets: Tensor
    """[row] or [row, place]: the right class."""
    valid_inputs: Tensor
    valid_targets: Tensor
    n_classes: int

    def to(self, device: torch.device, dtype: torch.dtype) -> Task:
        """Return the task on a device, its numbers of a type."""

        def moved(values: Tensor) -> Tensor:
            return values.to(device, dtype if values.is_floating_point() else None)

        return dataclasses.replace(
            self,
            inputs=moved(self.inputs),
            targets=moved(self.targets),
            valid_inputs=moved(self.valid_inputs),
            valid_targets=moved(self.valid_targets),
        )


@dataclass(frozen=True, kw_only=True)
class TaskRecipe:
    """How a task is made from a data set."""

    name: str
    dataset: str
    most_rows: int = 6000
    """Rows to train on; a larger data set is thinned, class by class."""
    most_valid_rows: int = 2000
    noise: float = 0.0
    """Normal noise on every input, in standard deviations of the data."""
    mislabelled: float = 0.0
    """The share of training rows whose class is drawn at random."""
    occluded: int = 0
    """The side of a square of an image that is blanked, at a place of its own in every image."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DataSet:
    """A data set as it was read, before any split."""

    name: str
    targets: NDArray[np.int64]
    """[row], or for text [character]."""
    class_names: tuple[str, ...]
    numbers: NDArray[np.float32] | None = None
    """[row, column] or [row, height, width]; text has none."""
    kinds: NDArray[np.int64] | None = None
    """[row, column]: columns of named values, by the value's index."""

    def save(self, folder: Path) -> None:
        """Write it to `folder/<name>.npz`."""
        arrays = {"targets": self.targets, "numbers": self.numbers, "kinds": self.kinds}
        present: dict[str, Any] = {k: array for k, array in arrays.items() if array is not None}
        present["class_names"] = np.array(self.class_names)
        write_arrays(folder / f"{self.name}.npz", present)


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write an `.npz`: whole, or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, **arrays)
        partial.replace(path)
    except OSError as error:
        raise CollectError(
            f"{path}: cannot be written: {error}; make room and start the same command again: "
            "what was finished is kept"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def load_dataset(folder: Path, name: str) -> DataSet:
    """Read a prepared data set."""
    path = folder / f"{name}.npz"
    if not path.is_file():
        raise CollectError(f"{path}: there is no such data set; `python -m curves fetch` makes it")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError) as error:
        raise CollectError(f"{path}: {error}; remove it and run `python -m curves fetch`") from None
    return DataSet(
        name=name,
        targets=arrays["targets"].astype(np.int64),
        class_names=tuple(arrays["class_names"].tolist()),
        numbers=arrays["numbers"].astype(np.float32) if "numbers" in arrays else None,
        kinds=arrays["kinds"].astype(np.int64) if "kinds" in arrays else None,
    )


def read_columns(name: str, rows: Sequence[Sequence[str]]) -> DataSet:
    """Read rows of text whose last column is the class.

    A column in which every value is a number is one; any other holds named values. Columns of one
    value say nothing and are left out.
    """
    if not rows:
        raise CollectError(f"{name}: holds no rows; fetch it again")
    width = len(rows[0])
    for number, row in enumerate(rows):
        if len(row) != width:
            raise CollectError(f"{name}, row {number}: has {len(row)} columns, the first {width}")
        if any(value in ("", "?", "<null>") for value in row):
            raise CollectError(f"{name}, row {number}: has a missing value; leave such rows out")
    *columns, labels = zip(*rows, strict=True)
    varied = [column for column in columns if len(set(column)) > 1]
    if not varied:
        raise CollectError(f"{name}: no column has two values; nothing can be learned from it")
    numbers = [column for column in varied if all(map(_is_number, column))]
    kinds = [column for column in varied if not all(map(_is_number, column))]
    classes = sorted(set(labels))
    return DataSet(
        name=name,
        targets=np.array([classes.index(label) for label in labels]),
        class_names=tuple(classes),
        numbers=np.array(numbers, dtype=np.float32).T if numbers else None,
        kinds=np.stack([np.unique(column, return_inverse=True)[1] for column in kinds], axis=1)
        if kinds
        else None,
    )


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def split_rows(
    dataset: DataSet, most_rows: int, most_valid_rows: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows to train on and to validate on, each class by its share."""
    counts = np.bincount(dataset.targets, minlength=len(dataset.class_names))
    if len(counts) < 2:
        raise CollectError(f"{dataset.name}: has one class; there is nothing to tell apart")
    for count, label in zip(counts.tolist(), dataset.class_names, strict=True):
        if count < 3:
            raise CollectError(
                f"{dataset.name}: class {label!r} has {count} row{'s' * (count != 1)}; it needs 3 "
                "or more to stand on both sides of the split: merge it with another, or drop it"
            )
    n = len(dataset.targets)
    valid_share = min(VALID_SHARE, most_valid_rows / n)
    train_share = min(1 - valid_share, most_rows / n)
    train, valid = [], []
    for index in range(len(counts)):
        rows = rng.permutation(np.flatnonzero(dataset.targets == index))
        n_valid = max(1, round(valid_share * len(rows)))
        n_train = max(1, round(train_share * len(rows)))
        valid.append(rows[:n_valid])
        train.append(rows[n_valid : n_valid + n_train])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(valid))


def tabular_task(recipe: TaskRecipe, dataset: DataSet) -> Task:
    """Columns scaled by the training rows, named values one-hot."""
    rng = _rng(recipe)
    train, valid = split_rows(dataset, recipe.most_rows, recipe.most_valid_rows, rng)
    parts = []
    if dataset.numbers is not None:
        parts.append(dataset.numbers.astype(np.float64))
    if dataset.kinds is not None:
        for column in dataset.kinds.T:
            parts.append(np.eye(column.max() + 1)[column])
    columns = np.concatenate(parts, axis=1)
    # A value that only the validation rows have makes a column that is constant in training.
    spread = columns[train].std(axis=0)
    columns = ((columns - columns[train].mean(axis=0)) / np.where(spread > 0, spread, 1.0))[
        :, spread > 0
    ]
    return _classified(recipe, dataset, columns, train, valid, rng)


def image_task(recipe: TaskRecipe, dataset: DataSet) -> Task:
    """Images as [row, height, width], scaled over all pixels, then corrupted as the recipe says."""
    if dataset.numbers is None or dataset.numbers.ndim != 3:
        raise CollectError(f"{dataset.name}: holds no images")
    rng = _rng(recipe)
    train, valid = split_rows(dataset, recipe.most_rows, recipe.most_valid_rows, rng)
    images = dataset.numbers.astype(np.float64)
    images = (images - images[train].mean()) / images[train].std()
    images += recipe.noise * rng.standard_normal(images.shape)
    if recipe.occluded:
        rows, columns = np.indices(images.shape[1:])
        tops = rng.integers(images.shape[1] - recipe.occluded + 1, size=(len(images), 1, 1))
        lefts = rng.integers(images.shape[2] - recipe.occluded + 1, size=(len(images), 1, 1))
        hidden = (rows >= tops) & (rows < tops + recipe.occluded)
        hidden &= (columns >= lefts) & (columns < lefts + recipe.occluded)
        images[hidden] = images.min()
    return _classified(recipe, dataset, images, train, valid, rng)


def text_task(recipe: TaskRecipe, dataset: DataSet) -> Task:
    """Pieces of text, each character to be followed by the next; every fifth piece validates."""
    n_pieces = recipe.most_rows * 5 // 4
    characters = dataset.targets
    if len(characters) <= n_pieces * PIECE:
        raise CollectError(
            f"{dataset.name}: has {len(characters)} characters; {recipe.name} needs "
            f"{n_pieces * PIECE + 1}"
        )
    inputs = torch.tensor(characters[: n_pieces * PIECE]).view(n_pieces, PIECE)
    targets = torch.tensor(characters[1 : n_pieces * PIECE + 1]).view(n_pieces, PIECE)
    valid = torch.arange(n_pieces) % 5 == 4
    return Task(
        name=recipe.name,
        inputs=inputs[~valid],
        targets=targets[~valid],
        valid_inputs=inputs[valid],
        valid_targets=targets[valid],
        n_classes=len(dataset.class_names),
    )


def _classified(
    recipe: TaskRecipe,
    dataset: DataSet,
    inputs: ArrayLike,
    train: NDArray[np.int64],
    valid: NDArray[np.int64],
    rng: np.random.Generator,
) -> Task:
    values = torch.as_tensor(np.asarray(inputs))
    targets = torch.as_tensor(dataset.targets)
    n_classes = len(dataset.class_names)
    labels = targets[train].clone()
    wrong = torch.as_tensor(rng.random(len(train)) < recipe.mislabelled)
    labels[wrong] = torch.as_tensor(rng.integers(n_classes, size=int(wrong.sum())))
    return Task(
        name=recipe.name,
        inputs=values[train],
        targets=labels,
        valid_inputs=values[valid],
        valid_targets=targets[valid],
        n_classes=n_classes,
    )


def _rng(recipe: TaskRecipe) -> np.random.Generator:
    """Of a data set, not of a task: tasks made of one data set share its split."""
    return np.random.default_rng(list(recipe.dataset.encode()))
