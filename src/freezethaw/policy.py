"""One step of the paper's Algorithm 1 as a pure function: look at the history, then run or stop."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from freezethaw.acquisition import (
    Acquisition,
    Comonotone,
    Coupling,
    Prospects,
    acquire,
    chances,
)
from freezethaw.candidates import Candidates
from freezethaw.cost import Costs, predict_costs
from freezethaw.events import Problem
from freezethaw.extrapolator import UNSEEN, Context, Extrapolator, Posterior, Queries
from freezethaw.records import Decision, Fan, History, Leader, Stop, StopReason
from freezethaw.sentences import stop_sentence
from freezethaw.stopping import Outlook, Rule, adaptive

EVERY_EPOCH_UP_TO = 64
"""Longer curves are asked for at so many epochs, spread evenly, and at each trial's next."""
LEADERS = 5
FAN_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
EPOCHS_GUESSED = 6
"""Before any cost is known, an epoch is taken to cost the budget / (6 T), as in the paper's B."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    """Everything a decision needs that does not change while a study runs."""

    problem: Problem
    extrapolator: Extrapolator
    rule: Rule = field(default_factory=adaptive)
    coupling: Coupling = field(default_factory=Comonotone)
    max_failures: int = 3

    def decide(self, history: History, candidates: Candidates) -> Decision:
        """Train the candidate with the largest expected gain (Eq. 4), or stop (Eqs. 5–7)."""
        standing = _standing(self.problem, history)
        early = self._stop_early(history, candidates, standing)
        if early is not None:
            return early
        first = self._unstarted_first(history, candidates)
        if first is not None:
            return self._run(history, candidates, standing, first, leaders=())
        look = _look(self, history, candidates, standing)
        gains = look.acquisition.gain
        seen = look.prospects.epochs_seen
        # Ties: more epochs seen first, then the lower id.
        order = np.lexsort((np.array(candidates.ids), -seen, -gains))
        leaders = _leaders(self, look, candidates, order[:LEADERS])
        chosen, chance = int(order[0]), leaders[0].chance
        outlook = Outlook(regret=standing.regret, chance=chance)
        standing = replace(standing, threshold=self.rule.threshold(outlook))
        kind = self._verdict(history, standing, outlook, float(gains[chosen]))
        if kind is None:
            return self._run(history, candidates, standing, chosen, leaders, look.costs)
        fans = _fans(self, look, history, candidates)
        reason = stop_sentence(
            kind, history.spent, self.problem.utility.budget, self.problem.utility.unit, chance
        )
        stop = Stop(kind=kind, reason=reason)
        return replace(standing.decision(), stop=stop, leaders=leaders, fans=fans)

    def _stop_early(
        self, history: History, candidates: Candidates, standing: _Standing
    ) -> Decision | None:
        """What ends a study without a look into the future."""
        utility = self.problem.utility
        kind = None
        if self.max_failures <= history.failures_in_a_row:
            kind = StopReason.FAILURES
        elif history.spent >= utility.budget * (1 - 1e-9):
            kind = StopReason.BUDGET_SPENT
        elif not _free(history, candidates).any():
            kind = StopReason.NO_CANDIDATES
        if kind is None:
            return None
        reason = stop_sentence(
            kind, history.spent, utility.budget, utility.unit, failures=history.failures_in_a_row
        )
        return replace(standing.decision(), stop=Stop(kind=kind, reason=reason))

    def _unstarted_first(self, history: History, candidates: Candidates) -> int | None:
        """In an open study, configurations given by the user come before any choice."""
        if self.problem.pool_size is None:
            return None
        for trial_id in range(len(self.problem.configurations)):
            if trial_id not in history.curves and trial_id in candidates.ids:
                return candidates.index_of(trial_id)
        return None

    def _verdict(
        self, history: History, standing: _Standing, outlook: Outlook, gain: float
    ) -> StopReason | None:
        """Whether to stop after looking. Nothing stops before the first score."""
        if not history.path:
            return None
        if gain < 0:
            return StopReason.BUDGET_SPENT
        hopeless = Outlook(regret=1.0, chance=0.0)
        if gain == 0 and self.rule(hopeless):  # `never` goes on even then
            flat = standing.utility_max <= standing.utility_min
            return StopReason.NOTHING_AT_STAKE if flat else StopReason.NO_GAIN
        return StopReason.NOT_WORTH_IT if self.rule(outlook) else None

    def _run(
        self,
        history: History,
        candidates: Candidates,
        standing: _Standing,
        row: int,
        leaders: tuple[Leader, ...],
        costs: Costs | None = None,
    ) -> Decision:
        """Train this candidate for as many epochs as a decision covers and the budget allows."""
        trial_id = candidates.ids[row]
        curve = history.curves.get(trial_id)
        seen = curve.epochs if curve else 0
        pace = history.epochs_per_decision or 1
        if costs is not None:
            left = self.problem.utility.budget * (1 + 1e-9) - history.spent
            per_epoch = float(costs.per_epoch[row])
            pace = min(pace, int(left / per_epoch) - int(costs.replay_epochs[row]))
        return replace(
            standing.decision(),
            trial_id=trial_id,
            params=candidates.params[row],
            from_epoch=seen,
            to_epoch=min(seen + max(1, pace), self.problem.max_epochs),
            leaders=leaders,
        )


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """Where the study stands: utility now, best and worst, and the estimated regret (Eq. 5)."""

    utility_now: float
    utility_max: float
    utility_min: float
    regret: float
    threshold: float = float("nan")

    def decision(self) -> Decision:
        """A decision with these numbers and nothing decided yet."""
        return Decision(
            trial_id=None,
            utility_now=self.utility_now,
            utility_max=self.utility_max,
            utility_min=self.utility_min,
            regret=self.regret,
            threshold=self.threshold,
        )


def _standing(problem: Problem, history: History) -> _Standing:
    utility = problem.utility
    if not history.path:
        start = float(utility(history.spent, problem.scale.for_utility(problem.initial)))
        return _Standing(utility_now=start, utility_max=start, utility_min=start, regret=0.0)
    path = np.array([(point.spent, point.best) for point in history.path])
    now = float(utility(history.spent, path[-1, 1]))
    highest = max(now, float(np.max(utility(path[:, 0], path[:, 1]))))
    lowest = float(utility(utility.budget, path[0, 1]))
    return _Standing(
        utility_now=now,
        utility_max=highest,
        utility_min=lowest,
        regret=estimated_regret(now, highest, lowest),
    )


def estimated_regret(now: float, highest: float, lowest: float) -> float:
    """R̂_b = (Û_max − U_p) / (Û_max − Û_min), Eq. 5; 0 where nothing has been lost."""
    if now >= highest:
        return 0.0
    if np.isneginf(now):
        return 1.0
    if np.isneginf(lowest):
        return 0.0
    # Utility can only fall to Û_min by spending everything, but a custom one may start below it.
    return (highest - now) / (highest - lowest) if highest > lowest else 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class _Look:
    """One look into the future: what was asked, and what came of it."""

    posterior: Posterior
    prospects: Prospects
    acquisition: Acquisition
    costs: Costs


def _look(policy: Policy, history: History, candidates: Candidates, standing: _Standing) -> _Look:
    problem = policy.problem
    context, rows = _context(problem, history)
    costs = predict_costs(
        history,
        candidates.ids,
        candidates.encoded,
        seen=problem.space.encode_all([curve.params for curve in history.curves.values()])
        if history.curves
        else np.empty((0, problem.space.width)),
        unit=problem.utility.unit,
        rate=problem.utility.rate,
        unknown=problem.utility.budget / (EPOCHS_GUESSED * problem.max_epochs),
    )
    seen = np.array([_epochs_seen(history, trial_id) for trial_id in candidates.ids], np.int64)
    curve = np.array([rows.get(trial_id, UNSEEN) for trial_id in candidates.ids], np.int64)
    epochs = query_epochs(problem.max_epochs, seen)
    prospects = Prospects(
        queries=Queries(configs=candidates.encoded, curve=curve, epochs=epochs),
        epochs_seen=np.where(_free(history, candidates), seen, problem.max_epochs),
        cost=costs.to_reach(seen, epochs),
        spent=history.spent + _pending_cost(history, candidates, costs),
        best=float(problem.scale.to_unit(_reference(problem, history))),
        utility=_scaled_utility(problem),
        utility_now=standing.utility_now,
    )
    posterior = policy.extrapolator.condition(context)
    generator = _generator(problem.seed, history.decisions)
    acquisition = acquire(posterior, prospects, policy.coupling, generator)
    return _Look(posterior=posterior, prospects=prospects, acquisition=acquisition, costs=costs)


def _context(problem: Problem, history: History) -> tuple[Context, dict[int, int]]:
    """The curves with at least one score, scaled, and the row of each trial among them."""
    curves = [curve for curve in history.curves.values() if curve.scores]
    scores = np.full((len(curves), problem.max_epochs), np.nan)
    for row, curve in enumerate(curves):
        scores[row, : curve.epochs] = problem.scale.to_unit(np.array(curve.scores))
    configs = (
        problem.space.encode_all([curve.params for curve in curves])
        if curves
        else np.empty((0, problem.space.width))
    )
    context = Context(
        configs=configs,
        scores=scores,
        epochs_seen=np.array([curve.epochs for curve in curves], np.int64),
        initial=float(problem.scale.to_unit(problem.initial)),
        max_epochs=problem.max_epochs,
    )
    return context, {curve.trial_id: row for row, curve in enumerate(curves)}


def query_epochs(max_epochs: int, seen: NDArray[np.int64]) -> NDArray[np.int64]:
    """The target epochs that are looked at: all of them, or a spread over a long curve."""
    if max_epochs <= EVERY_EPOCH_UP_TO:
        return np.arange(1, max_epochs + 1)
    spread = np.linspace(1, max_epochs, EVERY_EPOCH_UP_TO).round().astype(np.int64)
    following = np.minimum(np.unique(seen) + 1, max_epochs)
    return np.unique(np.concatenate([spread, following]))


def _epochs_seen(history: History, trial_id: int) -> int:
    curve = history.curves.get(trial_id)
    return curve.epochs if curve else 0


def _free(history: History, candidates: Candidates) -> NDArray[np.bool_]:
    """Candidates that no pending step holds."""
    held = {step.trial_id for step in history.pending.values()}
    return np.array([trial_id not in held for trial_id in candidates.ids], bool)


def _pending_cost(history: History, candidates: Candidates, costs: Costs) -> float:
    """Steps handed out and not finished count as spent, at their predicted cost."""
    per_epoch = dict(zip(candidates.ids, costs.per_epoch, strict=True))
    return float(
        sum(
            (step.to_epoch - history.curves[step.trial_id].epochs) * per_epoch[step.trial_id]
            for step in history.pending.values()
            if step.trial_id in per_epoch
        )
    )


def _reference(problem: Problem, history: History) -> float:
    """ỹ_b in the user's units; the untrained score before anything was seen."""
    best = history.best_score
    return problem.initial if best is None else best


