"""Made-up studies that look like real ones, for tests and for looking at."""

import math
import random
from dataclasses import replace

from freezethaw.records import (
    Bill,
    Curve,
    Decision,
    Fan,
    Goal,
    History,
    Leader,
    Point,
    Step,
    Stop,
    StopReason,
    TrialState,
    Unit,
)
from freezethaw.report import StudyView


def fake_curve(trial_id: int, scores, state=TrialState.ACTIVE, params=None, seconds=2.0) -> Curve:
    params = {"lr": 0.01 * (trial_id + 1), "width": 32 + trial_id} if params is None else params
    scores = tuple(scores)
    return Curve(
        trial_id=trial_id,
        params=params,
        scores=scores,
        seconds=(seconds,) * len(scores),
        state=state,
    )


def fake_history(curves, order, goal: Goal = "maximize", cost: float = 1.0) -> History:
    """The history of training the trials in `order`, one epoch at a time."""
    curves = {curve.trial_id: curve for curve in curves}
    done = dict.fromkeys(curves, 0)
    path: list[Point] = []
    best, best_trial, best_epoch = math.nan, None, None
    for i, trial in enumerate(order, start=1):
        score = curves[trial].scores[done[trial]]
        done[trial] += 1
        better = score > best if goal == "maximize" else score < best
        if math.isfinite(score) and (better or math.isnan(best)):
            best, best_trial, best_epoch = score, trial, done[trial]
        path.append(Point(i * cost, best, trial))
    seconds = sum(sum(curve.seconds) for curve in curves.values())
    return History(
        curves=curves,
        spent=len(order) * cost,
        path=tuple(path),
        best_trial_id=best_trial,
        best_epoch=best_epoch,
        bill=Bill(epochs=len(order), seconds_training=seconds, seconds_deciding=0.06 * seconds),
        decisions=len(order),
    )


def fake_view(history: History | None = None, **changes) -> StudyView:
    """A study over `history` with a linear utility."""
    goal: Goal = changes.get("goal", "maximize")
    budget = changes.get("budget", 300.0)
    sign = 1.0 if goal == "maximize" else -1.0

    def utility(spent: float, best: float) -> float:
        return sign * best - 0.1 * spent / budget if spent <= budget else -math.inf

    values = {
        "name": "digits",
        "metric": "accuracy",
        "goal": goal,
        "unit": "epochs",
        "budget": budget,
        "max_epochs": 50,
        "initial": 0.1,
        "utility_text": "linear: the whole budget is worth 0.1 of score",
        "utility": utility,
        "history": History() if history is None else history,
    }
    return StudyView(**(values | changes))


def fake_stop(kind: StopReason = StopReason.NOT_WORTH_IT) -> Stop:
    return Stop(kind=kind, reason=kind.text)


def fake_leader(trial_id: int = 0, **changes) -> Leader:
    values = {
        "trial_id": trial_id,
        "params": {"lr": 0.01, "width": 64},
        "epochs_seen": 4,
        "target_epoch": 9,
        "gain": 0.0123,
        "chance": 0.04,
        "cost": 5.0,
    }
    return Leader(**(values | changes))


def fake_decision(*leaders: Leader, stop: Stop | None = None, **changes) -> Decision:
    first = leaders[0]
    values = {
        "trial_id": None if stop else first.trial_id,
        "params": first.params,
        "from_epoch": first.epochs_seen,
        "to_epoch": first.epochs_seen + 1,
        "stop": stop,
        "leaders": leaders,
        "utility_now": 0.9,
        "utility_max": 0.91,
        "utility_min": 0.1,
        "regret": 0.31,
        "threshold": 0.22,
    }
    return Decision(**(values | changes))


# ---------------------------------------------------------------- whole studies


def fake_stopped(trials: int = 30, epochs: int = 143, unit: Unit = "epochs") -> StudyView:
    """Accuracies, trained by a crude freeze-thaw rule, and stopped."""
    return _study(trials, epochs, "maximize", unit)


def fake_losses(trials: int = 24, epochs: int = 210) -> StudyView:
    """Losses over orders of magnitude; some configurations diverge to NaN or 5e34."""
    return _study(trials, epochs, "minimize", "money")


def fake_running() -> StudyView:
    """The accuracy study before its stop."""
    view = fake_stopped()
    leaders = (
        replace(view.decision.leaders[0], gain=0.0121, chance=0.62),
        *view.decision.leaders[1:],
    )
    first = leaders[0]
    decision = fake_decision(*leaders, regret=0.012, threshold=0.38)
    step = Step(
        step_id=1,
        trial_id=first.trial_id,
        params=first.params,
        from_epoch=first.epochs_seen,
        to_epoch=first.epochs_seen + 3,
        seed=0,
    )
    history = replace(view.history, pending={1: step})
    return replace(view, history=history, decision=decision, stop=None)


