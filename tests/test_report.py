"""Sentences word by word; pages for what they must and must not contain."""

import json
import math
import re
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import pytest
from rich.console import Console

from fake_studies import (
    _study,
    fake_curve,
    fake_decision,
    fake_history,
    fake_leader,
    fake_losses,
    fake_running,
    fake_stop,
    fake_stopped,
    fake_view,
)
from freezethaw import report, wording
from freezethaw.records import Bill, Fan, History, Step, Stop, StopReason, TrialState
from freezethaw.report import charts, svg, words
from freezethaw.report.svg import Axis

# ---------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.98123, "0.9812"),
        (0.5, "0.5"),
        (1.0, "1"),
        (12340.4, "12,340"),
        (100.0, "100"),
        (0.00031, "0.00031"),
        (3e-5, "3e-5"),
        (5e34, "5e34"),
        (-2.3456e-7, "-2.346e-7"),
        (-0.25, "-0.25"),
        (999999.7, "1e6"),
        (0.99999, "1"),
        (-0.0, "0"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_number(value, text):
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.35, "0.35 s"),
        (42.3, "42 s"),
        (59.7, "1 min"),
        (200, "3 min 20 s"),
        (3599.6, "1 h"),
        (4320, "1 h 12 min"),
        (48 * 3600, "2 d"),
        (75 * 3600, "3 d 3 h"),
        (-5, "-5 s"),
        (math.inf, "unlimited"),
    ],
)
def test_duration(seconds, text):
    assert wording.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (20, "$20"),
        (4.2, "$4.20"),
        (0.032, "$0.032"),
        (0.0999, "$0.10"),
        (1234.4, "$1,234"),
        (999.99, "$1,000"),
        (0, "$0"),
        (1e-6, "<$0.0001"),
        (-3, "-$3"),
    ],
)
def test_money(value, text):
    assert wording.money(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.04, "4%"),
        (0.004, "0.4%"),
        (0.0004, "<0.1%"),
        (0.0, "0%"),
        (0.625, "62%"),
        (0.996, "99.6%"),
        (0.9999, ">99.9%"),
        (1.0, "100%"),
        (math.nan, "?%"),
    ],
)
def test_percent(share, text):
    assert wording.percent(share) == text


def test_two_percents_are_told_apart():
    assert wording.two_percents(0.2231, 0.2249) == ("22.3%", "22.5%")
    assert wording.two_percents(0.31, 0.22) == ("31%", "22%")
    assert wording.two_percents(0.5, 0.5) == ("50%", "50%")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.04, "a 4% chance"),
        (0.08, "an 8% chance"),
        (0.11, "an 11% chance"),
        (0.18, "an 18% chance"),
        (0.17, "a 17% chance"),
        (0.83, "an 83% chance"),
        (0.085, "an 8.5% chance"),
        (0.008, "a 0.8% chance"),
        (0.0, "no chance"),
        (1e-5, "less than a 0.1% chance"),
        (0.99999, "more than a 99.9% chance"),
    ],
)
def test_chance_has_its_article(share, text):
    assert wording.chance(share) == text


@pytest.mark.parametrize(
    ("spent", "budget", "unit", "text"),
    [
        (143, 300, "epochs", "143 of 300 epochs"),
        (1, 1, "epochs", "1 of 1 epoch"),
        (2500.0, 10000.0, "epochs", "2,500 of 10,000 epochs"),
        (720, 3 * 3600, "seconds", "12 min of 3 h"),
        (4.2, 20, "money", "$4.20 of $20"),
    ],
)
def test_of_budget(spent, budget, unit, text):
    assert wording.of_budget(spent, budget, unit) == text


def test_params_are_cut_between_values_and_cannot_steer_a_terminal():
    params = {"lr": 0.000312345, "width": 128, "name": "a\x1b[31mb", "flag": True, "none": None}
    assert wording.params(params) == "lr=0.000312 width=128 name=a [31mb flag=True none=None"
    assert wording.params(params, 25) == "lr=0.000312 width=128 ..."
    for width in range(60):
        assert len(wording.params(params, width)) <= max(width, 0)


def test_typeset_minus_signs_only_before_numbers():
    assert wording.typeset("-0.5 and -$3, 1e-5, 2025-05-04") == "−0.5 and −$3, 1e-5, 2025-05-04"


# ---------------------------------------------------------------- sentences


