from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freezethaw.errors import TableError
from freezethaw.space import Choice, Float, Int, Space
from freezethaw.tables import CurveTable, open_table, read_table, write_table

NAN = math.nan
E = math.e
DATA = Path(__file__).parents[2] / "shared" / "data"

SPACE = Space(
    {
        "lr": Float(1e-4, 1, log=True),
        "layers": Int(1, 4),
        "optimizer": Choice(["sgd", "adam"]),
        "momentum": Float(0, 0.9, when={"optimizer": "sgd"}),
    }
)
ARRAYS = ("configs", "curves", "lengths", "soft", "cost", "train_curves")


def table(**changes: Any) -> CurveTable:
    """Two tasks, three configurations, two epochs; a loss that need not end."""
    settings: dict[str, Any] = {
        "name": "toy",
        "configs": [[1e-4, 1, 0, 0.9], [1, 4, 1, NAN], [1e-2, 2, 0, 0]],
        "curves": [
            [[0.6, 0.5, 0.4], [0.8, 5e34, NAN], [0.7, 0.7, 0.0]],
            [[2, 1, 1], [2, 1, 0.5], [NAN, NAN, NAN]],
        ],
        "tasks": ("one", "two"),
        "test_tasks": ("two",),
        "space": SPACE,
        "metric": "log loss",
        "goal": "minimize",
        "bounds": (0, math.inf),
        "normalize": "initial",
        "source": "made up",
        "license": "CC0-1.0",
    }
    return CurveTable(**{**settings, **changes})


def save(path: Path, **changes: Any) -> Path:
    """Write the file of `table()` with some keys changed, None to leave one out."""
    plain = table()
    data: dict[str, Any] = {
        "configs": plain.configs,
        "curves": plain.curves,
        "tasks": np.array(["one", "two"]),
        "space": json.dumps(SPACE.to_json()),
        "bounds": "[0, null]",
        **{key: getattr(plain, key) for key in ("metric", "goal", "normalize", "source")},
        "license": plain.license,
    }
    data = {key: value for key, value in {**data, **changes}.items() if value is not None}
    np.savez(path, **data)
    return path


# --- what a table says ---------------------------------------------------------------------------


def test_facts() -> None:
    toy = table()
    assert toy.max_epochs == 2
    assert toy.train_tasks == ("one",)
    assert toy.params(0) == {"lr": 1e-4, "layers": 1, "optimizer": "sgd", "momentum": 0.9}
    assert toy.params(1) == {"lr": 1.0, "layers": 4, "optimizer": "adam"}
    assert type(toy.params(1)["layers"]) is int
    np.testing.assert_allclose(
        toy.encoded(), [[0, 0, 1, 0, 1], [1, 1, 0, 1, NAN], [0.5, 1 / 3, 1, 0, 0]]
    )
    assert toy.curves.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        toy.curves[0, 0, 0] = 1
    with pytest.raises(TableError, match="toy has no task 'ones'; did you mean 'one'"):
        toy.scale("ones")


def test_losses_scaled_by_their_initial_value_by_hand() -> None:
    # ȳ₀ = 0.7; with soft (0, 0.7) and no upper bound y(v) = (s(∞) - s(v)) / (s(∞) - s(0)).
    toy = table()
    assert toy.scale("one").soft == (0, pytest.approx(0.7))
    assert toy.initial("one") == pytest.approx(1 / E)

    def y(v: float) -> float:
        return (1 - 1 / (1 + math.exp(1 - 2 * v / 0.7))) * (1 + E) / E

    expected = [[1 / E, y(0.5), y(0.4)], [1 / E, 0, 0], [1 / E, 1 / E, 1]]
    np.testing.assert_allclose(toy.scaled("one"), expected, atol=1e-15)


def test_a_configuration_that_is_nan_from_the_start_is_left_out_of_the_initial_value() -> None:
    toy = table()
    assert toy.scale("two").soft == (0, 2)
    assert toy.scaled("two")[2].tolist() == [toy.initial("two"), 0, 0]


