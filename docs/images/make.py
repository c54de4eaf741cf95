"""The pictures of the README and of the page of questions (needs Chromium).

    freezethaw demo && python docs/images/make.py freezethaw-demo/study.db

The live view is drawn as it was in the middle of the study; the report is the page itself. The page
of questions is shown after six answers of somebody to whom an hour is worth 1.5 points.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

from freezethaw import report
from freezethaw.events import Decided, Fold
from freezethaw.live import LiveView
from freezethaw.prefer.server import PreferServer
from freezethaw.prefer.session import Session
from freezethaw.preference import Stakes
from freezethaw.storage import create_log, open_log
from freezethaw.study import Study
from freezethaw.views import view_of

HERE = Path(__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
COLUMNS, ROWS = 104, 27
MIDDLE = 0.6
"""The live view is shown when so much of the study's decisions were made."""


def main() -> None:
    """Draw all."""
    storage = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        live, page = Path(folder) / "live.html", Path(folder) / "report.html"
        live.write_text(live_page(storage), encoding="utf-8")
        with Study.open(storage) as study:
            page.write_text(report.html(view_of(study)), encoding="utf-8")
        photograph(live.as_uri(), HERE / "live.png", width=900, height=506)
        photograph(page.as_uri(), HERE / "report.png", width=1180, height=1480)
        session = answered(Path(folder) / "utility.json")
        with PreferServer(session, most=10) as server:
            photograph(server.address, HERE / "prefer.png", width=820, height=860)


def answered(path: Path) -> Session:
    """The session of somebody who has answered six questions."""
    session = Session(path, Stakes(budget=72_000, unit="seconds"), metric="accuracy")
    for _ in range(6):
        assert session.question is not None
        worth = [y - 0.3 * x for x, y in map(session.stakes.place, session.question)]
        session.answer("first" if worth[0] > worth[1] else "second")
    return session


def live_page(storage: Path) -> str:
    """The terminal's screen in the middle of the study, as a page."""
    events = open_log(storage).read()
    decided = [place for place, event in enumerate(events) if isinstance(event, Decided)]
    until = decided[int(MIDDLE * len(decided))] + 1
    log, fold = create_log(None, "digits"), Fold()
    log.begin(events[:until])
    for event in events[:until]:
        fold.apply(event)
    console = Console(
        record=True, force_terminal=True, width=COLUMNS, height=ROWS, file=io.StringIO()
    )
    view = LiveView(console=console)
    view.decided(view_of(Study(log, fold, storage=None)))
    console.print(view.frame())
    return console.export_html(theme=MONOKAI, code_format=_PAGE)


_PAGE = """<!doctype html><meta charset="utf-8"><style>{stylesheet}
body {{ margin: 0; padding: 18px 22px; background: {background}; color: {foreground} }}
pre {{ font: 14px/1.25 "DejaVu Sans Mono", monospace; margin: 0 }}
</style><pre>{code}</pre>"""


def photograph(address: str, picture: Path, *, width: int, height: int) -> None:
    """Have a browser draw the page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [browser, *OPTIONS, f"--user-data-dir={profile}", f"--screenshot={picture}",
             f"--window-size={width},{height}", "--virtual-time-budget=3000", address],
            check=True, capture_output=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
