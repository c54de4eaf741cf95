"""Interleaving must not show: random streams, torch modes, context variables."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from freezethaw.isolation import Isolation, RandomState


def draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def modes() -> tuple[Any, ...]:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        nesting,
    )


def autocast_cuda() -> contextlib.AbstractContextManager[None]:
    # torch.autocast("cuda") turns itself off without a device; the modes it sets exist anyway.
    @contextlib.contextmanager
    def enabled() -> Iterator[None]:
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", torch.float16)

    return enabled()


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


BLOCKS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_float16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "autocast_no_cache": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "autocast_cuda": autocast_cuda,
    "double_precision": double_precision,
}


class Suspendable:
    """A generator that suspends inside a block and reports the modes that it sees."""

    def __init__(self, block: Callable[[], contextlib.AbstractContextManager[Any]]) -> None:
        self.isolation = Isolation(0)
        self.generator = self._body(block)

    @staticmethod
    def _body(
        block: Callable[[], contextlib.AbstractContextManager[Any]],
    ) -> Generator[tuple[Any, ...], None, None]:
        yield modes()
        with block():
            yield modes()
            yield modes()
        yield modes()

    def step(self) -> tuple[Any, ...]:
        return self.isolation.run(next, self.generator)

    def close(self) -> None:
        self.isolation.run(self.generator.close)


def test_equal_seeds_draw_alike_and_others_do_not():
    assert Isolation(7).run(draw) == Isolation(7).run(draw)
    assert Isolation(7).run(draw) != Isolation(8).run(draw)


def test_the_callers_streams_do_not_move():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = [draw(), draw()]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = draw()
    Isolation(7).run(draw)
    assert [first, draw()] == expected


def test_streams_do_not_depend_on_who_runs_in_between():
    alone = Isolation(7)
    expected = [alone.run(draw) for _ in range(3)]
    one, other = Isolation(7), Isolation(8)
    mixed = []
    for _ in range(3):
        mixed.append(one.run(draw))
        other.run(draw)
        draw()
    assert mixed == expected


def test_the_gaussian_left_over_is_the_trials_own():
    def odd_gauss() -> tuple[float, float]:
        return random.gauss(0, 1), float(np.random.standard_normal())

    alone = Isolation(3)
    expected = [alone.run(odd_gauss) for _ in range(3)]
    one, other = Isolation(3), Isolation(4)
    mixed = []
    for _ in range(3):
        mixed.append(one.run(odd_gauss))
        other.run(odd_gauss)
    assert mixed == expected


def test_states_are_put_back_when_the_call_raises():
    before, state = modes(), RandomState.capture()

    def fail() -> None:
        draw()
        torch.set_grad_enabled(False)
        torch.inference_mode().__enter__()
        raise ValueError("boom")

    isolation = Isolation(0)
    with pytest.raises(ValueError, match="boom"):
        isolation.run(fail)
    assert modes() == before
    assert RandomState.capture().to_json() == state.to_json()


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_the_trials_own(name: str):
    outside = modes()
    with BLOCKS[name]():
        inside = modes()
    assert inside != outside

    trial = Suspendable(BLOCKS[name])
    seen = []
    for _ in range(4):
        seen.append(trial.step())
        assert modes() == outside
        assert torch.ones(2, requires_grad=True).sum().requires_grad
    assert seen == [outside, inside, inside, outside]


@pytest.mark.parametrize("name", BLOCKS)
def test_closing_inside_a_block_leaves_no_trace(name: str):
    outside = modes()
    trial = Suspendable(BLOCKS[name])
    trial.step(), trial.step()
    trial.close()
    assert modes() == outside


@pytest.mark.parametrize("one", BLOCKS)
@pytest.mark.parametrize("other", BLOCKS)
def test_blocks_of_interleaved_trials_do_not_meet(one: str, other: str):
    outside = modes()
    expected = {}
    for name in (one, other):
        with BLOCKS[name]():
            expected[name] = modes()
    a, b = Suspendable(BLOCKS[one]), Suspendable(BLOCKS[other])
    seen = [a.step(), b.step(), a.step(), b.step(), a.step(), b.step(), a.step(), b.step()]
    e, f = expected[one], expected[other]
    assert seen == [outside, outside, e, f, e, f, outside, outside]
    assert modes() == outside


def test_the_callers_own_block_is_left_as_it_was():
    trial = Suspendable(torch.no_grad)
    with torch.inference_mode():
        caller = modes()
        trial.step()
        assert modes() == caller
    trial.step()
    trial.step()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        caller = modes()
        trial.step()
        assert modes() == caller
    trial.close()


def test_inference_mode_is_found_again_under_another_caller():
    outside = modes()
    trial = Suspendable(torch.inference_mode)
    trial.step()
    inside = trial.step()
    with torch.inference_mode():
        caller = modes()
        assert trial.step() == inside  # the caller is in it as well
        assert modes() == caller
    assert modes() == outside
    trial.close()
    assert modes() == outside


def train_under_autocast(whole: bool) -> Generator[float, None, None]:
    """One weight, one step an epoch; `whole` suspends inside the autocast block."""
    weight = torch.nn.Parameter(torch.ones(1, 1))
    outer = torch.autocast("cpu", torch.bfloat16) if whole else contextlib.nullcontext()
    with outer:
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16):
                out = torch.nn.functional.linear(torch.ones(1, 1), weight).sum()
            out.backward()
            with torch.no_grad():
                weight -= 0.25 * weight.grad
            weight.grad = None
            yield float(out.detach())


def test_a_trial_frozen_inside_autocast_does_not_freeze_the_weights_of_others():
    frozen, isolation = train_under_autocast(True), Isolation(0)
    isolation.run(next, frozen)
    other, its = train_under_autocast(False), Isolation(1)
    assert [its.run(next, other) for _ in range(4)] == [1.0, 0.75, 0.5, 0.25]
    # ... and a trial's own scores are the same with and without others in between.
    alone, its_own = train_under_autocast(True), Isolation(0)
    its_own.run(next, alone)
    assert [isolation.run(next, frozen) for _ in range(3)] == [
        its_own.run(next, alone) for _ in range(3)
    ]


def test_context_variables_are_the_trials_own():
    def strict() -> Generator[str, None, None]:
        with np.errstate(divide="raise"):
            yield np.geterr()["divide"]
            yield np.geterr()["divide"]

    isolation, generator, outside = Isolation(0), strict(), np.geterr()["divide"]
    assert isolation.run(next, generator) == "raise"
    if np.__version__ >= "2":  # a context variable since numpy 2
        assert np.geterr()["divide"] == outside
    assert isolation.run(next, generator) == "raise"
    isolation.run(generator.close)
    assert np.geterr()["divide"] == outside


def test_what_runs_aside_draws_nothing():
    isolation = Isolation(7)
    isolation.run(draw)
    expected = isolation.run(draw)
    isolation = Isolation(7)
    isolation.run(draw)
    isolation.run_aside(draw)
    assert isolation.run(draw) == expected


def test_random_states_survive_as_text():
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    random.gauss(0, 1), np.random.standard_normal()
    text = RandomState.capture().to_json()
    expected = draw(), random.gauss(0, 1), np.random.standard_normal()
    RandomState.from_json(text).restore()
    assert (draw(), random.gauss(0, 1), np.random.standard_normal()) == expected


def test_torch_is_never_imported_but_isolated_once_a_trial_does():
    program = """