ACCURACIES = [[[0.1, 0.3, 0.5], [0.2, 0.4, 0.9], [0.3, 0.3, 0.3]]] * 2


def test_range_is_over_trained_epochs_and_widened_to_the_initial_value() -> None:
    maximised = {"goal": "maximize", "bounds": (0, 1), "normalize": "range"}
    toy = table(curves=ACCURACIES, **maximised)
    assert toy.scale("one").soft == (pytest.approx(0.2), 0.9)
    # Without the widening the lowest trained value would be the lower end.
    no_better = np.add(ACCURACIES, [0.3, 0, 0])
    assert table(curves=no_better, **maximised).scale("one").soft == (0.3, 0.9)
    high_start = np.add(ACCURACIES, [0.7, 0, 0]) * [1, 0.5, 0.5]
    assert table(curves=high_start, **maximised).scale("one").soft == (0.15, pytest.approx(0.9))


def test_initial_with_a_maximised_metric() -> None:
    toy = table(curves=ACCURACIES, goal="maximize", bounds=(0, 1))
    assert toy.scale("one").soft == (pytest.approx(0.2), 1)


def test_explicit_soft_bounds_go_before_the_rest() -> None:
    toy = table(soft=[[0, 1], [0.5, 3]], normalize="range")
    assert toy.scale("one").soft == (0, 1)
    assert toy.scale("two").soft == (0.5, 3)


def test_what_was_not_observed_is_nan_and_what_diverged_is_nothing() -> None:
    curves = [[[0.6, 0.5, NAN], [0.8, NAN, NAN], [0.7, NAN, NAN]]] * 2
    toy = table(curves=curves, lengths=[[1, 2, 0]] * 2)
    scaled = toy.scaled("one")
    assert np.isnan(scaled).tolist() == [[False, False, True], [False] * 3, [False, True, True]]
    assert scaled[1, 1:].tolist() == [0, 0]
    assert toy.observed("one").sum(1).tolist() == [2, 3, 1]
    assert table(curves=curves).observed("one").all()


def test_infinite_scores_are_divergence() -> None:
    curves = [[[0.6, 0.5, 0.4], [0.8, math.inf, math.inf], [0.7, 0.7, -math.inf]]] * 2
    assert table(curves=curves).scaled("one")[1:, 2].tolist() == [0, 0]


# --- what a table must keep to -------------------------------------------------------------------


