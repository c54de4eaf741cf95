from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freezethaw.errors import SpaceError
from freezethaw.space import Choice, Float, Int, Space


def example() -> Space:
    return Space(
        {
            "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"}),  # before its parent
            "lr": Float(1e-5, 1e-1, log=True),
            "width": Int(32, 512, log=True),
            "optimizer": Choice(["sgd", "adam", "rmsprop"]),
            "nesterov": Choice([True, False], when={"optimizer": ["sgd", "rmsprop"]}),
            "damping": Float(0, 1, when={"nesterov": False, "optimizer": "sgd"}),
            "size": Choice([8, 16, 32, 64, 128]),
        }
    )


SGD = {
    "momentum": 0.9,
    "lr": 1e-3,
    "width": 128,
    "optimizer": "sgd",
    "nesterov": True,
    "size": 32,
}
ADAM = {"lr": 1e-3, "width": 128, "optimizer": "adam", "size": 32}


# --- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float(1, 1), "low must be below high"),
        (lambda: Float(2, 1), "low must be below high"),
        (lambda: Float(0, 1, log=True), r"Float\(0.0, 1.0, log=True\): a log scale needs low > 0"),
        (lambda: Float(math.nan, 1), "low is nan; it must be a finite number"),
        (lambda: Float(0, math.inf), "high is inf"),
        (lambda: Float(0, 10**400), "high is 10"),
        (lambda: Float(False, 1), "low is False"),
        (lambda: Float("0", 1), "low is '0'"),  # type: ignore[arg-type]
        (lambda: Float(-1.7e308, 1.7e308), "overflows; narrow"),
        (lambda: Float(1e-300, 1e300, log=True), "overflows"),
        (lambda: Int(0.5, 3), "low must be a whole number"),  # type: ignore[arg-type]
        (lambda: Int(0, 2**41), "use Float"),
        (lambda: Int(0, 8, log=True), "low >= 1"),
        (lambda: Choice([]), "two options or more"),
        (lambda: Choice(["a"]), "leave a constant out"),
        (lambda: Choice("ab"), "give a list"),
        (lambda: Choice(["a", "a"]), "'a' equals an option before it"),
        (lambda: Choice([True, 1]), "True == 1"),
        (lambda: Choice([1, 1.0]), "1.0 equals an option before it"),
        (lambda: Choice([math.nan, 1.0]), "option nan"),
        (lambda: Choice([[1], [2]]), r"option \[1\] is no str"),  # type: ignore[list-item]
        (lambda: Float(0, 1, when={"a": []}), "name at least one"),
        (lambda: Float(0, 1, when="a"), "write when="),  # type: ignore[arg-type]
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        make()


def test_parameters_compare_by_what_they_mean() -> None:
    assert Float(0, 1) == Float(0.0, 1.0)
    assert hash(Float(0, 1)) == hash(Float(0.0, 1.0))
    assert Float(0, 1) != Int(0, 1)
    assert Choice([True, False]) != Choice([1, 0])
    assert Choice(np.array([1, 2])) == Choice([1, 2])  # type: ignore[arg-type]
    assert Float(0, 1, when={"a": "x"}) == Float(0, 1, when={"a": ["x"]})
    assert repr(Int(1, 8, log=True, when={"a": "x"})) == "Int(1, 8, log=True, when={'a': 'x'})"


