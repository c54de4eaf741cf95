"""Multilayer perceptrons in LCBench's search space: layers that narrow towards the classes.

The seven hyperparameters and their ranges are those of LCBench (Zimmer et al. 2021); the networks,
the data and the curves are ours.
"""

from __future__ import annotations

import numpy as np

from curves.collection import Collection, Params
from curves.recipes import Recipe
from curves.spaces.tabular import Perceptron, Perceptrons, products
from curves.tasks import Task, TaskRecipe, tabular_task
from freezethaw.space import Float, Int, Space

SPACE = Space(
    {
        "batch_size": Int(16, 512, log=True),
        "learning_rate": Float(1e-4, 1e-1, log=True),
        "momentum": Float(0.1, 0.99),
        "weight_decay": Float(1e-5, 1e-1),
        "num_layers": Int(1, 5),
        "max_units": Int(64, 1024, log=True),
        "max_dropout": Float(0.0, 1.0),
    }
)


def recipe(params: Params) -> Recipe:
    """SGD with cosine annealing."""
    return Recipe(
        batch_size=params["batch_size"],
        learning_rate=params["learning_rate"],
        momentum=params["momentum"],
        weight_decay=params["weight_decay"],
        schedule="cosine",
    )


def sizes(params: Params, task: Task) -> list[int]:
    """Return the widths: inputs, then from `max_units` in even steps to the number of classes."""
    widths = np.linspace(params["max_units"], task.n_classes, params["num_layers"] + 1)
    return [task.inputs.shape[1], *widths.round().astype(int).tolist()]


def dropouts(params: Params) -> list[float]:
    """Return the rates of dropout: from `max_dropout` in even steps to none at the classes."""
    rates = np.linspace(params["max_dropout"], 0.0, params["num_layers"] + 1)[:-1]
    # A rate of 1 leaves nothing to scale up.
    return np.minimum(rates, 0.999).tolist()  # type: ignore[no-any-return]


FUNNEL = Collection(
    name="funnel",
    title="multilayer perceptrons in LCBench's search space (SGD, cosine annealing)",
    space=SPACE,
    batch_sizes=(16, 32, 64, 128, 256, 512),
    tasks=tuple(
        TaskRecipe(name=name, dataset=name, most_rows=2000)
        for name in (
            "letter", "magic", "marketing", "optdigits", "penbased", "satimage", "spambase",
            "german", "contraceptive", "phoneme", "segment", "texture",
        )
    ),
    test_datasets=("phoneme", "segment", "texture"),
    make_task=tabular_task,
    recipe=recipe,
    stack=lambda configs, task, initial: Perceptrons(
        [sizes(params, task) for params in configs], list(map(dropouts, configs)), initial
    ),
    network=lambda params, task: Perceptron(sizes(params, task), dropouts(params)),
    multiply_adds=lambda params, task: products(sizes(params, task)),
    quirks=(
        "The space is LCBench's, ranges and all. How widths and dropout fall from layer to layer "
        "is ours: in even steps, to the number of classes and to none.",
        "Accuracy, where LCBench has balanced accuracy; no preprocessing beyond scaling.",
        "Small learning rates, heavy weight decay and dropout near 1 leave half of the runs at the "
        "most frequent class.",
    ),
    splits=3,
)  # fmt: skip