import sys
from freezethaw.trials import Trials
from freezethaw.records import Step

def train(trial):
    yield 0.0
    import torch
    with torch.no_grad():
        yield float(torch.rand(()))
        yield float(torch.is_grad_enabled())

trials = Trials(train, max_epochs=3)
def step(trial_id, epoch):
    step = Step(step_id=0, trial_id=trial_id, params={}, from_epoch=epoch - 1, to_epoch=epoch,
                seed=0)
    return next(trials.advance(step, epoch - 1)).score

step(0, 1); step(1, 1)
assert "torch" not in sys.modules
step(0, 2)
import torch
assert torch.is_grad_enabled()
one = step(1, 2)
again = Trials(train, max_epochs=3, notify=lambda text: None)
trials, old = again, trials
step(1, 1); torch.rand(3)
assert step(1, 2) == one
old.close(), again.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


class FakeCuda:
    """Two devices whose streams are one number each, behind torch.cuda's functions."""

    def __init__(self, patch: pytest.MonkeyPatch, started: bool) -> None:
        self.started = started
        self.streams = [0, 0]
        patch.setattr(torch.cuda, "is_initialized", lambda: self.started)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: 2)
        patch.setattr(torch.cuda, "init", self.init)
        patch.setattr(torch.cuda, "manual_seed_all", self.seed)
        patch.setattr(torch.cuda, "get_rng_state_all", self.get)
        patch.setattr(torch.cuda, "set_rng_state", self.set)

    def init(self) -> None:
        self.started = True

    def seed(self, seed: int) -> None:
        self.streams = [seed, seed]

    def get(self) -> list[torch.Tensor]:
        assert self.started
        return [torch.tensor(list(s.to_bytes(8, "big")), dtype=torch.uint8) for s in self.streams]

    def set(self, state: torch.Tensor, device: int) -> None:
        assert self.started, "a seed queued before would override it"
        self.streams[device] = int.from_bytes(state.numpy().tobytes(), "big")

    def draw(self) -> list[int]:
        self.started = True
        self.streams = [stream + 1 + device for device, stream in enumerate(self.streams)]
        return list(self.streams)


