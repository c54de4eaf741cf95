from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from freezethaw.errors import UtilityError
from freezethaw.scale import Scale
from freezethaw.utility import (
    Custom,
    Unavailable,
    Utility,
    custom,
    from_json,
    from_stored,
    hard_budget,
    linear,
    makarova,
    mix,
    power,
    quadratic,
    square_root,
    staircase,
    wilson,
    with_budget,
    worth,
)

UNIT = {"low": 0.0, "high": 1.0, "full": 1.0}
NEAR = wilson(optimum=0.9, spread=0.05, epsilon=0.02, delta=0.05, budget=300)
STAIRS = staircase([(100, 200, 0.1), (200, 0.3)], budget=300)
HALVES = mix([(0.25, linear(alpha=0.1, budget=300)), (0.75, STAIRS)])
BUILT_IN = {
    "linear": linear(alpha=0.1, budget=300),
    "quadratic": quadratic(alpha=0.1, budget=300),
    "square root": square_root(alpha=0.1, budget=300),
    "cubic": power(alpha=0.1, c=3, budget=300),
    "hard budget": hard_budget(300),
    "staircase": STAIRS,
    "mix": HALVES,
    "makarova": makarova(0.8, budget=300),
    "wilson": NEAR,
}
MONOTONE = {name: utility for name, utility in BUILT_IN.items() if name != "wilson"}
FUNCTIONS = {
    "any": custom(lambda spent, best: best - 0.1 * (spent / 300) ** 1.5, budget=300),
    "scalar": custom(lambda spent, best: best if spent < 100 else best - 0.1, budget=300),
}

forms = pytest.mark.parametrize("utility", BUILT_IN.values(), ids=BUILT_IN.keys())


def close(value: object) -> object:
    return pytest.approx(value, rel=1e-12, abs=1e-12)


# --- numbers by hand -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("utility", "spent", "best", "value"),
    [
        (BUILT_IN["linear"], 0, 0.9, 0.9),
        (BUILT_IN["linear"], 150, 0.9, 0.85),
        (BUILT_IN["linear"], 300, 0.9, 0.8),
        (BUILT_IN["quadratic"], 150, 0.9, 0.875),
        (BUILT_IN["square root"], 75, 0.9, 0.85),
        (BUILT_IN["cubic"], 150, 0.9, 0.8875),
        (BUILT_IN["hard budget"], 299, 0.9, 0.9),
        # Intervals are open below and closed above.
        (STAIRS, 100, 0.9, 0.9),
        (STAIRS, math.nextafter(100, 101), 0.9, 0.8),
        (STAIRS, 200, 0.9, 0.8),
        (STAIRS, math.nextafter(200, 201), 0.9, 0.6),
        (STAIRS, 300, 0.9, 0.6),
        (HALVES, 150, 0.9, 0.25 * 0.85 + 0.75 * 0.8),
        (BUILT_IN["makarova"], 150, 0.8, 0.8),
        (BUILT_IN["makarova"], 150, 0.7999, -math.inf),
        # Φ((0.02 − (0.9 − q)) / 0.05) reaches 0.95 at q = 0.88 + 0.05 · 1.64485 = 0.96224.
        (NEAR, 150, 0.9622, 0.9622),
        (NEAR, 150, 0.9623, -0.5),
    ],
)
def test_values_by_hand(utility, spent, best, value):
    assert utility(spent, best) == close(value)


@pytest.mark.parametrize("alpha", [0.0, *(2.0**-k for k in range(6, 1, -1))])
@pytest.mark.parametrize("c", [1, 2, 0.5])
def test_the_whole_budget_costs_alpha(alpha, c):
    """The grid of the paper's evaluation: q − α (b/B)^c at b = B."""
    assert power(alpha=alpha, c=c, budget=300)(300, 0.7) == close(0.7 - alpha)