def stopped_view(kind=StopReason.NOT_WORTH_IT, order=(0, 0, 1), chance=0.04, **changes):
    stop = fake_stop(kind)
    curves = [fake_curve(i, [0.5, 0.6][: order.count(i)]) for i in dict.fromkeys(order)]
    decision = fake_decision(fake_leader(0, chance=chance), stop=stop)
    return fake_view(
        fake_history(curves, order), **({"stop": stop, "decision": decision} | changes)
    )


def test_the_sentence_of_the_readme():
    view = replace(fake_stopped(), stop=fake_stop())
    assert report.stop_sentence(view) == (
        "stopped after 143 of 300 epochs: the best continuation has a 4% chance to repay its cost"
    )


@pytest.mark.parametrize(
    ("unit", "budget", "spent", "start"),
    [
        ("epochs", 1.0, 1.0, "stopped after 1 of 1 epoch: "),
        ("seconds", 7200.0, 2520.0, "stopped after 42 min of 2 h: "),
        ("money", 20.0, 4.2, "stopped after $4.20 of $20: "),
    ],
)
def test_stop_sentence_in_each_unit(unit, budget, spent, start):
    view = stopped_view(unit=unit, budget=budget)
    view = replace(view, history=replace(view.history, spent=spent))
    assert report.stop_sentence(view).startswith(start)


@pytest.mark.parametrize(
    ("chance", "end"),
    [
        (0.0, "the best continuation has no chance to repay its cost"),
        (0.08, "the best continuation has an 8% chance to repay its cost"),
        (
            0.62,
            "the utility has fallen 31% of its range below its peak, "
            "more than the 22% that a 62% chance to repay allows",
        ),
        (math.nan, "going on is not expected to repay its cost"),
    ],
)
def test_stop_sentence_by_chance(chance, end):
    assert report.stop_sentence(stopped_view(chance=chance)).endswith(": " + end)


@pytest.mark.parametrize("kind", list(StopReason))
def test_every_reason_makes_a_sentence_without_a_decision(kind):
    sentence = report.stop_sentence(stopped_view(kind, decision=None))
    assert sentence.startswith("stopped after 3 of 300 epochs: ")
    assert not sentence.endswith((".", " "))


def test_a_reason_that_is_a_whole_sentence_is_not_said_twice():
    view = stopped_view(decision=None)
    stop = Stop(kind=StopReason.DEADLINE, reason="stopped after 3 of 300 epochs: it is late.")
    assert report.stop_sentence(replace(view, stop=stop)) == (
        "stopped after 3 of 300 epochs: it is late"
    )


def test_stop_before_anything_was_trained():
    view = fake_view(stop=fake_stop(StopReason.DEADLINE))
    assert report.stop_sentence(view) == (
        "stopped before the first epoch: the deadline passed; run again to go on"
    )


@pytest.mark.parametrize(
    ("trials", "end"),
    [(1, "the only trial failed or diverged"), (3, "all 3 trials failed or diverged")],
)
def test_all_failed(trials, end):
    curves = [fake_curve(i, [math.nan], TrialState.DIVERGED) for i in range(trials)]
    view = fake_view(fake_history(curves, range(trials)), stop=fake_stop(StopReason.NO_CANDIDATES))
    assert report.stop_sentence(view).endswith(": " + end)
    assert "no finite score yet" in report.summary(view)


def test_failures_show_the_first_traceback():
    history = History(failures_in_a_row=5, first_failure="Traceback\nValueError: <no>")
    view = fake_view(history, stop=fake_stop(StopReason.FAILURES))
    assert report.stop_sentence(view).endswith("in a row, the first with ValueError: <no>")
    assert report.summary(view).endswith("  Traceback\n  ValueError: <no>")
    assert "ValueError: &lt;no&gt;" in report.html(view)


def test_failures_on_the_way_are_shown_too():
    curves = [fake_curve(i, [0.5]) for i in range(4)]
    for i in (1, 3):
        curves[i] = replace(curves[i], state=TrialState.FAILED, error=f"Trace\nKeyError: {i}")
    view = fake_view(fake_history(curves, range(4)))
    assert "  failed   trial 1: KeyError: 1 (and 1 more)" in report.summary(view).splitlines()
    assert "<pre>Trace\nKeyError: 1</pre>" in report.html(view)


def test_choice_sentence():
    leaders = fake_leader(7, gain=0.0123, chance=0.62), fake_leader(3)
    view = fake_view(decision=fake_decision(*leaders, regret=0.012, threshold=0.38))
    assert words.choice_sentence(view) == (
        "Trial 7 goes on from epoch 4 to 5: by epoch 9 it is expected to gain 0.012 in utility "
        "for 5 epochs, more than any other candidate, and it has a 62% chance to repay its cost."
    )
    assert words.regret_sentence(view) == (
        "The utility lies 1.2% of its range below its peak; "
        "with a 62% chance to repay, the limit is 38%, so it goes on."
    )