def changed(name: str, index: Any, value: float) -> dict[str, Any]:
    array = np.array(getattr(table(), name), dtype=float)
    array[index] = value
    return {name: array}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal": "min"}, "goal: got 'min'; it must be 'maximize' or 'minimize'"),
        ({"normalize": "max"}, "normalize: got 'max'; it must be 'range' or 'initial'"),
        ({"tasks": ("one", "one")}, "names must be there and differ"),
        ({"tasks": ("one",), "test_tasks": ()}, r"curves: has shape \(2, 3, 3\).*need \(1, 3, 3\)"),
        ({"test_tasks": ("tow",)}, "test_tasks: 'tow' is no task; did you mean 'two'"),
        ({"bounds": (1, 0)}, r"bounds: got \(1, 0\); low must be below high"),
        ({"configs": [[1, 2]]}, r"configs: has shape \(1, 2\).*4 parameters"),
        ({"configs": "x"}, "configs: .*must hold numbers"),
        ({"curves": [[[1]]]}, "with epoch 0 and one more"),
        ({"cost": [[1, 2]]}, r"cost: has shape \(1, 2\); .* need \(2, 3\)"),
        ({"cost": [[1, 2, 0]] * 2}, "not above 0"),
        ({"lengths": [[1, 2, 3]] * 2}, "lengths: got 3; they count epochs, 0 to 2"),
        ({"lengths": [[1, 2, 1.5]] * 2}, "whole numbers"),
        ({"soft": [[0, 1]]}, r"soft: has shape \(1, 2\)"),
        ({"soft": [[0, 1], [1, 1]]}, r"task two: .*soft is \(1, 1\).*set soft"),
        ({"train_curves": [[[1.0]]]}, "train_curves: has shape"),
        (changed("configs", (0, 0), 2), r"configs, row 0: lr: got 2.0; it must lie in \[0.0001"),
        (changed("configs", (0, 1), 1.5), "configs, row 0: layers: got 1.5; it must be a whole"),
        (changed("configs", (1, 2), 2), "row 1: optimizer: got 2.0; .*its index, 0 to 1"),
        (changed("configs", (1, 2), 0.5), "row 1: optimizer: got 0.5"),
        (changed("configs", (1, 3), 0.5), "row 1: momentum: got 0.5, but it exists only when"),
        (changed("configs", (2, 3), NAN), "row 2: momentum is missing; .*when optimizer is 'sgd'"),
        (changed("configs", (2, 0), math.inf), "row 2: lr: got inf"),
        (
            changed("curves", (0, 1, 2), 0.5) | {"bounds": (0, 1e9)},
            r"task one, configuration 1, epoch 1: 5e\+34 is outside the bounds",
        ),
        (changed("curves", (0, 0, 1), NAN), "task one, configuration 0, epoch 2: 0.4 follows NaN"),
        (changed("curves", (0, 0, 0), math.inf), "configuration 0, epoch 1: 0.5 follows NaN"),
        (changed("curves", (1, 0, 2), -1), "task two, configuration 0, epoch 2: -1.0 is outside"),
        ({"lengths": [[2, 2, 1]] * 2}, "configuration 2, epoch 2: 0.0 is a score beyond"),
        (changed("curves", 1, NAN), "task two has no finite score at epoch 0"),
        (changed("curves", (1, slice(None), slice(1, None)), NAN), "score after epoch 0"),
        ({"curves": np.ones((2, 3, 3)), "normalize": "range"}, "task one: .*low must be below"),
        ({"bounds": (-math.inf, math.inf)}, "both ends must be finite; set soft"),
    ],
)
def test_a_table_that_breaks_its_format_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(TableError, match=message):
        table(**changes)


# --- files ---------------------------------------------------------------------------------------


def assert_equal(one: CurveTable, two: CurveTable) -> None:
    for field in dataclasses.fields(CurveTable):
        mine, theirs = getattr(one, field.name), getattr(two, field.name)
        if field.name in ARRAYS and mine is not None:
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype
        else:
            assert mine == theirs, field.name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"test_tasks": ()},
        {
            "curves": [[[0.6, 0.5, NAN], [0.8, NAN, NAN], [0.7, 0.6, 0.5]]] * 2,
            "lengths": [[1, 2, 2]] * 2,
            "soft": [[0, 1], [0, 2]],
            "cost": [[1, 2, 3]] * 2,
            "train_curves": np.zeros((2, 3, 3)),
            "bounds": (-1, 7.5),
        },
    ],
)
def test_a_table_is_read_as_it_was_written(tmp_path: Path, changes: Any) -> None:
    written = table(**changes)
    write_table(tmp_path / "toy.npz", written)
    assert_equal(read_table(tmp_path / "toy.npz"), written)
    assert [path.name for path in tmp_path.iterdir()] == ["toy.npz"]