# --- conditions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "at least one parameter"),
        ({"": Float(0, 1)}, "named by a text"),
        ({"lr": (0, 1)}, r"lr: got \(0, 1\); use Float"),
        (
            {"optimizer": Choice(["a", "b"]), "m": Float(0, 1, when={"optimiser": "a"})},
            "m: depends on 'optimiser', which is not in the space; did you mean 'optimizer'",
        ),
        (
            {"o": Choice(["sgd", "adam"]), "m": Float(0, 1, when={"o": "sdg"})},
            "m: exists when o is 'sdg', which is no option of o; it has 'sgd', 'adam'",
        ),
        (
            {"o": Choice([True, False]), "m": Float(0, 1, when={"o": 1})},
            "exists when o is 1, which is no option",
        ),
        ({"o": Int(0, 1), "m": Float(0, 1, when={"o": 1})}, "only a Choice can be a condition"),
        (
            {"a": Choice([1, 2], when={"b": 1}), "b": Choice([1, 2], when={"a": 1})},
            "in a circle: (a → b → a|b → a → b)",
        ),
        ({"a": Choice([1, 2], when={"a": 1})}, "in a circle: a → a"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(parameters: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Space(parameters)


@pytest.mark.parametrize(
    ("params", "active"),
    [
        ({"optimizer": "sgd", "nesterov": False}, {"momentum", "nesterov", "damping"}),
        ({"optimizer": "sgd", "nesterov": True}, {"momentum", "nesterov"}),
        ({"optimizer": "rmsprop", "nesterov": False}, {"nesterov"}),
        # Values of parents that are inactive themselves do not count.
        ({"optimizer": "adam", "nesterov": False}, set()),
        ({"optimizer": np.str_("sgd"), "nesterov": np.False_}, {"momentum", "nesterov", "damping"}),
        ({"optimizer": "sgd", "nesterov": 0}, {"momentum", "nesterov"}),  # 0 is not False
    ],
)
def test_activity(params: dict[str, Any], active: set[str]) -> None:
    conditional = {"momentum", "nesterov", "damping"}
    assert {name for name in conditional if example().is_active(name, params)} == active
    assert example().is_active("lr", params)


def test_a_parameter_below_an_inactive_parent_is_inactive() -> None:
    space = Space(
        {
            "a": Choice([1, 2]),
            "b": Choice([1, 2], when={"a": 1}),
            "c": Float(0, 1, when={"b": 1}),
        }
    )
    assert space.is_active("c", {"a": 1, "b": 1})
    assert not space.is_active("c", {"a": 2, "b": 1})
    assert not space.is_active("c", {"a": 1})


def test_activity_of_an_unknown_name() -> None:
    with pytest.raises(SpaceError, match="no parameter 'momentun'; did you mean 'momentum'"):
        example().is_active("momentun", SGD)


# --- validate ------------------------------------------------------------------------------------


def test_validate_orders_and_converts() -> None:
    given = {
        "size": np.int64(32),
        "nesterov": np.True_,
        "optimizer": np.str_("sgd"),
        "width": np.float64(128.0),
        "lr": np.float32(0.5**10),
        "momentum": 0,
    }
    valid = example().validate(given)
    assert list(valid) == ["momentum", "lr", "width", "optimizer", "nesterov", "size"]
    assert valid == {**SGD, "lr": 0.5**10, "momentum": 0.0}
    kinds = [type(value) for value in valid.values()]
    assert kinds == [float, float, int, str, bool, int]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"momentun": 0.9}, "no parameter 'momentun'; did you mean 'momentum'"),
        ({"zzz": 3}, "no parameter 'zzz'; there is 'momentum', 'lr'"),
        ({"lr": 1.0}, r"lr: got 1.0; it must lie in \[1e-05, 0.1\]; change the value, or"),
        ({"lr": math.nan}, "lr: got nan; it must be a finite number"),
        ({"lr": "0.1"}, "lr: got '0.1'; it must be a finite number"),
        ({"lr": True}, "lr: got True"),
        ({"width": 64.5}, "width: got 64.5; it must be a whole number"),
        ({"width": 1024}, r"width: got 1024; it must lie in \[32, 512\]"),
        ({"optimizer": "SGD"}, "got 'SGD'; it must be one of 'sgd', 'adam', 'rmsprop'"),
        ({"optimizer": "adan"}, "did you mean 'adam'"),
        ({"optimizer": ["sgd"]}, "it must be one of"),
        ({"nesterov": 1}, "nesterov: got 1; it must be one of True, False"),
        ({"nesterov": False}, "damping is missing; give it a value when nesterov is False and"),
        (
            {"optimizer": "adam"},
            "momentum: got 0.9, but it exists only when optimizer is 'sgd'; leave it out",
        ),
        ({"damping": 0.5}, "only when nesterov is False and optimizer is 'sgd'"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        example().validate({**SGD, **change})


def test_missing_and_no_mapping() -> None:
    with pytest.raises(SpaceError, match=r"lr is missing; give it a value$"):
        example().validate({name: value for name, value in SGD.items() if name != "lr"})
    with pytest.raises(SpaceError, match="a mapping from names to values"):
        example().validate([1, 2])  # type: ignore[arg-type]


# --- the unit cube -------------------------------------------------------------------------------


def test_from_unit_by_hand() -> None:
    space = Space(
        {
            "x": Float(10, 20),
            "lr": Float(1e-4, 1e-2, log=True),
            "n": Int(1, 4),
            "o": Choice(["a", "b", "c"]),
            "m": Float(0, 1, when={"o": "b"}),
        }
    )
    params = space.from_unit([0.25, 0.5, 0.49, 0.5, 0.75])
    assert params == {"x": 12.5, "lr": pytest.approx(1e-3), "n": 2, "o": "b", "m": 0.75}
    assert list(params) == ["x", "lr", "n", "o", "m"]
    assert "m" not in space.from_unit([0.25, 0.5, 0.49, 0.9, 0.75])
    low = {"x": 10.0, "lr": 1e-4, "n": 1, "o": "a"}
    high = {"x": 20.0, "lr": 1e-2, "n": 4, "o": "c"}
    assert space.from_unit(np.zeros(5)) == low
    assert space.from_unit(np.ones(5)) == high
    np.testing.assert_allclose(space.to_unit(low), [0, 0, 1 / 8, 1 / 6, np.nan])


def test_integers_have_cells_of_equal_size() -> None:
    space = Space({"n": Int(-1, 5)})
    u = (np.arange(7000) + 0.5) / 7000
    counts = np.bincount([space.from_unit([x])["n"] + 1 for x in u])  # type: ignore[operator]
    assert counts.tolist() == [1000] * 7
    # An edge belongs to the cell above it, always.
    edges = [Space({"n": Int(0, 3)}).from_unit([k / 4])["n"] for k in range(5)]
    assert edges == [0, 1, 2, 3, 3]


def test_log_integers_have_cells_in_proportion_to_their_width_on_the_log_scale() -> None:
    space = Space({"n": Int(1, 4, log=True)})
    u = (np.arange(20000) + 0.5) / 20000
    counts = np.bincount([space.from_unit([x])["n"] for x in u])[1:]  # type: ignore[arg-type]
    edges = np.log([0.5, 1.5, 2.5, 3.5, 4.5])
    np.testing.assert_allclose(counts / 20000, np.diff(edges) / np.log(9), atol=1e-4)


@pytest.mark.parametrize("u", [[0.5], np.full(7, 1.1), np.full(7, -0.1), np.full(7, np.nan)])
def test_from_unit_refuses_what_is_no_point_of_the_cube(u: Any) -> None:
    with pytest.raises(SpaceError, match=r"7 coordinates in \[0, 1\]"):
        example().from_unit(u)


# --- encoding ------------------------------------------------------------------------------------


def test_encode_by_hand() -> None:
    space = example()
    one_hot = ("optimizer=sgd", "optimizer=adam", "optimizer=rmsprop")
    flags = ("nesterov=True", "nesterov=False")
    assert space.columns == ("momentum", "lr", "width", *one_hot, *flags, "damping", "size")
    assert space.width == 10
    nan = math.nan
    np.testing.assert_allclose(
        space.encode_all([SGD, ADAM]),
        [
            [0.9 / 0.99, 0.5, 0.5, 1, 0, 0, 1, 0, nan, 0.5],
            [nan, 0.5, 0.5, 0, 1, 0, nan, nan, nan, 0.5],
        ],
    )
    assert space.encode_all([]).shape == (0, 10)


def test_four_options_are_one_hot_and_five_are_ordinal() -> None:
    assert Space({"c": Choice([1, 2, 3, 4])}).width == 4
    five = Space({"c": Choice([1, 2, 3, 4, None])})
    assert [five.encode({"c": c}).tolist() for c in (1, 2, None)] == [[0], [0.25], [1]]


def test_decode_refuses_rows_that_cannot_be_its_own() -> None:
    row = example().encode(SGD)
    with pytest.raises(SpaceError, match="this space has 10 columns"):
        example().decode(row[1:])
    row[0] = np.nan
    with pytest.raises(
        SpaceError, match="momentum: its column is NaN, but it is active when optimizer"
    ):
        example().decode(row)


scalars = st.one_of(
    st.none(), st.booleans(), st.text(max_size=3), st.integers(-5, 5), st.floats(-9, 9)
)


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    parameters: dict[str, Any] = {}
    choices: list[str] = []
    for i in range(draw(st.integers(1, 6))):
        when = None
        if choices and draw(st.booleans()):
            parents = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=2, unique=True))
            when = {
                parent: draw(
                    st.lists(st.sampled_from(parameters[parent].options), min_size=1, max_size=2)
                )
                for parent in parents
            }
        name, kind = f"p{i}", draw(st.sampled_from(["float", "int", "choice"]))
        log = draw(st.booleans())
        if kind == "choice":
            options: list[Any] = []
            for option in draw(st.lists(scalars, min_size=8, max_size=14)):
                if option not in options and len(options) < 7:
                    options.append(option)
            if len(options) < 2:
                options = ["a", "b"]
            parameters[name] = Choice(options, when=when)
            choices.append(name)
        elif kind == "int":
            low = draw(st.integers(1 if log else -(2**40), 2**40 - 1))
            high = draw(st.integers(low + 1, 2**40))
            parameters[name] = Int(low, high, log=log, when=when)
        else:
            low_, ratio = draw(st.floats(1e-100, 1e100)), draw(st.floats(1.01, 1e100))
            start = low_ if log else draw(st.floats(-low_, low_))
            parameters[name] = Float(start, start + low_ * (ratio - 1), log=log, when=when)
    names = draw(st.permutations(list(parameters)))
    return Space({name: parameters[name] for name in names})