def test_choice_sentence_of_a_start_without_rivals_or_leaders():
    alone = fake_decision(fake_leader(7, epochs_seen=0, target_epoch=1, cost=1.0))
    sentence = words.choice_sentence(fake_view(decision=alone))
    assert sentence.startswith("Trial 7 starts, up to epoch 1: by epoch 1 it is expected to gain")
    assert "for 1 epoch, and it has" in sentence
    given = replace(alone, leaders=())
    assert words.choice_sentence(fake_view(decision=given)) == "Trial 7 starts, up to epoch 1."
    assert words.choice_sentence(fake_view()) == "No decision has been made yet."
    assert words.regret_sentence(fake_view()) is None


# ---------------------------------------------------------------- the view


def test_standings_rank_by_goal_and_put_scoreless_trials_last():
    curves = [
        fake_curve(0, [0.2, 0.9, 0.9]),
        fake_curve(1, [math.nan], TrialState.DIVERGED),
        fake_curve(2, [0.1, math.inf], TrialState.DIVERGED),
        fake_curve(3, [], TrialState.FAILED),
    ]
    history = fake_history(curves, [0, 0, 0, 1, 2, 2])
    up = fake_view(history)
    assert [(s.trial_id, s.best, s.best_epoch) for s in up.standings] == [
        (0, 0.9, 2),
        (2, 0.1, 1),
        (1, None, None),
        (3, None, None),
    ]
    assert up.counts() == {"frozen": 1, "diverged": 2, "failed": 1}
    assert [s.trial_id for s in fake_view(history, goal="minimize").standings] == [2, 0, 1, 3]


def test_a_trial_with_a_pending_step_is_training():
    step = Step(step_id=0, trial_id=0, params={}, from_epoch=1, to_epoch=2, seed=0)
    history = replace(fake_history([fake_curve(0, [0.5])], [0]), pending={0: step})
    assert fake_view(history).counts() == {"training": 1}


def test_the_peak_is_the_highest_utility_of_the_whole_path():
    view = fake_stopped()
    values = [view.utility(p.spent, p.best) for p in view.history.path]
    assert view.peak.utility == max(values)
    assert view.peak.spent == view.history.path[values.index(max(values))].spent


def test_no_peak_and_no_best_while_nothing_is_finite():
    view = fake_view(fake_history([fake_curve(0, [math.nan])], [0]), initial=None)
    assert (view.peak, view.best) == (None, None)
    assert math.isnan(view.utility_now)
    assert "no finite score yet" in report.summary(view)


# ---------------------------------------------------------------- text and JSON


def test_summary_says_what_it_cost():
    bill = Bill(epochs=3, epochs_replayed=2, seconds_training=3600, seconds_replaying=1800)
    view = stopped_view(rate=2.0, storage="study.db")
    view = replace(view, history=replace(view.history, bill=bill))
    text = report.summary(view)
    assert "bill     3 epochs, 2 replayed, in 1 h 30 min" in text
    assert "$3 at $2 per hour" in text
    assert "best     accuracy 0.6 at epoch 2 of trial 0 (maximized)" in text
    assert text.splitlines()[0].startswith("digits: stopped after 3 of 300 epochs: ")


def test_summary_of_an_untouched_study():
    text = report.summary(fake_view())
    assert text.startswith("digits: no epoch yet; the budget is 300 epochs")
    assert "no score yet" in text


def test_summary_of_huge_losses():
    curves = [fake_curve(0, [5e34, 2e33])]
    text = report.summary(fake_view(fake_history(curves, [0, 0], "minimize"), goal="minimize"))
    assert "accuracy 2e33 at epoch 2 of trial 0 (minimized)" in text


def all_views():
    yield fake_view()
    yield fake_stopped()
    yield fake_running()
    yield fake_losses()
    yield fake_view(fake_history([fake_curve(0, [math.nan])], [0]), initial=None)
    yield fake_view(fake_history([fake_curve(0, [0.5])], [0]), max_epochs=1)


@pytest.mark.parametrize("view", list(all_views()))
def test_json_is_strict(view):
    for answer in (report.to_json(view), report.why_json(view)):
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_json_says_null_for_a_diverged_score():
    view = fake_view(fake_history([fake_curve(0, [math.inf], TrialState.DIVERGED)], [0]))
    trial = report.to_json(view)["trials"][0]
    assert (trial["last"], trial["best"], trial["state"]) == (None, None, "diverged")


