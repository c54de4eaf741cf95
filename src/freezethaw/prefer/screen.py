"""The questions in a terminal: one per screen, one key per answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from collections.abc import Callable, Iterator

from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from freezethaw.prefer.session import Session
from freezethaw.prefer.words import outcome_text, picture, sentence
from freezethaw.preference import Choice, Outcome
from freezethaw.wording import percent

KEYS: dict[str, Choice] = {"1": "first", "2": "second", "0": "tie", " ": "tie", "=": "tie"}
ARROWS: dict[str, str] = {"\x1b[D": "1", "\x1b[C": "2"}
HELP = "[b]1[/] the first   [b]2[/] the second   [b]0[/] cannot say   [b]u[/] undo   [b]q[/] quit"


def ask_all(
    session: Session, most: int, console: Console, read_key: Callable[[], str] | None = None
) -> bool:
    """Ask until enough is known, `most` are answered, or somebody quits; return whether done."""
    with _keys(console) if read_key is None else contextlib.nullcontext(read_key) as key:
        while True:
            if session.is_enough or session.question is None or len(session.answers) >= most:
                return True
            _show(session, most, console)
            pressed = key()
            if pressed in ("q", "\x03", "\x04", ""):
                return False
            if pressed == "u":
                session.undo()
            elif pressed in KEYS:
                session.answer(KEYS[pressed])


def _show(session: Session, most: int, console: Console) -> None:
    assert session.question is not None
    if console.is_terminal:
        console.clear()
    n = len(session.answers) + 1
    console.print(f"[b]Question {n}[/] [dim]of at most {most}[/]   Which would you rather have?\n")
    width = min(30, (console.width - 4) // 2)
    cards = [
        _card(i, outcome, session, width) for i, outcome in enumerate(session.question, start=1)
    ]
    console.print(Columns(cards, padding=(0, 2)))
    console.print(f"\n{HELP}\n")
    found = session.fit
    if found is not None:
        console.print(f"[dim]So far: {escape(sentence(found))}[/]", highlight=False)
        doubt = percent(session.doubt, 1)
        console.print(f"[dim]About {doubt} of choices are still in doubt.[/]", highlight=False)
    for remark in session.remarks[-2:]:
        console.print(f"[yellow]{remark}[/]", highlight=False)


def _card(number: int, outcome: Outcome, session: Session, width: int) -> Panel:
    score, cost = outcome_text(outcome, session.stakes)
    text = Text(justify="center")
    text.append(f"\n{score}\n", style="bold")
    text.append(f"{session.metric or 'score'}\n\n", style="dim")
    text.append(f"{cost}\n", style="bold")
    text.append("spent\n", style="dim")
    return Panel(text, title=str(number), width=width)


def show_end(session: Session, console: Console, *, done: bool) -> None:
    """Show what was learned, and the line to paste."""
    found = session.fit
    if found is None:
        console.print("No answers, no utility. The same command asks again.")
        return
    doubt, n = percent(session.doubt, 1), len(session.answers)
    if done and session.is_enough:
        console.print(
            f"That is enough: another answer would hardly change a choice ({doubt} in doubt).\n"
        )
    elif done and session.question is not None:
        console.print(
            f"{n} answers; about {doubt} of choices are still in doubt. "
            f"--questions {n + 10} goes on asking.\n"
        )
    elif not done:
        console.print("Saved. The same command goes on from here.\n")
    console.print(f"[b]{escape(sentence(found))}[/]\n", highlight=False)
    console.print(picture(found), highlight=False, markup=False)
    for remark in session.remarks:
        console.print(f"[yellow]{remark}[/]", highlight=False)
    line = f"    ft.tune(train, space, ..., utility={json.dumps(str(session.path))})"
    for text in (f"\nSaved in {session.path}. To tune with it:\n", line):
        console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def _keys(console: Console) -> Iterator[Callable[[], str]]:
    """Single keys from a terminal; the first letters of lines from a pipe."""
    if not (sys.stdin.isatty() and console.is_terminal):
        yield _read_line
        return
    try:
        import termios
        import tty
    except ImportError:  # no single keys on this system
        yield _read_line
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield _read_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _read_line() -> str:
    line = sys.stdin.readline()
    if not line:
        return ""
    return line.strip().lower()[:1] or "\n"


def _read_key() -> str:
    key = _read_one()
    # An arrow or a function key is Escape, a bracket, and more up to a letter or a tilde.
    while key.startswith("\x1b") and not (len(key) > 2 and "@" <= key[-1] <= "~"):
        if not select.select([sys.stdin], [], [], 0.05)[0]:
            return "\x1b"
        key += _read_one()
    return ARROWS.get(key, key.lower())


def _read_one() -> str:
    """One byte, past Python's buffer: what it holds back, `select` would not see."""
    return os.read(sys.stdin.fileno(), 1).decode("latin-1")
