"""The screen at every size, the log line by line, and which of them is chosen."""

import io
import math
import sys
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from fake_studies import (
    fake_curve,
    fake_decision,
    fake_history,
    fake_leader,
    fake_losses,
    fake_running,
    fake_stopped,
    fake_view,
)
from freezethaw.live import LiveView, LogView, QuietView, _Drawing, _Screen, choose_view


class FakeTerminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


class FakeClock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def drawn(view, width=80, height=24, training=(27, 30), notes=(), ascii_only=False):
    console = Console(file=io.StringIO(), width=width, height=height)
    drawing = _Drawing(_Screen(view, training, notes), width, height, ascii_only)
    console.print(drawing.frame())
    return console.file.getvalue()


# ---------------------------------------------------------------- the screen


def test_the_screen_says_everything():
    text = drawn(fake_running())
    assert "143 of 300 epochs · $4.11" in text
    assert "▶ trial 27 · epoch 31 of 50 · lr=0.00027" in text
    assert "0.9962 · trial 2 at epoch 42" in text
    assert "0.9486 now, highest 0.9766 after 23 epochs" in text
    assert "+0.012 from trial 27 by epoch 35, for 5 epochs" in text
    assert "62% chance that going on pays" in text
    assert "1.2% now, stops above 38%" in text
    assert "1 training, 28 frozen, 1 completed" in text
    assert "❄ 15" in text
    assert "▶ 27" in text
    assert "✓  2" in text


@pytest.mark.parametrize("view", [fake_running(), fake_stopped(), fake_losses(), fake_view()])
@pytest.mark.parametrize(("width", "height"), [(40, 12), (60, 24), (80, 24), (140, 40), (200, 80)])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_screen_fits(view, width, height, ascii_only):
    notes = ("a note that is longer than any terminal is wide " * 8, "b", "c", "d", "e")
    text = drawn(view, width, height, notes=notes, ascii_only=ascii_only)
    lines = text.splitlines()
    assert len(lines) < height
    assert max(map(cell_len, lines)) <= width
    if ascii_only:
        text.encode("ascii")


def test_wide_and_foreign_characters_are_cut_by_cells_and_replaced_in_ascii():
    curve = fake_curve(0, [0.5], params={"模型": "大" * 60})
    view = fake_view(fake_history([curve], [0]), name="研究")
    assert max(map(cell_len, drawn(view, training=(0, 1)).splitlines())) <= 80
    drawn(view, training=(0, 1), ascii_only=True).encode("ascii")


def test_curves_show_what_is_trained_and_what_is_not():
    curves = [fake_curve(0, [0.0, 0.5, 1.0]), fake_curve(1, [0.5, math.nan])]
    view = fake_view(fake_history(curves, [0, 0, 0, 1, 1]), max_epochs=5)
    text = drawn(view, training=(0, 3))
    assert "▁▄█··" in text.replace("▅", "▄")
    assert "x···" in text


def test_the_trial_that_trains_is_listed_even_if_it_is_poor():
    view = fake_running()
    worst = view.standings[-1].trial_id
    assert f"▶ {worst}" in drawn(view, training=(worst, 1))


def test_before_anything_is_known():
    assert "no score yet" in drawn(fake_view(), training=None)
    assert "deciding" in drawn(fake_view(), training=None)
    console = Console(file=io.StringIO(), width=80, height=24)
    console.print(_Drawing(_Screen(), 80, 24, False).frame())
    assert console.file.getvalue() == "waiting for the first decision\n"


def live_console(**changes):
    values = {"file": FakeTerminal(), "force_terminal": True, "width": 80, "height": 24}
    return Console(**(values | changes))


def test_the_summary_stays_and_prints_survive(monkeypatch):
    console = live_console()
    monkeypatch.setattr(sys, "stdout", FakeTerminal())
    running = fake_running()
    with LiveView(console=console) as live:
        live.decided(running)
        print("a print of [bold]the user[/bold]")
        live.note("trial 3 is trained again")
        live.epoch(running, 27, 31, 0.97)
        live.stopped(fake_stopped())
    shown = console.file.getvalue()
    last = shown[shown.rindex("digits: stopped after") :]
    assert "a print of [bold]the user[/bold]" in shown
    assert "best continuation has a 4% chance" in last
    assert "trial 3 is trained again" in last
    assert isinstance(sys.stdout, FakeTerminal)


