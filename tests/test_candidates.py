from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from freezethaw.candidates import Candidates, FixedPool, OpenPool, Pool, Renewal
from freezethaw.errors import ConfigError, SpaceError
from freezethaw.records import Curve, History, Params, Step, TrialState
from freezethaw.space import Choice, Float, Int, Space

SPACE = Space(
    {
        "lr": Float(1e-5, 1e-1, log=True),
        "layers": Int(1, 8),
        "optimizer": Choice(["sgd", "adam"]),
        "momentum": Float(0, 0.99, when={"optimizer": "sgd"}),
    }
)
SMALL = Space({"a": Choice([1, 2, 3]), "b": Choice([True, False])})


def open_pool(space: Space = SPACE, **settings: Any) -> OpenPool:
    return OpenPool(**{"space": space, "seed": 0, "goal": "maximize", "size": 32, **settings})


def curve(trial_id: int, params: Params, *scores: float, state: str = "active") -> Curve:
    return Curve(trial_id=trial_id, params=params, scores=scores, state=TrialState(state))


def history(*curves: Curve, **fields: Any) -> History:
    return History(curves={c.trial_id: c for c in curves}, **fields)


def started(candidates: Candidates, scores: Mapping[int, float]) -> list[Curve]:
    """Trials of some candidates, with one score each."""
    return [
        curve(i, candidates.params[candidates.index_of(i)], score) for i, score in scores.items()
    ]


def key(params: Params) -> tuple[Any, ...]:
    return tuple(params.items())


# --- fixed ---------------------------------------------------------------------------------------


def test_a_fixed_pool_offers_what_is_not_finished() -> None:
    configurations = [{"a": a, "b": b} for a in (1, 2, 3) for b in (True, False)]
    pool: Pool = FixedPool(SMALL, configurations)
    everything = pool.candidates(History())
    assert everything.ids == tuple(range(6))
    assert everything.params == tuple(configurations)
    assert everything.encoded.tolist() == SMALL.encode_all(configurations).tolist()
    assert len(everything) == 6

    now = history(
        curve(4, configurations[4], 0.5),
        curve(1, configurations[1], 0.5, state="completed"),
        curve(3, configurations[3], math.nan, state="diverged"),
        curve(0, configurations[0], state="failed"),
    )
    rest = pool.candidates(now)
    assert rest.ids == (2, 4, 5)
    assert rest.params == tuple(configurations[i] for i in rest.ids)
    assert rest.encoded.tolist() == everything.encoded[[2, 4, 5]].tolist()
    assert rest.index_of(5) == 2
    assert 5 in rest
    assert 1 not in rest
    with pytest.raises(KeyError):
        rest.index_of(1)
    assert pool.renewal(now) is None


def test_a_fixed_pool_checks_its_configurations() -> None:
    with pytest.raises(SpaceError, match="a: got 7; it must be one of 1, 2, 3"):
        FixedPool(SMALL, [{"a": 7, "b": True}])
    assert FixedPool(SMALL, []).candidates(History()).encoded.shape == (0, 5)


# --- open, generation 0 --------------------------------------------------------------------------


def test_the_first_generation_covers_the_space_evenly() -> None:
    drawn = open_pool(size=64).candidates(History())
    assert drawn.ids == tuple(range(64))
    np.testing.assert_array_equal(drawn.encoded, SPACE.encode_all(drawn.params))
    lr = SPACE.columns.index("lr")
    # One Sobol point of 64 in each 64th of every coordinate; random ones would leave a third empty.
    assert len(set(np.floor(drawn.encoded[:, lr] * 64))) == 64
    layers = [params["layers"] for params in drawn.params]
    assert [layers.count(n) for n in range(1, 9)] == [8] * 8


def test_the_same_seed_draws_the_same_pool_and_another_another() -> None:
    one, two = (open_pool().candidates(History()) for _ in range(2))
    assert one == two
    other = open_pool(seed=1).candidates(History())
    assert other.ids == one.ids
    assert not set(map(key, other.params)) & set(map(key, one.params))