def test_why_keeps_its_numbers_at_60_columns_and_shows_the_choice():
    console = Console(file=StringIO(), width=60)
    console.print(report.why(fake_stopped()))
    text = console.file.getvalue()
    assert "Stopped after 143 of 300 epochs" in text
    assert re.search(r"27 +30 +35 +\+0\.0011 +4% +5 epochs", text)
    assert all(len(line) <= 60 for line in text.splitlines())


def test_why_json_lists_the_leaders():
    answer = report.why_json(fake_stopped())
    assert (answer["action"], answer["reason"]) == ("stop", "not_worth_it")
    assert len(answer["leaders"]) == 5
    assert answer["leaders"][0]["chance"] == 0.04
    assert report.why_json(fake_running())["action"] == "train"


# ---------------------------------------------------------------- axes


def test_an_axis_is_not_flattened_by_accidents():
    losses = [0.2, 0.3, 0.4, 0.5, 0.9, math.nan, math.inf, 5e34]
    axis = svg.score_axis(losses, "minimize")
    assert axis.lo < 0.2
    assert 0.9 < axis.hi < 2


def test_losses_over_orders_of_magnitude_get_a_log_axis():
    axis = svg.score_axis([0.001, 0.01, 0.1, 1.0, 1.0], "minimize")
    assert axis.log
    assert svg.ticks(axis) == pytest.approx([0.001, 0.01, 0.1, 1.0])
    assert not svg.score_axis([0.001, 1.0], "maximize").log


@pytest.mark.parametrize("values", [[], [math.nan], [0.0], [0.7], [-3.0, -3.0], [1e-300, 2e-300]])
def test_axes_of_little_are_still_axes(values):
    for goal in ("maximize", "minimize"):
        axis = svg.score_axis(values, goal)
        assert axis.lo < axis.hi
        assert all(map(math.isfinite, svg.ticks(axis)))


def test_ticks_are_round_and_inside():
    assert svg.ticks(Axis(0.0, 300.0), 6) == [0, 50, 100, 150, 200, 250, 300]
    assert svg.ticks(Axis(-0.32, 0.28), 6) == pytest.approx([-0.3, -0.2, -0.1, 0, 0.1, 0.2])


def test_labels_are_moved_apart_and_stay_inside():
    placed = svg.dodge([50, 51, 52, 99], 10, 0, 100)
    assert min(b - a for a, b in zip(sorted(placed), sorted(placed)[1:], strict=False)) >= 10
    assert max(placed) <= 100


def test_epoch_scores_follow_the_path():
    curves = [fake_curve(0, [0.1, 0.2]), fake_curve(1, [0.5])]
    assert charts.epoch_scores(fake_view(fake_history(curves, [0, 1, 0]))) == [0.1, 0.5, 0.2]


def test_stretches_join_what_ran_without_a_break():
    curves = [fake_curve(0, [0.5, 0.5, 0.5]), fake_curve(1, [0.5])]
    view = fake_view(fake_history(curves, [0, 0, 1, 0]))
    spans = [(trial, a, b) for trial, _, a, b in charts._stretches(view)]
    assert spans == [(0, 0, 2), (1, 2, 3), (0, 3, 4)]


# ---------------------------------------------------------------- the page