def test_prints_to_a_file_stay_in_the_file(monkeypatch):
    console, file = live_console(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", file)
    with LiveView(console=console) as live:
        live.decided(fake_running())
        print("to the file")
    assert file.getvalue() == "to the file\n"
    assert "to the file" not in console.file.getvalue()


def test_an_error_inside_leaves_the_terminal_in_order():
    console = live_console()
    with pytest.raises(ZeroDivisionError), LiveView(console=console):
        raise ZeroDivisionError
    shown = console.file.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor came back


def test_no_color_is_respected(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    console = live_console()
    with LiveView(console=console) as live:
        live.decided(fake_running())
    assert "\x1b[36m" not in console.file.getvalue()
    assert "\x1b[32m" not in console.file.getvalue()


# ---------------------------------------------------------------- the log


def epoch_by_epoch(scores):
    """Views after each epoch of one trial."""
    for n in range(1, len(scores) + 1):
        yield fake_view(fake_history([fake_curve(0, scores[:n])], [0] * n)), n, scores[n - 1]


def test_log_lines_are_one_per_decision_and_second_and_each_new_best():
    stream, clock = io.StringIO(), FakeClock()
    log = LogView(stream, clock)
    for i, (view, n, score) in enumerate(epoch_by_epoch([0.5, 0.4, 0.3, 0.6, 0.2, 0.1])):
        clock.now += 0.3 if i < 4 else 2.0
        if i in {0, 4}:
            log.decided(view)
        log.epoch(view, 0, n, score)
    assert stream.getvalue().splitlines() == [
        "1 of 300 epochs: trial 0, epoch 1: 0.5 (new best)",
        "4 of 300 epochs: trial 0, epoch 4: 0.6 (new best)",
        "5 of 300 epochs: trial 0, epoch 5: 0.2 (best 0.6)",
    ]


def test_log_lines_within_a_second_wait():
    stream, clock = io.StringIO(), FakeClock()
    log = LogView(stream, clock)
    for view, n, score in epoch_by_epoch([0.9, 0.1, 0.1, 0.1]):
        log.decided(view)
        log.epoch(view, 0, n, score)
        clock.now += 0.4
    assert [line.split(" ")[0] for line in stream.getvalue().splitlines()] == ["1", "4"]


def test_log_of_a_diverged_start_a_note_and_the_end():
    stream = io.StringIO()
    log = LogView(stream)
    view = fake_view(fake_history([fake_curve(0, [math.nan])], [0]))
    with log:
        log.epoch(view, 0, 1, math.nan)
        log.note("the disk is full")
        log.stopped(fake_stopped())
    lines = stream.getvalue().splitlines()
    assert lines[0] == "1 of 300 epochs: trial 0, epoch 1: NaN (no best yet)"
    assert lines[1] == "note: the disk is full"
    assert lines[2].startswith("digits: stopped after 143 of 300 epochs: ")


def test_log_survives_a_stream_that_knows_only_ascii():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    LogView(stream).note("café ❄")
    stream.seek(0)
    assert stream.read() == "note: caf? ?\n"


# ---------------------------------------------------------------- the choice


@pytest.fixture
def _a_terminal(monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")


@pytest.mark.usefixtures("_a_terminal")
class TestChoice:
    def test_a_terminal_gets_the_screen(self):
        assert isinstance(choose_view(quiet=False, stream=FakeTerminal()), LiveView)

    def test_a_pipe_gets_the_log(self):
        assert type(choose_view(quiet=False, stream=io.StringIO())) is LogView

    def test_quiet_wins(self):
        assert type(choose_view(quiet=True, stream=FakeTerminal())) is QuietView

    @pytest.mark.parametrize(
        ("name", "value"), [("TERM", "dumb"), ("CI", "true"), ("COLUMNS", "30"), ("LINES", "8")]
    )
    def test_a_terminal_that_cannot_show_it_gets_the_log(self, monkeypatch, name, value):
        monkeypatch.setenv(name, value)
        assert type(choose_view(quiet=False, stream=FakeTerminal())) is LogView


def test_quiet_is_quiet(capsys):
    with QuietView() as view:
        view.decided(fake_running())
        view.epoch(fake_running(), 0, 1, 0.5)
        view.note("x")
        view.stopped(fake_stopped())
    assert capsys.readouterr() == ("", "")


def test_a_stop_decision_trains_nothing():
    stop = fake_stopped().stop
    decision = fake_decision(fake_leader(0), stop=stop)
    console = live_console()
    with LiveView(console=console) as live:
        live.decided(replace(fake_stopped(), decision=decision))
        live._live.refresh()
    assert "deciding" in console.file.getvalue()
