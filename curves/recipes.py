"""How one network is trained: optimiser, learning rate over time, regularisers of the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Optimizer = Literal["sgd", "adam"]
Schedule = Literal["constant", "cosine", "step", "exponential"]

ADAM_BETA1 = 0.9
ADAM_EPSILON = 1e-8


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The hyperparameters of a run that are not the network's own."""

    batch_size: int
    learning_rate: float
    optimizer: Optimizer = "sgd"
    momentum: float = 0.0
    """Of SGD."""
    beta2: float = 0.999
    """Of Adam."""
    weight_decay: float = 0.0
    """Added to the gradient, times the weight (L2), for both optimisers."""
    schedule: Schedule = "constant"
    final_share: float = 1.0
    """What an exponential schedule leaves of the learning rate at the end."""
    warmup: float = 0.0
    """The share of all steps over which the learning rate rises linearly."""
    clip: float = math.inf
    """The largest norm of a gradient; longer ones are scaled down to it."""
    label_smoothing: float = 0.0

    def rates(self, n_steps: int) -> NDArray[np.float64]:
        """Return the learning rate of every step of a run."""
        progress = np.arange(n_steps) / n_steps
        rates: NDArray[np.float64] = self.learning_rate * self._decay(progress)
        n_warm = math.ceil(self.warmup * n_steps)
        rates[:n_warm] *= np.arange(1, n_warm + 1) / (n_warm + 1)
        return rates

    def _decay(self, progress: NDArray[np.float64]) -> NDArray[np.float64]:
        match self.schedule:
            case "constant":
                return np.ones_like(progress)
            case "cosine":
                return (1.0 + np.cos(np.pi * progress)) / 2.0
            case "step":
                # A tenth of it at half time, a hundredth at three quarters.
                return np.where(progress < 0.5, 1.0, np.where(progress < 0.75, 0.1, 0.01))
            case "exponential":
                return np.power(self.final_share, progress)


def steps_per_epoch(n_rows: int, batch_size: int) -> int:
    """Full batches only: the rest of an epoch's rows waits for the next shuffle."""
    return max(1, n_rows // batch_size)