def test_every_cuda_device_has_the_trials_stream(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch, started=True)
    cuda.streams = [40, 50]
    one, other = Isolation(100), Isolation(200)
    assert one.run(cuda.draw) == [101, 102]
    assert other.run(cuda.draw) == [201, 202]
    assert one.run(cuda.draw) == [102, 104]
    assert cuda.streams == [40, 50]
    assert one.random is not None
    cuda.started = False  # a new process thaws it before CUDA has started
    RandomState.from_json(one.random.to_json()).restore()
    assert cuda.streams == [102, 104]


def test_cuda_that_starts_in_one_trial_is_seeded_for_all(monkeypatch: pytest.MonkeyPatch):
    cuda = FakeCuda(monkeypatch, started=False)
    torch.manual_seed(5)
    early, starts = Isolation(100), Isolation(200)
    early.run(draw)
    assert starts.run(cuda.draw) == [201, 202]
    assert cuda.streams == [5, 5]  # what the caller had asked for
    assert early.run(cuda.draw) == [101, 102]
    assert cuda.streams == [5, 5]


@pytest.mark.gpu
def test_cuda_streams_are_the_trials_own():
    def draws() -> Generator[float, None, None]:
        while True:
            yield float(torch.rand((), device="cuda"))

    alone, generator = Isolation(7), draws()
    expected = [alone.run(next, generator) for _ in range(3)]
    torch.cuda.manual_seed_all(1)
    caller = float(torch.rand((), device="cuda")), float(torch.rand((), device="cuda"))
    torch.cuda.manual_seed_all(1)
    seen = [float(torch.rand((), device="cuda"))]
    one, first, other, second = Isolation(7), draws(), Isolation(8), draws()
    mixed = []
    for _ in range(3):
        mixed.append(one.run(next, first))
        other.run(next, second)
    seen.append(float(torch.rand((), device="cuda")))
    assert mixed == expected
    assert tuple(seen) == caller
    state = RandomState.from_json(one.random.to_json())
    expected_next = one.run(next, first)
    state.restore()
    assert float(torch.rand((), device="cuda")) == expected_next


@pytest.mark.gpu
def test_cuda_that_starts_inside_a_trial_is_seeded_for_it_and_for_the_caller():
    program = """
import torch
from freezethaw.isolation import Isolation
torch.manual_seed(5)
draw = lambda: float(torch.rand((), device="cuda"))
one = Isolation(7)
first = one.run(lambda: float(torch.rand(())) and 0.0)  # seeded, CUDA not yet started
assert not torch.cuda.is_initialized()
late, fresh = Isolation(9), Isolation(9)
a = late.run(draw)
assert fresh.run(draw) == a
caller = draw()
torch.manual_seed(5)
assert caller == draw()
torch.manual_seed(7)
assert one.run(draw) == draw()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
