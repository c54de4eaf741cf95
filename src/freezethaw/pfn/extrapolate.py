"""The network behind the extrapolator's seam: numpy contexts and queries in, binned forecasts out.

What the caller's process is set to (default dtype and device, autocast, gradients, threads, random
state) neither changes here nor changes the answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from freezethaw.errors import ExtrapolatorError
from freezethaw.extrapolator import UNSEEN, BinnedForecast, Context, Queries
from freezethaw.pfn import weights
from freezethaw.pfn.model import (
    COLUMNS,
    INITIAL_CURVE,
    NO_CURVE,
    CurveNetwork,
    Memory,
    OwnCurve,
    Points,
    Scores,
)

CHUNK = 8192
"""Most query tokens at a time: their activations stay in the caches of a CPU."""
ROWS = 8
"""Rows are asked for in multiples of so many: half precision on a CPU compiles its products anew
for every new size, and keeps them all in memory."""


class PfnExtrapolator:
    """A `CurveNetwork` as an `Extrapolator`."""

    def __init__(self, network: CurveNetwork, device: str | torch.device = "cpu") -> None:
        try:
            self.device = torch.device(device)
            self.network = network.to(self.device, torch.float32).eval().requires_grad_(False)
        except (RuntimeError, AssertionError) as error:  # what torch raises for either mistake
            first = str(error).partition("\n")[0]
            raise ExtrapolatorError(
                f"device={str(device)!r}: {first}; use 'cpu', or 'cuda' where torch can"
            ) from error
        self._half = has_fast_bfloat16(self.device)

    @classmethod
    def load(
        cls, name_or_path: str | Path = weights.DEFAULT, device: str | torch.device = "cpu"
    ) -> PfnExtrapolator:
        """Shipped weights by name, or a weights file."""
        # Building a network draws its first weights from torch's global generator.
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            return cls(weights.load(weights.find(name_or_path)), device)

    def check(self, columns: int) -> None:
        """Raise `ExtrapolatorError` if a space of so many encoded columns is beyond the limits."""
        if columns > COLUMNS:
            raise ExtrapolatorError(
                f"the space has {columns} encoded columns; these weights read at most {COLUMNS}. "
                "A choice of up to 4 values takes a column per value, any other parameter takes "
                "one: turn choices that have an order into Int or Float, leave out values that "
                "you would not pick, or fix the parameters that matter least"
            )

    def condition(self, context: Context) -> PfnPosterior:
        """Read the context, once per decision; longer ones than trained for are thinned."""
        self.check(context.configs.shape[1])
        # In full precision on a CPU: it takes little, and context lengths are all different.
        with _plain(self.device, self._half and self.device.type != "cpu"):
            return PfnPosterior(self, context)


class PfnPosterior:
    """A context that the network has read. Made by `PfnExtrapolator.condition`."""

    def __init__(self, extrapolator: PfnExtrapolator, context: Context) -> None:
        self._network, self._device = extrapolator.network, extrapolator.device
        self._half = extrapolator._half
        shape = self._network.shape
        # Longer studies than trained for are told with their time squeezed.
        self._squeeze = min(1.0, shape.max_epochs / context.max_epochs)
        self._max_epochs = self._floats([context.max_epochs * self._squeeze])
        self._summary = _summarise(context)
        curve, epoch = choose_points(context, shape.max_context - 1)
        self._memory = self._remember(context, curve, epoch)
        bins = shape.bins
        self._borders = torch.arange(bins + 1, dtype=torch.float32, device=self._device) / bins

    def forecast(self, queries: Queries) -> BinnedForecast:
        """The distribution of the scaled score for every query."""
        with _plain(self._device, self._half):
            return BinnedForecast(mass=self._all_masses(queries), borders=self._borders)

    def _all_masses(self, queries: Queries) -> Tensor:
        """[row, epoch, bin], a part of the rows at a time."""
        rows, epochs = len(queries.curve), len(queries.epochs)
        # One task has one number of columns: the memory was read with as many.
        x = self._floats(_pad_columns(queries.configs))
        t = self._floats(queries.epochs * self._squeeze)
        bins = self._network.shape.bins
        mass = torch.empty(rows, epochs, bins, dtype=torch.float32, device=self._device)
        unseen = queries.curve == UNSEEN
        per_chunk = max(1, CHUNK // max(1, epochs))
        # Apart, because configurations without a curve take an attention without a bias.
        for group in (np.flatnonzero(unseen), np.flatnonzero(~unseen)):
            for start in range(0, len(group), per_chunk):
                part = group[start : start + per_chunk]
                padded = np.resize(part, -(-len(part) // ROWS) * ROWS)
                index = torch.from_numpy(padded).to(self._device)
                found = self._masses(x[index], queries.curve[padded], t)
                mass[index[: len(part)]] = found[: len(part)]
        return mass

    def _masses(self, x: Tensor, curve: NDArray[np.int64], t: Tensor) -> Tensor:
        """[row, epoch, bin] for a few configurations, all of them with a curve or all without."""
        rows, epochs = len(curve), len(t)
        ids = torch.from_numpy(np.where(curve == UNSEEN, NO_CURVE, curve)).to(self._device)
        # Row -1 of the summary is that of a configuration without a curve.
        known = self._floats(self._summary[:, curve]).repeat_interleave(epochs, dim=-1)
        seen, last, before, middle, best = known.unsqueeze(1)
        own = OwnCurve(seen * self._squeeze, last, before, middle, best)
        points = Points(
            x=x.repeat_interleave(epochs, dim=0).unsqueeze(0),
            t=t.repeat(rows).unsqueeze(0),
            curve=ids.repeat_interleave(epochs).unsqueeze(0),
        )
        logits = self._network.forecast(self._memory, points, own, self._max_epochs)
        return logits.float().softmax(-1).view(rows, epochs, -1)

    def _remember(
        self, context: Context, curve: NDArray[np.int64], epoch: NDArray[np.int64]
    ) -> Memory:
        start = np.full((len(context.scores), 1), context.initial)
        y = np.concatenate([start, context.scores], axis=1)  # [curve, epoch 0..T]
        shown = y[curve, epoch]
        nothing = np.full((1, COLUMNS), np.nan)
        x = np.concatenate([nothing, _pad_columns(context.configs)[curve]])
        ids = np.concatenate([[INITIAL_CURVE], curve])
        points = Points(
            x=self._floats(x).unsqueeze(0),
            t=self._floats(np.concatenate([[0], epoch]) * self._squeeze).unsqueeze(0),
            curve=torch.from_numpy(ids).to(self._device).unsqueeze(0),
        )
        scores = Scores(
            y=self._floats(np.concatenate([[context.initial], shown])).unsqueeze(0),
            step=self._floats(np.concatenate([[0], shown - y[curve, epoch - 1]])).unsqueeze(0),
        )
        memory = self._network.remember(points, scores, self._max_epochs)
        dtype = torch.bfloat16 if self._half else torch.float32
        keys, values = ([each.to(dtype) for each in side] for side in memory[:2])
        return memory._replace(keys=keys, values=values)

    def _floats(self, values: object) -> Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.float32)).to(self._device)


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether the hardware multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    # Missing in some of the torch versions that we allow: then it is float32.
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(probe() for name in probes if (probe := getattr(torch.cpu, name, None)))


@contextmanager
def _plain(device: torch.device, half: bool) -> Iterator[None]:
    """No gradients, and autocast as we want it, whatever the caller is inside of."""
    # The answers are ordinary tensors even for a caller in inference mode.
    with (
        torch.inference_mode(False),
        torch.no_grad(),
        torch.autocast(device.type, dtype=torch.bfloat16, enabled=half),
    ):
        yield


def _pad_columns(configs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Columns that a space does not have are inactive."""
    missing = COLUMNS - configs.shape[1]
    return np.pad(configs, ((0, 0), (0, missing)), constant_values=np.nan)