@st.composite
def configured(draw: st.DrawFn) -> tuple[Space, dict[str, Any], np.ndarray]:
    space = draw(spaces())
    unit = st.floats(0, 1)
    point = np.array(draw(st.lists(unit, min_size=len(space), max_size=len(space))))
    return space, space.from_unit(point), point


def assert_same(space: Space, one: dict[str, Any], two: dict[str, Any]) -> None:
    """Equal, up to rounding in floats: relative to the range, or to the value on a log scale."""
    assert list(one) == list(two)
    for name, value in one.items():
        parameter = space.parameters[name]
        if isinstance(parameter, Float):
            size = abs(value) if parameter.log else parameter.high - parameter.low
            assert abs(value - two[name]) <= 1e-12 * size + 1e-15 * abs(value)
        else:
            assert type(value) is type(two[name])
            assert value == two[name]


@settings(deadline=None, max_examples=200)
@given(configured())
def test_drawn_configurations_are_valid_and_survive_every_way_there_and_back(
    drawn: tuple[Space, dict[str, Any], np.ndarray],
) -> None:
    space, params, _ = drawn
    assert space.validate(params) == params
    row = space.encode(params)
    known = row[~np.isnan(row)]
    assert ((known >= 0) & (known <= 1)).all()
    assert_same(space, params, space.decode(row))
    point = space.to_unit(params)
    inactive = [not space.is_active(name, params) for name in space.names]
    assert np.isnan(point).tolist() == inactive
    assert_same(space, params, space.from_unit(np.nan_to_num(point)))