class _scaled_utility:  # noqa: N801 (a closure with a name in tracebacks)
    """(spent, scaled best) → utility, through the scale."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def __call__(
        self, spent: NDArray[np.float64], best: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        scale = self.problem.scale
        raw = scale.for_utility(scale.to_raw(best))
        return np.asarray(self.problem.utility(spent, raw))


def _generator(seed: int, decisions: int) -> torch.Generator:
    """The decision's own random stream: repeated when a study is resumed."""
    return torch.Generator().manual_seed((seed * 1_000_003 + decisions) % 2**63)


def _leaders(
    policy: Policy, look: _Look, candidates: Candidates, rows: NDArray[np.int64]
) -> tuple[Leader, ...]:
    generator = _generator(policy.problem.seed, -1)
    chance = chances(look.posterior, look.prospects, rows, policy.coupling, generator)
    epochs = look.prospects.queries.epochs
    return tuple(
        Leader(
            trial_id=candidates.ids[row],
            params=candidates.params[row],
            epochs_seen=int(look.prospects.epochs_seen[row]),
            target_epoch=int(epochs[look.acquisition.target[row]]),
            gain=float(look.acquisition.gain[row]),
            chance=float(chance[place]),
            cost=float(look.prospects.cost[row, look.acquisition.target[row]]),
        )
        for place, row in enumerate(rows)
        if look.acquisition.gain[row] >= 0
    )


