"""The contract with the training function: what is refused, and what a score may be."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from freezethaw.errors import TrainError
from freezethaw.trial import Trial, check_generator, check_train, read_report


def generator(trial: Trial, data: int = 0) -> Iterator[float]:
    yield 0.5


def returns_score(trial: Trial) -> float:
    return 0.5


async def asynchronous(trial: Trial) -> float:
    return 0.5


async def asynchronous_generator(trial: Trial) -> Any:
    yield 0.5


class Trainer:
    def __call__(self, trial: Trial) -> Iterator[float]:
        yield 0.5

    def method(self, trial: Trial) -> Iterator[float]:
        yield 0.5

    def returning(self, trial: Trial) -> float:
        return 0.5


class Returning:
    def __call__(self, trial: Trial) -> float:
        return 0.5


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


@pytest.mark.parametrize(
    "train",
    [
        generator,
        functools.partial(generator, data=3),
        Trainer(),
        functools.partial(Trainer()),
        Trainer().method,
        lambda trial: generator(trial, 3),
        logged(generator),
    ],
)
def test_every_way_to_write_a_generator_is_accepted(train: Any):
    check_train(train)
    assert next(check_generator(train(Trial({}, max_epochs=3)))) == 0.5


@pytest.mark.parametrize(
    ("train", "says"),
    [
        (returns_score, "returns_score is not a generator function"),
        (functools.partial(returns_score), "returns_score is not a generator function"),
        (Returning(), "Returning.__call__ is not a generator function"),
        (Trainer().returning, "Trainer.returning is not a generator function"),
        (asynchronous, "asynchronous is an async function"),
        (asynchronous_generator, "asynchronous_generator is an async function"),
        (3, "train is 3"),
    ],
)
def test_what_is_no_generator_is_refused_before_it_runs(train: Any, says: str):
    with pytest.raises(TrainError, match=says) as caught:
        check_train(train)
    assert "yield net.validation_accuracy()    # in place of `return score`" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (0.5, r"returned 0.5 \(float\)"),
        (None, "returned None"),
        (iter([0.5]), "list_iterator"),
        (asynchronous(Trial({}, max_epochs=1)), "coroutine"),
    ],
)
def test_what_was_returned_in_place_of_a_generator_is_refused(value: object, says: str):
    with pytest.raises(TrainError, match=says) as caught:
        check_generator(value)
    assert "for epoch in trial.epochs():" in str(caught.value)


class OtherLibrary:
    """A zero-dimensional array of a library that freezethaw does not know."""

    def __float__(self) -> float:
        return 0.5


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        np.float64(0.5),
        np.float16(0.5),
        np.longdouble(0.5),
        np.array(0.5),
        torch.tensor(0.5),
        torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True),
        torch.tensor(0.5, requires_grad=True) * 1,
        Fraction(1, 2),
        OtherLibrary(),
        {"score": torch.tensor(0.5)},
    ],
    ids=repr,
)
def test_a_score_may_be_any_scalar(value: object):
    score, extra = read_report(value, "score")
    assert type(score) is float
    assert score == 0.5
    assert extra == {}


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), torch.tensor(3)], ids=repr)
def test_a_score_may_be_whole(value: object):
    assert read_report(value, "score") == (3.0, {})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), torch.tensor(float("-inf"))])
def test_divergence_is_a_score(value: object):
    score, _ = read_report(value, "score")
    assert not np.isfinite(score)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "0.5",
        True,
        np.bool_(True),
        torch.tensor(True),
        [0.5],
        (0.5, 0.6),
        np.array([0.5]),
        torch.tensor([0.5]),
        0.5j,
        np.complex64(0.5),
        torch.tensor(0.5j),
        np.datetime64("2020-01-01"),
        {"score": "0.5"},
    ],
    ids=repr,
)
def test_what_is_no_number_is_no_score(value: object):
    with pytest.raises(TrainError, match="a score is a number"):
        read_report(value, "score")


def test_an_int_beyond_floats_is_refused():
    with pytest.raises(TrainError, match="no float can hold"):
        read_report(10**400, "score")


def test_a_dict_carries_more_than_the_score():
    score, extra = read_report(
        {
            "accuracy": np.float32(0.5),
            "loss": torch.tensor(0.25, requires_grad=True),
            "steps": np.int64(7),
            "warm": np.bool_(True),
            "note": "ok",
            "nothing": None,
        },
        "accuracy",
    )
    assert score == 0.5
    assert extra == {"loss": 0.25, "steps": 7, "warm": True, "note": "ok", "nothing": None}
    assert [type(value) for value in extra.values()] == [float, int, bool, str, type(None)]


def test_a_dict_without_the_metric_names_what_it_has():
    with pytest.raises(TrainError, match=r"\['acc', 'loss'\].*\"score\".*tune\(metric="):
        read_report({"acc": 0.5, "loss": 1.0}, "score")


@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, np.zeros(3), torch.zeros(2), object(), 1j])
def test_extras_that_no_database_can_hold_are_refused(value: object):
    with pytest.raises(TrainError, match='under "histogram"'):
        read_report({"score": 0.5, "histogram": value}, "score")


def test_extras_are_named_by_text():
    with pytest.raises(TrainError, match="the key 3; its keys must be text"):
        read_report({"score": 0.5, 3: 1.0}, "score")


def test_a_trial_made_by_hand_can_be_tried():
    trial = Trial({"lr": 0.1}, max_epochs=3)
    assert list(trial.epochs()) == [1, 2, 3]
    assert trial.checkpoint is None
    assert (trial.trial_id, trial.seed, trial.max_epochs) == (0, 0, 3)


def test_params_are_the_trials_own_copy():
    given = {"lr": 0.1}
    trial = Trial(given, max_epochs=1)
    trial.params["lr"] = 5
    assert given == {"lr": 0.1}


def test_a_hook_is_a_function():
    with pytest.raises(TrainError, match=r"on_freeze got 'net.pt'.*lambda folder"):
        Trial({}, max_epochs=1).on_freeze("net.pt")  # type: ignore[arg-type]