def test_global_random_state_is_neither_read_nor_changed() -> None:
    state = np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    one = open_pool(seed=123).candidates(History())
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index, union-attr]
    np.random.seed(99)
    assert open_pool(seed=123, size=33).candidates(History()).params[:32] == one.params


def test_only_active_and_unstarted_configurations_are_candidates() -> None:
    pool = open_pool()
    params = pool.candidates(History()).params
    now = history(
        curve(7, params[7], 0.1),
        curve(3, params[3], 0.1, state="completed"),
        curve(9, params[9], state="failed"),
        curve(30, params[30], math.nan, state="diverged"),
    )
    assert pool.candidates(now).ids == tuple(i for i in range(32) if i not in (3, 9, 30))


def test_given_configurations_come_first_and_stay() -> None:
    first = [
        {"momentum": 0.9, "lr": np.float64(0.01), "layers": 2, "optimizer": "sgd"},
        {"lr": 0.001, "layers": 3, "optimizer": "adam"},
    ]
    pool = open_pool(first=first)
    drawn = pool.candidates(History())
    assert drawn.ids == tuple(range(34))
    assert list(drawn.params[0].items()) == [
        *(("lr", 0.01), ("layers", 2), ("optimizer", "sgd"), ("momentum", 0.9))
    ]
    assert drawn.params[2:] == open_pool().candidates(History()).params
    later = history(*started(drawn, {0: 0.5}), pool_generation=3)
    assert pool.candidates(later).ids[:3] == (0, 1, 2 + 3 * 32)
    with pytest.raises(SpaceError, match="layers: got 9"):
        open_pool(first=[{**first[1], "layers": 9}])


def test_a_small_space_is_offered_once_each() -> None:
    pool = open_pool(SMALL, first=[{"a": 2, "b": True}, {"a": 2, "b": True}])
    drawn = pool.candidates(History())
    assert len(drawn) == len({key(params) for params in drawn.params}) == 6
    assert drawn.ids[0] == 0
    assert 1 not in drawn.ids
    # Of configurations that are the same, the one with the lowest id is kept.
    points = open_pool(SMALL).candidates(History())
    by_key = {key(params): i for i, params in zip(points.ids, points.params, strict=True)}
    by_key.pop(key({"a": 2, "b": True}))
    assert drawn.ids[1:] == tuple(sorted(i + 2 for i in by_key.values()))


def test_what_was_tried_is_not_offered_again_under_another_id() -> None:
    pool = open_pool(SMALL)
    drawn = pool.candidates(History())
    tried = drawn.ids[2]
    done = curve(tried, drawn.params[2], 0.5, state="completed")
    active = curve(drawn.ids[3], drawn.params[3], 0.4)
    later = pool.candidates(history(done, active, pool_generation=1, pool_centers=(tried,)))
    assert len(later) == 5
    assert key(drawn.params[2]) not in map(key, later.params)
    assert later.ids[0] == drawn.ids[3]
    assert all(i >= 32 for i in later.ids[1:])


def test_nothing_left() -> None:
    drawn = open_pool(SMALL).candidates(History())
    done = [
        curve(i, p, 0.5, state="completed") for i, p in zip(drawn.ids, drawn.params, strict=True)
    ]
    rest = open_pool(SMALL).candidates(history(*done))
    assert rest.ids == ()
    assert rest.encoded.shape == (0, SMALL.width)


# --- renewal -------------------------------------------------------------------------------------


def test_renewal_is_due_after_twelve_new_trials_around_the_best_five() -> None:
    pool = open_pool()
    drawn = pool.candidates(History())
    scores = {i: i / 100 for i in range(11)}
    assert pool.renewal(history(*started(drawn, scores))) is None
    scores[20] = 0.05
    now = history(*started(drawn, scores))
    assert pool.renewal(now) == Renewal(generation=1, centers=(10, 9, 8, 7, 6))
    assert open_pool(goal="minimize").renewal(now) == Renewal(generation=1, centers=(0, 1, 2, 3, 4))


