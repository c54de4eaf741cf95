"""A synthetic prior over tuning tasks: random search spaces and believable training runs in them.

A task is a random response from configurations to a handful of curve traits (how good it gets, how
fast, whether it starts at all, whether it diverges …) and a curve family that turns traits into
scores. Grounded on the FT-PFN prior (saturating families mixed per task, quantile-mapped random
networks), with what real tables add: runs that never leave the untrained score, divergence to the
floor, plateaus, late drops, schedule jumps, coarse metrics, noise that shrinks with training.

Everything is sampled in batches on the device of the generator. Axes: B tasks, N configurations,
T epochs. Scores are scaled: [0, 1], higher is better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from freezethaw.pfn.model import COLUMNS

# Curve traits, each a random function of the configuration with a uniform marginal over [0, 1].
ASYMPTOTE, SPEED, SHAPE, START, DIVERGE, DECAY, NOISE, WHEN = range(8)
TRAITS = 8


@dataclass(frozen=True)
class Tasks:
    """A batch of tasks."""

    x: Tensor
    """[B, N, COLUMNS], NaN where inactive."""
    y: Tensor
    """[B, N, T]"""
    initial: Tensor
    """[B]"""
    max_epochs: Tensor
    """[B]"""


class Draws:
    """Random numbers on one device, by the names that the prior is written in."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.device = generator.device

    def uniform(self, *size: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """U(low, high)."""
        return torch.rand(size, generator=self.generator, device=self.device) * (high - low) + low

    def normal(self, *size: int) -> Tensor:
        """N(0, 1)."""
        return torch.randn(size, generator=self.generator, device=self.device)

    def log_normal(self, median: float, spread: float, *size: int) -> Tensor:
        """exp(N(log median, spread))."""
        return (self.normal(*size) * spread).exp() * median

    def chance(self, probability: float, *size: int) -> Tensor:
        """True with that probability."""
        return self.uniform(*size) < probability

    def exponential(self, *size: int) -> Tensor:
        """Exp(1)."""
        return -self.uniform(*size).clamp_min(1e-9).log()


def sample_tasks(generator: torch.Generator, *, tasks: int, configs: int, epochs: int) -> Tasks:
    """Draw a batch of tasks with `configs` configurations each and at most `epochs` epochs."""
    draw = Draws(generator)
    x, latent = sample_configs(draw, tasks, configs)
    traits = sample_traits(draw, latent)
    max_epochs = sample_lengths(draw, tasks, epochs)
    y, initial = sample_curves(draw, traits, max_epochs, epochs)
    return Tasks(x, y, initial, max_epochs)


def sample_lengths(draw: Draws, tasks: int, epochs: int) -> Tensor:
    """T per task: most often about 50 (as in the tables), else log-uniform."""
    low = math.log(2.0)
    any_length = torch.exp(draw.uniform(tasks, low=low, high=math.log(epochs + 0.99))).floor()
    common = torch.full_like(any_length, min(50, epochs)) + draw.chance(0.5, tasks)
    return torch.where(draw.chance(0.6, tasks), common.clamp_max(epochs), any_length)


# ── search spaces ────────────────────────────────────────────────────────────────────────────────


def sample_configs(draw: Draws, tasks: int, configs: int) -> tuple[Tensor, Tensor]:
    """Configurations as the network sees them, and as the response does (inactive = middle)."""
    size = (tasks, configs, COLUMNS)
    x = draw.uniform(*size)
    column = torch.arange(COLUMNS, device=draw.device)
    used = 1 + (draw.uniform(tasks, 1) ** 1.3 * COLUMNS).floor()
    levels = 2 + (draw.exponential(tasks, 1, COLUMNS) * 4).floor()
    stepped = (x * levels).floor() / (levels - 1)
    x = torch.where(draw.chance(0.25, tasks, 1, COLUMNS), stepped.clamp(0, 1), x)
    x = _one_hot_groups(draw, x)
    # A conditional column is inactive where a parent column lies below a threshold.
    parent = (draw.uniform(tasks, 1, COLUMNS) * used.unsqueeze(-1)).long()
    hidden = x.gather(-1, parent.expand(size)) < draw.uniform(tasks, 1, COLUMNS, low=0.2, high=0.8)
    hidden &= draw.chance(0.12, tasks, 1, COLUMNS) & (parent != column)
    hidden |= column >= used.unsqueeze(-1)
    # Which columns are used must not be told by their position.
    order = draw.uniform(tasks, 1, COLUMNS).argsort(-1).expand(size)
    latent = torch.where(hidden, torch.full_like(x, 0.5), x).gather(-1, order)
    return torch.where(hidden, torch.nan, x).gather(-1, order), latent


def _one_hot_groups(draw: Draws, x: Tensor) -> Tensor:
    """In some tasks columns 0..2 and 3..4 are one-hot groups, as small choices are encoded."""
    tasks = x.shape[0]
    for start, stop in ((0, 3), (3, 5)):
        group = x[..., start:stop]
        hot = torch.nn.functional.one_hot(group.argmax(-1), stop - start).to(x.dtype)
        chosen = draw.chance(0.2, tasks, 1, 1)
        x = torch.cat([x[..., :start], torch.where(chosen, hot, group), x[..., stop:]], dim=-1)
    return x


def sample_traits(draw: Draws, x: Tensor) -> Tensor:
    """Random functions of the configuration, correlated: [B, N, TRAITS] in [0, 1]."""
    basis = torch.cat([_bowls(draw, x, 5), _networks(draw, x, 5)], dim=-1)
    basis = (basis - basis.mean(1, keepdim=True)) / basis.std(1, keepdim=True).clamp_min(1e-4)
    tasks, configs, parts = basis.shape
    # Heavy-tailed weights: a trait is mostly one or two basis functions, and traits share them.
    weights = draw.normal(tasks, parts, TRAITS) * draw.exponential(tasks, parts, TRAITS) ** 2
    traits = basis @ weights
    own_noise = draw.normal(tasks, configs, TRAITS) * draw.log_normal(0.02, 1.5, tasks, 1, TRAITS)
    scale = traits.std(1, keepdim=True).clamp_min(1e-4)
    traits = traits / scale + own_noise
    rank = traits.argsort(1).argsort(1).to(x.dtype)
    by_rank = (rank + draw.uniform(tasks, configs, 1)) / configs
    by_scale = torch.special.ndtr((traits - traits.mean(1, keepdim=True)) * 1.2)
    return torch.where(draw.chance(0.6, tasks, 1, 1), by_rank, by_scale).clamp(1e-4, 1 - 1e-4)


def _relevance(draw: Draws, tasks: int, functions: int) -> Tensor:
    """How much each column matters: a few much, most little. [B, COLUMNS, F]."""
    weight = draw.log_normal(1.0, 1.6, tasks, COLUMNS, 1)
    weight = weight * draw.log_normal(1.0, 0.8, tasks, COLUMNS, functions)
    return weight / weight.amax(1, keepdim=True)


def _bowls(draw: Draws, x: Tensor, functions: int) -> Tensor:
    """Separable responses: distance to an optimum, flat near it and linear far away, or a cliff."""
    tasks = x.shape[0]
    best = draw.uniform(tasks, 1, COLUMNS, functions, low=-0.2, high=1.2)
    away = x.unsqueeze(-1) - best
    width = draw.log_normal(0.25, 0.7, tasks, 1, COLUMNS, functions)
    bowl = 1 - (1 + (away / width) ** 2).sqrt()
    cliff = torch.tanh(away / width * draw.normal(tasks, 1, COLUMNS, functions).sign())
    part = torch.where(draw.chance(0.35, tasks, 1, COLUMNS, functions), cliff, bowl)
    return (part * _relevance(draw, tasks, functions).unsqueeze(1)).sum(2)


def _networks(draw: Draws, x: Tensor, functions: int) -> Tensor:
    """Interacting responses: sparse random tanh networks."""
    tasks, width = x.shape[0], 48
    gain = draw.log_normal(1.5, 0.6, tasks, 1, 1)
    first = draw.normal(tasks, COLUMNS, width) * _relevance(draw, tasks, width) * 2
    h = torch.tanh(((x - 0.5) * 2) @ first * gain + draw.normal(tasks, 1, width) * 0.7)
    for _ in range(2):
        keep = draw.chance(0.3, tasks, width, width)
        weight = draw.normal(tasks, width, width) * keep * (gain / math.sqrt(0.3 * width))
        h = torch.tanh(h @ weight + draw.normal(tasks, 1, width) * 0.3)
    return h @ draw.normal(tasks, width, functions)


# ── learning curves ──────────────────────────────────────────────────────────────────────────────


def sample_curves(
    draw: Draws, traits: Tensor, max_epochs: Tensor, epochs: int
) -> tuple[Tensor, Tensor]:
    """Traits → scores [B, N, T] and the mean untrained score [B]."""
    tasks = traits.shape[0]
    t = torch.arange(1, epochs + 1, device=draw.device, dtype=torch.float32).view(1, 1, -1)
    longest = max_epochs.view(-1, 1, 1)
    near_half = 0.36 + 0.04 * draw.normal(tasks)  # σ(−1) rescaled: where normalisation puts it
    anywhere = 0.002 + 0.7 * draw.uniform(tasks) ** 1.5
    initial = torch.where(draw.chance(0.6, tasks), near_half, anywhere).clamp(0.002, 0.9)
    start = initial.view(-1, 1, 1)
    limit = sample_asymptotes(draw, traits[..., ASYMPTOTE], initial).unsqueeze(-1)
    progress = sample_progress(draw, traits, t, longest)
    # Before it learns, a configuration is near the untrained score rather than at it.
    unlike = draw.log_normal(0.008, 1.2, tasks, 1, 1) * draw.chance(0.6, tasks, 1, 1)
    own_start = (start + unlike * draw.normal(tasks, traits.shape[1], 1)).clamp(0, 1)
    y = own_start + (limit - own_start) * progress
    y = y - sample_decay(draw, traits, t, longest) * (y - start * 0.5).clamp_min(0)
    y = y + sample_noise(draw, traits, t, longest) * (0.15 + progress.clamp(0, 1))
    y = _stick_at_start(draw, traits, y, start)
    y = _dip_early(draw, traits, y, t)
    y = _spike(draw, traits, y)
    y = _break_down(draw, traits, y, start, t, longest)
    return _coarsen(draw, y.clamp(0, 1)), initial


def sample_asymptotes(draw: Draws, trait: Tensor, initial: Tensor) -> Tensor:
    """How good a run would get, from its quantile: skewed either way, sometimes below the start."""
    tasks = trait.shape[0]
    start = initial.unsqueeze(-1)
    top = start + (0.985 - start) * draw.uniform(tasks, 1) ** 0.45
    worst = start - start * draw.uniform(tasks, 1) * draw.chance(0.25, tasks, 1)
    skew = draw.log_normal(1.0, 0.9, tasks, 1)
    straight = trait**skew
    bent = 1 - (1 - trait) ** (1 + skew * 2)  # many good, a few bad
    share = torch.where(draw.chance(0.5, tasks, 1), straight, bent)
    # Two kinds of runs (a feature is found or not) in some tasks.
    step = torch.sigmoid((share - draw.uniform(tasks, 1)) * 25)
    share = torch.where(draw.chance(0.2, tasks, 1), 0.4 * share + 0.6 * step, share)
    return worst + (top - worst) * share


def sample_progress(draw: Draws, traits: Tensor, t: Tensor, longest: Tensor) -> Tensor:
    """The share of the gain that is made by epoch t: a mix of four saturating families."""
    tasks = traits.shape[0]
    # Learning rates over many decades: the slowest runs of some tasks would need 1,000 times T.
    slowest = -1 + 4 * draw.uniform(tasks, 1) ** 1.5
    fastest = slowest - draw.uniform(tasks, 1, low=0.2, high=4.0)
    log_scale = slowest + (fastest - slowest) * traits[..., SPEED]
    scale = (longest.squeeze(-1) * torch.exp(log_scale * math.log(10.0))).clamp_min(0.03)
    scale = scale.unsqueeze(-1)  # epochs in which most of the gain is made
    center = draw.normal(tasks, 1, 1) * 0.35
    power = torch.exp(center + (traits[..., SHAPE].unsqueeze(-1) - 0.5) * draw.uniform(tasks, 1, 1))
    delay = _delay(draw, traits, longest)
    u = (t - delay).clamp_min(0) / scale
    families = torch.stack(
        [
            1 - (1 + u) ** -power,
            1 - torch.exp(-(u**power)),
            1 - math.log(2.0) / torch.log(2 + u**power),
            u**power / (1 + u**power),
        ],
        dim=-1,
    )
    mix = draw.exponential(tasks, 1, 1, 4) ** 2
    progress = (families * (mix / mix.sum(-1, keepdim=True))).sum(-1)
    return progress + _schedule_jumps(draw, progress, t, longest)


def _delay(draw: Draws, traits: Tensor, longest: Tensor) -> Tensor:
    """Plateaus before take-off, in some tasks, for some configurations."""
    tasks = traits.shape[0]
    share = (traits[..., WHEN].unsqueeze(-1) - 0.6).clamp_min(0) * 2.5 * draw.uniform(tasks, 1, 1)
    return share * longest * draw.chance(0.2, tasks, 1, 1)


def _schedule_jumps(draw: Draws, progress: Tensor, t: Tensor, longest: Tensor) -> Tensor:
    """A drop of the learning rate halves what is left of the way, in some tasks."""
    tasks = progress.shape[0]
    when = draw.uniform(tasks, 1, 1, low=0.3, high=0.9) * longest
    jump = draw.uniform(tasks, 1, 1, high=0.6) * draw.chance(0.12, tasks, 1, 1)
    return torch.where(t >= when, jump * (1 - progress), 0.0)


def sample_decay(draw: Draws, traits: Tensor, t: Tensor, longest: Tensor) -> Tensor:
    """The share of the score above the start that overfitting takes back by epoch t."""
    tasks = traits.shape[0]
    some = draw.chance(0.45, tasks, 1, 1)
    threshold = draw.uniform(tasks, 1, 1)
    strength = (traits[..., DECAY].unsqueeze(-1) - threshold).clamp_min(0)
    strength = strength * draw.log_normal(0.15, 1.0, tasks, 1, 1) * some
    onset = (1 - traits[..., SPEED].unsqueeze(-1)) * draw.uniform(tasks, 1, 1, high=0.8)
    late = (t / longest - onset).clamp_min(0)
    return (strength * late ** draw.log_normal(1.0, 0.3, tasks, 1, 1)).clamp_max(0.9)


def sample_noise(draw: Draws, traits: Tensor, t: Tensor, longest: Tensor) -> Tensor:
    """Epoch-to-epoch noise and a slow drift; the scale differs by task, configuration and epoch."""
    tasks, configs = traits.shape[:2]
    epochs = t.shape[-1]
    level = draw.log_normal(0.0012, 1.7, tasks, 1, 1).clamp(1e-5, 0.1)
    unevenness = draw.uniform(tasks, 1, 1, high=6.0)
    level = level * torch.exp((traits[..., NOISE].unsqueeze(-1) - 0.5) * unevenness)
    shrink = (1 + t) ** -draw.uniform(tasks, 1, 1, high=1.0)
    white = draw.normal(tasks, configs, epochs)
    tail = draw.chance(0.03, tasks, configs, epochs) * draw.chance(0.4, tasks, 1, 1)
    white = white * (1 + 4 * tail)
    drift = draw.normal(tasks, configs, epochs).cumsum(-1) / longest.sqrt()
    share = draw.uniform(tasks, 1, 1) ** 2
    return (level * (white * shrink * (1 - share) + drift * share)).clamp(-0.4, 0.4)


def _stick_at_start(draw: Draws, traits: Tensor, y: Tensor, start: Tensor) -> Tensor:
    """Runs that never learn: they stay at (or very near) the untrained score."""
    tasks = y.shape[0]
    share = 0.9 * draw.uniform(tasks, 1, 1) ** 1.5 * draw.chance(0.45, tasks, 1, 1)
    stuck = traits[..., START].unsqueeze(-1) < share
    tremble = draw.log_normal(3e-4, 1.5, tasks, 1, 1) * draw.normal(*y.shape)
    shared = draw.log_normal(2e-3, 1.3, tasks, 1, 1) * draw.normal(tasks, 1, 1)
    offset = draw.log_normal(1e-3, 1.5, tasks, 1, 1) * draw.normal(tasks, y.shape[1], 1)
    still = start + (shared + offset + tremble).clamp(-0.1, 0.1)
    return torch.where(stuck, still, y)


def _dip_early(draw: Draws, traits: Tensor, y: Tensor, t: Tensor) -> Tensor:
    """Large first steps that are undone again, next to the configurations that diverge for good."""
    tasks, configs, _ = y.shape
    share = draw.uniform(tasks, 1, 1, high=0.6) * draw.chance(0.45, tasks, 1, 1)
    dips = traits[..., DIVERGE].unsqueeze(-1) > 1 - share
    depth = draw.log_normal(0.3, 1.2, tasks, 1, 1) * draw.log_normal(1.0, 1.0, tasks, configs, 1)
    lasting = draw.log_normal(1.5, 1.0, tasks, 1, 1) * draw.log_normal(1.0, 0.8, tasks, configs, 1)
    dip = (depth * torch.exp(-(t - 1) / lasting)).clamp_max(1.0)
    return torch.where(dips, y * (1 - dip), y)


def _spike(draw: Draws, traits: Tensor, y: Tensor) -> Tensor:
    """Single bad epochs in mid-course, of unstable configurations in some tasks."""
    tasks, configs, epochs = y.shape
    rate = draw.log_normal(0.03, 1.0, tasks, 1, 1) * draw.chance(0.25, tasks, 1, 1)
    unstable = traits[..., NOISE].unsqueeze(-1) > draw.uniform(tasks, 1, 1, low=0.3, high=1.0)
    hit = (draw.uniform(tasks, configs, epochs) < rate) & unstable
    fall = hit * draw.uniform(tasks, configs, epochs) ** 2
    fading = draw.uniform(tasks, 1, 1, high=0.6)
    for _ in range(2):
        later = torch.nn.functional.pad(fall[..., :-1], (1, 0))
        fall = torch.maximum(fall, fading * later)
    return y * (1 - fall)


def _break_down(
    draw: Draws, traits: Tensor, y: Tensor, start: Tensor, t: Tensor, longest: Tensor
) -> Tensor:
    """Runs that diverge, at once or later: to the floor, back to the start, or some low score."""
    tasks, configs, _ = y.shape
    share = draw.uniform(tasks, 1, 1, high=0.5) * draw.chance(0.4, tasks, 1, 1)
    broken = traits[..., DIVERGE].unsqueeze(-1) > 1 - share
    early = draw.chance(0.6, tasks, configs, 1)
    when = 1 + draw.uniform(tasks, configs, 1) ** torch.where(early, 8.0, 1.0) * longest
    broken = (broken | draw.chance(0.004, tasks, configs, 1)) & (t >= when)
    kind = draw.uniform(tasks, 1, 1)
    low = start * draw.uniform(tasks, configs, 1)
    floor = torch.where(kind < 0.6, 0.0 * start, torch.where(kind < 0.8, start, low))
    return torch.where(broken, floor, y)


def _coarsen(draw: Draws, y: Tensor) -> Tensor:
    """Metrics counted on a small validation set take few values."""
    tasks = y.shape[0]
    steps = draw.log_normal(400.0, 1.2, tasks, 1, 1).clamp_min(20)
    return torch.where(draw.chance(0.25, tasks, 1, 1), (y * steps).round() / steps, y)