def test_unknown_keys_are_ignored_and_small_types_read_as_float64(tmp_path: Path) -> None:
    curves = np.array(ACCURACIES, dtype=np.float16)
    path = save(tmp_path / "toy.npz", curves=curves, bounds="[0, 1]", notes="hello")
    assert read_table(path).curves.dtype == np.float64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"license": None, "space": None}, r"toy\.npz: has no space, license; a curve table needs"),
        ({"goal": np.array(3)}, "goal: is int64 of shape .*; it must be one text"),
        ({"tasks": np.array([1, 2])}, "tasks: is int64.*a list of texts"),
        ({"tasks": np.array(["one", 2], dtype=object)}, "tasks cannot be read: Object arrays"),
        ({"space": "[{"}, "space: .* is no JSON"),
        ({"space": '[{"name": "lr", "type": "real"}]'}, "space: lr: type is 'real'"),
        ({"bounds": "[0]"}, r"bounds: got \[0\]; they are \[low, high\], null where unbounded"),
        ({"bounds": '["0", 1]'}, "bounds: got"),
        ({"goal": "up"}, r"toy\.npz: goal: got 'up'"),
        ({"curves": np.full((2, 3, 3), "a")}, r"toy\.npz: curves: .*must hold numbers"),
    ],
)
def test_a_file_that_breaks_the_format_is_refused(
    tmp_path: Path, changes: Any, message: str
) -> None:
    with pytest.raises(TableError, match=message):
        read_table(save(tmp_path / "toy.npz", **changes))


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"none\.npz: there is no such file"):
        read_table(tmp_path / "none.npz")
    text = tmp_path / "text.npz"
    text.write_text("hello")
    with pytest.raises(TableError, match=r"text\.npz: cannot be read as \.npz"):
        read_table(text)
    whole = save(tmp_path / "toy.npz").read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TableError, match=r"cut\.npz: cannot be read as \.npz"):
        read_table(cut)
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(TableError, match="single array"):
        read_table(tmp_path / "one.npy")