def _summarise(context: Context) -> NDArray[np.float64]:
    """Fields of `OwnCurve` [field, curve + 1]; the last row is that of an unstarted one."""
    rows = np.arange(len(context.scores))
    y = np.insert(context.scores, 0, context.initial, axis=1)
    seen = context.epochs_seen
    hidden = np.arange(1, context.max_epochs + 1) > seen[:, None]
    best = np.where(hidden, -np.inf, context.scores).max(axis=1, initial=-np.inf)
    known = np.stack([seen, y[rows, seen], y[rows, seen - 1], y[rows, seen // 2], best])
    unstarted = np.array([0.0, *[context.initial] * 4])
    return np.concatenate([known, unstarted[:, None]], axis=1)


def choose_points(context: Context, room: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which points of the context are told, at most `room`: their curves and epochs, in order.

    All of them if they fit. Else every curve keeps its first, last and best point, and the rest of
    the room goes to evenly spaced ones, as many for each curve. With so many curves that not even
    these fit, last points go before best ones before first ones, and of the kind that does not fit
    whole there is one for every so many curves in the order of their best scores, best and worst
    included. What a query knows of its own curve does not depend on this.
    """
    seen = context.epochs_seen
    if seen.sum() <= room:
        kept = [np.arange(1, n + 1) for n in seen]
    else:
        best = np.array(
            [int(np.argmax(y[:n])) + 1 for y, n in zip(context.scores, seen, strict=True)]
        )
        # The best point may be one more than the evenly spaced ones.
        fits = [np.minimum(seen, each + 1).sum() <= room for each in range(2, seen.max() + 1)]
        each = 1 + sum(fits)
        if each < 2:
            return _last_best_first(context, best, room)
        kept = [
            np.union1d(np.linspace(1, n, min(n, each)).round().astype(np.int64), [peak])
            for n, peak in zip(seen, best, strict=True)
        ]
    curve = np.repeat(np.arange(len(kept)), [len(epochs) for epochs in kept])
    epoch = np.concatenate([*kept, np.empty(0, np.int64)]).astype(np.int64)
    return curve.astype(np.int64), epoch


def _last_best_first(
    context: Context, best: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`choose_points` where first, last and best points are too many."""
    rows = np.arange(len(best))
    by_best = np.argsort(-context.scores[rows, best - 1], kind="stable")
    kept: dict[tuple[int, int], None] = {}
    for epochs in (context.epochs_seen, best, np.ones_like(best)):
        new = [point for row in by_best if (point := (int(row), int(epochs[row]))) not in kept]
        left = room - len(kept)
        if len(new) > left:
            new = [new[i] for i in np.linspace(0, len(new) - 1, left).round().astype(int)]
        kept.update(dict.fromkeys(new))
    points = np.array(sorted(kept), dtype=np.int64).reshape(-1, 2)
    return points[:, 0], points[:, 1]
