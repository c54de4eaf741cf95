"""From rows of text to what networks are trained on, and what is refused on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from curves.errors import CollectError
from curves.recipes import Recipe, steps_per_epoch
from curves.tasks import (
    PIECE,
    DataSet,
    TaskRecipe,
    image_task,
    load_dataset,
    read_columns,
    split_rows,
    tabular_task,
    text_task,
)


def rows(n=30):
    return [[str(i), "7", "red" if i % 3 else "blue", "yes" if i % 2 else "no"] for i in range(n)]


def test_columns_are_numbers_or_named_values_and_one_value_says_nothing():
    dataset = read_columns("toy", rows())
    assert dataset.class_names == ("no", "yes")
    assert dataset.targets[:4].tolist() == [0, 1, 0, 1]
    assert dataset.numbers.shape == (30, 1)  # the column of sevens is left out
    assert dataset.kinds[:4, 0].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([], "toy: holds no rows; fetch it again"),
        ([*rows(), ["1", "2"]], "toy, row 30: has 2 columns, the first 4"),
        ([*rows(), ["?", "7", "red", "yes"]], "toy, row 30: has a missing value"),
        ([["1", "2", "a"], ["1", "2", "b"]], "toy: no column has two values"),
    ],
)
def test_bad_rows_are_refused(cells, message):
    with pytest.raises(CollectError, match=message):
        read_columns("toy", cells)


def test_a_class_of_one_row_cannot_stand_on_both_sides():
    cells = [*rows(), ["1", "7", "red", "perhaps"]]
    with pytest.raises(CollectError, match=r"class 'perhaps' has 1 row; it needs 3 or more"):
        tabular_task(TaskRecipe(name="toy", dataset="toy"), read_columns("toy", cells))


def test_one_class_is_nothing_to_tell_apart():
    cells = [[str(i), "same"] for i in range(9)]
    with pytest.raises(CollectError, match="toy: has one class"):
        tabular_task(TaskRecipe(name="toy", dataset="toy"), read_columns("toy", cells))


def test_a_table_is_split_by_class_and_scaled_by_its_training_rows():
    task = tabular_task(TaskRecipe(name="toy", dataset="toy"), read_columns("toy", rows(90)))
    assert task.inputs.shape == (60, 3)  # a number and two named values
    assert task.valid_inputs.shape == (30, 3)
    assert task.inputs.mean(0).abs().max() < 1e-12
    assert (task.inputs.std(0, correction=0) - 1).abs().max() < 1e-12
    assert task.targets.bincount().tolist() == [30, 30]
    assert task.valid_targets.bincount().tolist() == [15, 15]
    numbers = torch.cat([task.inputs[:, 0], task.valid_inputs[:, 0]])
    assert len(numbers.unique()) == 90  # no row is on both sides


def test_fewer_rows_of_a_data_set_are_a_part_of_the_same_split():
    dataset = read_columns("toy", rows(90))
    train, valid = split_rows(dataset, 60, 30, np.random.default_rng(1))
    few, same = split_rows(dataset, 20, 30, np.random.default_rng(1))
    assert len(few) == 20
    assert set(few.tolist()) < set(train.tolist())
    assert sorted(same) == sorted(valid)


def images(n=60):
    rng = np.random.default_rng(0)
    return DataSet(
        name="toy",
        targets=np.arange(n) % 3,
        class_names=("a", "b", "c"),
        numbers=rng.uniform(1, 2, size=(n, 9, 9)).astype(np.float32),
    )


def test_an_occluded_square_is_blank_and_elsewhere_in_every_image():
    plain = image_task(TaskRecipe(name="plain", dataset="toy"), images())
    hidden = image_task(TaskRecipe(name="hidden", dataset="toy", occluded=4), images())
    changed = (plain.inputs != hidden.inputs).flatten(1).sum(1)
    assert ((changed > 12) & (changed <= 16)).all()
    assert len({tuple(np.argwhere(c)[0]) for c in (plain.inputs != hidden.inputs).numpy()}) > 5


def test_noise_has_the_size_that_was_asked_for():
    plain = image_task(TaskRecipe(name="plain", dataset="toy"), images())
    noisy = image_task(TaskRecipe(name="noisy", dataset="toy", noise=0.5), images())
    assert (noisy.inputs - plain.inputs).std() == pytest.approx(0.5, rel=0.05)


def test_only_training_rows_are_mislabelled():
    plain = image_task(TaskRecipe(name="plain", dataset="toy"), images(300))
    wrong = image_task(TaskRecipe(name="wrong", dataset="toy", mislabelled=0.6), images(300))
    assert wrong.valid_targets.equal(plain.valid_targets)
    # A class drawn at random is right one time in three.
    assert (wrong.targets != plain.targets).double().mean() == pytest.approx(0.4, abs=0.1)


def test_images_are_asked_for():
    with pytest.raises(CollectError, match="toy: holds no images"):
        image_task(TaskRecipe(name="toy", dataset="toy"), read_columns("toy", rows()))


def test_every_character_of_a_text_is_followed_by_the_next():
    dataset = DataSet(name="toy", targets=np.arange(2000) % 11, class_names=tuple("abcdefghijk"))
    task = text_task(TaskRecipe(name="toy", dataset="toy", most_rows=20), dataset)
    assert task.inputs.shape == (20, PIECE)
    assert task.valid_inputs.shape == (5, PIECE)
    assert task.targets.equal((task.inputs + 1) % 11)
    assert task.valid_inputs[0, 0] == 4 * PIECE % 11


def test_a_text_that_is_too_short_is_refused():
    dataset = DataSet(name="toy", targets=np.zeros(100, dtype=int), class_names=("a",))
    with pytest.raises(CollectError, match=r"toy: has 100 characters; long needs 1601"):
        text_task(TaskRecipe(name="long", dataset="toy", most_rows=20), dataset)


def test_a_data_set_comes_back_as_it_was_saved(tmp_path):
    dataset = read_columns("toy", rows())
    dataset.save(tmp_path)
    again = load_dataset(tmp_path, "toy")
    assert again.class_names == dataset.class_names
    for name in ("targets", "numbers", "kinds"):
        np.testing.assert_array_equal(getattr(again, name), getattr(dataset, name))
    assert [file.name for file in tmp_path.iterdir()] == ["toy.npz"]


def test_a_full_disk_leaves_no_half_of_a_data_set(tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(CollectError, match=r"toy\.npz: cannot be written: .*No space left"):
        read_columns("toy", rows()).save(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_data_set_that_is_absent_or_damaged_says_what_to_do(tmp_path):
    with pytest.raises(CollectError, match=r"toy\.npz: there is no such data set; .*fetch"):
        load_dataset(tmp_path, "toy")
    (tmp_path / "toy.npz").write_bytes(b"PK half of it")
    with pytest.raises(CollectError, match=r"toy\.npz: .*; remove it and run"):
        load_dataset(tmp_path, "toy")


# ── learning rates ───────────────────────────────────────────────────────────────────────────────


def torch_rates(make_schedule, n_steps, rate=0.3):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], rate)
    schedule = make_schedule(optimizer)
    rates = []
    for _ in range(n_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


SCHEDULES = torch.optim.lr_scheduler


@pytest.mark.parametrize(
    ("recipe", "make_schedule"),
    [
        ({"schedule": "constant"}, lambda o: SCHEDULES.ConstantLR(o, 1.0)),
        ({"schedule": "cosine"}, lambda o: SCHEDULES.CosineAnnealingLR(o, 40)),
        ({"schedule": "step"}, lambda o: SCHEDULES.MultiStepLR(o, [20, 30], 0.1)),
        (
            {"schedule": "exponential", "final_share": 0.01},
            lambda o: SCHEDULES.ExponentialLR(o, 0.01 ** (1 / 40)),
        ),
    ],
)
def test_schedules_are_those_of_pytorch(recipe, make_schedule):
    rates = Recipe(batch_size=1, learning_rate=0.3, **recipe).rates(40)
    np.testing.assert_allclose(rates, torch_rates(make_schedule, 40), rtol=1e-9)


def test_a_warm_up_rises_in_even_steps_to_the_schedule():
    rates = Recipe(batch_size=1, learning_rate=0.5, warmup=0.2).rates(20)
    np.testing.assert_allclose(rates[:5], [0.1, 0.2, 0.3, 0.4, 0.5])
    assert (rates[4:] == 0.5).all()


def test_only_full_batches_count_and_one_always_does():
    assert steps_per_epoch(100, 32) == 3
    assert steps_per_epoch(20, 32) == 1
