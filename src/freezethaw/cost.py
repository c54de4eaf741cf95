"""What the next epochs of each candidate are predicted to cost, from the history alone.

In epochs, an epoch costs 1. In seconds or money it costs what the configuration's own epochs took;
for one that has none, a small regression over the configurations seen says what to expect. First
epochs also pay for setting up: what they took beyond the later ones is expected of every start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freezethaw.records import Curve, History, Unit

SHRINKAGE = 0.3
"""Ridge penalty on the slopes of log seconds over the unit cube: a few curves cannot swing it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Costs:
    """Per candidate: the price of one epoch, and what must be paid for first."""

    per_epoch: NDArray[np.float64]
    replay_epochs: NDArray[np.int64]
    """Trained again, after an eviction."""
    setup: NDArray[np.float64]
    """Paid once: by what has not been started, or is started again."""

    def of_next_epoch(self) -> NDArray[np.float64]:
        """cost(n, 1): [candidate]."""
        cost: NDArray[np.float64] = self.setup + (1 + self.replay_epochs) * self.per_epoch
        return cost

    def epochs_for(self, row: int, amount: float) -> int:
        """How many new epochs of one candidate that amount pays for."""
        epochs = (amount - self.setup[row]) / self.per_epoch[row]
        return int(epochs) - int(self.replay_epochs[row])

    def to_reach(
        self, epochs_seen: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """cost(n, Δt) for reaching each target epoch: [candidate, target]; 0 for epochs seen."""
        ahead = targets[None, :] - epochs_seen[:, None]
        epochs = ahead + self.replay_epochs[:, None]
        paid = self.setup[:, None] + epochs * self.per_epoch[:, None]
        return np.where(ahead > 0, paid, 0.0)


def price(seconds: float, unit: Unit, rate: float | None) -> float:
    """What one epoch of so many seconds costs in the study's unit."""
    if unit == "epochs":
        return 1.0
    return seconds if unit == "seconds" else seconds / 3600 * (rate or 0.0)


def predict_costs(
    history: History,
    ids: Sequence[int],
    encoded: NDArray[np.float64],
    *,
    seen: NDArray[np.float64],
    unit: Unit,
    rate: float | None,
    unknown: float,
) -> Costs:
    """Costs of all candidates [n].

    `encoded` [n, column] are the candidates, `seen` [curve, column] all started trials in the
    history's order; `unknown` is the guess for an epoch before anything was measured.
    """
    curves = [history.curves.get(trial_id) for trial_id in ids]
    replay = np.array([curve.replay_epochs if curve else 0 for curve in curves], np.int64)
    none = np.zeros(len(ids))
    if unit == "epochs":
        return Costs(per_epoch=np.ones(len(ids)), replay_epochs=replay, setup=none)
    setup = setup_seconds(history)
    own = np.array([seconds_per_epoch(curve, setup) if curve else np.nan for curve in curves])
    measured = np.array([seconds_per_epoch(curve, setup) for curve in history.curves.values()])
    known = ~np.isnan(measured)
    if not known.any():
        return Costs(per_epoch=np.full(len(ids), unknown), replay_epochs=replay, setup=none)
    expected = _regress(seen[known], np.log(measured[known]), encoded)
    seconds = np.where(np.isnan(own), expected, own)
    factor = 1.0 if unit == "seconds" else (rate or 0.0) / 3600
    return Costs(
        per_epoch=seconds * factor,
        replay_epochs=replay,
        setup=np.where(np.isnan(own) | (replay > 0), setup * factor, 0.0),
    )


def setup_seconds(history: History) -> float:
    """What a first epoch takes beyond a later one: the median over curves that have both."""
    beyond = [
        curve.seconds[0] - float(np.median(curve.seconds[1:]))
        for curve in history.curves.values()
        if len(curve.seconds) > 1
    ]
    return max(float(np.median(beyond)), 0.0) if beyond else 0.0


def seconds_per_epoch(curve: Curve, setup: float) -> float:
    """The median of the curve's own epochs but the first; of that one, without the setting up.

    Setting up is taken to be at most nine tenths of a single epoch.
    """
    if not curve.seconds:
        return float("nan")
    first, *later = curve.seconds
    steady = float(np.median(later)) if later else max(first - setup, first / 10)
    return max(steady, 1e-6)


def _regress(
    seen: NDArray[np.float64], log_seconds: NDArray[np.float64], asked: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Ridge regression of log seconds on the unit cube, an inactive column in the middle of it."""
    x, q = (np.nan_to_num(a - 0.5, nan=0.0) for a in (seen, asked))
    center, mean = x.mean(0), log_seconds.mean()
    x = x - center
    gram = x.T @ x + SHRINKAGE * np.eye(x.shape[1])
    slopes = np.linalg.solve(gram, x.T @ (log_seconds - mean))
    low, high = log_seconds.min() - 1.0, log_seconds.max() + 1.0
    predicted: NDArray[np.float64] = np.exp(np.clip(mean + (q - center) @ slopes, low, high))
    return predicted
