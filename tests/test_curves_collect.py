"""The collector at toy size: two tasks, eight configurations, three epochs."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import curves.__main__ as command
from curves import collect as collecting
from curves.assemble import assemble, read_curves, shorten
from curves.cards import draw, repeated, statistics_of
from curves.collect import Part, Settings, collect, load_tasks, part_path, read_part
from curves.costs import CostModel, fit_costs, read_costs, relative_costs, write_costs
from curves.errors import CollectError
from curves.sources import SOURCES
from curves.spaces import COLLECTIONS
from curves.tasks import TaskRecipe
from freezethaw.space import Choice
from freezethaw.tables import open_table
from test_curves_equality import toy_dataset

SETTINGS = Settings(n_configs=8, n_epochs=3)
COSTS = CostModel(
    seconds_per_step=1e-3, seconds_per_multiply_add=1e-9, median_error=0.0, machine="none"
)


def toy_collection(name):
    """A collection with two toy tasks in place of its own."""
    recipes = (
        TaskRecipe(name="one", dataset="toy", most_rows=60),
        TaskRecipe(name="two", dataset="other", most_rows=40),
    )
    return dataclasses.replace(COLLECTIONS[name], tasks=recipes, test_datasets=("other",))


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def save_data(collection, folder):
    dataset = toy_dataset(collection)
    dataset.save(folder)
    dataclasses.replace(dataset, name="other").save(folder)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_becomes_a_table(name, data, tmp_path, monkeypatch, capsys):
    collection = toy_collection(name)
    save_data(collection, data)
    monkeypatch.setitem(COLLECTIONS, name, collection)
    write_costs(tmp_path / "costs.json", name, COSTS)
    sizes = ["--configs", "8", "--epochs", "3"]
    places = ["--data", str(data), "--parts", str(tmp_path / "parts")]
    folders = ["--tables", str(tmp_path / "tables"), "--cards", str(tmp_path / "cards")]
    costs = ["--costs", str(tmp_path / "costs.json")]

    assert command.main(["collect", name, *sizes, *places, "--device", "cpu"]) == 0
    printed = capsys.readouterr().out
    assert f"{name} 2/2: two, " in printed
    assert "diverged; " in printed
    assert command.main(["tables", name, *sizes, *places, *folders, *costs]) == 0

    table = open_table(name, folder=tmp_path / "tables")
    assert table.curves.shape == (2, 8, 4)
    assert table.test_tasks == ("two",)
    assert table.params(3) == collection.draw(8)[3]
    assert table.goal == ("minimize" if name == "text" else "maximize")
    card = (tmp_path / "cards" / f"{name}.md").read_text()
    assert "2 tasks × 8 configurations × 3 epochs" in card
    assert "| two (test) | other | " in card
    assert (tmp_path / "cards" / f"{name}.svg").read_text().count("<g ") == 2


def test_the_same_settings_give_the_same_curves(data, tmp_path):
    collection = toy_collection("tabular")
    save_data(collection, data)
    for parts in ("first", "second"):
        collect(collection, data, tmp_path / parts, SETTINGS, say=lambda line: None)
    paths = [part_path(tmp_path / parts, collection, "one") for parts in ("first", "second")]
    one, other = map(read_part, paths)
    np.testing.assert_array_equal(one.valid_losses, other.valid_losses)


def test_what_is_done_is_not_done_again(data, tmp_path):
    collection = toy_collection("tabular")
    save_data(collection, data)
    lines = []
    collect(collection, data, tmp_path, SETTINGS, only=["two"], say=lines.append)
    before = part_path(tmp_path, collection, "two").stat().st_mtime_ns
    collect(collection, data, tmp_path, SETTINGS, say=lines.append)
    assert lines[1] == "tabular: 1 tasks are there already"
    assert lines[2].startswith("tabular 1/1: one")
    assert part_path(tmp_path, collection, "two").stat().st_mtime_ns == before


def test_an_interrupted_collection_keeps_whole_tasks_and_goes_on(data, tmp_path, monkeypatch):
    collection = toy_collection("tabular")
    save_data(collection, data)

    def interrupt(line):
        if ": one" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(collection, data, tmp_path, SETTINGS, say=interrupt)
    assert [file.name for file in (tmp_path / "tabular").iterdir()] == ["one.npz"]
    with pytest.raises(CollectError, match=r"tabular: two not collected yet; run `python -m"):
        assemble(collection, data, tmp_path, SETTINGS, COSTS)
    collect(collection, data, tmp_path, SETTINGS, say=lambda line: None)
    assert len(assemble(collection, data, tmp_path, SETTINGS, COSTS).tasks) == 2


def test_a_full_disk_leaves_no_half_of_a_part(data, tmp_path, monkeypatch, capsys):
    collection = toy_collection("tabular")
    save_data(collection, data)
    monkeypatch.setitem(COLLECTIONS, "tabular", collection)

    def full(file, **arrays):
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(collecting.np, "savez_compressed", full)
        arguments = ["collect", "tabular", "--configs", "8", "--epochs", "1", "--device", "cpu"]
        arguments += ["--data", str(data), "--parts", str(tmp_path / "parts")]
        assert command.main(arguments) == 1
    error = capsys.readouterr().err
    assert "one.npz: cannot be written: [Errno 28] No space left on device; make room" in error
    assert list((tmp_path / "parts" / "tabular").iterdir()) == []
    assert command.main(arguments) == 0


def test_parts_made_otherwise_are_refused(data, tmp_path):
    collection = toy_collection("tabular")
    save_data(collection, data)
    collect(collection, data, tmp_path, SETTINGS, say=lambda line: None)
    longer = dataclasses.replace(SETTINGS, n_epochs=4)
    with pytest.raises(CollectError, match=r"was made with n_epochs = 3, and now it is 4; remove"):
        collect(collection, data, tmp_path, longer, say=lambda line: None)
    harder = dataclasses.replace(collection.tasks[0], noise=1.0)
    other = dataclasses.replace(collection, tasks=(harder, collection.tasks[1]))
    with pytest.raises(CollectError, match=r"one\.npz: was made with task = "):
        collect(other, data, tmp_path, SETTINGS, say=lambda line: None)


def test_parts_made_from_other_data_or_by_other_recipes_are_refused(data, tmp_path):
    collection = toy_collection("tabular")
    save_data(collection, data)
    collect(collection, data, tmp_path, SETTINGS, say=lambda line: None)

    def slower(params):
        return dataclasses.replace(collection.recipe(params), warmup=0.1)

    other = dataclasses.replace(collection, recipe=slower)
    with pytest.raises(CollectError, match=r"one\.npz: was made with recipes = "):
        collect(other, data, tmp_path, SETTINGS, say=lambda line: None)
    dataset = toy_dataset(collection)
    dataset.numbers[0, 0] += 1
    dataset.save(data)
    with pytest.raises(CollectError, match=r"one\.npz: was made with data = "):
        collect(collection, data, tmp_path, SETTINGS, say=lambda line: None)


def test_rows_that_stand_on_both_sides_are_counted(data):
    collection = toy_collection("tabular")
    save_data(collection, data)
    task = load_tasks(collection, data)[0]
    assert repeated(task) == 0.0
    twice = dataclasses.replace(task, valid_inputs=torch.cat([task.valid_inputs, task.inputs[:10]]))
    assert repeated(twice) == 10 / len(twice.valid_inputs)


def test_a_damaged_part_is_named(data, tmp_path):
    collection = toy_collection("tabular")
    save_data(collection, data)
    path = part_path(tmp_path, collection, "one")
    path.parent.mkdir()
    path.write_bytes(b"PK half of it")
    with pytest.raises(CollectError, match=r"one\.npz: .*; remove it, and collect again"):
        collect(collection, data, tmp_path, SETTINGS, say=lambda line: None)


def test_data_that_was_not_fetched_is_named(tmp_path, capsys):
    arguments = ["collect", "tabular", "--data", str(tmp_path), "--parts", str(tmp_path)]
    assert command.main(arguments) == 1
    assert "letter.npz: there is no such data set; `python -m curves fetch`" in (
        capsys.readouterr().err
    )


def test_side_by_side_and_one_by_one_are_timed(data, tmp_path, monkeypatch, capsys):
    collection = toy_collection("tabular")
    save_data(collection, data)
    monkeypatch.setitem(COLLECTIONS, "tabular", collection)
    out = tmp_path / "throughput.md"
    arguments = ["throughput", "tabular", "--configs", "32", "--device", "cpu"]
    assert command.main([*arguments, "--data", str(data), "--out", str(out)]) == 0
    row = re.search(
        r"\| tabular \| one \| 60 \| ([\d,]+) \| ([\d,.]+) \| (\d+) \|", out.read_text()
    )
    together, alone, ratio = (float(text.replace(",", "")) for text in row.groups())
    assert ratio == pytest.approx(together / alone, abs=0.51)
    assert out.read_text() in capsys.readouterr().out


# ── from parts to tables ─────────────────────────────────────────────────────────────────────────


def test_a_run_is_over_when_a_loss_is_not_finite():
    losses = np.array([[1.0, 2.0, np.nan, 3.0], [1.0, np.inf, 0.5, 0.5], [1.0, 0.9, 0.8, 0.7]])
    train = np.ones_like(losses)
    train[2, 3] = np.inf
    accuracies = np.full_like(losses, 0.25)
    part = Part(
        train_losses=train.astype(np.float32),
        valid_losses=losses.astype(np.float32),
        valid_accuracies=accuracies.astype(np.float32),
        made={},
    )
    nan = np.nan
    expected = [[0.25, 0.25, nan, nan], [0.25, nan, nan, nan], [0.25, 0.25, 0.25, nan]]
    scores, train_curves = read_curves(COLLECTIONS["tabular"], part)
    np.testing.assert_array_equal(scores, expected)
    np.testing.assert_array_equal(np.isnan(train_curves), np.isnan(expected))


def test_values_keep_the_digits_of_float16_and_the_range_of_float32():
    values = np.array(
        [0.0, 3.21e-9, 0.123456, -3.14159, 65504.0, 1.23456e5, -9.87654e33], np.float32
    )
    short = shorten(values)
    np.testing.assert_allclose(short, values, rtol=2**-11)
    assert short[2] == np.float16(0.123456)
    assert np.isfinite(shorten(np.array([np.finfo(np.float32).max]))).all()
    np.testing.assert_array_equal(short, short.astype(np.float32))


def test_costs_are_relative_and_grow_with_the_work(data):
    collection = toy_collection("tabular")
    save_data(collection, data)
    tasks = load_tasks(collection, data)
    small = {**collection.draw(1)[0], "batch_size": 16, "width": 8, "depth": 1}
    wide = {**small, "width": 256, "depth": 4}
    few_steps = {**small, "batch_size": 32}
    costs = relative_costs(collection, [small, wide, few_steps], tasks, COSTS)
    assert costs.mean() == pytest.approx(1.0, rel=1e-3)
    assert (costs[:, 1] > costs[:, 0]).all()
    assert (costs[:, 2] < costs[:, 0]).all()
    # Steps of 16 rows: 3 on the first task; each 1 ms and 16 × (6 × 8 + 8 × 4) products.
    assert COSTS.seconds(collection, small, tasks[0]) == pytest.approx(3 * (1e-3 + 16 * 80e-9))


def test_costs_are_fitted_to_ordinary_loops(data, tmp_path):
    collection = toy_collection("tabular")
    save_data(collection, data)
    model = fit_costs(collection, load_tasks(collection, data))
    assert 1e-6 < model.seconds_per_step < 1.0
    assert model.seconds_per_multiply_add >= 0.0
    write_costs(tmp_path / "costs.json", "tabular", model)
    write_costs(tmp_path / "costs.json", "text", COSTS)
    assert read_costs(tmp_path / "costs.json", "tabular") == model
    with pytest.raises(CollectError, match="has no costs of images; run `python -m curves time"):
        read_costs(tmp_path / "costs.json", "images")


def test_statistics_of_curves_worked_out_by_hand():
    table = open_table("tabular")
    epochs = np.arange(51)
    rng = np.random.default_rng(0)
    rising = 0.2 + 0.5 * np.minimum(epochs / 20, 1.0)
    falling = np.where(epochs < 10, 0.2 + 0.05 * epochs, 0.4)
    flat = np.full(51, 0.2)
    diverged = np.where(epochs < 30, 0.3, np.nan)
    curves = np.stack([rising, falling, flat, diverged] * 16)
    noise = rng.normal(0, 0.01, size=curves.shape)
    noise[:, 0] = 0
    shown = dataclasses.replace(
        table,
        configs=table.configs[:64],
        curves=(curves + noise)[None],
        tasks=("toy",),
        test_tasks=(),
        cost=None,
        train_curves=None,
    )
    found = statistics_of(shown, "toy")
    assert found.diverged == 0.25
    assert found.learning == 0.5
    low, high = shown.scale("toy").to_unit(np.array([0.54, 0.56])).tolist()
    assert found.noise == pytest.approx(0.01 * (high - low) / 0.02, rel=0.1)
    assert 5 <= found.half_gain <= 11
    assert found.past_peak == pytest.approx(0.5, abs=0.15)
    assert draw(shown).count("<path stroke") == 16


# ── the collector's floor plan ────────────────────────────────────────────────────────────────────

CURVES = Path(command.__file__).parent
FLOORS = """
    errors recipes tasks stacks together alone collection
    spaces.tabular spaces.funnel spaces.images spaces.text spaces
    sources fetch collect costs throughput assemble cards __main__
    """
ORDER = FLOORS.split()


def our_name(path):
    name = ".".join(path.relative_to(CURVES).with_suffix("").parts)
    return name.removesuffix(".__init__")


def test_the_collectors_imports_go_one_way_and_the_library_knows_nothing_of_it():
    files = {our_name(path): path for path in CURVES.rglob("*.py")}
    assert sorted(set(files) - {"__init__"}) == sorted(ORDER)
    for name in ORDER:
        imported = re.findall(r"^ *from curves\.([\w.]+) import", files[name].read_text(), re.M)
        assert set(imported) <= set(ORDER[: ORDER.index(name)]), name
    for path in (CURVES.parent / "src").rglob("*.py"):
        assert not re.search(r"^ *(from|import) curves\b", path.read_text(), re.M), path


def test_the_collectors_files_and_functions_can_be_read_in_a_sitting():
    for path in CURVES.rglob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= 400
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno <= 75, f"{path}: {node.name}"


# ── what the tables promise ──────────────────────────────────────────────────────────────────────


def family(dataset):
    """Data sets that are the same data go by one name."""
    twin = SOURCES[dataset].twin
    return twin if twin in SOURCES else dataset


def test_no_data_set_is_on_both_sides_in_any_collection():
    sides = {}
    for collection in COLLECTIONS.values():
        for task in collection.tasks:
            side = task.dataset in collection.test_datasets
            assert sides.setdefault(family(task.dataset), side) == side, task.dataset


def test_twins_of_other_tables_tasks_are_on_their_side():
    for collection in COLLECTIONS.values():
        for task in collection.tasks:
            twin = SOURCES[task.dataset].twin
            if "LCBench" in twin:
                assert ("test task" in twin) == (task.dataset in collection.test_datasets)


def test_a_quarter_of_the_tasks_are_test_tasks_and_there_are_enough():
    assert sum(len(collection.tasks) for collection in COLLECTIONS.values()) >= 32
    wanted = {"tabular": 16, "funnel": 8, "images": 4, "text": 4}
    for name, least in wanted.items():
        collection = COLLECTIONS[name]
        assert len(collection.tasks) >= least
        assert len(collection.test_tasks) * 4 == len(collection.tasks)
        assert {task.dataset for task in collection.tasks} <= set(SOURCES)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_configurations_come_from_all_over_the_space(name):
    collection = COLLECTIONS[name]
    configs = collection.draw(512)
    assert configs[:8] == collection.draw(8)
    assert len({json.dumps(params) for params in configs}) == 512
    encoded = collection.space.encode_all(configs)
    assert encoded.shape[1] <= 16
    for key, parameter in collection.space.parameters.items():
        if isinstance(parameter, Choice):
            shares = np.bincount([parameter.options.index(p[key]) for p in configs if key in p])
            assert shares.min() > 100
    assert {params["batch_size"] for params in configs} == set(collection.batch_sizes)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_every_configuration_is_in_one_group_of_its_batch_size(name, data):
    collection = toy_collection(name)
    save_data(collection, data)
    task = load_tasks(collection, data)[0]
    configs = collection.draw(64)
    groups = collection.groups(configs, task)
    assert sorted(n for group in groups for n in group) == list(range(64))
    for group in groups:
        assert len({configs[n]["batch_size"] for n in group}) == 1


def test_our_tables_hold_what_their_collections_say():
    for name in ("tabular", "funnel"):
        table, collection = open_table(name), COLLECTIONS[name]
        assert table.tasks == tuple(task.name for task in collection.tasks)
        assert table.test_tasks == collection.test_tasks
        assert table.space == collection.space
        assert table.params(7) == collection.draw(8)[7]
