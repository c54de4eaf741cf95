"""An extrapolator that is fast and believes in curves, for tests of the engine around it."""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import ndtr

from freezethaw.errors import ExtrapolatorError
from freezethaw.extrapolator import UNSEEN, BinnedForecast, Context, Queries


class FakeCurves:
    """A curve goes on towards 1 from its last score; what has no curve may become anything."""

    def __init__(self, bins: int = 40, columns: int = 16) -> None:
        self.bins, self.columns = bins, columns

    def check(self, columns: int) -> None:
        if columns > self.columns:
            raise ExtrapolatorError(f"{columns} columns; at most {self.columns}")

    def condition(self, context: Context) -> FakeCurvesPosterior:
        return FakeCurvesPosterior(context, self.bins)


class FakeCurvesPosterior:
    def __init__(self, context: Context, bins: int) -> None:
        self._context, self._borders = context, np.linspace(0, 1, bins + 1)

    def forecast(self, queries: Queries) -> BinnedForecast:
        context, curve = self._context, queries.curve
        epochs = queries.epochs.astype(float)
        # Slightly different for each configuration, so that there are no ties.
        lean = np.nan_to_num(queries.configs, nan=0.5) @ np.linspace(1, 2, queries.configs.shape[1])
        mean = 0.1 + 0.02 * lean[:, None] + 0.4 * (1 - np.exp(-epochs / 5))[None, :]
        spread = np.full_like(mean, 0.1)
        for row in np.flatnonzero(curve != UNSEEN):
            seen = int(context.epochs_seen[curve[row]])
            last = context.scores[curve[row], seen - 1]
            ahead = np.maximum(epochs - seen, 0)
            mean[row] = last + 0.35 * (1 - last) * (1 - np.exp(-ahead / 5))
            spread[row] = 0.01 + 0.02 * np.sqrt(ahead)
        below = ndtr((self._borders - mean[..., None]) / spread[..., None])
        mass = np.diff(below, axis=-1) + 1e-9
        mass /= mass.sum(-1, keepdims=True)
        return BinnedForecast(
            mass=torch.from_numpy(mass), borders=torch.from_numpy(self._borders.copy())
        )
