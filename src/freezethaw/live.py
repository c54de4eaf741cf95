"""What a running study shows: a live screen, plain log lines, or nothing."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self, TextIO, runtime_checkable

from rich.cells import set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from freezethaw import wording
from freezethaw.report import Standing, StudyView, facts, first_failure, summary, words
from freezethaw.report.svg import Axis, score_axis

_MIN_WIDTH, _MIN_HEIGHT = 40, 12
_MAX_NOTES = 20


STOPPING = "stopping after this epoch; press Ctrl-C again to abort at once"
"""Noted at the first Ctrl-C; no news once it has stopped."""


@runtime_checkable
class View(Protocol):
    """Whoever watches a study; used as a context manager around its run."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def decided(self, view: StudyView) -> None:
        """A decision was made; it is `view.decision`."""

    def epoch(self, view: StudyView, trial_id: int, epoch: int, score: float) -> None:
        """A trial reported a score, which `view` already holds."""

    def note(self, text: str) -> None:
        """Something that the user should know."""

    def stopped(self, view: StudyView) -> None:
        """The study stopped, for the reason in `view.stop`."""


def choose_view(*, quiet: bool, stream: TextIO) -> View:
    """A live screen where `stream` is a terminal that can show one; else log lines, or silence."""
    if quiet:
        return QuietView()
    return LiveView(stream) if _is_screen(stream) else LogView(stream)


def _is_screen(stream: TextIO) -> bool:
    """Whether lines can be drawn over: a terminal, not a pipe, a notebook, CI or Emacs' shell."""
    if not stream.isatty() or os.environ.get("CI", "").lower() not in {"", "0", "false"}:
        return False
    if os.environ.get("TERM", "").lower() in {"dumb", "unknown"}:
        return False
    size = Console(file=stream).size
    return size.width >= _MIN_WIDTH and size.height >= _MIN_HEIGHT


class QuietView:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def decided(self, view: StudyView) -> None:
        """Show nothing."""

    def epoch(self, view: StudyView, trial_id: int, epoch: int, score: float) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def stopped(self, view: StudyView) -> None:
        """Show nothing."""