def test_the_best_is_over_a_whole_curve_and_without_what_diverged() -> None:
    drawn = open_pool(size=6).candidates(History())
    curves = [
        curve(0, drawn.params[0], 0.1, 0.9, 0.2),
        curve(1, drawn.params[1], 0.5, math.nan, state="diverged"),
        curve(2, drawn.params[2], math.inf, state="diverged"),
        curve(3, drawn.params[3], state="failed"),
        curve(5, drawn.params[5], 0.5),
        curve(4, drawn.params[4], 0.5),
    ]
    renewal = open_pool(size=6).renewal(history(*curves))
    assert renewal == Renewal(generation=1, centers=(0, 1, 4, 5))


def test_only_trials_of_the_present_generation_count() -> None:
    first = [{"lr": 0.001, "layers": n, "optimizer": "adam"} for n in (1, 2)]
    pool = open_pool(first=first)
    drawn = pool.candidates(History())
    old = started(drawn, dict.fromkeys(range(20), 0.5))
    assert pool.renewal(history(*old[:13])) is None  # the given ones are of no generation
    now = history(*old, pool_generation=1, pool_centers=(0, 5))
    assert pool.renewal(now) is None
    fresh = pool.candidates(now)
    new = [i for i in fresh.ids if i >= 34][:12]
    curves = started(fresh, dict.fromkeys(new, 0.6))
    assert pool.renewal(history(*old, *curves[:11], pool_generation=1)) is None
    renewal = pool.renewal(history(*old, *curves, pool_generation=1))
    assert renewal == Renewal(generation=2, centers=tuple(new[:5]))


def test_a_small_pool_is_renewed_when_it_is_used_up() -> None:
    pool = open_pool(size=3)
    curves = started(pool.candidates(History()), {0: 0.1, 1: 0.2, 2: 0.3})
    assert pool.renewal(history(*curves[:2])) is None
    assert pool.renewal(history(*curves)) == Renewal(generation=1, centers=(2, 1, 0))


@pytest.mark.parametrize("n_choices", [3, 20])
def test_a_small_space_is_tried_to_its_end(n_choices) -> None:
    """Duplicates leave a generation with less than twelve new ones; then comes another."""
    space = Space({"x": Choice([f"option {n}" for n in range(n_choices)]), "y": Int(1, 3)})
    pool = OpenPool(space=space, seed=0, goal="maximize", size=16)
    curves: list[Curve] = []
    generation, centers = 0, ()
    while True:
        now = history(*curves, pool_generation=generation, pool_centers=centers)
        if (renewal := pool.renewal(now)) is not None:
            generation, centers = renewal.generation, renewal.centers
            assert generation < 200
            continue
        drawn = pool.candidates(now)
        new = [i for i in drawn.ids if i not in now.curves]
        if not new:
            break
        params = drawn.params[drawn.index_of(new[0])]
        curves.append(curve(new[0], params, 0.5, state="completed"))
    assert len(curves) == 3 * n_choices


# --- later generations ---------------------------------------------------------------------------


def renewed(generation: int, size: int = 256, seed: int = 0) -> tuple[Params, Candidates]:
    pool = open_pool(size=size, seed=seed)
    drawn = pool.candidates(History())
    row = next(row for row, p in enumerate(drawn.params) if p["optimizer"] == "adam")
    center = curve(row, drawn.params[row], 0.9, state="completed")
    now = history(center, pool_generation=generation, pool_centers=(row,))
    return center.params, pool.candidates(now)


def test_ids_of_a_later_generation_are_new() -> None:
    _, drawn = renewed(2)
    assert drawn.ids == tuple(range(512, 768))


