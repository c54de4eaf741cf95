"""The seam to whatever forecasts learning curves, and the binned distributions it answers with.

An extrapolator is told the curves seen so far (`Context`), encodes them once (`condition`), and is
then asked, in chunks, for a distribution of the scaled score per (configuration, epoch). It works
in scaled units only: [0, 1], higher is better.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UNSEEN = -1
"""In `Queries.curve`: this configuration has no curve yet."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Context:
    """The curves seen so far. Axes: [curve], [curve, column], [curve, epoch]."""

    configs: NDArray[np.float64]
    """[curve, column] in the unit cube; NaN where a parameter is inactive."""
    scores: NDArray[np.float64]
    """[curve, epoch 1..T] scaled; anything beyond `epochs_seen` is ignored."""
    epochs_seen: NDArray[np.int64]
    """[curve]; at least 1 each."""
    initial: float
    """The scaled score of an untrained network (ȳ₀)."""
    max_epochs: int

    def __post_init__(self) -> None:
        curves, epochs = self.scores.shape
        if self.configs.shape[0] != curves or self.epochs_seen.shape != (curves,):
            raise ValueError(
                f"{self.configs.shape=}, {self.scores.shape=}, {self.epochs_seen.shape=}: "
                "the first axis of all three is the curve"
            )
        if epochs != self.max_epochs:
            raise ValueError(f"scores have {epochs} epochs; max_epochs is {self.max_epochs}")
        if ((self.epochs_seen < 1) | (self.epochs_seen > self.max_epochs)).any():
            raise ValueError(f"{self.epochs_seen=}: a curve has 1 to {self.max_epochs} epochs")


@dataclass(frozen=True, kw_only=True, eq=False)
class Queries:
    """Whose future is asked for: every configuration at every one of `epochs`."""

    configs: NDArray[np.float64]
    """[config, column], encoded as in the context."""
    curve: NDArray[np.int64]
    """[config]: its row in the context, or `UNSEEN`."""
    epochs: NDArray[np.int64]
    """[epoch], ascending; the answer for epochs already seen is without meaning."""

    def take(self, rows: slice | NDArray[np.int64]) -> Queries:
        """Some of the configurations."""
        return Queries(configs=self.configs[rows], curve=self.curve[rows], epochs=self.epochs)


@dataclass(frozen=True, kw_only=True, eq=False)
class BinnedForecast:
    """A distribution per (configuration, epoch): mass per bin, uniform within a bin."""

    mass: Tensor
    """[config, epoch, bin], sums to 1 over bins."""
    borders: Tensor
    """[bin + 1], ascending from 0 to 1."""

    def __post_init__(self) -> None:
        if self.mass.ndim != 3 or self.borders.shape != (self.mass.shape[-1] + 1,):
            raise ValueError(
                f"mass {tuple(self.mass.shape)} and borders {tuple(self.borders.shape)}: "
                "must be [config, epoch, bin] and [bin + 1]"
            )

    def survival(self) -> Tensor:
        """P(y > border) at every border: [config, epoch, bin + 1].

        Summed from the top, so that a small chance of a high score keeps its digits.
        """
        return survival(self.mass)

    def mean(self) -> Tensor:
        """[config, epoch]."""
        centers = (self.borders[1:] + self.borders[:-1]) / 2
        return self.mass @ centers.to(self.mass)

    def quantile(self, levels: Tensor) -> Tensor:
        """[config, epoch, level], linear within a bin."""
        below = 1 - self.survival()
        below = torch.cummax(below, dim=-1).values.contiguous()
        levels = levels.to(below).expand(*below.shape[:-1], -1).contiguous()
        index = torch.searchsorted(below, levels).clamp(1, below.shape[-1] - 1)
        low, high = below.gather(-1, index - 1), below.gather(-1, index)
        fraction = ((levels - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
        borders = self.borders.to(below)
        return borders[index - 1] + fraction * (borders[index] - borders[index - 1])


def survival(mass: Tensor) -> Tensor:
    """Mass per bin → P(y > border) at every border, along the last axis."""
    tail = mass.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([tail, torch.zeros_like(tail[..., :1])], dim=-1)


class Posterior(Protocol):
    """An extrapolator that has read its context."""

    def forecast(self, queries: Queries) -> BinnedForecast:
        """The distribution of the scaled score for every query."""
        ...


class Extrapolator(Protocol):
    """Anything that forecasts learning curves from the curves seen so far."""

    def condition(self, context: Context) -> Posterior:
        """Read the context, once per decision."""
        ...

    def check(self, columns: int) -> None:
        """Raise `ExtrapolatorError` if a space of so many encoded columns is beyond the limits."""
        ...
