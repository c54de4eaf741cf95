"""Tasks → what the network is trained on: contexts shaped as tuning makes them, and queries.

A context is a set of curve prefixes: a few long ones, many short, the long ones more often good
(that is what a tuner would have trained on). Queries ask for the future of those curves and for
configurations never started.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from freezethaw.pfn.model import INITIAL_CURVE, NO_CURVE, OwnCurve, Points, Scores
from freezethaw.pfn.prior import Draws, Tasks


@dataclass(frozen=True)
class Episode:
    """One training batch: B tasks with C context tokens and Q queries each."""

    points: Points
    scores: Scores
    padding: Tensor
    queries: Points
    own: OwnCurve
    target: Tensor
    max_epochs: Tensor


def make_episode(tasks: Tasks, draw: Draws, *, context: int, queries: int) -> Episode:
    """Cut a batch of tasks into context and queries."""
    lengths = sample_prefixes(tasks, draw, context)
    points, scores, padding = _context_tokens(tasks, lengths, draw, context)
    config, epoch, known = _pick_queries(tasks, lengths, draw, queries)
    asked, own, target = _query_tokens(tasks, config, epoch, known)
    return Episode(points, scores, padding, asked, own, target, tasks.max_epochs)


def sample_prefixes(tasks: Tasks, draw: Draws, context: int) -> Tensor:
    """How many epochs of each curve are in the context: [B, N], 0 for those never started."""
    batch, configs = tasks.x.shape[:2]
    # Total points uniform or log-uniform: a study's first decisions matter as much as its last.
    early = torch.exp(draw.uniform(batch, 1, high=math.log(context)))
    anywhere = draw.uniform(batch, 1, low=1.0, high=context)
    points = torch.where(draw.chance(0.5, batch, 1), early, anywhere).floor()
    points = points * ~draw.chance(0.03, batch, 1)
    most = points.clamp(1, 0.75 * configs)
    started = torch.exp(draw.uniform(batch, 1) * most.log()).ceil()
    last = tasks.max_epochs.long().clamp_min(1) - 1
    final = tasks.y.gather(-1, last.view(-1, 1, 1).expand(batch, configs, 1)).squeeze(-1)
    quality = final.argsort(-1).argsort(-1) / configs
    # Only the first `started` rows are in the context; rows are exchangeable.
    row = torch.arange(configs, device=draw.device)
    inside = row < started
    evenness = draw.log_normal(1.0, 1.2, batch, 1)
    weight = draw.exponential(batch, configs) ** (1 / evenness).clamp_max(6)
    weight = weight * torch.exp(quality * draw.uniform(batch, 1, high=5.0)) * inside
    length = (points * weight / weight.sum(-1, keepdim=True).clamp_min(1e-9)).floor() + inside
    length = torch.minimum(length, tasks.max_epochs.unsqueeze(-1)) * (points > 0)
    room = (context - 1 - (length.cumsum(-1) - length)).clamp_min(0)
    return torch.minimum(length, room).long()


def _context_tokens(
    tasks: Tasks, lengths: Tensor, draw: Draws, context: int
) -> tuple[Points, Scores, Tensor]:
    """Gather observed points into [B, context] tokens; the first is the 0-epoch token."""
    batch, _, epochs = tasks.y.shape
    epoch = torch.arange(1, epochs + 1, device=draw.device)
    seen = lengths.unsqueeze(-1)
    # Some contexts are thinned, as long ones are: first and last points stay.
    share = draw.uniform(batch, 1, 1, high=0.8) * draw.chance(0.2, batch, 1, 1)
    thinned = (draw.uniform(*tasks.y.shape) < share) & (epoch > 1) & (epoch < seen)
    observed = ((epoch <= seen) & ~thinned).flatten(1)  # [B, N·T]
    first = torch.argsort(~observed, dim=-1, stable=True)[:, : context - 1]
    config, at = first // epochs, first % epochs
    x = tasks.x.gather(1, config.unsqueeze(-1).expand(-1, -1, tasks.x.shape[-1]))
    before = torch.cat([_start_of(tasks), tasks.y[..., :-1]], dim=-1)
    y = tasks.y.flatten(1).gather(1, first)
    step = y - before.flatten(1).gather(1, first)
    padding = ~observed.gather(1, first)
    nothing = torch.full_like(x[:, :1], torch.nan)
    zero = torch.zeros_like(config[:, :1])
    points = Points(
        x=torch.cat([nothing, x], 1),
        t=torch.cat([zero, at + 1], 1).to(torch.float32),
        curve=torch.cat([zero + INITIAL_CURVE, config], 1),
    )
    start = tasks.initial.unsqueeze(-1)
    scores = Scores(torch.cat([start, y], 1), torch.cat([torch.zeros_like(start), step], 1))
    padding = torch.cat([zero.bool(), padding], 1)
    return points, scores, padding


def _start_of(tasks: Tasks) -> Tensor:
    """The untrained score as every curve's epoch 0: [B, N, 1]."""
    return tasks.initial.view(-1, 1, 1).expand(-1, tasks.y.shape[1], 1)


def _pick_queries(
    tasks: Tasks, lengths: Tensor, draw: Draws, queries: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Which configuration and epoch each query asks for, and how much of its curve is known."""
    batch = len(lengths)
    started = (lengths > 0) & (lengths < tasks.max_epochs.unsqueeze(-1))
    going_on = 0.5 * started / started.sum(-1, keepdim=True).clamp_min(1)
    fresh = lengths == 0
    fresh_share = 0.5 * fresh / fresh.sum(-1, keepdim=True).clamp_min(1)
    weight = going_on + fresh_share
    config = torch.multinomial(weight, queries, replacement=True, generator=draw.generator)
    known = lengths.gather(1, config)
    left = tasks.max_epochs.unsqueeze(-1) - known
    ahead = (draw.uniform(batch, queries) ** 1.5 * left).floor() + 1
    return config, torch.minimum(known + ahead, tasks.max_epochs.unsqueeze(-1)).long(), known


def _query_tokens(
    tasks: Tasks, config: Tensor, epoch: Tensor, known: Tensor
) -> tuple[Points, OwnCurve, Tensor]:
    y = torch.cat([_start_of(tasks), tasks.y], dim=-1)  # [B, N, T + 1]
    best_by = torch.cat([_start_of(tasks), tasks.y.cummax(-1).values], dim=-1).flatten(1)
    row, flat = config * y.shape[-1], y.flatten(1)
    own = OwnCurve(
        seen=known.to(torch.float32),
        last=flat.gather(1, row + known),
        before=flat.gather(1, row + (known - 1).clamp_min(0)),
        middle=flat.gather(1, row + known // 2),
        best=best_by.gather(1, row + known),
    )
    x = tasks.x.gather(1, config.unsqueeze(-1).expand(-1, -1, tasks.x.shape[-1]))
    curve = torch.where(known > 0, config, torch.full_like(config, NO_CURVE))
    return Points(x, epoch.to(torch.float32), curve), own, flat.gather(1, row + epoch)