@settings(deadline=None)
@given(configured())
def test_encode_is_the_inverse_of_decode(drawn: tuple[Space, dict[str, Any], np.ndarray]) -> None:
    space, params, _ = drawn
    row = space.encode(params)
    np.testing.assert_allclose(space.encode(space.decode(row)), row, atol=1e-9)


@settings(deadline=None)
@given(spaces())
def test_the_ends_of_a_range_are_reached_exactly(space: Space) -> None:
    for corner, end in ((np.zeros(len(space)), "low"), (np.ones(len(space)), "high")):
        params = space.from_unit(corner)
        for name, value in params.items():
            if isinstance(space.parameters[name], Float | Int):
                assert value == getattr(space.parameters[name], end)
        assert space.decode(space.encode(params)) == params


@settings(deadline=None)
@given(spaces())
def test_json_pickle_and_copy_give_the_same_space_back(space: Space) -> None:
    again = Space.from_json(json.loads(json.dumps(space.to_json())))
    for other in (again, pickle.loads(pickle.dumps(space)), copy.deepcopy(space)):
        assert other == space
        assert hash(other) == hash(space)
        assert other.columns == space.columns
        assert space.differences(other) == []


@pytest.mark.parametrize("high", [2**40, 2**40 - 1])
def test_neighbours_at_the_end_of_the_largest_log_range_differ(high: int) -> None:
    space = Space({"n": Int(1, high, log=True)})
    for n in range(high - 50, high + 1):
        assert space.decode(space.encode({"n": n})) == {"n": n}
        assert space.from_unit(space.to_unit({"n": n})) == {"n": n}


