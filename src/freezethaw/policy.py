"""One step of the paper's Algorithm 1 as a pure function: look at the history, then run or stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
from freezethaw.records import Curve, Decision, Fan, History, Leader, Stop, StopReason
from freezethaw.sentences import stop_sentence
from freezethaw.stopping import Outlook, Rule, adaptive
from freezethaw.utility import SLACK

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
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            return self._decide(history, candidates)

    def _decide(self, history: History, candidates: Candidates) -> Decision:
        early = self._stop_early(history, candidates)
        if early is not None:
            return early
        ground = _survey(self.problem, history, candidates)
        standing = _standing(self.problem, history, ground.spent)
        first = self._unstarted_first(history, candidates, ground)
        if first is not None:
            return self._run(history, candidates, standing, first, ground, leaders=())
        look = _look(self, history, standing, ground)
        gains = look.acquisition.gain
        seen = look.prospects.epochs_seen
        # Ties: more epochs seen first, then the lower id.
        order = np.lexsort((np.array(candidates.ids), -seen, -gains))
        leaders = _leaders(self, look, candidates, order[:LEADERS])
        chosen, chance = int(order[0]), leaders[0].chance if leaders else 0.0
        outlook = Outlook(regret=standing.regret, chance=chance)
        if leaders:
            standing = replace(standing, threshold=self.rule.threshold(outlook))
        kind = self._verdict(history, standing, outlook, float(gains[chosen]))
        if kind is None:
            return self._run(history, candidates, standing, chosen, ground, leaders)
        decision = replace(standing.decision(), leaders=leaders)
        reason = stop_sentence(
            kind,
            history.spent,
            self.problem.utility.budget,
            self.problem.utility.unit,
            decision=decision,
        )
        if kind is StopReason.NO_GAIN:
            reason += _beyond(self.problem, history)
        stop = Stop(kind=kind, reason=reason)
        fans = _fans(self.problem, look, ground, history, candidates)
        return replace(decision, stop=stop, fans=fans)

    def _stop_early(self, history: History, candidates: Candidates) -> Decision | None:
        """What ends a study without a look into the future."""
        utility = self.problem.utility
        if self.max_failures <= history.failures_in_a_row:
            kind = StopReason.FAILURES
        elif not set(candidates.ids) <= _held(history):
            return None
        elif history.spent >= utility.budget * (2 - SLACK):
            kind = StopReason.BUDGET_SPENT
        else:
            kind = StopReason.NO_CANDIDATES
        reason = stop_sentence(
            kind,
            history.spent,
            utility.budget,
            utility.unit,
            failures=history.failures_in_a_row,
            first_failure=history.first_failure,
        )
        standing = _standing(self.problem, history, history.spent)
        return replace(standing.decision(), stop=Stop(kind=kind, reason=reason))

    def _unstarted_first(
        self, history: History, candidates: Candidates, ground: _Ground
    ) -> int | None:
        """In an open study, configurations given by the user come before any choice."""
        if self.problem.pool_size is None:
            return None
        for trial_id in range(len(self.problem.configurations)):
            if trial_id not in history.curves and trial_id in candidates:
                row = candidates.index_of(trial_id)
                return row if ground.can_run[row] else None
        return None

    def _verdict(
        self, history: History, standing: _Standing, outlook: Outlook, gain: float
    ) -> StopReason | None:
        """Whether to stop after looking. Nothing stops before the first score."""
        if gain < 0 and (history.spent > 0 or history.pending):
            return StopReason.BUDGET_SPENT  # what is left pays no candidate's next epoch
        if not history.path:
            return None
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
        ground: _Ground,
        leaders: tuple[Leader, ...],
    ) -> Decision:
        """Train this candidate for as many epochs as a decision covers and the budget allows.

        Less, down to half of them, where the epoch for which it was chosen comes before: what
        follows has no gain of its own.
        """
        seen = int(ground.epochs_seen[row])
        left = self.problem.utility.budget * SLACK - ground.spent
        pace = history.epochs_per_decision or 1
        if leaders and leaders[0].gain > 0:
            pace = min(pace, max(leaders[0].target_epoch - seen, math.ceil(pace / 2)))
        pace = max(1, min(pace, ground.costs.epochs_for(row, left)))
        return replace(
            standing.decision(),
            trial_id=candidates.ids[row],
            params=candidates.params[row],
            from_epoch=seen,
            to_epoch=min(seen + pace, self.problem.max_epochs),
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


def _standing(problem: Problem, history: History, spent: float) -> _Standing:
    """Once so much has been spent; steps that are pending count, as they cannot be taken back."""
    utility = problem.utility
    if not history.path:
        start = float(utility(spent, problem.scale.for_utility(problem.initial)))
        return _Standing(utility_now=start, utility_max=start, utility_min=start, regret=0.0)
    path = np.array([(point.spent, point.best) for point in history.path])
    now = float(utility(spent, path[-1, 1]))
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
class _Ground:
    """What is known before any look into the future."""

    context: Context
    queries: Queries
    epochs_seen: NDArray[np.int64]
    """[candidate]"""
    costs: Costs
    spent: float
    """With what the pending steps are predicted to cost."""
    can_run: NDArray[np.bool_]
    """[candidate]: no pending step holds it, and what is left pays for its next epoch."""


def _survey(problem: Problem, history: History, candidates: Candidates) -> _Ground:
    started = list(history.curves.values())
    encoded = problem.space.encode_all([curve.params for curve in started])
    costs = predict_costs(
        history,
        candidates.ids,
        candidates.encoded,
        seen=encoded,
        unit=problem.utility.unit,
        rate=problem.utility.rate,
        unknown=problem.utility.budget / (EPOCHS_GUESSED * problem.max_epochs),
    )
    shown = [row for row, curve in enumerate(started) if curve.scores]
    place = {started[row].trial_id: place for place, row in enumerate(shown)}
    seen = np.array([_epochs_seen(history, trial_id) for trial_id in candidates.ids], np.int64)
    held = _held(history)
    free = np.array([trial_id not in held for trial_id in candidates.ids], bool)
    spent = history.spent + _pending_cost(history, candidates, costs)
    return _Ground(
        context=_context(problem, [started[row] for row in shown], encoded[shown]),
        queries=Queries(
            configs=candidates.encoded,
            curve=np.array([place.get(i, UNSEEN) for i in candidates.ids], np.int64),
            epochs=query_epochs(problem.max_epochs, seen),
        ),
        epochs_seen=seen,
        costs=costs,
        spent=spent,
        can_run=free & (spent + costs.of_next_epoch() <= problem.utility.budget * SLACK),
    )


def _context(problem: Problem, curves: Sequence[Curve], encoded: NDArray[np.float64]) -> Context:
    """Curves with at least one score, scaled."""
    scores = np.full((len(curves), problem.max_epochs), np.nan)
    for row, curve in enumerate(curves):
        scores[row, : curve.epochs] = problem.scale.to_unit(np.array(curve.scores))
    return Context(
        configs=encoded,
        scores=scores,
        epochs_seen=np.array([curve.epochs for curve in curves], np.int64),
        initial=float(problem.scale.to_unit(problem.initial)),
        max_epochs=problem.max_epochs,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Look:
    """One look into the future: what was asked, and what came of it."""

    posterior: Posterior
    prospects: Prospects
    acquisition: Acquisition
    generator: torch.Generator


def _look(policy: Policy, history: History, standing: _Standing, ground: _Ground) -> _Look:
    problem = policy.problem
    prospects = Prospects(
        queries=ground.queries,
        # What cannot be run has nothing ahead of it.
        epochs_seen=np.where(ground.can_run, ground.epochs_seen, problem.max_epochs),
        cost=ground.costs.to_reach(ground.epochs_seen, ground.queries.epochs),
        spent=ground.spent,
        best=float(problem.scale.to_unit(_reference(problem, history))),
        utility=_scaled_utility(problem),
        utility_now=standing.utility_now,
    )
    posterior = policy.extrapolator.condition(ground.context)
    generator = _generator(problem.seed, history.decisions)
    acquisition = acquire(posterior, prospects, policy.coupling, generator)
    return _Look(
        posterior=posterior, prospects=prospects, acquisition=acquisition, generator=generator
    )


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


def _held(history: History) -> set[int]:
    """Trials that a pending step holds."""
    return {step.trial_id for step in history.pending.values()}


def _pending_cost(history: History, candidates: Candidates, costs: Costs) -> float:
    """Steps handed out and not finished count as spent, at their predicted cost."""
    total = 0.0
    for step in history.pending.values():
        if step.trial_id in candidates:
            row = candidates.index_of(step.trial_id)
            ahead = step.to_epoch - _epochs_seen(history, step.trial_id)
            total += float((ahead + costs.replay_epochs[row]) * costs.per_epoch[row])
    return total


def _reference(problem: Problem, history: History) -> float:
    """ỹ_b in the user's units; the untrained score before anything was seen."""
    best = history.best_score
    return problem.initial if best is None else best


