"""Expected gain in utility per candidate (Eq. 4) and the chance of any gain (Eq. 7).

The extrapolator forecasts each (candidate, epoch) on its own; what counts is the best score along
the way. How the running maximum is taken is a named strategy, a `Coupling`. All three answer with
the survival function at the bin borders, so that gain and chance are sums over bins.

Shapes: n candidates, q query epochs, k bins, l distinct costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from freezethaw.errors import ConfigError, ExtrapolatorError
from freezethaw.extrapolator import UNSEEN, Posterior, Queries

CHUNK = 64
"""Candidates per forecast: 64 × 50 epochs × 1,000 bins is 13 MB, small enough for caches."""
EXACT_COSTS = 160
"""So many distinct costs are looked up exactly; more are rounded up to `COST_LEVELS`."""
COST_LEVELS = 96
"""Of a geometric grid."""
TOP_PARTS = 32
"""Parts into which the top bin is cut."""


class Coupling(Protocol):
    """How the epochs of one curve hang together."""

    def survival_of_max(
        self, mass: Tensor, borders: Tensor, first: int, generator: torch.Generator
    ) -> Tensor:
        """Mass per epoch [n, q, k] → P(best score up to the epoch > border) [n, q, k − first].

        Borders run from the top down: k − 1, …, `first` (the lower border of bin `first`).
        """
        ...


def survival_from_top(mass: Tensor, first: int) -> Tensor:
    """P(y > border) per epoch, borders from the top down: small chances keep their digits."""
    return mass[..., first:].flip(-1).cumsum(-1)


@dataclass(frozen=True)
class Comonotone:
    """One quantile level for the whole curve: G_t = min over s ≤ t of F_s, exact at borders."""

    def survival_of_max(
        self,
        mass: Tensor,
        borders: Tensor,  # noqa: ARG002
        first: int,
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """The running maximum of the survival function."""
        above = list(survival_from_top(mass, first).unbind(1))
        for t in range(1, len(above)):  # five times faster than cummax along a strided axis
            above[t] = torch.maximum(above[t - 1], above[t])
        return torch.stack(above, dim=1)


@dataclass(frozen=True)
class Independent:
    """Epochs independent of each other: G_t = Π over s ≤ t of F_s. Inflates the maximum."""

    def survival_of_max(
        self,
        mass: Tensor,
        borders: Tensor,  # noqa: ARG002
        first: int,
        generator: torch.Generator,  # noqa: ARG002
    ) -> Tensor:
        """Through logarithms, so that small chances keep their digits."""
        below = torch.log1p(-survival_from_top(mass, first).clamp(0, 1))
        return -torch.expm1(below.cumsum(dim=1))


@dataclass(frozen=True)
class Averaged:
    """The paper's: draws averaged in groups, then the running maximum, counted into the bins."""

    samples: int = 1000
    group: int = 5

    def survival_of_max(
        self, mass: Tensor, borders: Tensor, first: int, generator: torch.Generator
    ) -> Tensor:
        """`samples × group` draws per point."""
        counted = torch.stack([self._count(row, borders, generator) for row in mass])
        return survival_from_top(counted, first)

    def _count(self, mass: Tensor, borders: Tensor, generator: torch.Generator) -> Tensor:
        epochs, bins = mass.shape
        draws = torch.multinomial(
            mass, self.samples * self.group, replacement=True, generator=generator
        )
        within = torch.rand(draws.shape, generator=generator, dtype=mass.dtype, device=mass.device)
        borders = borders.to(mass.dtype)
        y = borders[draws] + within * (borders[draws + 1] - borders[draws])
        best = y.view(epochs, self.samples, self.group).mean(-1).cummax(dim=0).values
        at = (torch.searchsorted(borders, best.contiguous(), right=True) - 1).clamp(0, bins - 1)
        counts = torch.zeros_like(mass)
        counts.scatter_add_(1, at, torch.full_like(best, 1 / self.samples))
        return counts


_COUPLINGS: dict[str, type[Comonotone] | type[Averaged] | type[Independent]] = {
    "comonotone": Comonotone,
    "averaged": Averaged,
    "independent": Independent,
}


