"""Trains a stack of networks, each with hyperparameters of its own.

On a GPU, steps are so short that starting their kernels takes longer than running them: there the
steps of a group are recorded once as a CUDA graph and replayed, each group on a stream of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from curves.recipes import ADAM_BETA1, ADAM_EPSILON, Recipe, steps_per_epoch
from curves.stacks import Drop, Stack, fused, keep_all
from curves.tasks import Task

STEPS_PER_GRAPH = 8
EAGER_STEPS = 3
"""Before a recording: what allocates on first use must have done so."""
FLOATS_AT_ONCE = 2**26
"""Of one activation, in an evaluation."""


class Group:
    """Networks with one batch size in training: `begin()`, then `train_epoch()` as often as wanted.

    All results stay on the device until they are read.
    """

    def __init__(
        self,
        stack: Stack,
        recipes: Sequence[Recipe],
        task: Task,
        n_epochs: int,
        generator: torch.Generator,
        *,
        orders: Callable[[int], Tensor] | None = None,
        drop: Drop | None = None,
    ) -> None:
        """`orders(epoch)` gives [network, row] permutations, in place of random ones."""
        self.members: list[int] = []
        """Which configurations these are, for whoever made the group."""
        batch_sizes = {recipe.batch_size for recipe in recipes}
        if len(batch_sizes) != 1:
            raise ValueError(f"batch sizes {sorted(batch_sizes)}: a group has one")
        self.stack = stack
        self.task = task
        self.n_epochs = n_epochs
        self.generator = generator
        n_rows = len(task.inputs)
        self.batch_size = min(batch_sizes.pop(), n_rows)
        self.n_steps = steps_per_epoch(n_rows, self.batch_size)
        self._orders = orders or self._shuffled
        self._drop = drop or self._dropped
        self._flat = _Flat(stack.weights)
        self._optimizer = _Optimizer(self._flat.values, recipes, n_epochs * self.n_steps)
        like = self._flat.values
        smoothing = [recipe.label_smoothing for recipe in recipes]
        self._smoothing = like.new_tensor(smoothing).unsqueeze(1) if any(smoothing) else None
        self._n = len(recipes)
        self._order = torch.zeros(self._n, n_rows, dtype=torch.int64, device=like.device)
        self._places = torch.arange(self.batch_size, device=like.device)
        self._train_loss = like.new_zeros(self._n)
        self._epoch = 0
        nothing = like.new_full((self._n, n_epochs + 1), math.nan)
        self.train_losses = nothing
        """[network, epoch]: the mean loss of an epoch's batches; at 0, of all rows, untrained."""
        self.valid_losses = nothing.clone()
        self.valid_accuracies = nothing.clone()
        self._stream = torch.cuda.Stream() if like.is_cuda else None  # type: ignore[no-untyped-call]
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._ends: list[torch.cuda.Event] = []
        """Of the epochs that the device has not finished."""

    def begin(self) -> None:
        """Evaluate the untrained networks."""
        with self._on_stream():
            task = self.task
            self.train_losses[:, 0] = self._evaluate(task.inputs, task.targets)[0]
            self._record_valid()

    def train_epoch(self) -> None:
        """Train every network for an epoch and evaluate it."""
        self._epoch += 1
        with self._on_stream():
            self._order.copy_(self._orders(self._epoch))
            self._places.copy_(torch.arange(self.batch_size, device=self._places.device))
            self._train_loss.zero_()
            self._run_steps()
            self.train_losses[:, self._epoch] = self._train_loss / self.n_steps
            self._record_valid()
            if self._stream is not None:
                self._ends.append(self._stream.record_event())

    @property
    def on_gpu(self) -> bool:
        """Whether it trains on a CUDA device."""
        return self._stream is not None

    @property
    def weights(self) -> list[Tensor]:
        """As those of the stack, in training."""
        return self._flat.parts

    @property
    def n_begun(self) -> int:
        """The epochs that have been begun."""
        return self._epoch

    @property
    def n_waiting(self) -> int:
        """The epochs that were begun and that the device has not finished."""
        while self._ends and self._ends[0].query():  # type: ignore[no-untyped-call]
            del self._ends[0]
        return len(self._ends)

    def close(self) -> None:
        """Free what the device holds for the recorded steps; not while another group records."""
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        # They refer back to the group, which would live on until the garbage collector comes by.
        del self._orders, self._drop

    def _run_steps(self) -> None:
        left = self.n_steps
        if self._stream is not None and self._epoch == 1:
            eager = min(EAGER_STEPS, left)
            for _ in range(eager):
                self._step()
            left -= eager
            self._record_graphs()
        while left:
            n = next((n for n in self._graphs if n <= left), 0)
            if n:
                self._graphs[n].replay()
            else:
                self._step()
            left -= max(n, 1)

    def _record_graphs(self) -> None:
        """The steps of an epoch as a few long graphs and some of one step."""
        pool = None
        for n in {min(STEPS_PER_GRAPH, self.n_steps): None, 1: None}:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            for _ in range(n):
                self._step()
            graph.capture_end()
            pool = graph.pool()
            self._graphs[n] = graph

    def _step(self) -> None:
        rows = self._order.index_select(1, self._places)  # [network, row]
        inputs, targets = self.task.inputs[rows], self.task.targets[rows]
        logits = self.stack.forward(self.weights, inputs, self._drop)
        losses = _losses(logits, targets, self._smoothing)
        gradients = torch.autograd.grad(losses.sum(), self.weights)
        with torch.no_grad():
            self._optimizer.step(self._flat.like_values(gradients))
            self._train_loss += losses
            self._places += self.batch_size

    def _record_valid(self) -> None:
        losses, accuracies = self._evaluate(self.task.valid_inputs, self.task.valid_targets)
        self.valid_losses[:, self._epoch] = losses
        self.valid_accuracies[:, self._epoch] = accuracies

    @torch.no_grad()
    def _evaluate(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        loss = self._flat.values.new_zeros(self._n)
        right = torch.zeros_like(loss)
        at_once = max(1, FLOATS_AT_ONCE // (self._n * self.stack.floats_per_row))
        for start in range(0, len(inputs), at_once):
            some, wanted = inputs[start : start + at_once], targets[start : start + at_once]
            logits = self.stack.forward(self.weights, some.unsqueeze(0), keep_all)
            share = len(some) / len(inputs)
            wanted = wanted.expand(self._n, *wanted.shape)
            loss += share * _losses(logits, wanted, None)
            right += share * (logits.argmax(-1) == wanted).flatten(1).to(loss.dtype).mean(1)
        return loss, right

    def _shuffled(self, epoch: int) -> Tensor:  # noqa: ARG002
        keys = torch.rand(self._order.shape, generator=self.generator, device=self.generator.device)
        return keys.argsort(dim=1)

    def _dropped(self, values: Tensor, rate: Tensor) -> Tensor:
        noise = torch.rand(
            values.shape, generator=self.generator, device=values.device, dtype=values.dtype
        )
        dropped: Tensor = fused(_drop, values.is_cuda)(values, noise, rate)
        return dropped

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        if not self._epoch:
            self._stream.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(self._stream):
            yield


def _losses(logits: Tensor, targets: Tensor, smoothing: Tensor | None) -> Tensor:
    """Return the mean cross entropy per network."""
    log_p = logits.log_softmax(-1).flatten(1, -2)  # [network, row, class]
    at_target = log_p.gather(2, targets.flatten(1).unsqueeze(2)).squeeze(2)
    if smoothing is not None:
        at_target = (1 - smoothing) * at_target + smoothing * log_p.mean(2)
    return at_target.mean(1).neg()


class _Flat:
    """All weights of a network in one row, so that one operation updates them all."""

    ALIGNED = 4
    """Numbers: where a weight begins, for matrix products to load several at once."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._gaps = [-weight[0].numel() % self.ALIGNED for weight in weights]
        rows = self.like_values(weights)
        self.values = rows
        """[network, place]"""
        self.parts = []
        """Views of it, one per weight, each a leaf to differentiate by."""
        start = 0
        for weight, gap in zip(weights, self._gaps, strict=True):
            size = weight[0].numel()
            part = rows[:, start : start + size].view(weight.shape)
            self.parts.append(part.detach().requires_grad_())
            start += size + gap

    def like_values(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return tensors, one like each weight, in one row per network."""
        pieces = []
        for tensor, gap in zip(tensors, self._gaps, strict=True):
            pieces.append(tensor.flatten(1))
            if gap:
                pieces.append(tensor.new_zeros(len(tensor), gap))
        return torch.cat(pieces, dim=1)


class _Optimizer:
    """SGD with momentum and Adam, each network with its own, by the same few operations.

    Both keep a running sum of gradients: SGD's is m ← μ m + g, Adam's m ← β₁ m + (1 − β₁) g.
    """

    def __init__(self, weights: Tensor, recipes: Sequence[Recipe], n_steps: int) -> None:
        def each(values: Sequence[float]) -> Tensor:
            return weights.new_tensor(values).unsqueeze(1)

        adam = [recipe.optimizer == "adam" for recipe in recipes]
        self._weights = weights
        self._first = torch.zeros_like(weights)
        # Plain SGD needs no second moments: leaving them out saves much of what moves in memory.
        self._second = torch.zeros_like(weights) if any(adam) else None
        self._keep = each(
            [ADAM_BETA1 if a else r.momentum for a, r in zip(adam, recipes, strict=True)]
        )
        self._add = each([1 - ADAM_BETA1 if a else 1.0 for a in adam])
        self._adam = each(adam) > 0
        self._beta2 = each([recipe.beta2 for recipe in recipes])
        self._decay = each([recipe.weight_decay for recipe in recipes])
        clips = [recipe.clip for recipe in recipes]
        self._clip = None if all(map(math.isinf, clips)) else each(clips)
        self._whole = torch.ones_like(self._keep)
        rates = np.stack([recipe.rates(n_steps) for recipe in recipes])
        self._rates = torch.as_tensor(rates).to(weights)
        self._count = torch.zeros(1, dtype=torch.int64, device=weights.device)

    def step(self, gradients: Tensor) -> None:
        """Change the weights, by `gradients` [network, place]."""
        share = self._whole
        if self._clip is not None:
            norm = gradients.square().sum(1, keepdim=True).sqrt()
            share = (self._clip / (norm + 1e-6)).clamp(max=1.0)
        rate = self._rates.index_select(1, self._count)
        self._count += 1
        state = (self._weights, gradients, self._first)
        numbers = (share, rate, self._decay, self._keep)
        if self._second is None:
            fused(_sgd, rate.is_cuda)(*state, *numbers)
            return
        count = self._count.to(rate.dtype)
        shares = (1 - ADAM_BETA1**count, 1 - self._beta2**count)
        update = fused(_sgd_or_adam, rate.is_cuda)
        update(*state, self._second, *numbers, self._add, self._beta2, *shares, self._adam)


def _drop(values: Tensor, noise: Tensor, rate: Tensor) -> Tensor:
    scale = torch.where(rate < 1, 1 / (1 - rate), 0.0)
    return torch.where(noise >= rate, values * scale, 0.0)


def _sgd(
    weight: Tensor,
    gradient: Tensor,
    first: Tensor,
    share: Tensor,
    rate: Tensor,
    decay: Tensor,
    keep: Tensor,
) -> None:
    moved = keep * first + (share * gradient + decay * weight)
    first.copy_(moved)
    weight.sub_(rate * moved)


def _sgd_or_adam(
    weight: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    share: Tensor,
    rate: Tensor,
    decay: Tensor,
    keep: Tensor,
    add: Tensor,
    beta2: Tensor,
    first_share: Tensor,
    second_share: Tensor,
    adam: Tensor,
) -> None:
    gradient = share * gradient + decay * weight
    mean = keep * first + add * gradient
    square = beta2 * second + (1 - beta2) * gradient * gradient
    first.copy_(mean)
    second.copy_(square)
    scaled = (mean / first_share) / ((square / second_share).sqrt() + ADAM_EPSILON)
    weight.sub_(rate * torch.where(adam, scaled, mean))