def _beyond(problem: Problem, history: History) -> str:
    """What to add where nothing can be gained because the scale ends."""
    if not problem.scale.is_beyond(_reference(problem, history)):
        return ""
    low, high = problem.scale.soft
    return (
        f"; the best score, {history.best_score:g}, is beyond soft=({low:g}, {high:g}), where "
        "forecasts tell no two scores apart: start a new study with a wider soft="
    )


def _scaled_utility(
    problem: Problem,
) -> Callable[[NDArray[np.float64], NDArray[np.float64]], NDArray[np.float64]]:
    """(spent, scaled best) → utility, through the scale."""

    def value(spent: NDArray[np.float64], best: NDArray[np.float64]) -> NDArray[np.float64]:
        raw = problem.scale.for_utility(problem.scale.to_raw(best))
        return np.asarray(problem.utility(spent, raw))

    return value


def _generator(seed: int, decisions: int) -> torch.Generator:
    """The decision's own random stream: repeated when a study is resumed."""
    return torch.Generator(device="cpu").manual_seed((seed * 1_000_003 + decisions) % 2**63)


def _leaders(
    policy: Policy, look: _Look, candidates: Candidates, rows: NDArray[np.int64]
) -> tuple[Leader, ...]:
    chance = chances(look.posterior, look.prospects, rows, policy.coupling, look.generator)
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


