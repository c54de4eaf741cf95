"""The network, its prior, its episodes and its training, on tiny random networks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from freezethaw.errors import ExtrapolatorError
from freezethaw.pfn import training, weights
from freezethaw.pfn.episodes import Episode, make_episode, sample_prefixes
from freezethaw.pfn.model import (
    COLUMNS,
    INITIAL_CURVE,
    NO_CURVE,
    CurveNetwork,
    Memory,
    OwnCurve,
    Points,
    Scores,
    Shape,
    add_near,
    score_features,
)
from freezethaw.pfn.prior import Draws, Tasks, sample_tasks
from freezethaw.pfn.training import Plan, Trainer, train

TINY = Shape(width=32, layers=2, heads=2, hidden=48, bins=50, near=4, max_context=40, max_epochs=20)
PLAN = Plan(shape=TINY, tasks=4, configs=12, queries=24, minutes=1.0)


def network(seed: int = 0) -> CurveNetwork:
    torch.manual_seed(seed)
    return CurveNetwork(TINY).eval()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_context(tokens: int = 9) -> tuple[Points, Scores]:
    draw = Draws(generator(1))
    points = Points(
        x=draw.uniform(1, tokens, COLUMNS),
        t=draw.uniform(1, tokens, high=10).round(),
        curve=torch.arange(tokens).unsqueeze(0) // 3,
    )
    points.curve[:, 0], points.t[:, 0], points.x[:, 0] = INITIAL_CURVE, 0.0, torch.nan
    return points, Scores(draw.uniform(1, tokens), draw.normal(1, tokens) * 0.01)


def random_queries(curve: list[int]) -> tuple[Points, OwnCurve]:
    draw, n = Draws(generator(2)), len(curve)
    points = Points(
        draw.uniform(1, n, COLUMNS), 11.0 + torch.arange(n)[None], torch.tensor([curve])
    )
    seen = (points.curve != NO_CURVE).float() * 3
    return points, OwnCurve(seen, *(draw.uniform(1, n) for _ in range(4)))


def ask(
    net: CurveNetwork, context: tuple[Points, Scores], queries: tuple[Points, OwnCurve]
) -> Tensor:
    longest = torch.tensor([20.0])
    with torch.no_grad():
        return net.forecast(net.remember(*context, longest), *queries, longest)


def pick(points: Points, index: Tensor) -> Points:
    return Points(*(part[:, index] for part in points))


# ── the network ──────────────────────────────────────────────────────────────────────────────────


def test_the_order_of_the_context_does_not_matter() -> None:
    points, scores = random_context()
    shuffled = torch.randperm(9, generator=generator())
    queries = random_queries([0, NO_CURVE, 2])
    same = ask(
        network(),
        (pick(points, shuffled), Scores(*(part[:, shuffled] for part in scores))),
        queries,
    )
    torch.testing.assert_close(ask(network(), (points, scores), queries), same)


def test_every_part_of_the_context_matters() -> None:
    points, scores = random_context()
    queries = random_queries([0, NO_CURVE])
    before = ask(network(), (points, scores), queries)
    for changed in (
        (points, scores._replace(y=scores.y + 0.1)),
        (points, scores._replace(step=scores.step + 0.1)),
        (points._replace(t=points.t + 1), scores),
        (points._replace(x=1 - points.x), scores),
    ):
        assert (ask(network(), changed, queries) - before).abs().max() > 1e-4
    # Only the query with a curve looks at who shares it.
    moved = ask(network(), (points._replace(curve=points.curve + 5), scores), queries)
    assert (moved[:, 0] - before[:, 0]).abs().max() > 1e-4


def test_queries_do_not_see_each_other() -> None:
    points, own = random_queries([0, 1, NO_CURVE, NO_CURVE])
    together = ask(network(), random_context(), (points, own))
    for i in range(4):
        index = torch.tensor([i])
        alone = (pick(points, index), OwnCurve(*(part[:, index] for part in own)))
        single = ask(network(), random_context(), alone)
        torch.testing.assert_close(single[:, 0], together[:, i], atol=1e-5, rtol=1e-5)


def test_unstarted_queries_need_no_bias() -> None:
    """A curve that no context token shares is the same as none, by the slower path."""
    points, own = random_queries([NO_CURVE, NO_CURVE])
    fast = ask(network(), random_context(), (points, own))
    slow = ask(network(), random_context(), (points._replace(curve=points.curve + 101), own))
    torch.testing.assert_close(fast, slow, atol=1e-5, rtol=1e-5)


def test_padding_is_not_seen() -> None:
    net, longest = network(), torch.tensor([20.0])
    points, scores = random_context()
    queries = random_queries([0, NO_CURVE])
    junk = [torch.cat([part, part[:, :3] + 1], dim=1) for part in (*points, *scores)]
    padding = torch.arange(12)[None] >= 9
    with torch.no_grad():
        memory = net.remember(Points(*junk[:3]), Scores(*junk[3:]), longest, padding)
        padded = net.forecast(memory, *queries, longest)
    torch.testing.assert_close(padded, ask(net, (points, scores), queries), atol=1e-4, rtol=1e-4)


def test_an_inactive_column_is_not_a_value() -> None:
    points, own = random_queries([NO_CURVE])
    answers = []
    for value in (0.0, 0.5, 1.0, torch.nan):
        x = points.x.clone()
        x[..., 3] = value
        answers.append(ask(network(), random_context(), (points._replace(x=x), own)))
    assert all(answer.isfinite().all() for answer in answers)
    for i in range(4):
        for j in range(i):
            assert (answers[i] - answers[j]).abs().max() > 1e-4


def test_close_scores_look_different() -> None:
    """One bin of 1,000 apart is far apart for the network."""
    features = score_features(torch.tensor([0.4321, 0.4331]))
    assert (features[0] - features[1]).norm() > 0.3


def test_logits_near_the_last_score() -> None:
    near = torch.arange(1.0, 6.0).view(1, 1, 5).expand(1, 3, 5)
    found = add_near(torch.zeros(1, 3, 10), near, torch.tensor([[0.0, 0.55, 1.0]]))
    expected = [
        [3, 4, 5, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 2, 3, 4, 5, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 1, 2, 3],
    ]
    assert found[0].tolist() == expected


def test_gradients_reach_every_parameter() -> None:
    net, longest = network(), torch.tensor([20.0])
    memory = net.remember(*random_context(), longest)
    logits = net.forecast(memory, *random_queries([0, 1, NO_CURVE]), longest)
    logits.log_softmax(-1)[..., 0].sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


# ── the prior ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def tasks() -> Tasks:
    return sample_tasks(generator(), tasks=200, configs=32, epochs=60)


def test_tasks_are_in_range(tasks: Tasks) -> None:
    assert tasks.y.shape == (200, 32, 60)
    assert tasks.y.isfinite().all()
    assert tasks.y.min() >= 0
    assert tasks.y.max() <= 1
    active = tasks.x[~tasks.x.isnan()]
    assert active.min() >= 0
    assert active.max() <= 1
    assert ((tasks.initial > 0) & (tasks.initial < 1)).all()
    assert tasks.max_epochs.min() >= 2
    assert tasks.max_epochs.max() <= 60


def test_tasks_are_a_function_of_the_seed() -> None:
    first, again, other = (
        sample_tasks(generator(seed), tasks=3, configs=8, epochs=10) for seed in (5, 5, 6)
    )
    torch.testing.assert_close(first.x, again.x, equal_nan=True, rtol=0, atol=0)
    assert torch.equal(first.y, again.y)
    assert not torch.equal(first.y, other.y)


def test_tasks_show_what_real_ones_do(tasks: Tasks) -> None:
    last = tasks.y[..., -1]
    start = tasks.initial.view(-1, 1, 1)
    assert (last > tasks.initial.unsqueeze(-1) + 0.05).float().mean() > 0.3  # learning
    assert (tasks.y[..., -1] == 0).float().mean() > 0.01  # divergence
    still = (tasks.y - start).abs().amax(-1) < 0.01
    assert 0.05 < still.float().mean() < 0.5  # never leaving the untrained score
    inactive = tasks.x.isnan().any(1) & ~tasks.x.isnan().all(1)
    assert inactive.any(-1).float().mean() > 0.05  # conditional columns
    used = (~tasks.x.isnan().all(1)).sum(-1)
    assert used.min() <= 2
    assert used.max() >= 14


def test_configurations_tell_about_curves(tasks: Tasks) -> None:
    """Neighbours in a space of few columns have more similar ends than strangers."""
    x = tasks.x.nan_to_num(0.5)
    few = (~tasks.x.isnan().all(1)).sum(-1) <= 3
    distance = torch.cdist(x, x) + torch.eye(32) * 99
    nearest = distance.argmin(-1)
    last = tasks.y[..., -1]
    to_nearest = (last - last.gather(1, nearest)).abs().mean(-1)
    to_stranger = (last - last.roll(1, dims=1)).abs().mean(-1)
    assert to_nearest[few].mean() < 0.7 * to_stranger[few].mean()


# ── episodes ─────────────────────────────────────────────────────────────────────────────────────


def episode(seed: int = 0) -> tuple[Tasks, Episode]:
    tasks = sample_tasks(generator(seed), tasks=30, configs=16, epochs=20)
    return tasks, make_episode(tasks, Draws(generator(seed + 1)), context=40, queries=60)


def test_queries_are_about_the_future() -> None:
    tasks, made = episode()
    for b in range(30):
        real = ~made.padding[b]
        points = list(
            zip(made.points.curve[b, real].tolist(), made.points.t[b, real].tolist(), strict=True)
        )
        assert len(set(points)) == len(points)
        seen: dict[int, float] = {}
        for curve, t in points:
            seen[curve] = max(t, seen.get(curve, 0.0))
        longest = tasks.max_epochs[b].item()
        for curve, t, known in zip(
            made.queries.curve[b].tolist(),
            made.queries.t[b].tolist(),
            made.own.seen[b].tolist(),
            strict=True,
        ):
            assert t <= longest
            assert t > seen.get(curve, 0.0)
            assert known == seen.get(curve, 0.0)


def test_what_a_query_knows_of_its_curve_was_observed() -> None:
    """Changing everything that was not observed changes targets alone."""
    tasks = sample_tasks(generator(), tasks=30, configs=16, epochs=20)
    lengths = sample_prefixes(tasks, Draws(generator(1)), 40)
    hidden = torch.arange(1, 21) > lengths.unsqueeze(-1)
    spoiled = torch.where(hidden, 1 - tasks.y, tasks.y)
    # Prefixes depend on who is good in the end, which is what a tuner would know.
    order = tasks.y.gather(-1, (tasks.max_epochs.long() - 1).view(-1, 1, 1).expand(-1, 16, 1))
    end = (torch.arange(20) == (tasks.max_epochs - 1).view(-1, 1, 1)) & hidden
    spoiled = torch.where(end, order, spoiled)
    clean, dirty = (
        make_episode(each, Draws(generator(1)), context=40, queries=60)
        for each in (tasks, replace(tasks, y=spoiled))
    )
    real = ~clean.padding
    assert torch.equal(real, ~dirty.padding)
    for one, other in ((clean.scores, dirty.scores), (clean.own, dirty.own)):
        for part, same in zip(one, other, strict=True):
            assert torch.equal(
                part[real] if one is clean.scores else part,
                same[real] if one is clean.scores else same,
            )
    assert not torch.equal(clean.target, dirty.target)


def test_context_tokens_are_points_of_the_curves() -> None:
    tasks, made = episode(3)
    y = torch.cat([tasks.initial.view(-1, 1, 1).expand(-1, 16, 1), tasks.y], -1)
    for b in range(30):
        assert made.points.curve[b, 0] == INITIAL_CURVE
        assert made.scores.y[b, 0] == tasks.initial[b]
        for i in range(1, 40):
            if not made.padding[b, i]:
                n, t = int(made.points.curve[b, i]), int(made.points.t[b, i])
                assert made.scores.y[b, i] == y[b, n, t]
                assert made.scores.step[b, i] == y[b, n, t] - y[b, n, t - 1]


# ── training and weights ─────────────────────────────────────────────────────────────────────────


def test_training_learns() -> None:
    trainer = Trainer(replace(PLAN, tasks=8, learning_rate=3e-3), torch.device("cpu"))
    trainer.seconds = 10.0  # past the warm-up
    losses = [trainer.step().item() for _ in range(40)]
    assert sum(losses[-10:]) < sum(losses[:10]) - 2


def test_training_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = Trainer(PLAN, torch.device("cpu"))
    expected = [whole.step().item() for _ in range(6)]
    first = Trainer(PLAN, torch.device("cpu"))
    found = [first.step().item() for _ in range(3)]
    first.save_state(tmp_path / "state.pt")
    second = Trainer(replace(PLAN, seed=9), torch.device("cpu"))
    second.load_state(tmp_path / "state.pt")
    for mine, theirs in ((first.network, second.network), (first.average, second.average)):
        theirs = theirs.state_dict()
        assert all(torch.equal(value, theirs[key]) for key, value in mine.state_dict().items())
    assert torch.equal(first.generator.get_state(), second.generator.get_state())
    found += [second.step().item() for _ in range(3)]
    # In half precision where a tensor lies in memory may change how a product is rounded.
    assert found == pytest.approx(expected, abs=2e-3)
    assert second.steps == 6


def test_train_pauses_and_finishes(tmp_path: Path) -> None:
    plan = replace(PLAN, minutes=0.12, tasks=2)
    out = tmp_path / "made" / "net.safetensors"
    assert not train(plan, out, pause_after=0.03, device="cpu")
    assert out.with_suffix(".resume.pt").exists()
    assert train(plan, out, device="cpu")
    assert not out.with_suffix(".resume.pt").exists()
    about = weights.about(out)
    assert about["plan"]["minutes"] == 0.12
    assert about["seconds"] >= 7
    assert weights.load(out).shape == TINY


def test_training_begins_at_given_weights(tmp_path: Path) -> None:
    net = network(seed=3)
    weights.save(tmp_path / "net.safetensors", net)
    plan = replace(PLAN, start_from=str(tmp_path / "net.safetensors"))
    trainer = Trainer(plan, torch.device("cpu"))
    for mine, given in zip(trainer.network.parameters(), net.parameters(), strict=True):
        assert torch.allclose(mine, given, atol=1e-3)
        assert mine.requires_grad
    before = [each.clone() for each in trainer.network.parameters()]
    trainer.seconds = 10.0  # past the warm-up
    trainer.step()
    assert any(
        not torch.equal(a, b) for a, b in zip(before, trainer.network.parameters(), strict=True)
    )


def test_training_cannot_begin_at_weights_of_another_shape(tmp_path: Path) -> None:
    weights.save(tmp_path / "net.safetensors", network())
    plan = replace(
        PLAN, shape=replace(TINY, width=64), start_from=str(tmp_path / "net.safetensors")
    )
    with pytest.raises(ExtrapolatorError, match=r"width=32.*width=64.*same shape"):
        Trainer(plan, torch.device("cpu"))


def test_training_saves_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(training, "LOG_EVERY", 0)
    trainer = Trainer(replace(PLAN, minutes=0.02), torch.device("cpu"))
    saved: list[int] = []

    def save() -> None:
        trainer.save_state(tmp_path / "state.pt")
        saved.append(trainer.steps)
        assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]

    assert trainer.run(float("inf"), lambda row: None, save)
    assert saved == sorted(set(saved)) != []


def test_weights_survive_the_file(tmp_path: Path) -> None:
    net = network()
    weights.save(tmp_path / "net.safetensors", net, note="hello")
    again = weights.load(tmp_path / "net.safetensors")
    assert again.shape == TINY
    assert weights.about(tmp_path / "net.safetensors") == {"note": "hello"}
    queries = random_queries([0, NO_CURVE])
    torch.testing.assert_close(
        ask(again, random_context(), queries),
        ask(net, random_context(), queries),
        atol=0.02,
        rtol=0,
    )
    assert json.loads(json.dumps(TINY.to_json())) == TINY.to_json()


def test_memory_is_of_the_context_alone() -> None:
    memory = network().remember(*random_context(), torch.tensor([20.0]))
    assert isinstance(memory, Memory)
    assert [key.shape for key in memory.keys] == [(1, 2, 9, 16)] * 2
