"""The network behind the seam: what it is told, and that nothing around it changes the answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freezethaw.errors import ExtrapolatorError
from freezethaw.extrapolator import UNSEEN, Context, Queries
from freezethaw.pfn import extrapolate, weights
from freezethaw.pfn.extrapolate import PfnExtrapolator, choose_points
from freezethaw.pfn.model import COLUMNS, CurveNetwork, Shape

TINY = Shape(width=32, layers=2, heads=2, hidden=48, bins=50, near=4, max_context=40, max_epochs=20)


@pytest.fixture(scope="module")
def tiny() -> PfnExtrapolator:
    torch.manual_seed(0)
    return PfnExtrapolator(CurveNetwork(TINY))


@pytest.fixture(scope="module")
def shipped() -> PfnExtrapolator:
    return PfnExtrapolator.load()


def a_context(lengths, max_epochs: int = 20, columns: int = 3, seed: int = 0) -> Context:
    rng = np.random.default_rng(seed)
    lengths = np.asarray(lengths, np.int64)
    scores = np.sort(rng.uniform(0.1, 0.9, (len(lengths), max_epochs)), axis=1)
    scores[np.arange(1, max_epochs + 1) > lengths[:, None]] = np.nan
    return Context(
        configs=rng.uniform(size=(len(lengths), columns)),
        scores=scores,
        epochs_seen=lengths,
        initial=0.1,
        max_epochs=max_epochs,
    )


def ask(context: Context, curve, epochs=(1, 7, 20), seed: int = 1) -> Queries:
    curve = np.asarray(curve, np.int64)
    configs = np.random.default_rng(seed).uniform(size=(len(curve), context.configs.shape[1]))
    configs[curve != UNSEEN] = context.configs[curve[curve != UNSEEN]]
    return Queries(configs=configs, curve=curve, epochs=np.asarray(epochs, np.int64))


# ── the answer ───────────────────────────────────────────────────────────────────────────────────


def test_every_answer_is_a_distribution(tiny):
    context = a_context([5, 1, 9])
    forecast = tiny.condition(context).forecast(ask(context, [0, UNSEEN, 2, UNSEEN, 1]))
    assert forecast.mass.shape == (5, 3, 50)
    assert torch.allclose(forecast.mass.sum(-1), torch.ones(5, 3), atol=1e-5)
    assert forecast.borders.tolist() == pytest.approx((np.arange(51) / 50).tolist())


def test_an_answer_belongs_to_its_row(tiny, monkeypatch):
    """Whatever is asked beside it, and however it is cut into parts."""
    context = a_context([5, 1, 9])
    posterior = tiny.condition(context)
    asked = ask(context, [0, UNSEEN, 2, UNSEEN, 1])
    whole = posterior.forecast(asked).mass
    for row in range(5):
        alone = posterior.forecast(asked.take(np.array([row]))).mass
        assert torch.allclose(alone[0], whole[row], atol=2e-3)
    monkeypatch.setattr(extrapolate, "CHUNK", 3)
    assert torch.allclose(posterior.forecast(asked).mass, whole, atol=2e-3)


def test_an_empty_context_is_one(tiny):
    context = a_context([])
    mass = tiny.condition(context).forecast(ask(context, [UNSEEN, UNSEEN])).mass
    assert torch.isfinite(mass).all()


def test_longer_studies_than_trained_for_are_squeezed(tiny):
    short, long = a_context([4, 8], 20), a_context([4, 8], 40)
    for context in (short, long):
        context.scores[0, :4] = context.scores[1, :8:2] = [0.2, 0.4, 0.6, 0.8]
    context = Context(
        configs=long.configs, scores=long.scores, epochs_seen=np.array([4, 8]),
        initial=0.1, max_epochs=40,
    )  # fmt: skip
    mass = tiny.condition(context).forecast(ask(context, [0, UNSEEN], (10, 40))).mass
    assert torch.isfinite(mass).all()
    # Time is told relative to the length: epoch 40 of 40 is epoch 20 of 20.
    empty, longer = a_context([], 20), a_context([], 40)
    one = tiny.condition(empty).forecast(ask(empty, [UNSEEN], (10, 20))).mass
    two = tiny.condition(longer).forecast(ask(longer, [UNSEEN], (20, 40))).mass
    assert torch.allclose(one, two, atol=2e-3)


def test_what_the_process_is_set_to_changes_nothing(tiny):
    context = a_context([5, 1, 9])
    asked = ask(context, [0, UNSEEN])
    expected = tiny.condition(context).forecast(asked).mass
    state = torch.random.get_rng_state()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
            found = tiny.condition(context).forecast(asked).mass
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    assert not found.is_inference()
    assert not found.requires_grad
    assert torch.equal(torch.random.get_rng_state(), state)


def test_loading_draws_nothing_from_the_global_stream():
    before = torch.random.get_rng_state()
    PfnExtrapolator.load()
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("columns", [1, COLUMNS])
def test_spaces_within_the_limits(tiny, columns):
    context = a_context([3], columns=columns)
    tiny.check(columns)
    tiny.condition(context).forecast(ask(context, [0]))


def test_a_space_beyond_the_limits_is_told_what_to_do(tiny):
    with pytest.raises(ExtrapolatorError, match=r"17 encoded columns.*at most 16.*Int or Float"):
        tiny.check(COLUMNS + 1)


# ── the weights that ship ────────────────────────────────────────────────────────────────────────


def a_curve(scores, max_epochs: int = 50) -> Context:
    y = np.full((1, max_epochs), np.nan)
    y[0, : len(scores)] = scores
    return Context(
        configs=np.full((1, 3), 0.5),
        scores=y,
        epochs_seen=np.array([len(scores)]),
        initial=0.1,
        max_epochs=max_epochs,
    )


def quantiles_of(extrapolator, context, epoch) -> list[float]:
    forecast = extrapolator.condition(context).forecast(ask(context, [0], (epoch,)))
    return forecast.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))[0, 0].tolist()


def test_a_flat_curve_stays(shipped):
    low, middle, high = quantiles_of(shipped, a_curve([0.8] * 20), 25)
    assert middle == pytest.approx(0.8, abs=0.02)
    assert high - low < 0.1


def test_a_rising_curve_rises_on(shipped):
    rising = 0.1 + 0.6 * (1 - np.exp(-np.arange(1, 9) / 10))
    middle = quantiles_of(shipped, a_curve(rising), 30)[1]
    assert rising[-1] + 0.05 < middle < 0.85


def test_what_is_further_off_is_less_certain(shipped):
    rising = 0.1 + 0.6 * (1 - np.exp(-np.arange(1, 9) / 10))
    spread = []
    for epoch in (9, 16, 50):
        low, _, high = quantiles_of(shipped, a_curve(rising), epoch)
        spread.append(high - low)
    assert spread == sorted(spread)


def test_other_curves_are_learnt_from(shipped):
    """Where all others came to 0.9, an unstarted one is expected higher than where all failed."""

    def middle(level: float) -> float:
        rng = np.random.default_rng(0)
        scores = np.clip(level + rng.normal(0, 0.01, (8, 50)), 0, 1)
        context = Context(
            configs=rng.uniform(size=(8, 3)),
            scores=scores,
            epochs_seen=np.full(8, 30),
            initial=0.1,
            max_epochs=50,
        )
        forecast = shipped.condition(context).forecast(ask(context, [UNSEEN], (30,)))
        return forecast.quantile(torch.tensor([0.5], dtype=torch.float64)).item()

    assert middle(0.9) > middle(0.2) + 0.3


def test_every_shipped_file_says_how_it_was_made():
    for name in weights.shipped():
        path = weights.find(name)
        assert path.stat().st_size <= 8 * 2**20
        assert weights.about(path)["steps"] > 0
        assert path.with_name(f"{name}.log.jsonl").exists()


@pytest.mark.parametrize("asked", ["cfbo", "no/such/file.safetensors"])
def test_unknown_weights_are_told_what_ships(asked):
    with pytest.raises(ExtrapolatorError, match="shipped are cfbo-nt"):
        PfnExtrapolator.load(asked)


def test_a_file_of_something_else(tmp_path):
    (tmp_path / "net.safetensors").write_bytes(b"not weights")
    with pytest.raises(ExtrapolatorError, match="not a weights file of freezethaw"):
        PfnExtrapolator.load(tmp_path / "net.safetensors")


# ── long contexts are thinned ────────────────────────────────────────────────────────────────────


def chosen(context: Context, room: int) -> dict[int, list[int]]:
    curve, epoch = choose_points(context, room)
    assert list(zip(curve, epoch, strict=True)) == sorted(set(zip(curve, epoch, strict=True)))
    return {int(row): epoch[curve == row].tolist() for row in np.unique(curve)}


def test_what_fits_is_told_whole():
    assert chosen(a_context([3, 1, 2]), 6) == {0: [1, 2, 3], 1: [1], 2: [1, 2]}


def test_first_last_and_best_points_stay():
    context = a_context([20, 20])
    context.scores[0, 12] = 0.99
    kept = chosen(context, 10)
    assert {1, 13, 20} <= set(kept[0])
    assert {1, 20} <= set(kept[1])
    assert sum(map(len, kept.values())) <= 10


def test_with_too_many_curves_the_last_points_stay():
    context = a_context([5] * 30)
    kept = chosen(context, 30)
    assert kept == {row: [5] for row in range(30)}
    few = chosen(context, 10)
    best = np.nanmax(context.scores, axis=1)
    assert len(few) == 10
    assert {int(best.argmax()), int(best.argmin())} <= set(few)


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=0, max_size=40), st.integers(1, 60), st.integers(0, 9))
def test_thinning_keeps_to_the_room_and_to_what_was_seen(lengths, room, seed):
    context = a_context(lengths, seed=seed)
    kept = chosen(context, room)
    total = sum(map(len, kept.values()))
    assert total <= room
    assert total >= min(room, len(lengths))
    for row, epochs in kept.items():
        assert min(epochs) >= 1
        assert max(epochs) <= lengths[row]