def coupling_from_name(name: str) -> Coupling:
    """A coupling by the name the docs use."""
    if name not in _COUPLINGS:
        raise ConfigError(f"coupling {name!r}: known are {', '.join(_COUPLINGS)}")
    return _COUPLINGS[name]()


@dataclass(frozen=True, kw_only=True, eq=False)
class Prospects:
    """What is at stake when a candidate is trained on: everything but the forecast."""

    queries: Queries
    epochs_seen: NDArray[np.int64]
    """[n]"""
    cost: NDArray[np.float64]
    """[n, q]: cost(n, Δt) of reaching each query epoch; only later epochs count."""
    spent: float
    best: float
    """ỹ_b, scaled; the untrained score before anything was seen."""
    utility: Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]
    """(spent, scaled best) → utility."""
    utility_now: float
    """U_p."""

    def take(self, rows: slice | NDArray[np.int64]) -> Prospects:
        """Some of the candidates."""
        return replace(
            self,
            queries=self.queries.take(rows),
            epochs_seen=self.epochs_seen[rows],
            cost=self.cost[rows],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Acquisition:
    """Per candidate: the largest expected gain over target epochs, and where it is reached."""

    gain: NDArray[np.float64]
    """A(n), Eq. 4; −1 for a candidate with no epoch left."""
    target: NDArray[np.int64]
    """[n]: index into the query epochs."""


def acquire(
    posterior: Posterior, prospects: Prospects, coupling: Coupling, generator: torch.Generator
) -> Acquisition:
    """A(n) for every candidate, in chunks so that memory does not grow with their number."""
    levels, level_of = cost_levels(prospects)
    tables: GainTable | None = None  # the same for all chunks, once the bins are known
    pieces = []
    # What has a curve and what has none comes together: extrapolators may treat them apart.
    order = np.argsort(prospects.queries.curve != UNSEEN, kind="stable")
    for start in range(0, len(order), CHUNK):
        rows = order[start : start + CHUNK]
        part = prospects.take(rows)
        mass, borders = _masses(posterior, part)
        tables = tables or gain_table(prospects, levels, borders)
        expected = expectation(mass, borders, tables.gain, level_of[rows], coupling, generator)
        pieces.append(expected.masked_fill(~_ahead(part), -1.0))
    gains = np.empty(prospects.cost.shape)
    gains[order] = torch.cat(pieces).detach().double().numpy()
    if not np.isfinite(gains).all():
        raise ExtrapolatorError("a forecast of the extrapolator holds NaN or infinite mass")
    target = gains.argmax(axis=1)
    return Acquisition(gain=gains[np.arange(len(gains)), target], target=target)


def chances(
    posterior: Posterior,
    prospects: Prospects,
    rows: NDArray[np.int64],
    coupling: Coupling,
    generator: torch.Generator,
) -> NDArray[np.float64]:
    """p_b for some candidates: the largest chance, over targets, that the utility rises (Eq. 7)."""
    part = prospects.take(rows)
    levels, level_of = cost_levels(part)
    mass, borders = _masses(posterior, part)
    table = gain_table(part, levels, borders)
    chance = expectation(mass, borders, table.share, level_of, coupling, generator)
    chance = chance.masked_fill(~_ahead(part), 0.0)
    return np.asarray(chance.amax(dim=1).clamp(0, 1).detach().double().numpy())


def expectation(
    mass: Tensor,
    borders: Tensor,
    table: Tensor,
    level_of: Tensor,
    coupling: Coupling,
    generator: torch.Generator,
) -> Tensor:
    """Σ over bins of P(best in bin) × table: [n, q]. Bins under the first non-zero one are skipped.

    Summed by parts: P(best > border) × the table's rise at that border.
    """
    column = table.amax(0).numpy()
    worth = np.flatnonzero(column > 0)
    if not worth.size:
        return torch.zeros(mass.shape[:2], dtype=mass.dtype)
    first = int(worth[0])
    rise = torch.diff(table[:, first:], dim=1, prepend=torch.zeros_like(table[:, :1]))
    above = coupling.survival_of_max(mass, borders, first, generator)  # [n, q, k − first]
    per_level = above @ rise.flip(-1).to(mass.dtype).T  # [n, q, l]
    # Rounding must not make a gain of 0 look like a candidate without one.
    return per_level.gather(-1, level_of.unsqueeze(-1)).squeeze(-1).clamp_min(0)


def _ahead(prospects: Prospects) -> Tensor:
    """[n, q]: True where the query epoch lies ahead of the candidate."""
    return torch.from_numpy(prospects.queries.epochs[None, :] > prospects.epochs_seen[:, None])


def _masses(posterior: Posterior, part: Prospects) -> tuple[Tensor, Tensor]:
    """Forecast, with epochs already seen put at the bottom so that they cannot raise a maximum."""
    forecast = posterior.forecast(part.queries)
    mass, borders = forecast.mass.cpu(), forecast.borders.double().cpu()
    seen = ~_ahead(part)
    if seen.numpy().any():
        bottom = torch.zeros_like(mass[:1, :1])
        bottom[..., 0] = 1
        mass = torch.where(seen.unsqueeze(-1), bottom, mass)
    return mass, borders


def cost_levels(prospects: Prospects) -> tuple[NDArray[np.float64], Tensor]:
    """The distinct costs [l], and which of them each (candidate, epoch) has [n, q]."""
    cost = prospects.cost
    levels, index = np.unique(cost, return_inverse=True)
    if len(levels) > EXACT_COSTS:
        positive = cost[cost > 0]
        levels = np.concatenate([[0.0], np.geomspace(positive.min(), positive.max(), COST_LEVELS)])
        index = np.searchsorted(levels, cost * (1 - 1e-9)).clip(0, len(levels) - 1)
    return levels, torch.from_numpy(index.reshape(cost.shape))


@dataclass(frozen=True, eq=False)
class GainTable:
    """Per cost level and bin, for a best score uniform in the bin: [l, k]."""

    gain: Tensor
    """E[(U − U_p)⁺]."""
    share: Tensor
    """P(U > U_p)."""


def gain_table(prospects: Prospects, levels: NDArray[np.float64], borders: Tensor) -> GainTable:
    """Integrate the gain over each bin, exactly where utility is linear within it or its parts.

    Only the part of a bin above ỹ_b counts: below it the best stays what it is, and to spend more
    for that is no gain.
    """
    edges, bin_starts = _refined(borders.numpy())
    points = np.maximum(edges, prospects.best)
    widths = np.add.reduceat(np.diff(edges), bin_starts)
    # The share of each part in its bin, as far as it lies above ỹ_b.
    above = np.diff(points) / np.repeat(widths, np.diff([*bin_starts, len(edges) - 1]))
    # 1 stands for the good bound, which may lie far beyond all else: the last part is flat.
    points[-1] = max(points[-2], prospects.best)
    value = np.asarray(prospects.utility(prospects.spent + levels[:, None], points[None, :]))
    gain = value - _reference(prospects.utility_now, value)
    parts = _positive_part(gain[:, :-1], gain[:, 1:])
    mean, share = (np.add.reduceat(above * part, bin_starts, axis=1) for part in parts)
    return GainTable(torch.from_numpy(mean), torch.from_numpy(share))


def _refined(borders: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The borders with the top bin halved again and again towards 1, and where each bin starts.

    A score that is open or nearly so runs off to its bound within the last bin.
    """
    halves = borders[-1] - (borders[-1] - borders[-2]) * 0.5 ** np.arange(1, TOP_PARTS)
    refined = np.concatenate([borders[:-1], halves, borders[-1:]])
    return refined, np.arange(len(borders) - 1)


def _reference(utility_now: float, value: NDArray[np.float64]) -> float:
    """What gains are counted from: U_p; where that is −∞, a full range below what is finite."""
    if np.isfinite(utility_now):
        return utility_now
    finite = value[np.isfinite(value)]
    return float(finite.min() - (np.ptp(finite) or 1.0)) if finite.size else 0.0


def _positive_part(
    at_low: NDArray[np.float64], at_high: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean of the positive part, and share above 0, of a function linear from low to high."""
    top, bottom = np.maximum(at_low, at_high), np.minimum(at_low, at_high)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(bottom >= 0, 1.0, top / (top - bottom))
        mean = np.where(bottom >= 0, (top + bottom) / 2, top * share / 2)
    nothing = ~(top > 0)
    return np.where(nothing, 0.0, mean), np.where(nothing, 0.0, share)