@pytest.mark.parametrize("utility", (BUILT_IN | FUNCTIONS).values())
def test_beyond_the_budget_everything_is_worthless(utility):
    assert utility(300.001, 0.9) == -math.inf
    assert utility(math.inf, 0.9) == -math.inf
    assert math.isfinite(utility(300, 0.9))
    # … but sums of measured costs may exceed it by rounding.
    assert utility(300 * (1 + 1e-12), 0.9) == close(utility(300, 0.9))


def test_minimised_forms_act_on_the_negated_score():
    def minimised(utility: Utility) -> Utility:
        return utility.bind(goal="minimize", low=0.0, high=2.0, full=2.0)

    assert minimised(BUILT_IN["linear"])(150, 0.4) == close(-0.45)
    assert minimised(STAIRS)(150, 0.4) == close(-0.5)
    assert minimised(HALVES)(150, 0.4) == close(-0.25 * 0.45 - 0.75 * 0.5)
    threshold = minimised(makarova(0.3, budget=300))
    assert (threshold(9, 0.3), threshold(9, 0.31)) == (-0.3, -math.inf)
    parted = minimised(mix([(1.0, makarova(0.3, budget=300))]))
    assert (parted(9, 0.3), parted(9, 0.31)) == (-0.3, -math.inf)
    near = minimised(wilson(optimum=0.1, spread=0.05, epsilon=0.02, budget=300))
    # Close once (0.02 − (best − 0.1)) / 0.05 ≥ 1.64485, that is best ≤ 0.03776.
    assert (near(150, 0.0378), near(150, 0.0377)) == (-0.0378, -0.5)


def test_makarova_is_the_paper_s_case_distinction():
    """U = ỹ if ỹ ≥ c else −∞, whatever was spent."""
    utility = makarova(0.6, budget=10)
    grid = utility(np.array([[0.0], [5.0], [10.0]]), np.array([0.5, 0.6, 0.7]))
    assert grid.tolist() == [[-math.inf, 0.6, 0.7]] * 3


def test_wilson_is_the_paper_s_case_distinction():
    """U = ỹ if P(r ≤ ε) < 1 − δ, else −c_b."""
    utility = wilson(optimum=1.0, spread=0.1, epsilon=0.1, delta=0.5, budget=10)
    # P = Φ((0.1 − (1 − q)) / 0.1) reaches ½ at q = 0.9.
    grid = utility(np.array([[0.0], [5.0], [10.0]]), np.array([0.5, 0.89, 0.91, 1.0]))
    assert grid.tolist() == [[0.5, 0.89, c, c] for c in (0.0, -0.5, -1.0)]


# --- worth ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bounds", "goal", "initial", "gain", "alpha", "budget"),
    [
        ((0, 1), "maximize", None, "1% accuracy", 1.0, 2000.0),
        # From 0.1 to 1 there are 90 steps of a percent, $20 each.
        ((0, 1), "maximize", 0.1, "1% accuracy", 0.9, 1800.0),
        ((0, 100), "maximize", 10, "1% accuracy", 90.0, 1800.0),
        ((0, 100), "maximize", 10, "0.5 points", 90.0, 3600.0),
        # An unbounded loss: a percent is one of the range from untrained to perfect.
        ((0, math.inf), "minimize", 2.3, "1% loss", 2.3, 2000.0),
        ((0, None), "minimize", 2.3, "0.02 loss", 2.3, 2300.0),
    ],
)
def test_worth_by_hand(bounds, goal, initial, gain, alpha, budget):
    scale = Scale.live(goal, bounds, initial)
    low, high = scale.soft
    full = high - low if math.isinf(scale.hard[1]) else scale.hard[1] - scale.hard[0]
    utility = worth(gain, "$20", rate="$2.5/h")
    bound = utility.bind(goal=goal, low=low, high=high, full=full)
    assert bound.budget == close(budget)
    assert (bound.unit, bound.rate, bound.goal) == ("money", 2.5, goal)
    untrained, perfect = scale.worst, scale.hard[1] if goal == "maximize" else scale.hard[0]
    # The budget is where a perfect score no longer pays …
    assert bound(budget, perfect) == close(bound(0, untrained))
    assert bound(budget * 0.99, perfect) > bound(0, untrained)
    # … and half of it costs half the range.
    assert bound(budget / 2, perfect) == close(bound(0, perfect) - alpha / 2)


