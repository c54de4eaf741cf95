"""Fakes that tests share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from freezethaw.errors import ExtrapolatorError
from freezethaw.extrapolator import BinnedForecast, Context, Queries


class FakeExtrapolator:
    """Forecasts the masses that it is given, and keeps what it was told.

    `mass(columns, epoch)` is the distribution of one configuration at one epoch, over bins of equal
    width (or between `borders`). Every context is kept in `contexts`, all queries in `asked`.
    """

    def __init__(
        self,
        mass: Callable[[np.ndarray, int], Sequence[float]],
        *,
        borders: Sequence[float] | None = None,
        dtype: torch.dtype = torch.float64,
        max_columns: int = 16,
    ) -> None:
        self.mass, self.borders, self.dtype = mass, borders, dtype
        self.max_columns = max_columns
        self.contexts: list[Context] = []
        self.asked: list[Queries] = []

    def condition(self, context: Context) -> FakePosterior:
        self.contexts.append(context)
        return FakePosterior(self)

    def check(self, columns: int) -> None:
        if columns > self.max_columns:
            raise ExtrapolatorError(f"{columns} columns; at most {self.max_columns}")


class FakePosterior:
    def __init__(self, extrapolator: FakeExtrapolator) -> None:
        self._of = extrapolator

    def forecast(self, queries: Queries) -> BinnedForecast:
        self._of.asked.append(queries)
        mass = np.array(
            [
                [self._of.mass(columns, int(epoch)) for epoch in queries.epochs]
                for columns in queries.configs
            ]
        )
        borders = self._of.borders
        if borders is None:
            borders = np.linspace(0, 1, mass.shape[-1] + 1)
        return BinnedForecast(
            mass=torch.from_numpy(mass).to(self._of.dtype),
            borders=torch.from_numpy(np.array(borders, np.float64)).to(self._of.dtype),
        )


class FakePosteriorOf:
    """Answers with one forecast of all configurations, [config, epoch, bin], rows as `curve`."""

    def __init__(self, mass: torch.Tensor, borders: torch.Tensor) -> None:
        self.mass, self.borders = mass, borders

    def forecast(self, queries: Queries) -> BinnedForecast:
        rows = torch.from_numpy(queries.curve)
        return BinnedForecast(mass=self.mass[rows], borders=self.borders)


def point_mass(at: float, bins: int = 10) -> list[float]:
    """All mass in the bin that holds `at`."""
    mass = [0.0] * bins
    mass[min(int(at * bins), bins - 1)] = 1.0
    return mass