def _study(trials: int, epochs: int, goal: Goal, unit: Unit, longest: int = 50) -> StudyView:
    random.seed(7)
    draw = _accuracies if goal == "maximize" else _losses
    full = {i: draw(i, longest) for i in range(trials)}
    order, seen = _freeze_thaw(full, epochs, longest, goal)
    curves = [_trial(i, full[i], seen[i], longest) for i in dict.fromkeys(order)]
    cost = {"epochs": 1.0, "seconds": 41.0, "money": 0.031}[unit]
    history = fake_history(curves, order, goal, cost)
    budget = 300 * cost
    stop = fake_stop()
    base = fake_view(
        history,
        goal=goal,
        unit=unit,
        budget=budget,
        metric="accuracy" if goal == "maximize" else "validation loss",
        initial=0.1 if goal == "maximize" else 2.3,
        name="digits" if goal == "maximize" else "tiny-lm",
        rate=2.5,
        storage="study.db",
        started_at="2025-05-04T09:30:00",
        stop=stop,
        max_epochs=longest,
    )
    active = [s for s in base.standings if s.state == "frozen"][:5]
    leaders = [
        fake_leader(
            s.trial_id,
            params=s.curve.params,
            epochs_seen=s.curve.epochs,
            target_epoch=min(s.curve.epochs + 5 + i, longest),
            gain=0.0011 / (i + 1),
            chance=0.04 / (i + 1),
            cost=(5 + i) * cost,
        )
        for i, s in enumerate(active)
    ]
    fans = tuple(_fan(s.curve, full[s.trial_id], longest, goal) for s in active[:3])
    return replace(base, decision=fake_decision(*leaders, stop=stop, fans=fans))


def _accuracies(i: int, longest: int) -> list[float]:
    top, pace = 0.985 - 0.6 * random.random() ** 2.2, random.uniform(0.08, 0.9)
    if random.random() < 0.12:
        top = 0.13
    return [
        min(0.1 + (top - 0.1) * (1 - math.exp(-pace * t)) + random.gauss(0, 0.006), 0.999)
        for t in range(1, longest + 1)
    ]


def _losses(i: int, longest: int) -> list[float]:
    floor, power = 0.02 + random.random() ** 3, random.uniform(0.3, 1.6)
    scores = [
        (floor + 2.3 * t**-power) * math.exp(random.gauss(0, 0.03)) for t in range(1, longest + 1)
    ]
    breaks = random.randrange(2, 12)
    if i % 6 == 1:
        scores[breaks:] = [math.nan] * (longest - breaks)
    if i % 6 == 4:
        scores[breaks] = 5e34
        scores[breaks + 1 :] = [math.inf] * (longest - breaks - 1)
    return scores


def _freeze_thaw(full, epochs, longest, goal):
    """Start new trials now and then; otherwise go on with the noisily most promising one."""
    order, seen = [], dict.fromkeys(full, 0)
    sign = 1 if goal == "maximize" else -1

    def promise(i):
        last = full[i][seen[i] - 1]
        return sign * last + random.gauss(0, 0.06) if math.isfinite(last) else -math.inf

    while len(order) < epochs:
        started = [i for i in full if 0 < seen[i] < longest and math.isfinite(full[i][seen[i] - 1])]
        fresh = [i for i in full if seen[i] == 0]
        explores = random.random() < 0.7 * (1 - len(order) / epochs) ** 0.5
        if fresh and (not started or explores):
            chosen = fresh[0]
        elif started:
            chosen = max(started, key=promise)
        else:
            break
        for _ in range(min(random.choice((1, 1, 2, 4)), epochs - len(order))):
            if seen[chosen] < longest and (
                seen[chosen] == 0 or math.isfinite(full[chosen][seen[chosen] - 1])
            ):
                order.append(chosen)
                seen[chosen] += 1
    return order, seen


def _trial(i: int, scores, seen: int, longest: int) -> Curve:
    state = TrialState.COMPLETED if seen == longest else TrialState.ACTIVE
    if not math.isfinite(scores[seen - 1]):
        state = TrialState.DIVERGED
    optimizer = random.choice(["sgd", "adam"])
    params = {
        "lr": 10 ** random.uniform(-5, -1),
        "width": random.choice([32, 64, 128, 256]),
        "dropout": random.uniform(0, 0.5),
        "optimizer": optimizer,
    }
    if optimizer == "sgd":
        params["momentum"] = random.uniform(0, 0.99)
    return fake_curve(i, scores[:seen], state, params, seconds=random.uniform(20, 60))


def _fan(curve: Curve, scores, longest: int, goal: Goal) -> Fan:
    epochs = tuple(range(curve.epochs + 1, longest + 1))
    levels = (0.05, 0.25, 0.5, 0.75, 0.95)
    rows = []
    for z in (-1.64, -0.67, 0, 0.67, 1.64):
        row = []
        for t in epochs:
            spread = 0.006 * math.sqrt(t - curve.epochs)
            share = (t - curve.epochs) / (longest - curve.epochs)
            end = scores[-1] if math.isfinite(scores[-1]) else curve.scores[-1]
            middle = curve.scores[-1] + (end - curve.scores[-1]) * (1 - math.exp(-3 * share))
            if goal == "maximize":
                row.append(min(middle + z * spread, 0.9995))
            else:
                row.append(middle * math.exp(6 * z * spread))
        rows.append(tuple(row))
    return Fan(trial_id=curve.trial_id, epochs=epochs, levels=levels, scores=tuple(rows))