def test_worth_is_an_exchange_rate():
    utility = worth("1% accuracy", "$20", rate="$2.5/h").bind(goal="maximize", **UNIT)
    assert utility(20, 0.81) == close(utility(0, 0.80))
    assert utility(900, 0.9) == close(0.45)
    hours = worth(0.01, "2h").bind(goal="maximize", **UNIT)
    assert hours.unit == "seconds"
    assert hours(7200, 0.81) == close(hours(0, 0.80))
    epochs = worth("0.01", 30).bind(goal="maximize", **UNIT)
    assert (epochs.unit, epochs.budget) == ("epochs", close(3000))


def test_worth_before_a_study_is_known():
    utility = worth("1% accuracy", "$20", rate="$2.5/h")
    assert utility(20, 0.81) == close(0.8)
    assert utility.describe() == "1% of score is worth $20"
    assert worth("0.001% accuracy", "2h").describe() == "0.001% of score is worth 2 h"


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: linear(alpha=0.1, budget="2h"), "write budget=7200, unit='seconds'"),
        (lambda: linear(alpha=0.1, budget="$20"), "write budget=20, unit='money'"),
        (lambda: linear(alpha=0.1, budget="lots"), "'lots': write money"),
        (lambda: linear(alpha=0.1, budget=None), "budget=None: must be a number"),
        (lambda: linear(alpha="1%", budget=10), "alpha='1%': must be a number"),
        (lambda: hard_budget(True), "budget=True: must be a number"),
    ],
)
def test_what_should_be_a_number(make, rule):
    with pytest.raises(UtilityError, match=rule):
        make()


@pytest.mark.parametrize(
    ("gain", "cost", "rate", "rule"),
    [
        ("0% accuracy", "$20", 1, "both must be above 0 and finite"),
        ("1%", "$0", 1, "both must be above 0 and finite"),
        (math.nan, "$20", 1, "both must be above 0 and finite"),
        (math.inf, 30, None, "both must be above 0 and finite"),
        ("1%", "$20", None, r"rate=None: give the price of an hour, rate='\$2.5/h'"),
        ("1%", "$20", "$0/h", r"rate=0.0: give the price of an hour"),
        ("much", "$20", 1, "gain 'much': write a percentage or a number"),
        ("1%", "much", 1, "cost 'much': write money"),
        ("1%", "$20", "cheap", "rate 'cheap': write the price of a time"),
    ],
)
def test_worth_that_makes_no_sense(gain, cost, rate, rule):
    with pytest.raises(UtilityError, match=rule):
        worth(gain, cost, rate=rate)


def test_worth_of_more_than_there_is():
    """Two of accuracy where it goes from 0 to 1 must have been meant as 2%."""
    with pytest.raises(UtilityError, match=r"2 of score .* range over 1: .* percentage"):
        worth("2 accuracy", "$20", rate=1).bind(goal="maximize", **UNIT)


# --- the same value for every kind of number -----------------------------------------------------

KINDS = {
    "int": (int, float),
    "numpy float64": (np.float64, float),
    "numpy float32": (np.float32, float),
    "numpy 0-d": (np.array, float),
    "array": (lambda x: np.array([x, x]), np.ndarray),
    "float32 array": (lambda x: np.array([x], np.float32), np.ndarray),
    "tensor": (lambda x: torch.tensor([x], dtype=torch.float64), torch.Tensor),
    "float32 tensor": (lambda x: torch.tensor([[x]], dtype=torch.float32), torch.Tensor),
    "0-d tensor": (lambda x: torch.tensor(x, dtype=torch.float64), torch.Tensor),
    "tensor with gradient": (
        lambda x: torch.tensor(x, dtype=torch.float32, requires_grad=True),
        torch.Tensor,
    ),
}