# --- JSON and differences ------------------------------------------------------------------------


def test_json_is_the_format_of_tables() -> None:
    assert example().to_json()[0] == {
        "name": "momentum",
        "type": "float",
        "low": 0.0,
        "high": 0.99,
        "log": False,
        "when": {"optimizer": "sgd"},
    }
    choice = {"name": "nesterov", "type": "choice", "choices": [True, False]}
    assert example().to_json()[4] == {**choice, "when": {"optimizer": ["sgd", "rmsprop"]}}


def test_from_json_does_without_optional_keys_and_ignores_unknown_ones() -> None:
    data = [
        {"name": "a", "type": "int", "low": 1, "high": 3, "unit": "layers", "when": None},
        {"name": "b", "type": "choice", "choices": ["x", "y"], "low": None, "log": None},
    ]
    assert Space.from_json(data) == Space({"a": Int(1, 3), "b": Choice(["x", "y"])})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": 1}, "is a list of parameters"),
        ([3], "parameter 0 is 3; it must be an object with a name"),
        ([{"name": "a", "type": "real"}], "a: type is 'real'; it must be one of 'float', 'int'"),
        ([{"name": "a", "type": "int", "low": 1}], "a: has no 'high'"),
        ([{"name": "a", "type": "int", "low": 3, "high": 1}], "a: Int.3, 1.: low must be below"),
        ([{"name": "a", "type": "choice", "choices": [1, 2]}] * 2, "'a' is there already"),
    ],
)
def test_from_json_refuses_other_things(data: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Space.from_json(data)


def test_differences_are_sentences() -> None:
    one = Space({"lr": Float(1e-5, 1), "o": Choice([1, 0]), "m": Float(0, 1), "k": Int(1, 2)})
    two = Space(
        {
            "lr": Float(1e-4, 1, log=True),
            "o": Choice([True, False]),
            "m": Float(0, 1, when={"o": True}),
            "n": Int(1, 2),
        }
    )
    assert one.differences(two, mine="the study", theirs="this call") == [
        "lr: low is 1e-05 in the study and 0.0001 in this call",
        "lr: log is false in the study and true in this call",
        "o: choices is [1, 0] in the study and [true, false] in this call",
        'm: when is absent in the study and {"o": true} in this call',
        "k is in the study only",
        "n is in this call only",
    ]
    assert one != two
    swapped = Space({"b": Int(1, 2), "a": Int(1, 2)})
    straight = Space({"a": Int(1, 2), "b": Int(1, 2)})
    assert swapped != straight
    assert swapped.differences(straight) == [
        "the order is b, a in this space and a, b in the other"
    ]


def test_of_takes_a_mapping_or_a_space() -> None:
    space = example()
    assert Space.of(space) is space
    assert Space.of(dict(space.parameters)) == space
    with pytest.raises(TypeError):
        space.parameters["lr"] = Float(0, 1)  # type: ignore[index]
