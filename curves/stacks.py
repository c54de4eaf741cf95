"""Networks side by side: every tensor has the network as its first axis.

One matrix product then serves all networks of a group, each with weights and sizes of its own.
Networks narrower or shallower than the largest are padded with weights of zero, which stay zero:
what the padding is multiplied with, forward and backward, is zero too.
`tests/test_curves_equality.py` holds this against an ordinary loop.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Drop(Protocol):
    """Dropout: sets a share of the values to zero and scales the others up.

    At a rate of 1 all are zero, and so are their gradients: a layer that a network lacks.
    """

    def __call__(self, values: Tensor, rate: Tensor) -> Tensor:
        """Return values with `rate` of them dropped; the two broadcast."""
        ...


def keep_all(values: Tensor, rate: Tensor) -> Tensor:  # noqa: ARG001
    """No dropout: evaluation."""
    return values


class Stack(ABC):
    """The networks of a group: their shapes, masks and weights."""

    weights: list[Tensor]
    """Each [network, ...], zero where a network is smaller than the largest."""
    floats_per_row: int
    """The size of the largest activation of one network for one row."""

    @abstractmethod
    def forward(self, weights: Sequence[Tensor], inputs: Tensor, drop: Drop) -> Tensor:
        """Return logits [network, row, …, class] for inputs [network or 1, row, …]."""


class Initial:
    """Draws first weights as PyTorch's layers do, padded with zeros to the sizes of a group."""

    def __init__(self, n_networks: int, generator: torch.Generator, dtype: torch.dtype) -> None:
        self.n_networks = n_networks
        self.generator = generator
        self.options: Any = {"device": generator.device, "dtype": dtype}

    def each(self, values: Sequence[float], n_axes: int = 3) -> Tensor:
        """One number per network, shaped to broadcast over a tensor of `n_axes` axes."""
        return torch.tensor(values, **self.options).view(-1, *[1] * (n_axes - 1))

    def mask(self, sizes: Sequence[int], n_axes: int = 3, *, size: int = 0) -> Tensor:
        """1.0 for the places along the last axis that a network has, else 0.0."""
        places = torch.arange(max(size, *sizes), **self.options)
        here: Tensor = places < self.each(sizes, n_axes)
        return here.to(places.dtype)

    def linear(
        self,
        fan_in: Sequence[int],
        fan_out: Sequence[int],
        *,
        taps: int = 1,
        size_in: int = 0,
        size_out: int = 0,
    ) -> list[Tensor]:
        """Weight [network, in, out] and bias [network, out]; `taps` of a convolution's kernel.

        A network without the layer has fans of 0. The sizes are at least those given.
        """
        size_in, size_out = max(size_in, *fan_in), max(size_out, *fan_out)
        bound = self.each([1 / math.sqrt(max(1, n * taps)) for n in fan_in])
        ins = self.mask(fan_in, size=size_in).repeat_interleave(taps, dim=2).transpose(1, 2)
        outs = self.mask(fan_out, size=size_out)
        weight = self._uniform(size_in * taps, size_out) * bound * ins * outs
        bias = self._uniform(1, size_out) * bound * outs
        return [weight, bias.squeeze(1)]

    def normal(self, n_rows: int, widths: Sequence[int]) -> Tensor:
        """[network, row, width]: an embedding."""
        shape = (self.n_networks, n_rows, max(widths))
        drawn = torch.randn(shape, generator=self.generator, **self.options)
        return torch.as_tensor(drawn * self.mask(widths))

    def _uniform(self, *shape: int) -> Tensor:
        shape = (self.n_networks, *shape)
        drawn = torch.rand(shape, generator=self.generator, **self.options)
        return torch.as_tensor(2 * drawn - 1)


def affine(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[network, …, in] to [network, …, out], each network by its own weight and bias."""
    flat = inputs.reshape(inputs.shape[0], -1, inputs.shape[-1])
    if flat.shape[0] != weight.shape[0]:
        flat = flat.expand(weight.shape[0], -1, -1)
    out = torch.baddbmm(bias.unsqueeze(1), flat, weight)
    return out.view(weight.shape[0], *inputs.shape[1:-1], weight.shape[2])


def wide(n: int) -> int:
    """Return the padded size of a layer: matrix units take eight numbers at a time."""
    return -(-n // 8) * 8


@functools.cache
def fused(function: Callable[..., Any], on_gpu: bool) -> Callable[..., Any]:
    """One pass over memory on a GPU; elsewhere compiling costs more than it gains."""
    return torch.compile(function, dynamic=True) if on_gpu else function