class Page(HTMLParser):
    """What is on a page: tags with attributes, and that every tag is closed."""

    VOID = frozenset({"meta"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.scripts = [], [], 0
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def svgs(page):
    return [ET.fromstring(text) for text in re.findall(r"<svg\b.*?</svg>", page, re.DOTALL)]


@pytest.mark.parametrize("view", list(all_views()))
def test_page_is_well_formed_and_self_contained(view):
    page = report.html(view)
    tags = Page(page)
    for drawing in svgs(page):
        for path in drawing.iter("{http://www.w3.org/2000/svg}path"):
            assert re.fullmatch(r"[MLHVZhv0-9 .-]+", path.get("d"))
    assert "nan" not in " ".join(re.findall(r' d="[^"]*"', page))
    bare = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"(?m)^\s*//.*$", "", bare))
    for _, attrs in tags.tags:
        assert not {"src", "href", "srcset"} & attrs.keys()
    ids = [attrs["id"] for _, attrs in tags.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_charts_speak_to_screen_readers():
    page = report.html(fake_stopped())
    names = []
    for drawing in svgs(page):
        if drawing.get("role") != "img":  # the keys and the small curves of the table
            continue
        title, about = drawing.get("aria-labelledby").split()
        texts = {child.get("id"): child.text for child in drawing if child.get("id")}
        assert texts[title]
        assert texts[about]
        names.append(title)
    assert names == ["scores-title", "utility-title", "curves-title", "raster-title"]
    assert "157 epochs not spent" in page
    assert "Trial 2 reaches 0.9962 at epoch 42" in page


def test_page_escapes_everything():
    evil = "</script><script>alert('x')</script>\x00\ud800"
    curves = [fake_curve(0, [0.5], params={evil: evil})]
    decision = fake_decision(fake_leader(0, params={evil: evil}))
    view = fake_view(
        fake_history(curves, [0]),
        name=evil,
        metric=evil,
        utility_text=evil,
        storage=evil,
        started_at=evil,
        decision=decision,
    )
    page = report.html(view)
    assert len(Page(page).all("script")) == 1
    assert page.count("<script>") == 1
    assert "&lt;script&gt;" in page
    assert "\x00" not in page
    page.encode("utf-8")
    for _ in svgs(page):
        pass


def test_table_has_a_row_per_trial_the_best_first():
    view = fake_stopped()
    table = re.search(r'<table id="trials">.*?</table>', report.html(view), re.DOTALL).group()
    rows = re.findall(r'<tr data-t="(\d+)"( class="top")?><th scope="row">', table)
    assert [int(trial) for trial, _ in rows] == [s.trial_id for s in view.standings]
    assert [bool(top) for _, top in rows] == [True] + [False] * 29
    heads = len(re.findall("<th scope=.col.", table))
    for row in re.findall(r"<tr data-t.*?</tr>", table, re.DOTALL):
        assert len(re.findall("<t[hd][ >]", row)) == heads


def test_too_many_parameters_share_a_column():
    params = {f"p{i}": i for i in range(16)}
    view = fake_view(fake_history([fake_curve(0, [0.5], params=params)], [0]))
    page = report.html(view)
    assert '<th scope="col" class="word">Configuration</th>' in page
    assert "p0=0 p1=1" in page


def test_page_of_an_untouched_study_says_so():
    page = report.html(fake_view())
    assert "No epoch has been reported yet" in page
    assert "<figure" not in page


def test_bill_adds_up_and_shows_money_only_with_a_rate():
    view = stopped_view()
    assert '<th scope="col">Money</th>' not in report.html(view)
    page = report.html(replace(view, rate=3600.0))
    assert f"<td>{wording.money(view.history.bill.seconds)}</td>" in page


def test_forecast_fans_are_drawn_and_odd_ones_survive():
    page = report.html(fake_stopped())
    assert len(re.findall('class="fan c[123]"', page)) == 6
    assert len(re.findall('class="median c[123]"', page)) == 3
    view = stopped_view()
    rows = ((math.inf, math.nan), (0.7, 0.8), (0.5, -math.inf))
    odd = Fan(trial_id=0, epochs=(3, 4), levels=(0.1, 0.5, 0.9), scores=rows)
    unknown = replace(odd, trial_id=99)
    empty = replace(odd, epochs=(), scores=((), (), ()))
    decision = replace(view.decision, fans=(odd, unknown, empty))
    page = report.html(replace(view, decision=decision))
    Page(page)
    assert 'class="median c0"' in page


def test_the_last_forecast_of_a_finished_utility_survives_minus_infinity():
    view = stopped_view(budget=2.0)  # spent 3 of 2: the utility is minus infinity now
    assert view.utility_now == -math.inf
    Page(report.html(view))
    json.dumps(report.to_json(view), allow_nan=False)


def test_a_long_study_is_fast_and_small():
    view = _study(1000, 10_000, "maximize", "epochs")
    started = time.perf_counter()
    page = report.html(replace(view))
    assert time.perf_counter() - started < 2.0
    assert len(page.encode()) < 3_000_000
    assert page.count("<tr data-t=") == 1000 + 5


def test_a_slow_utility_is_called_a_bounded_number_of_times():
    calls = 0

    def utility(spent, best):
        nonlocal calls
        calls += 1
        return best - 1e-5 * spent

    scores = [i / 10_000 for i in range(10_000)]
    history = fake_history([fake_curve(0, [0.5] * 10_000)], [0] * 10_000)
    report.html(fake_view(history, utility=utility, budget=20_000.0, max_epochs=10_000))
    assert calls < 3_000
    assert len(scores) == len(history.path)
