"""One network, trained by an ordinary PyTorch loop.

What `together` must equal, what its speed is measured against, and what an epoch costs alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from curves.recipes import Recipe, steps_per_epoch
from curves.tasks import Task

Dropout = Callable[[Tensor, float], Tensor]


def dropout(values: Tensor, rate: float) -> Tensor:
    """Return values with `rate` of them dropped."""
    return F.dropout(values, rate, training=True)


def no_dropout(values: Tensor, rate: float) -> Tensor:  # noqa: ARG001
    """Return the values: evaluation."""
    return values


@dataclass
class Losses:
    """Per epoch, the untrained network first."""

    train: list[float] = field(default_factory=list)
    valid: list[float] = field(default_factory=list)
    valid_accuracy: list[float] = field(default_factory=list)


def train_alone(
    network: nn.Module,
    task: Task,
    recipe: Recipe,
    n_epochs: int,
    *,
    orders: Callable[[int], Tensor] | None = None,
    drop: Dropout = dropout,
) -> Losses:
    """Train a network, called as `network(inputs, drop)`; `orders(epoch)` gives the rows' order."""
    batch_size = min(recipe.batch_size, len(task.inputs))
    n_steps = steps_per_epoch(len(task.inputs), batch_size)
    optimizer = _optimizer(network, recipe)
    rates = iter(recipe.rates(n_epochs * n_steps).tolist())
    losses = Losses(train=[_evaluate(network, task.inputs, task.targets)[0]])
    _validate(network, task, losses)
    for epoch in range(1, n_epochs + 1):
        order = orders(epoch) if orders else torch.randperm(len(task.inputs))
        total = torch.zeros((), device=task.inputs.device)
        for step in range(n_steps):
            rows = order[step * batch_size : (step + 1) * batch_size].to(task.inputs.device)
            logits = network(task.inputs[rows], drop)
            loss = F.cross_entropy(
                logits.flatten(0, -2),
                task.targets[rows].flatten(),
                label_smoothing=recipe.label_smoothing,
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if math.isfinite(recipe.clip):
                nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
            rate = next(rates)
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            total = total + loss.detach()
        losses.train.append(total.item() / n_steps)
        _validate(network, task, losses)
    return losses


def _optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    weights, rate, decay = network.parameters(), recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(weights, rate, momentum=recipe.momentum, weight_decay=decay)
    return torch.optim.Adam(weights, rate, betas=(0.9, recipe.beta2), weight_decay=decay)


def _validate(network: nn.Module, task: Task, losses: Losses) -> None:
    loss, accuracy = _evaluate(network, task.valid_inputs, task.valid_targets)
    losses.valid.append(loss)
    losses.valid_accuracy.append(accuracy)


@torch.no_grad()
def _evaluate(network: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
    logits = network(inputs, no_dropout).flatten(0, -2)
    loss = F.cross_entropy(logits, targets.flatten())
    right = (logits.argmax(-1) == targets.flatten()).double().mean()
    return loss.item(), right.item()