def _fans(policy: Policy, look: _Look, history: History, candidates: Candidates) -> tuple[Fan, ...]:
    """Forecasts of the most promising started trials, for the report."""
    scale = policy.problem.scale
    gain = look.acquisition.gain
    started = [r for r in range(len(candidates.ids)) if look.prospects.queries.curve[r] >= 0]
    rows = sorted(started, key=lambda r: (-gain[r], candidates.ids[r]))[:LEADERS]
    best = history.best_trial_id
    if best is not None and best in candidates.ids and candidates.index_of(best) not in rows:
        rows.append(candidates.index_of(best))
    if not rows:
        return ()
    queries = look.prospects.queries
    asked = Queries(configs=queries.configs[rows], curve=queries.curve[rows], epochs=queries.epochs)
    levels = torch.tensor(FAN_LEVELS, dtype=torch.float64)
    quantiles = look.posterior.forecast(asked).quantile(levels).double().cpu().numpy()
    fans = []
    for place, row in enumerate(rows):
        ahead = queries.epochs > _epochs_seen(history, candidates.ids[row])
        scores = np.asarray(scale.to_raw(quantiles[place][ahead]))
        fans.append(
            Fan(
                trial_id=candidates.ids[row],
                epochs=tuple(int(epoch) for epoch in queries.epochs[ahead]),
                levels=FAN_LEVELS,
                scores=tuple(tuple(float(v) for v in level) for level in scores.T),
            )
        )
    return tuple(fans)
