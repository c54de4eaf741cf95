"""The prior-data fitted network: a transformer that reads learning curves and forecasts others.

Tokens are context points (x, t, y) and queries (x, t). Every token attends to context tokens only,
so the context is encoded once and its keys and values serve all queries. A head turns each query
into logits over bins of the scaled score, and a second one adds logits to the bins around the last
score of the query's own curve: most epochs change little, and copying a score to three digits is
more than attention does by itself. Nothing here reads a file; `weights.py` does.

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
WAVES = 10
"""Sine and cosine pairs per score: the finest wave is 1/256 of the range long."""
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
    near: int = 48
    """Bins on either side of the last score that have logits of their own."""
    max_context: int = 320
    """Longest context seen in training; longer ones are thinned before they come here."""
    max_epochs: int = 100
    """Longest study seen in training; the time of longer ones is squeezed into it."""

    def to_json(self) -> dict[str, Any]:
        """As stored in a weights file."""
        return asdict(self)


class Points(NamedTuple):
    """Where tokens are: `x` [B, n, COLUMNS], NaN if inactive; `t` [B, n] epochs; `curve` ids."""

    x: Tensor
    t: Tensor
    curve: Tensor


class Scores(NamedTuple):
    """What context tokens show, [B, C] each: the score, and its change since the epoch before."""

    y: Tensor
    step: Tensor


class OwnCurve(NamedTuple):
    """What a query's own curve has shown, [B, Q] each; all scores are ȳ₀ where `seen` is 0."""

    seen: Tensor
    last: Tensor
    before: Tensor
    """One epoch before the last."""
    middle: Tensor
    """At half the epochs seen, rounded down (0: ȳ₀)."""
    best: Tensor


class Memory(NamedTuple):
    """The encoded context: keys and values per layer, [B, H, C, D/H], and each token's curve."""

    keys: list[Tensor]
    values: list[Tensor]
    curve: Tensor
    padding: Tensor | None


def score_features(y: Tensor) -> Tensor:
    """A score as itself and as waves, so that its third digit survives: [..., 2W + 1]."""
    octaves = torch.arange(WAVES, device=y.device, dtype=y.dtype)
    phase = y.unsqueeze(-1) * (math.pi * torch.exp2(octaves))
    return torch.cat([y.unsqueeze(-1), phase.sin(), phase.cos()], dim=-1)


def change_features(change: Tensor) -> Tensor:
    """A difference of scores on a logarithmic scale, with its sign and without: [..., 2]."""
    size = (change.abs() * 2000).log1p() / 4
    return torch.stack([size * change.sign(), size], dim=-1)


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
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)

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
        thought: Tensor = self.narrow(F.gelu(self.widen(self.norm_think(x))))
        return x + thought

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
        place, score, change = 2 * COLUMNS + 4, 2 * WAVES + 1, 2
        self.read_place = nn.Linear(place, shape.width)
        self.read_score = nn.Linear(score + change, shape.width)
        self.read_own = nn.Linear(2 * score + 3 * change + 4, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.bins)
        self.head_near = nn.Linear(shape.width, 2 * shape.near + 1)

    def remember(
        self, points: Points, scores: Scores, max_epochs: Tensor, padding: Tensor | None = None
    ) -> Memory:
        """Encode context tokens, the 0-epoch token among them. `padding` is True where empty."""
        shown = torch.cat([score_features(scores.y), change_features(scores.step)], dim=-1)
        x = self.read_place(place_features(points, max_epochs)).float() + self.read_score(shown)
        keys, values = [], []
        for block in self.blocks:
            assert isinstance(block, Block)
            key, value = block.remember(x)
            keys.append(key)
            values.append(value)
            x = block(x, key, value, block.bias(points.curve, points.curve, padding))
        return Memory(keys, values, points.curve, padding)

    def forecast(self, memory: Memory, points: Points, own: OwnCurve, max_epochs: Tensor) -> Tensor:
        """Logits over bins for each query: [B, Q, K]."""
        # In float32 from here on, each sum included, even under autocast: scores have three digits.
        x = self.read_place(place_features(points, max_epochs)).float() + self.read_own(
            own_features(own, points.t, max_epochs)
        )
        # A query without a curve shares it with no context token: no bias, a faster attention.
        alone = memory.padding is None and bool((points.curve == NO_CURVE).all())
        for block, key, value in zip(self.blocks, memory.keys, memory.values, strict=True):
            assert isinstance(block, Block)
            bias = None if alone else block.bias(points.curve, memory.curve, memory.padding)
            x = block(x, key, value, bias)
        x = self.norm(x)
        return add_near(self.head(x).float(), self.head_near(x).float(), own.last)


def add_near(logits: Tensor, near: Tensor, last: Tensor) -> Tensor:
    """Add `near` [B, Q, 2W + 1] to the logits of the bins around `last`; into `logits` itself."""
    bins, window = logits.shape[-1], near.shape[-1]
    middle = (last * bins).long().clamp(0, bins - 1).unsqueeze(-1)
    index = middle + torch.arange(-(window // 2), window // 2 + 1, device=last.device)
    outside = (index < 0) | (index >= bins)
    return logits.scatter_add_(-1, index.clamp(0, bins - 1), near.masked_fill(outside, 0.0))


def own_features(own: OwnCurve, t: Tensor, max_epochs: Tensor) -> Tensor:
    """What a query's own curve has shown, and how far ahead the query looks."""
    longest = max_epochs.to(t.dtype).unsqueeze(-1)
    ahead = (t - own.seen).clamp_min(0)
    started = (own.seen > 0).to(t.dtype)
    times = torch.stack([started, own.seen / longest, ahead.log1p() / 5, ahead / longest], -1)
    parts = [
        score_features(own.last),
        score_features(own.best),
        change_features(own.last - own.before),
        change_features(own.last - own.middle),
        change_features(own.last - own.best),
        times,
    ]
    return torch.cat(parts, dim=-1)