def _fans(
    problem: Problem, look: _Look, ground: _Ground, history: History, candidates: Candidates
) -> tuple[Fan, ...]:
    """Forecasts of the most promising started trials, and of the best, for the report."""
    curve = ground.queries.curve
    rows = [row for row in range(len(candidates)) if curve[row] != UNSEEN]
    if rows:
        highest = np.nanmax(ground.context.scores, axis=1)
        rows.sort(key=lambda row: (-look.acquisition.gain[row], -highest[curve[row]]))
    rows = rows[:LEADERS]
    best = history.best_trial_id
    if best is not None and best in candidates and candidates.index_of(best) not in rows:
        rows.append(candidates.index_of(best))
    if not rows:
        return ()
    levels = torch.from_numpy(np.array(FAN_LEVELS))
    forecast = look.posterior.forecast(ground.queries.take(np.array(rows)))
    quantiles = forecast.quantile(levels).double().cpu().numpy()
    fans = []
    for place, row in enumerate(rows):
        ahead = ground.queries.epochs > ground.epochs_seen[row]
        scores = np.asarray(problem.scale.to_raw(quantiles[place][ahead]))
        fans.append(
            Fan(
                trial_id=candidates.ids[row],
                epochs=tuple(int(epoch) for epoch in ground.queries.epochs[ahead]),
                levels=FAN_LEVELS,
                scores=tuple(tuple(float(v) for v in level) for level in scores.T),
            )
        )
    return tuple(fans)