def test_half_of_a_later_generation_is_local_and_steps_shrink_to_a_floor() -> None:
    widths = []
    for generation in (1, 4, 20, 21):
        center, drawn = renewed(generation)
        points = np.stack([SPACE.to_unit(params) for params in drawn.params])[:, 0]
        steps = points - SPACE.to_unit(center)[0]
        # The Sobol half lies all over the range, two points in each 64th.
        assert np.bincount(np.floor(points[:128] * 64).astype(int)).tolist() == [2] * 64
        widths.append(np.sqrt(np.mean(steps[128:] ** 2)))
    expected = [0.15, 0.15 * 0.7**3, 0.02, 0.02]
    np.testing.assert_allclose(widths, expected, rtol=0.2)


def test_local_steps_redraw_choices_rarely_and_fill_what_they_activate() -> None:
    center, drawn = renewed(1, size=2048)
    local = drawn.params[-1024:]
    assert center["optimizer"] == "adam"
    sgd = [params for params in local if params["optimizer"] == "sgd"]
    # A choice is drawn anew with chance 1/4 (four parameters), half of the time the other one.
    assert 0.09 < len(sgd) / 1024 < 0.16
    momenta = np.array([params["momentum"] for params in sgd]) / 0.99
    assert momenta.min() < 0.1
    assert momenta.max() > 0.9
    assert all(SPACE.validate(params) == params for params in local)


def test_steps_over_the_border_are_reflected_and_pile_up_nowhere() -> None:
    corner = {"lr": 1e-5, "layers": 1, "optimizer": "adam"}
    pool = open_pool(size=256, first=[corner])
    now = history(curve(0, corner, 0.5), pool_generation=1, pool_centers=(0,))
    lr = pool.candidates(now).encoded[-128:, 0]
    assert len(set(lr.tolist())) == 128
    assert lr.min() > 0
    assert np.mean(lr**2) == pytest.approx(0.15**2, rel=0.3)


def test_generations_differ_and_do_not_depend_on_anything_but_the_history() -> None:
    (_, one), (_, two), (_, again) = renewed(1), renewed(2), renewed(1)
    assert one == again
    assert not set(map(key, one.params)) & set(map(key, two.params))
    pool = open_pool()
    drawn = pool.candidates(History())
    trials = started(drawn, {4: 0.5})
    plain = history(*trials)
    step = Step(step_id=1, trial_id=4, params={}, from_epoch=1, to_epoch=2, seed=0)
    noisy = history(*trials, spent=99.0, decisions=50, pending={1: step})
    assert pool.candidates(plain) == pool.candidates(noisy)


def test_without_centers_a_later_generation_is_all_sobol() -> None:
    drawn = open_pool(size=64).candidates(History(pool_generation=1))
    assert len(set(np.floor(drawn.encoded[:, 0] * 64))) == 64


def test_active_trials_of_old_generations_stay() -> None:
    pool = open_pool()
    drawn = pool.candidates(History())
    trials = started(drawn, {2: 0.5, 8: 0.6})
    now = history(*trials, pool_generation=2, pool_centers=(8,))
    later = pool.candidates(now)
    assert later.ids == (2, 8, *range(64, 96))
    assert later.params[:2] == (drawn.params[2], drawn.params[8])
    np.testing.assert_array_equal(later.encoded, SPACE.encode_all(later.params))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 1}, "size is 1; a pool draws at least 2"),
        ({"seed": -1}, "seed is -1; it must be 0 or more"),
        ({"goal": "max"}, "goal is 'max'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_pool(**settings)


def test_asking_again_is_cheap() -> None:
    pool = open_pool(size=512)
    drawn = pool.candidates(History())
    curves = started(drawn, dict.fromkeys(range(300), 0.5))
    now = history(*curves, pool_generation=1, pool_centers=(1, 2, 3, 4, 5))
    pool.candidates(now)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        pool.candidates(now)
        seconds.append(time.perf_counter() - start)
    # Under 1 ms where this was written; drawing the generation anew each time would take 13 ms.
    assert min(seconds) < 0.005