@pytest.mark.parametrize(("make", "kind"), KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("utility", (BUILT_IN | FUNCTIONS).values(), ids=(BUILT_IN | FUNCTIONS))
def test_every_kind_of_number_gives_the_same_value(utility, make, kind):
    for spent in (0.0, 75.0, 150.0, 250.0, 300.0, 301.0):
        for best in (0.25, 0.875, 0.96875):  # exact in single precision
            expected = utility(spent, best)
            assert type(expected) is float
            whole = make is int
            value = utility(make(spent), best if whole else make(best))
            assert isinstance(value, kind)
            values = value.detach().numpy() if kind is torch.Tensor else np.asarray(value)
            assert values.dtype == np.float64
            assert np.all(values == close(expected))


@pytest.mark.parametrize("utility", (BUILT_IN | FUNCTIONS).values(), ids=(BUILT_IN | FUNCTIONS))
@pytest.mark.parametrize("make", [np.array, lambda values: torch.from_numpy(np.array(values))])
def test_arrays_broadcast(utility, make):
    spent, best = [0.0, 120.0, 301.0], [0.2, 0.5, 0.9, 1.0]
    grid = utility(make(spent)[:, None], make(best)[None, :])
    mixed = utility(make(spent), 0.9)
    assert tuple(grid.shape) == (3, 4)
    for i, b in enumerate(spent):
        assert float(mixed[i]) == close(utility(b, 0.9))
        for j, q in enumerate(best):
            assert float(grid[i, j]) == close(utility(b, q))


@pytest.fixture
def odd_torch() -> Iterator[None]:
    """A process whose torch defaults are not ours."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(dtype)


@pytest.mark.usefixtures("odd_torch")
@pytest.mark.parametrize("utility", (BUILT_IN | FUNCTIONS).values(), ids=(BUILT_IN | FUNCTIONS))
def test_torch_s_defaults_do_not_matter(utility):
    best = torch.from_numpy(np.array([0.3, 0.9]))
    value = utility(150.0, best)
    assert (value.dtype, value.device.type) == (torch.float64, "cpu")
    assert value.numpy().tolist() == [close(utility(150, 0.3)), close(utility(150, 0.9))]


def test_gradients_pass_through_built_in_forms():
    best = torch.tensor([0.5, 0.9], dtype=torch.float64, requires_grad=True)
    BUILT_IN["quadratic"](torch.tensor(30.0), best).sum().backward()
    assert best.grad is not None
    assert best.grad.tolist() == [1.0, 1.0]


# --- falling in spent, rising in quality ---------------------------------------------------------

SPENT = st.floats(0, 330)
SCORES = st.floats(0, 1)


@st.composite
def utilities(draw: st.DrawFn) -> Utility:
    alpha = draw(st.floats(0, 2))
    plain = power(alpha=alpha, c=draw(st.floats(0.05, 5)), budget=300)
    edges = sorted(draw(st.lists(st.floats(0, 299), max_size=4)))
    stairs = staircase([(edge, draw(st.floats(0, 1))) for edge in edges], budget=300)
    share = draw(st.floats(0.01, 0.99))
    both = mix([(share, plain), (1 - share, stairs)])
    one = draw(st.sampled_from([plain, stairs, both, makarova(draw(SCORES), budget=300)]))
    goal = draw(st.sampled_from(["maximize", "minimize"]))
    return one.bind(goal=goal, **UNIT)


@given(utility=utilities(), spent=st.tuples(SPENT, SPENT), best=SCORES)
def test_utility_falls_in_what_is_spent(utility, spent, best):
    less, more = sorted(spent)
    assert utility(more, best) <= utility(less, best)


@given(utility=utilities(), spent=SPENT, best=st.tuples(SCORES, SCORES))
def test_utility_rises_in_quality(utility, spent, best):
    worse, better = sorted(best, reverse=utility.goal == "minimize")
    assert utility(spent, better) >= utility(spent, worse)


# --- to and from JSON ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "utility",
    [
        *BUILT_IN.values(),
        linear(alpha=0.1, budget=20, unit="money", rate="$2.5/h"),
        worth("1% accuracy", "$20", rate="$2.5/h"),
        with_budget(worth("1%", "2h"), 100),
        makarova(0.3, budget=9).bind(goal="minimize", **UNIT),
        mix([(0.5, HALVES), (0.5, BUILT_IN["makarova"])]).bind(goal="minimize", **UNIT),
    ],
)
def test_json_and_back(utility):
    data = json.loads(json.dumps(utility.to_json(), allow_nan=False))
    for read in (from_json(data), from_stored(data)):
        assert read == utility
        assert read(120, 0.85) == utility(120, 0.85)


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ({"form": "cubic"}, "'cubic': known are power, staircase, mix, custom"),
        ({}, "None: known are power"),
        ({"form": "power", "budget": 1}, "'power'.*alpha"),
        ({"form": "power", "budget": 1, "alpha": 1, "beta": 2}, "'power'.*beta"),
        ({"form": "power", "budget": [1], "alpha": 1}, r"budget=\[1\]: must be a number"),
        ({"form": "staircase", "budget": 1}, "'staircase': 'steps' is missing"),
        ({"form": "staircase", "budget": 1, "steps": [[1, 2]]}, "'staircase'"),
        ({"form": "custom", "budget": 1, "function": "f"}, "'f', which a file cannot hold; pass"),
    ],
)
def test_json_that_is_no_utility(data, rule):
    with pytest.raises(UtilityError, match=rule):
        from_json(data)


def test_a_stored_function_stands_for_itself():
    stored = from_stored(json.loads(json.dumps(FUNCTIONS["scalar"].to_json())))
    assert isinstance(stored, Unavailable)
    assert stored.to_json() == FUNCTIONS["scalar"].to_json()
    assert math.isnan(stored(1, 0.5))
    assert "<lambda>(spent, best); at most 300 epochs" in stored.describe()


# --- another budget ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MONOTONE])
@pytest.mark.parametrize("budget", [150, 600])
def test_another_budget_leaves_prices_as_they_are(name, budget):
    utility = BUILT_IN[name]
    other = with_budget(utility, budget)
    assert other.budget == budget
    for spent in (0, 60, 150):
        assert other(spent, 0.9) == close(utility(spent, 0.9))
    assert other(budget + 1, 0.9) == -math.inf


def test_a_price_that_follows_from_the_budget_is_written_anew():
    with pytest.raises(UtilityError, match=r"write wilson\(…, budget=…\) anew"):
        with_budget(NEAR, 600)


def test_worth_can_be_limited():
    utility = with_budget(worth("1%", "$20", rate=2.5), 50).bind(goal="maximize", **UNIT)
    assert utility.budget == 50
    assert utility(20, 0.81) == close(utility(0, 0.80))


def test_a_function_keeps_its_value_under_another_budget():
    other = with_budget(FUNCTIONS["scalar"], 600)
    assert (other.budget, other(400, 0.9)) == (600, close(0.8))


# --- clear errors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (lambda: linear(alpha=0.1, budget=0), "budget=0: a utility needs a finite budget above 0"),
        (lambda: linear(alpha=0.1, budget=math.inf), "budget=inf: a utility needs a finite"),
        (lambda: linear(alpha=0.1, budget=math.nan), "budget=nan: a utility needs a finite"),
        (lambda: linear(alpha=-0.1, budget=9), "alpha=-0.1: the price .* cannot be below 0"),
        (lambda: linear(alpha=math.nan, budget=9), "alpha=nan"),
        (lambda: power(alpha=1, c=0, budget=9), "c=0: the power must be above 0"),
        (lambda: power(alpha=1, c=-1, budget=9), "c=-1: the power must be above 0"),
        (lambda: hard_budget(9, unit="hours"), "unit='hours': use 'epochs', 'seconds' or 'money'"),
        (lambda: hard_budget(9, unit="money"), r"rate=None: give .* rate='\$2.5/h'"),
        (lambda: hard_budget(9, unit="money", rate=-1), "rate=-1.0: give the price of an hour"),
        (lambda: staircase([(5, 3, 0.1)], budget=9), r"step \(5.0, 3.0, 0.1\): needs low < high"),
        (lambda: staircase([(5, -0.1)], budget=9), "needs low < high and a price of 0 or more"),
        (lambda: staircase([(5,)], budget=9), r"write each as \(from, price\)"),
        (lambda: staircase([(1, 4, 0.5), (6, 0.6)], budget=9), "falls from 0.5 to 0 at 4: "),
        (lambda: mix([]), "needs at least one"),
        (lambda: mix([(0.5, STAIRS)]), r"weights \[0.5\]: must be above 0 and sum to 1"),
        (lambda: mix([(2.0, STAIRS), (-1.0, STAIRS)]), "must be above 0 and sum to 1"),
        (lambda: mix([(math.nan, STAIRS)]), "must be above 0 and sum to 1"),
        (lambda: mix([(1.0, STAIRS), (0.0, BUILT_IN["makarova"])]), "must be above 0"),
        (lambda: mix([(0.5, STAIRS), (0.5, hard_budget(9))]), "9.*300.*must share them"),
        (lambda: mix([(1.0, worth("1%", "2h"))]), "write the whole mix as one Python function"),
        (lambda: mix([(1.0, FUNCTIONS["any"])]), "write the whole mix as one Python function"),
        (lambda: wilson(optimum=1, spread=0, epsilon=0, budget=9), "need spread > 0"),
        (lambda: wilson(optimum=1, spread=1, epsilon=0, delta=1, budget=9), "0 < delta < 1"),
        (lambda: custom("q - b", budget=9), r"'q - b' is not callable; pass f\(spent, best\)"),
    ],
)
def test_errors_name_value_rule_and_remedy(make, rule):
    with pytest.raises(UtilityError, match=rule):
        make()


def test_a_step_that_ends_with_the_budget_never_falls():
    assert staircase([(1, 9, 0.5)], budget=9)(9, 0.9) == close(0.4)


# --- functions -----------------------------------------------------------------------------------


def bound(function: object, **changes: object) -> Utility:
    settings = {"goal": "maximize", "low": 0.0, "high": 1.0, "full": 1.0} | changes
    return custom(function, budget=300).bind(**settings)


def test_whether_a_function_takes_arrays_is_found_out():
    assert FUNCTIONS["any"].vectorised
    assert not FUNCTIONS["scalar"].vectorised
    assert not custom(lambda spent, best: max(best, 0.5), budget=9).vectorised
    assert not custom(lambda spent, best: math.sqrt(best), budget=9).vectorised
    assert not custom(lambda spent, best: 1.0, budget=9).vectorised
    # Takes arrays, but makes something else of them.
    assert not custom(lambda spent, best: best - np.max(spent), budget=9).vectorised


def test_a_scalar_only_function_is_called_with_plain_floats():
    kinds = set()

    def utility(spent: float, best: float) -> float:
        kinds.update((type(spent), type(best)))
        if spent > 100:
            return best - 0.1
        return best

    value = bound(utility)(np.array([50.0, 150.0]), np.array([0.5, 0.5]))
    assert value.tolist() == [0.5, 0.4]
    assert kinds - {np.ndarray} == {float}


def test_functions_see_the_user_s_own_scores():
    """Not negated where the metric is minimised."""
    utility = bound(lambda spent, best: 1 / (best + 1) - spent / 1e6, goal="minimize")
    assert utility(0, 0.25) == close(0.8)
    assert utility(np.zeros(1), np.array([0.25])).tolist() == [close(0.8)]
    assert utility(torch.zeros(1), torch.tensor([0.25])).tolist() == [close(0.8)]


def test_functions_are_not_asked_beyond_the_budget():
    utility = bound(lambda spent, best: best + math.sqrt(300 - spent))
    assert utility(np.array([299.0, 300.0, 301.0]), 0.5).tolist() == [1.5, 0.5, -math.inf]


def test_functions_may_be_flat_or_minus_infinity_but_not_everywhere_rising():
    assert bound(lambda spent, best: 1.0)(3, 0.5) == 1.0
    assert bound(lambda spent, best: best if best > 0.5 else -math.inf)(3, 0.4) == -math.inf


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (lambda spent, best: best + spent / 300, "spending more must not be worth more"),
        (lambda spent, best: -best - spent, "a better score must not be worth less"),
        (lambda spent, best: best - 0.1 * (100 < spent < 200), "spending more must not be worth"),
        (lambda spent, best: best if best < 0.9 else -math.inf, "a better score must not be"),
        (lambda spent, best: -abs(best - 0.5), "a better score must not be worth less"),
    ],
)
def test_violations_of_monotonicity_are_named(function, rule):
    number = r"-?(\d[\d.e-]*|inf)"
    point = rf"utility\({number}, {number}\) = {number}"
    with pytest.raises(UtilityError, match=rf"^{point}, but {point}: {rule}"):
        bound(function)


def test_monotonicity_is_checked_in_the_metric_s_own_direction():
    def loss(spent: float, best: float) -> float:
        return -best - spent

    assert bound(loss, goal="minimize")(1, 0.5) == -1.5
    with pytest.raises(UtilityError, match="a better score must not be worth less"):
        bound(loss, goal="maximize")


@pytest.mark.parametrize(
    "function",
    [
        lambda spent, best: math.nan,
        lambda spent, best: best if spent < 299 else math.nan,
        lambda spent, best: np.where(best > 0.99, np.inf, best),
    ],
)
def test_nan_and_plus_infinity_are_refused(function):
    with pytest.raises(UtilityError, match=r"= (nan|inf): must be a number or −inf everywhere"):
        bound(function)


def test_nan_between_the_points_of_the_check_is_refused_when_it_comes():
    utility = bound(lambda spent, best: math.nan if best == 0.123 else best)
    with pytest.raises(UtilityError, match=r"utility\(5, 0.123\) = nan"):
        utility(5, 0.123)


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (lambda best: best, "TypeError"),
        (lambda spent, best: None, "TypeError"),
        (lambda spent, best: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_function_that_fails_is_named(function, what):
    with pytest.raises(UtilityError, match=rf"failed \({what}: .*0 ≤ best ≤ 1"):
        bound(function)


def test_a_bound_function_keeps_its_settings():
    utility = custom(max, budget=20, unit="money", rate="$2/h")
    assert isinstance(utility, Custom)
    settings = utility.to_json()
    assert settings == {
        "form": "custom", "budget": 20, "unit": "money", "rate": 2.0, "goal": "maximize",
        "function": "max", "fingerprint": "",
    }  # fmt: skip


# --- for people ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("utility", "text"),
    [
        (BUILT_IN["linear"], "linear: 300 epochs cost 0.1 of score"),
        (BUILT_IN["cubic"], "power 3: 300 epochs cost 0.1 of score"),
        (BUILT_IN["hard budget"], "the best score within 300 epochs"),
        (STAIRS, "staircase: 0.1 from 100, 0.3 from 200; at most 300 epochs"),
        (BUILT_IN["makarova"], "nothing counts before 0.8; at most 300 epochs"),
        (NEAR, "until 0.9 is 95% surely within 0.02; at most 300 epochs"),
        (hard_budget(7200, unit="seconds"), "the best score within 2 h"),
    ],
)
def test_descriptions(utility, text):
    assert utility.describe() == text


@forms
def test_built_in_forms_are_values(utility):
    """Equal and hashable, as strategies should be."""
    assert utility == from_json(utility.to_json())
    assert hash(utility) == hash(from_json(utility.to_json()))