class LogView(QuietView):
    """Log lines: one per decision and second at most, each new best, each note, the summary."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next_at = -math.inf
        self._said = False

    def decided(self, view: StudyView) -> None:  # noqa: ARG002
        """Leave room for one line about this decision."""
        self._said = False

    def epoch(self, view: StudyView, trial_id: int, epoch: int, score: float) -> None:
        """Say what this epoch gave, if it is news."""
        history = view.history
        improved = (history.best_trial_id, history.best_epoch) == (trial_id, epoch)
        if not improved and (self._said or self._clock() < self._next_at):
            return
        self._said = True
        self._next_at = self._clock() + 1.0
        spent = wording.of_budget(history.spent, view.budget, view.unit)
        best = "new best" if improved else _best_so_far(view)
        self._line(f"{spent}: trial {trial_id}, epoch {epoch}: {wording.number(score)} ({best})")

    def note(self, text: str) -> None:
        """Say it."""
        self._line(f"note: {text}")

    def stopped(self, view: StudyView) -> None:
        """Say what came of it."""
        self._line(summary(view))

    def _line(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        # A character that the stream cannot hold must not end a study.
        self._stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        self._stream.flush()


def _best_so_far(view: StudyView) -> str:
    best = view.history.best_score
    if best is None or not math.isfinite(best):
        return "no best yet"
    return f"best {wording.number(best)}"


# ---------------------------------------------------------------- the live screen


class LiveView(QuietView):
    """A screen that is drawn over in place, and a summary that stays when the study stops."""

    def __init__(self, stream: TextIO | None = None, console: Console | None = None) -> None:
        self._console = console or Console(file=stream)
        self._screen = _Screen()
        self._drawn: tuple[object, RenderableType] | None = None
        self._live = Live(
            console=self._console,
            get_renderable=self.frame,
            refresh_per_second=4,
            vertical_overflow="crop",
            # The user's prints appear above the screen. A stream that goes to a file stays there.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.stop()

    def decided(self, view: StudyView) -> None:
        """Show what is trained next, and how sure it is."""
        decision = view.decision
        training = None
        if decision is not None and decision.trial_id is not None and decision.stop is None:
            training = decision.trial_id, decision.from_epoch
        self._show(view, training)

    def epoch(self, view: StudyView, trial_id: int, epoch: int, score: float) -> None:  # noqa: ARG002
        """Show the new score."""
        self._show(view, (trial_id, epoch))

    def note(self, text: str) -> None:
        """Show it among the last notes."""
        text = wording.printable(text)
        self._screen = replace(self._screen, notes=(*self._screen.notes, text)[-_MAX_NOTES:])
        if not self._live.is_started:
            self._console.print(Text(f"note: {text}"))

    def stopped(self, view: StudyView) -> None:
        """Leave the summary on the screen."""
        notes = tuple(note for note in self._screen.notes if note != STOPPING)
        self._screen = replace(self._screen, view=view, training=None, notes=notes, final=True)
        self._live.stop()

    def _show(self, view: StudyView, training: tuple[int, int] | None) -> None:
        # Nothing is drawn here: a thread draws at leisure, and training is not slowed by it.
        self._screen = replace(self._screen, view=view, training=training)

    def frame(self) -> RenderableType:
        """What the screen shows now."""
        screen, size = self._screen, self._console.size
        key = screen, size
        if self._drawn is None or self._drawn[0] != key:
            ascii_only = self._console.options.ascii_only
            drawing = _Drawing(screen, size.width, size.height, ascii_only)
            self._drawn = key, drawing.final() if screen.final else drawing.frame()
        return self._drawn[1]


@dataclass(frozen=True, eq=False)
class _Screen:
    """What the screen shows; replaced whole, so that the drawing thread never sees half of it."""

    view: StudyView | None = None
    training: tuple[int, int] | None = None
    """The trial that trains now and the epochs that it has."""
    notes: tuple[str, ...] = ()
    final: bool = False


class _Glyphs:
    """The characters of the screen, in Unicode or ASCII."""

    def __init__(self, ascii_only: bool) -> None:
        self.training, self.frozen = (">", "*") if ascii_only else ("▶", "❄")
        self.completed, self.broken = ("=", "x") if ascii_only else ("✓", "✗")
        self.full, self.rest, self.limit = ("#", "-", "|") if ascii_only else ("━", "─", "┃")
        self.levels = "_.-:=+*#" if ascii_only else "▁▂▃▄▅▆▇█"
        self.ahead = " " if ascii_only else "·"
        self.dot = ", " if ascii_only else " · "


class _Drawing:
    """One frame: a column of labels, a column of what they say."""

    LABEL = 10

    def __init__(self, screen: _Screen, width: int, height: int, ascii_only: bool) -> None:
        self.screen = screen
        self.width = width
        self.height = height
        self.ascii_only = ascii_only
        self.glyphs = _Glyphs(ascii_only)
        self.bar_width = min(max(width - self.LABEL - 34, 8), 40)

    def frame(self) -> RenderableType:
        """The screen while the study runs: never as high as the terminal, so it never scrolls."""
        view = self.screen.view
        if view is None:
            return Text("waiting for the first decision")
        rows = self.height - 1
        top = [self._head(view), self._spent(view), Text(), *self._facts(view)]
        notes = [self._row("note", text) for text in self.screen.notes[-3:]]
        space = rows - len(top) - len(notes) - 2
        trials = self._trials(view, space) if space > 0 else []
        body = [*top, Text(), *trials] if trials else top
        return Group(*[*body, *notes][:rows])

    def final(self) -> RenderableType:
        """What stays when the study has stopped; here lines may wrap."""
        view = self.screen.view
        assert view is not None
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(overflow="fold")
        for name, text in facts(view):
            grid.add_row(name, Text(self._safe(text)))
        for text in self.screen.notes:
            grid.add_row("note", Text(self._safe(text)))
        sentence = f"{wording.printable(view.name)}: {words.standing_sentence(view)}"
        lines: list[RenderableType] = [Text(self._safe(sentence), style="bold"), Text(), grid]
        if failure := first_failure(view):
            lines += [Text(), Text(self._safe(failure))]
        return Group(*lines)

    # ------------------------------------------------------------ rows

    def _safe(self, text: str) -> str:
        return text.encode("ascii", "replace").decode() if self.ascii_only else text

    def _row(self, label: str, *parts: str | Text) -> Text:
        line = Text(no_wrap=True, end="")
        line.append(f"{label:<{self.LABEL}}", style="dim")
        for part in parts:
            line.append(self._safe(part) if isinstance(part, str) else part)
        # Cut by hand: rich's ellipsis is not ASCII.
        line.truncate(self.width, overflow="crop")
        line.end = "\n"
        return line

    def _fill(self, *parts: str) -> int:
        """The width that is left on a row after these parts."""
        return max(self.width - self.LABEL - sum(len(part) for part in parts), 0)

    def _head(self, view: StudyView) -> Text:
        line = Text(no_wrap=True)
        line.append(self._safe(wording.printable(view.name)), style="bold")
        line.append(self._safe(f"{self.glyphs.dot}{view.goal} {wording.printable(view.metric)}"))
        line.truncate(self.width, overflow="crop")
        return line

    def _spent(self, view: StudyView) -> Text:
        share = view.history.spent / view.budget if view.budget > 0 else 1.0
        text = " " + wording.of_budget(view.history.spent, view.budget, view.unit)
        if view.money is not None and view.unit != "money":
            text += self.glyphs.dot + wording.money(view.money)
        return self._row("spent", self._bar(share, "cyan"), text)

    def _bar(self, share: float, style: str, limit: float | None = None) -> Text:
        full = round(min(max(share, 0.0), 1.0) * self.bar_width) if math.isfinite(share) else 0
        rest = self.glyphs.rest * (self.bar_width - full)
        bar = Text.assemble((self.glyphs.full * full, style), (rest, "dim"))
        if limit is None or math.isnan(limit):
            return bar
        at = min(int(min(max(limit, 0.0), 1.0) * self.bar_width), self.bar_width - 1)
        return Text.assemble(bar[:at], (self.glyphs.limit, "bold"), bar[at + 1 :])

    def _facts(self, view: StudyView) -> list[Text]:
        return [
            self._training(view),
            self._best(view),
            self._utility(view),
            *self._forecast(view),
        ]

    def _training(self, view: StudyView) -> Text:
        if self.screen.training is None:
            return self._row("now", "deciding")
        trial, done = self.screen.training
        dot = self.glyphs.dot
        curve = view.history.curves.get(trial)
        params = curve.params if curve is not None else {}
        if view.decision is not None and view.decision.trial_id == trial:
            params = view.decision.params or params
        text = f"trial {trial}{dot}epoch {min(done + 1, view.max_epochs)} of {view.max_epochs}{dot}"
        mark = f"{self.glyphs.training} "
        shown = wording.params(params, self._fill(mark, text))
        return self._row("now", Text(mark, style="green"), Text(text, style="bold"), shown)

    def _best(self, view: StudyView) -> Text:
        best = view.best
        if best is None or best.best is None:
            return self._row("best", "no score yet")
        dot, score = self.glyphs.dot, wording.number(best.best)
        text = f"{dot}trial {best.trial_id} at epoch {best.best_epoch}{dot}"
        params = wording.params(best.curve.params, self._fill(score, text))
        return self._row("best", Text(score, style="bold green"), text, params)

    def _utility(self, view: StudyView) -> Text:
        peak = view.peak
        text = f"{wording.number(view.utility_now)} now"
        if peak is not None and peak.utility > view.utility_now:
            where = wording.amount(peak.spent, view.unit)
            text += f", highest {wording.number(peak.utility)} after {where}"
        return self._row("utility", text)

    def _forecast(self, view: StudyView) -> list[Text]:
        """What going on promises, how sure that is, and how near the stop."""
        leader, decision = view.leader, view.decision
        if leader is None or decision is None:
            return [self._row("forecast", "none yet")]
        price = words.price(leader, view.unit)
        gain = f"{wording.signed(leader.gain)} from trial {leader.trial_id}"
        rows = [
            self._row("forecast", f"{gain} by epoch {leader.target_epoch}, for {price}"),
            self._row(
                "pays",
                self._bar(leader.chance, "green"),
                f" {wording.percent(leader.chance)} chance that going on pays",
            ),
        ]
        if math.isfinite(decision.regret + decision.threshold):
            lost, limit = wording.two_percents(max(decision.regret, 0.0), decision.threshold)
            bar = self._bar(decision.regret, "red", decision.threshold)
            rows.append(self._row("regret", bar, f" {lost} now, stops above {limit}"))
        return rows

    # ------------------------------------------------------------ trials

    def _trials(self, view: StudyView, rows: int) -> list[Text]:
        """The best trials and the one that trains now, one line each under a heading."""
        heading = self._row("trials", words.trials_sentence(view).split(": ")[-1])
        shown = list(view.standings[: max(rows - 1, 0)])
        current = None if self.screen.training is None else self.screen.training[0]
        if shown and current not in {standing.trial_id for standing in shown}:
            shown[-1:] = [s for s in view.standings if s.trial_id == current] or shown[-1:]
        axis = score_axis((s for x in shown for s in x.curve.scores), goal=view.goal)
        ids = max((len(str(s.trial_id)) for s in shown), default=1)
        return [heading, *(self._trial(view, s, axis, ids, s.trial_id == current) for s in shown)]

    def _trial(self, view: StudyView, s: Standing, axis: Axis, ids: int, current: bool) -> Text:
        glyphs = self.glyphs
        marks = {
            "training": (glyphs.training, "green"),
            "frozen": (glyphs.frozen, "cyan"),
            "completed": (glyphs.completed, ""),
        }
        mark, style = marks.get("training" if current else s.state, (glyphs.broken, "red"))
        score = "-" if s.best is None else wording.number(s.best)
        epochs = f"{s.curve.epochs}/{view.max_epochs}"
        numbers = f" {epochs:>{2 * len(str(view.max_epochs)) + 1}}  {score:<8} "
        label = f"{mark} {s.trial_id:>{ids}}"
        seen, ahead = self._spark(view, s, axis)
        best = view.best is not None and s.trial_id == view.best.trial_id
        line = Text.assemble(
            (set_cell_size(label, self.LABEL), style),
            (seen, style),
            (ahead, "dim"),
            (numbers, "bold green" if best else "bold" if current else ""),
        )
        line.append(self._safe(wording.params(s.curve.params, max(self.width - len(line), 0))))
        line.truncate(self.width, overflow="crop")
        return line

    def _spark(self, view: StudyView, standing: Standing, axis: Axis) -> tuple[str, str]:
        """A curve in one line of characters, and the characters for the epochs that it lacks."""
        scores, total = standing.curve.scores, max(view.max_epochs, 1)
        columns = min(total, self.bar_width)
        seen = ""
        for column in range(columns):
            # The last epoch of the stretch that this column stands for.
            last = min((column + 1) * total // columns, len(scores))
            if last <= column * total // columns:
                break
            seen += self._level(scores[last - 1], axis)
        return seen, self.glyphs.ahead * (columns - len(seen))

    def _level(self, score: float, axis: Axis) -> str:
        if not math.isfinite(score):
            return "x"
        top = len(self.glyphs.levels) - 1
        return self.glyphs.levels[round(min(max(axis(score), 0.0), 1.0) * top)]
