"""Multilayer perceptrons on tables, all layers of one width; a space with conditions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from curves.alone import Dropout
from curves.collection import Collection, Params
from curves.recipes import Recipe
from curves.stacks import Drop, Initial, Stack, affine, wide
from curves.tasks import Task, TaskRecipe, tabular_task
from freezethaw.space import Choice, Float, Int, Space

SPACE = Space(
    {
        "learning_rate": Float(1e-4, 1.0, log=True),
        "batch_size": Int(16, 512, log=True),
        "width": Int(8, 256, log=True),
        "depth": Int(1, 4),
        "dropout": Float(0.0, 0.7),
        "weight_decay": Float(1e-6, 1e-1, log=True),
        "optimizer": Choice(["sgd", "adam"]),
        "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"}),
        "schedule": Choice(["constant", "cosine", "step"]),
    }
)


def recipe(params: Params) -> Recipe:
    """All but the network's shape and its dropout."""
    return Recipe(
        batch_size=params["batch_size"],
        learning_rate=params["learning_rate"],
        optimizer=params["optimizer"],
        momentum=params.get("momentum", 0.0),
        weight_decay=params["weight_decay"],
        schedule=params["schedule"],
    )


def sizes(params: Params, task: Task) -> list[int]:
    """Return the width of every layer, inputs and classes included."""
    return [task.inputs.shape[1], *[params["width"]] * params["depth"], task.n_classes]


def products(widths: Sequence[int]) -> float:
    """Count the multiply-adds of a perceptron's layers."""
    return float(sum(a * b for a, b in itertools.pairwise(widths)))


class Perceptrons(Stack):
    """Perceptrons of various widths and depths."""

    def __init__(
        self, layer_sizes: Sequence[list[int]], dropouts: Sequence[list[float]], initial: Initial
    ) -> None:
        """`layer_sizes` as from `sizes`, `dropouts` one per hidden layer, for every network."""
        depth = max(map(len, layer_sizes)) - 2
        self.weights = []
        now = [widths[0] for widths in layer_sizes]
        size = now[0]
        for layer in range(1, depth + 1):
            has = [layer < len(widths) - 1 for widths in layer_sizes]
            fan_in = [n if h else 0 for n, h in zip(now, has, strict=True)]
            fan_out = [w[layer] if h else 0 for w, h in zip(layer_sizes, has, strict=True)]
            # Where a network has no such layer, what it had goes on to the next.
            now = [after or before for after, before in zip(fan_out, now, strict=True)]
            size_in, size = size, wide(max(now))
            self.weights += initial.linear(fan_in, fan_out, size_in=size_in, size_out=size)
        self.weights += initial.linear(now, [widths[-1] for widths in layer_sizes], size_in=size)
        self.has_layer = [
            initial.each([float(layer < len(widths) - 2) for widths in layer_sizes]) > 0
            for layer in range(depth)
        ]
        self.dropouts = [
            initial.each([(*rates, *[0.0] * depth)[layer] for rates in dropouts])
            for layer in range(depth)
        ]
        self.floats_per_row = max(max(widths) for widths in layer_sizes)

    def forward(self, weights: Sequence[Tensor], inputs: Tensor, drop: Drop) -> Tensor:
        """[network or 1, row, column] to [network, row, class]."""
        values = inputs
        for layer, (has_layer, rate) in enumerate(zip(self.has_layer, self.dropouts, strict=True)):
            weight, bias = weights[2 * layer : 2 * layer + 2]
            after = drop(F.relu(affine(values, weight, bias)), rate)
            values = torch.where(has_layer, after, fit(values, after)) if layer else after
        return affine(values, weights[-2], weights[-1])


def fit(values: Tensor, like: Tensor) -> Tensor:
    """Widen or narrow the padding of a layer's values to that of the next layer's."""
    return F.pad(values, (0, like.shape[-1] - values.shape[-1]))


class Perceptron(nn.Module):
    """One of them."""

    def __init__(self, layer_sizes: Sequence[int], dropouts: Sequence[float]) -> None:
        super().__init__()
        pairs = itertools.pairwise(layer_sizes)
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in pairs])
        self.dropouts = dropouts

    def forward(self, inputs: Tensor, drop: Dropout) -> Tensor:
        """[row, column] to [row, class]."""
        values = inputs
        for layer, rate in zip(self.layers, self.dropouts, strict=False):
            values = drop(F.relu(layer(values)), rate)
        return torch.as_tensor(self.layers[-1](values))


def _dropouts(params: Params) -> list[float]:
    return [params["dropout"]] * params["depth"]


TABULAR = Collection(
    name="tabular",
    title="multilayer perceptrons on tables, with SGD or Adam and three schedules",
    space=SPACE,
    batch_sizes=(16, 32, 64, 128, 256, 512),
    tasks=tuple(
        TaskRecipe(name=name, dataset=name)
        for name in (
            "letter", "magic", "marketing", "mushroom", "optdigits", "penbased", "satimage",
            "spambase", "splice", "german", "contraceptive", "tic-tac-toe", "vowel", "yeast",
            "page-blocks", "chess", "phoneme", "segment", "vehicle", "texture",
        )
    ),
    test_datasets=("chess", "phoneme", "segment", "vehicle", "texture"),
    make_task=tabular_task,
    recipe=recipe,
    stack=lambda configs, task, initial: Perceptrons(
        [sizes(params, task) for params in configs], list(map(_dropouts, configs)), initial
    ),
    network=lambda params, task: Perceptron(sizes(params, task), _dropouts(params)),
    multiply_adds=lambda params, task: products(sizes(params, task)),
    quirks=(
        "On mushroom more than half of the runs end with every row right; on german and yeast the "
        "best are not much better than the most frequent class: flat tables are part of life.",
        "yeast and page-blocks have two classes, as KEEL's imbalanced versions yeast1 and "
        "page-blocks0 do.",
    ),
    splits=1,
)  # fmt: skip
