"""A run among many equals the same run alone: same weights, order of rows and dropped places."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from curves.alone import train_alone
from curves.spaces import COLLECTIONS
from curves.stacks import Initial
from curves.tasks import DataSet, TaskRecipe
from curves.together import Group

N_CONFIGS, N_EPOCHS, N_ROWS = 10, 3, 60


class DropBook:
    """Dropout that a group writes down and single networks read."""

    def __init__(self):
        self.masks = []
        self.generator = torch.Generator().manual_seed(3)

    def together(self, values, rate):
        kept = torch.rand(values.shape, generator=self.generator, dtype=values.dtype) >= rate
        self.masks.append(kept)
        return values * kept * torch.where(rate < 1, 1 / (1 - rate), 0.0)

    def alone(self, n, calls_per_step):
        """Network n's calls; it makes the first of a step's calls only, if it has fewer layers."""
        step, made = 0, 0

        def drop(values, rate):
            nonlocal made
            kept = self.masks[step * calls_per_step + made][n]
            made += 1
            return values * kept[tuple(slice(size) for size in values.shape)] / (1 - rate)

        def next_step(*_):
            nonlocal step, made
            step, made = (step + 1, 0) if made else (step, 0)

        return drop, next_step


def toy_dataset(collection):
    rng = np.random.default_rng(0)
    if collection.name == "text":
        characters = rng.integers(7, size=8000)
        return DataSet(name="toy", targets=characters, class_names=tuple("abcdefg"))
    shape = (9, 9) if collection.name == "images" else (6,)
    targets = np.arange(120) % 4
    numbers = rng.normal(size=(120, *shape)).astype(np.float32)
    numbers[..., 0] += targets.reshape(-1, *[1] * (len(shape) - 1))
    return DataSet(name="toy", targets=targets, class_names=tuple("abcd"), numbers=numbers)


def toy_task(collection):
    recipe = TaskRecipe(name="toy", dataset="toy", most_rows=N_ROWS)
    task = collection.make_task(recipe, toy_dataset(collection))
    return task.to(torch.device("cpu"), torch.float64)


AFTER_LAST_LAYER = {"tabular": 2, "funnel": 2, "images": 4, "text": 4}
"""Weights behind the layers that a network may lack."""


def load(network, weights, n, n_after):
    own_weights = list(network.parameters())
    matrices = {
        id(layer.weight) for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)
    }
    present = [*weights[: len(own_weights) - n_after], *weights[-n_after:]]
    for own, stacked in zip(own_weights, present, strict=True):
        values = stacked[n]
        if id(own) in matrices:
            values = values.T.reshape(values.shape[1], -1, *own.shape[2:])
        with torch.no_grad():
            own.copy_(values[tuple(slice(size) for size in own.shape)])


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_run_among_many_equals_the_run_alone(name):
    collection = COLLECTIONS[name]
    task = toy_task(collection)
    configs = [{**params, "batch_size": 16} for params in collection.draw(N_CONFIGS, seed=1)]
    recipes = [collection.recipe(params) for params in configs]
    generator = torch.Generator().manual_seed(0)
    stack = collection.stack(configs, task, Initial(N_CONFIGS, generator, torch.float64))
    first = [weight.clone() for weight in stack.weights]
    orders = torch.rand(N_EPOCHS + 1, N_CONFIGS, len(task.inputs), generator=generator).argsort(2)
    book = DropBook()
    group = Group(
        stack, recipes, task, N_EPOCHS, generator, orders=lambda e: orders[e], drop=book.together
    )
    group.begin()
    for _ in range(N_EPOCHS):
        group.train_epoch()

    calls_per_step = len(book.masks) // (N_EPOCHS * group.n_steps)
    for n, (params, recipe) in enumerate(zip(configs, recipes, strict=True)):
        network = collection.network(params, task).double()
        load(network, first, n, AFTER_LAST_LAYER[name])
        drop, next_step = book.alone(n, calls_per_step)
        network.register_forward_hook(next_step)
        alone = train_alone(
            network, task, recipe, N_EPOCHS, orders=lambda e, n=n: orders[e, n], drop=drop
        )
        for mine, theirs in (
            (group.train_losses, alone.train),
            (group.valid_losses, alone.valid),
            (group.valid_accuracies, alone.valid_accuracy),
        ):
            np.testing.assert_allclose(mine[n], theirs, rtol=1e-8, atol=1e-8)
    assert len({round(loss, 6) for loss in group.valid_losses[:, -1].tolist()}) == N_CONFIGS


@pytest.mark.parametrize("name", COLLECTIONS)
def test_the_configurations_of_the_test_differ_in_what_padding_hides(name):
    configs = COLLECTIONS[name].draw(N_CONFIGS, seed=1)
    for key in {"width", "depth", "num_layers", "layers", "heads", "optimizer"} & set(configs[0]):
        assert len({params[key] for params in configs}) > 1


@pytest.mark.parametrize("name", COLLECTIONS)
def test_padding_stays_zero(name):
    collection = COLLECTIONS[name]
    task = toy_task(collection)
    configs = [{**params, "batch_size": 16} for params in collection.draw(N_CONFIGS, seed=1)]
    generator = torch.Generator().manual_seed(0)
    stack = collection.stack(configs, task, Initial(N_CONFIGS, generator, torch.float64))
    recipes = [dataclasses.replace(collection.recipe(p), learning_rate=1e-3) for p in configs]
    # A place is padding where no weight of a network alone stands.
    alone = [sum(w.numel() for w in collection.network(p, task).parameters()) for p in configs]
    group = Group(stack, recipes, task, 2, generator)
    group.begin()
    group.train_epoch()
    changed = [sum(int((w[n] != 0).sum()) for w in group.weights) for n in range(N_CONFIGS)]
    assert all(0 < found <= own for found, own in zip(changed, alone, strict=True))
    assert sum(w[0].numel() for w in group.weights) > max(alone)


def test_a_group_has_one_batch_size():
    collection = COLLECTIONS["tabular"]
    task = toy_task(collection)
    configs = [
        {**params, "batch_size": size}
        for params, size in zip(collection.draw(2), (16, 32), strict=True)
    ]
    generator = torch.Generator()
    stack = collection.stack(configs, task, Initial(2, generator, torch.float64))
    with pytest.raises(ValueError, match=r"batch sizes \[16, 32\]: a group has one"):
        Group(stack, list(map(collection.recipe, configs)), task, 1, generator)


@pytest.mark.gpu
@pytest.mark.parametrize("name", COLLECTIONS)
def test_recorded_steps_on_a_gpu_equal_steps_on_the_cpu(name):
    collection = COLLECTIONS[name]
    configs = [{**params, "batch_size": 16} for params in collection.draw(N_CONFIGS, seed=1)]
    configs = [{**p, **{key: 0.0 for key in p if "dropout" in key}} for p in configs]
    recipes = [collection.recipe(params) for params in configs]
    generator = torch.Generator().manual_seed(0)
    task = toy_task(collection)
    first = collection.stack(configs, task, Initial(N_CONFIGS, generator, torch.float64)).weights
    orders = torch.rand(N_EPOCHS + 1, N_CONFIGS, len(task.inputs), generator=generator).argsort(2)
    losses = []
    for device in ("cpu", "cuda"):
        there = task.to(torch.device(device), torch.float64)
        chance = torch.Generator(device)
        stack = collection.stack(configs, there, Initial(N_CONFIGS, chance, torch.float64))
        stack.weights = [weight.to(device) for weight in first]
        group = Group(
            stack, recipes, there, N_EPOCHS, chance, orders=lambda e, d=device: orders[e].to(d)
        )
        group.begin()
        for _ in range(N_EPOCHS):
            group.train_epoch()
        losses.append(group.valid_losses.cpu())
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
