"""The prior-data fitted network: a transformer that reads learning curves and forecasts others.

Tokens are context points (x, t, y) and queries (x, t). Every token attends to context tokens only,
so the context is encoded once and its keys and values serve all queries. A head turns each query
into logits over bins of the scaled score. Nothing here reads a file; `weights.py` does.

Sizes in comments: B tasks, C context tokens, Q queries, D width, H heads, K bins.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

COLUMNS = 16
"""Encoded hyperparameters a network can be told of; fewer are padded as inactive."""
WAVES = 8
"""Sine and cosine pairs per score: the finest wave is 1/128 of the range long."""
INITIAL_CURVE = -1
"""Curve id of the 0-epoch token."""
NO_CURVE = -2
"""Curve id of a query without a curve of its own."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What fixes the network's size. Stored beside the weights."""

    width: int = 128
    layers: int = 6
    heads: int = 4
    hidden: int = 256
    bins: int = 1000
    max_context: int = 400
    """Longest context seen in training; longer ones are thinned before they come here."""

    def to_json(self) -> dict[str, Any]:
        """As stored in a weights file."""
        return asdict(self)


class Points(NamedTuple):
    """Where tokens are: `x` [B, n, COLUMNS] with NaN for inactive, `t` [B, n] epochs, `curve` ids."""

    x: Tensor
    t: Tensor
    curve: Tensor


class OwnCurve(NamedTuple):
    """What a query's own curve has shown so far, [B, Q] each; zeros where `seen` is 0."""

    seen: Tensor
    last: Tensor
    best: Tensor


class Memory(NamedTuple):
    """The encoded context: keys and values per layer, [B, H, C, D/H], and the curve of each token."""

    keys: list[Tensor]
    values: list[Tensor]
    curve: Tensor
    padding: Tensor | None


def score_features(y: Tensor) -> Tensor:
    """A score as itself and as waves, so that its third digit survives the network: [..., 2W + 1]."""
    phase = y.unsqueeze(-1) * (math.pi * 2.0 ** torch.arange(WAVES, device=y.device))
    return torch.cat([y.unsqueeze(-1), phase.sin(), phase.cos()], dim=-1)


def place_features(points: Points, max_epochs: Tensor) -> Tensor:
    """Hyperparameters (value, active?) and epoch (relative, logarithmic, absolute): [B, n, 36]."""
    active = ~points.x.isnan()
    value = torch.where(active, points.x - 0.5, torch.zeros_like(points.x)) * 2
    longest = max_epochs.to(points.t.dtype).unsqueeze(-1)  # [B, 1]
    log_t, log_longest = points.t.log1p(), longest.log1p()
    times = [points.t / longest, log_t / log_longest, log_t / 5, (log_longest / 5).expand_as(log_t)]
    return torch.cat([value, active.to(value.dtype), torch.stack(times, dim=-1)], dim=-1)


class Block(nn.Module):
    """One layer: attention to the context with a same-curve bias, then a feed-forward network."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_attend = nn.LayerNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width)
        self.key_value = nn.Linear(shape.width, 2 * shape.width)
        self.mix = nn.Linear(shape.width, shape.width)
        self.norm_think = nn.LayerNorm(shape.width)
        self.widen = nn.Linear(shape.width, shape.hidden)
        self.narrow = nn.Linear(shape.hidden, shape.width)
        # One learned scalar per head, added where token and context token share a curve.
        self.same_curve = nn.Parameter(torch.linspace(0.0, 2.0, shape.heads))

    def _split(self, x: Tensor) -> Tensor:  # [B, n, D] → [B, H, n, D/H]
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def remember(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the context tokens at this layer's input."""
        key, value = self.key_value(self.norm_attend(context)).chunk(2, dim=-1)
        return self._split(key), self._split(value)

    def forward(self, x: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Tokens `x` [B, n, D] look at the context and think. `bias` is [B, H, n, C]."""
        query = self._split(self.query(self.norm_attend(x)))
        if bias is not None:
            bias = bias.to(query.dtype)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        x = x + self.mix(seen.transpose(1, 2).flatten(-2))
        x = x + self.narrow(F.gelu(self.widen(self.norm_think(x))))
        return x

    def bias(self, curve: Tensor, context_curve: Tensor, padding: Tensor | None) -> Tensor:
        """What is added to the attention scores: [B, H, n, C]."""
        same = curve.unsqueeze(-1) == context_curve.unsqueeze(-2)  # [B, n, C]
        bias = same.unsqueeze(1) * self.same_curve.view(1, -1, 1, 1)
        if padding is not None:
            bias = bias.masked_fill(padding[:, None, None, :], -1e4)
        return bias


class CurveNetwork(nn.Module):
    """The whole network. `remember` reads a context, `forecast` answers queries about it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        place, score = 2 * COLUMNS + 4, 2 * WAVES + 1
        self.read_place = nn.Linear(place, shape.width)
        self.read_score = nn.Linear(score, shape.width)
        self.read_own = nn.Linear(2 * score + 4, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.bins)

    def remember(
        self, points: Points, y: Tensor, max_epochs: Tensor, padding: Tensor | None = None
    ) -> Memory:
        """Encode context tokens: the 0-epoch token is one of them. `padding` is True where empty."""
        x = self.read_place(place_features(points, max_epochs)) + self.read_score(score_features(y))
        keys, values = [], []
        for block in self.blocks:
            assert isinstance(block, Block)
            key, value = block.remember(x)
            keys.append(key)
            values.append(value)
            x = block(x, key, value, block.bias(points.curve, points.curve, padding))
        return Memory(keys, values, points.curve, padding)

    def forecast(
        self, memory: Memory, points: Points, own: OwnCurve, max_epochs: Tensor
    ) -> Tensor:
        """Logits over bins for each query: [B, Q, K]."""
        x = self.read_place(place_features(points, max_epochs)) + self.read_own(
            own_features(own, points.t, max_epochs)
        )
        # A query without a curve shares it with no context token: no bias, a faster attention.
        alone = memory.padding is None and bool((points.curve == NO_CURVE).all())
        for block, key, value in zip(self.blocks, memory.keys, memory.values, strict=True):
            assert isinstance(block, Block)
            bias = None if alone else block.bias(points.curve, memory.curve, memory.padding)
            x = block(x, key, value, bias)
        logits: Tensor = self.head(self.norm(x))
        return logits


def own_features(own: OwnCurve, t: Tensor, max_epochs: Tensor) -> Tensor:
    """Last and best score of a query's own curve, and how far ahead the query looks."""
    longest = max_epochs.to(t.dtype).unsqueeze(-1)
    ahead = (t - own.seen).clamp_min(0)
    started = (own.seen > 0).to(t.dtype)
    times = torch.stack(
        [started, own.seen / longest, started * ahead.log1p() / 5, started * ahead / longest], -1
    )
    scores = torch.cat([score_features(own.last), score_features(own.best)], dim=-1)
    return torch.cat([scores * started.unsqueeze(-1), times], dim=-1)
