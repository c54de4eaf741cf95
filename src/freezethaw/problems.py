"""What a study is asked to be: checked, put into one record, compared with what it was before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias

from freezethaw.errors import ConfigError
from freezethaw.events import Problem
from freezethaw.parameters import Parameter
from freezethaw.records import Goal, Params
from freezethaw.scale import Scale
from freezethaw.space import Space
from freezethaw.utility import Utility, custom, hard_budget

DEFAULT_BUDGET_EPOCHS = 6
"""Without utility and budget: the best score within 6 × max_epochs epochs (the paper's B = 6 T)."""

Bounds: TypeAlias = tuple[float | None, float | None]
UtilityFunction: TypeAlias = Callable[[Any, Any], Any]


def describe_problem(
    space: Space | Mapping[str, Parameter],
    *,
    max_epochs: int,
    bounds: Bounds,
    goal: Goal = "maximize",
    initial: float | None = None,
    soft: tuple[float, float] | None = None,
    scale: Scale | None = None,
    metric: str = "score",
    utility: Utility | UtilityFunction | None = None,
    budget: float | None = None,
    seed: int = 0,
    first: Sequence[Params] = (),
    configurations: Sequence[Params] | None = None,
    pool_size: int = 512,
) -> Problem:
    """Check what a study is asked to be, and put it into one record."""
    space = Space.of(space)
    if isinstance(max_epochs, bool) or not isinstance(max_epochs, int) or max_epochs < 1:
        raise ConfigError(f"max_epochs={max_epochs!r}: must be a whole number of at least 1")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed={seed!r}: must be a whole number of at least 0")
    if configurations is not None and first:
        raise ConfigError(
            "first= and configurations= exclude each other: a fixed pool has no order"
        )
    scale = scale or Scale.live(goal, bounds, initial, soft)
    if initial is None:
        initial = scale.hard[0] if scale.goal == "maximize" else scale.hard[1]
    given = configurations if configurations is not None else first
    return Problem(
        space=space,
        scale=scale,
        max_epochs=max_epochs,
        initial=float(initial),
        metric=metric,
        seed=seed,
        utility=bind_utility(utility, budget, scale, max_epochs),
        pool_size=pool_size if configurations is None else None,
        configurations=tuple(space.validate(params) for params in given),
    )


def bind_utility(
    utility: Utility | UtilityFunction | None,
    budget: float | None,
    scale: Scale,
    max_epochs: int,
) -> Utility:
    """The utility for this scale; None means the best score within the budget."""
    if utility is None:
        utility = hard_budget(budget if budget is not None else DEFAULT_BUDGET_EPOCHS * max_epochs)
    elif not isinstance(utility, Utility):
        if not callable(utility):
            raise ConfigError(
                f"utility={utility!r}: pass ft.linear(...), another utility, or f(spent, best)"
            )
        if budget is None:
            raise ConfigError("a callable utility needs budget=, the most that may be spent")
        utility = custom(utility, budget=budget)
    elif budget is not None and budget != utility.budget:
        raise ConfigError(
            f"budget={budget:g} and a utility with budget {utility.budget:g}: give it in one place"
        )
    if utility.unit == "epochs" and utility.budget < 1:
        raise ConfigError(f"a budget of {utility.budget:g} epochs does not pay for one")
    low, high = scale.soft
    full = scale.hard[1] - scale.hard[0]
    if math.isinf(full):
        full = high - low
    # The soft range begins where scores count, but good ones may go beyond it.
    if scale.goal == "maximize" and math.isfinite(scale.hard[1]):
        high = scale.hard[1]
    elif scale.goal == "minimize" and math.isfinite(scale.hard[0]):
        low = scale.hard[0]
    return utility.bind(goal=scale.goal, low=low, high=high, full=full)


def differences(stored: Problem, asked: Problem) -> list[str]:
    """What cannot change while a study lives, in a sentence each; the utility can."""
    words = {"mine": "the study", "theirs": "this call"}
    found = stored.space.differences(asked.space, **words)
    found += stored.scale.differences(asked.scale, **words)
    for field in ("max_epochs", "initial", "metric", "seed", "pool_size"):
        ours, theirs = getattr(stored, field), getattr(asked, field)
        if ours != theirs:
            found.append(f"{field} is {ours!r} in the study and {theirs!r} in this call")
    return found + _unlike(stored.configurations, asked.configurations)


def _unlike(stored: Sequence[Params], asked: Sequence[Params]) -> list[str]:
    """The first configuration that differs; there may be thousands."""
    if len(stored) != len(asked):
        return [f"it was given {len(stored)} configurations, this call gives {len(asked)}"]
    pairs = enumerate(zip(stored, asked, strict=True))
    unlike = ((i, ours, theirs) for i, (ours, theirs) in pairs if dict(ours) != dict(theirs))
    return [
        f"configuration {i} is {dict(ours)} in the study and {dict(theirs)} in this call"
        for i, ours, theirs in islice(unlike, 1)
    ]