def test_a_damaged_member_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "toy.npz")
    raw = bytearray(path.read_bytes())
    at = raw.index(table().curves.tobytes())
    raw[at] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(TableError, match=r"toy\.npz: .*cannot be read.*CRC"):
        read_table(path)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toy.npz"
    write_table(path, table())
    before = path.read_bytes()

    def full(*_: Any, **__: Any) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(TableError, match="cannot be written: No space left"):
        write_table(path, table())
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tables_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [tmp_path / name for name in ("given", "listed", "tables")]
    for place in places:
        place.mkdir()
        write_table(place / "toy.npz", table(source=place.name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(
        "FREEZETHAW_TABLES", os.pathsep.join([str(tmp_path / "absent"), str(places[1])])
    )
    assert open_table("toy", folder=places[0]).source == "given"
    assert open_table("toy").source == "listed"
    monkeypatch.delenv("FREEZETHAW_TABLES")
    assert open_table("toy").source == "tables"
    assert open_table("given/toy.npz").source == "given"
    assert open_table(places[0] / "toy.npz").source == "given"


def test_a_table_that_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "toy.npz", table())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FREEZETHAW_TABLES", str(tmp_path))
    with pytest.raises(TableError) as caught:
        open_table("toys", folder="here")
    here, listed = Path("here/toys.npz"), tmp_path / "toys.npz"
    assert str(caught.value) == (
        f"no table 'toys'; did you mean 'toy'?; looked for {here}, {listed}, "
        f"{Path('tables/toys.npz')}, and among those that come with freezethaw "
        f"({', '.join(OWN_TABLES)}); give a path, or name the folder in $FREEZETHAW_TABLES"
    )
    with pytest.raises(TableError, match=r"here/toy\.npz: there is no such file"):
        open_table("here/toy.npz")


# --- our own tables ------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
OWN_FILES = [
    *(ROOT / "src/freezethaw/data").glob("*.npz"),
    *(ROOT / "curves/tables").glob("*.npz"),
]
OWN_TABLES = sorted(file.stem for file in OWN_FILES)


@pytest.mark.parametrize("name", OWN_TABLES)
def test_our_own_tables_open_by_name(name: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    own = open_table(name)
    assert own.max_epochs == 50
    assert len(own.configs) >= 500
    assert len(own.test_tasks) * 4 >= len(own.tasks) - 3
    assert own.cost is not None
    assert own.cost.mean() == pytest.approx(1.0, rel=1e-3)
    assert own.train_curves is not None
    for task in own.tasks:
        scaled = own.scaled(task)
        diverged = ~np.isfinite(own.curves[own.index_of(task)]).all(axis=1)
        assert 0.0 <= diverged.mean() < 0.2
        assert (scaled[diverged, -1] == 0).all()
        # Bad runs and good ones, and more than a few of either.
        assert np.quantile(scaled[:, -1], 0.9) - np.quantile(scaled[:, -1], 0.1) > 0.01


def test_a_small_table_comes_with_the_library_and_all_of_ours_stay_small() -> None:
    shipped = [file for file in OWN_FILES if file.parent.name == "data"]
    assert [file.stem for file in shipped] == ["tabular"]
    assert shipped[0].stat().st_size <= 1.5e6
    assert sum(file.stat().st_size for file in OWN_FILES) <= 10e6


def test_numbers_are_stored_as_short_as_they_can_be_without_loss(tmp_path: Path) -> None:
    halves = table(train_curves=np.full_like(table().curves, 0.5))
    write_table(tmp_path / "halves.npz", halves)
    wide = table(train_curves=np.full_like(table().curves, 70_000.0))
    write_table(tmp_path / "wide.npz", wide)
    fine = table(train_curves=np.full_like(table().curves, 0.1))
    write_table(tmp_path / "fine.npz", fine)
    for name, dtype in (("halves", np.float16), ("wide", np.float32), ("fine", np.float64)):
        with np.load(tmp_path / f"{name}.npz") as file:
            assert file["train_curves"].dtype == dtype
        kept = read_table(tmp_path / f"{name}.npz").train_curves
        assert kept is not None
        assert kept.dtype == np.float64
        np.testing.assert_array_equal(
            kept, {"halves": halves, "wide": wide, "fine": fine}[name].train_curves
        )


# --- real tables ---------------------------------------------------------------------------------

real = pytest.mark.skipif(not DATA.is_dir(), reason="needs the tables in ../shared/data")


@real
@pytest.mark.parametrize(
    ("name", "shape", "n_test"),
    [("taskset", (9, 1000, 51), 3), ("lcbench_surrogate", (34, 2000, 52), 14)],
)
def test_real_tables(name: str, shape: tuple[int, int, int], n_test: int) -> None:
    start = time.perf_counter()
    whole = open_table(name, folder=DATA)
    assert time.perf_counter() - start < 5
    assert whole.curves.shape == shape
    assert len(whole.test_tasks) == n_test
    assert len(whole.train_tasks) == shape[0] - n_test
    encoded = whole.encoded()
    assert encoded.shape == (shape[1], len(whole.space))
    assert ((encoded >= 0) & (encoded <= 1)).all()
    for m, task in enumerate(whole.tasks):
        scaled, raw = whole.scaled(task), whole.curves[m]
        assert scaled.shape == shape[1:]
        assert ((scaled >= 0) & (scaled <= 1)).all()
        assert (scaled[:, 0] == whole.initial(task)).all()
        assert (scaled[np.isnan(raw)][1:] == 0).all()
        finite = np.isfinite(raw[:, 1:])
        order = np.argsort(raw[:, 1:][finite])
        upward = scaled[:, 1:][finite][order if whole.goal == "maximize" else order[::-1]]
        assert (np.diff(upward) >= 0).all()
        assert np.unique(upward).size > 100


@real
def test_taskset_has_runs_that_diverge_and_starts_at_one_over_e() -> None:
    taskset = open_table("taskset", folder=DATA)
    assert np.isnan(taskset.curves).mean((1, 2)).max() == pytest.approx(0.222, abs=1e-3)
    assert np.nanmax(taskset.curves) > 4e34
    assert all(taskset.initial(task) == pytest.approx(1 / E) for task in taskset.tasks)
