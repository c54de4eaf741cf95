"""The questions on a page: served on loopback, to whoever has the token in the address.

Nothing listens anywhere else, and nothing is loaded from anywhere else. The page is a display:
every answer goes to the session here, which saves it. A page that was loaded before another answer
was given (a second tab, a reload) is told so and shows the present question.
"""

from __future__ import annotations

import errno
import json
import secrets
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any

import numpy as np

from freezethaw.errors import FreezeThawError, PreferenceError
from freezethaw.prefer.session import Session
from freezethaw.prefer.words import outcome_text, score_text, sentence
from freezethaw.wording import amount, percent

N_POINTS = 61
MOST_BYTES = 1000
"""Of a request's body: an answer is a few."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
FILES = {
    "": ("page.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
}


class _Quiet(ThreadingHTTPServer):
    """A browser that is closed in the middle of a reply is no error."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class PreferServer:
    """Serves one session until somebody is done with it."""

    def __init__(self, session: Session, most: int, port: int = 0) -> None:
        self.session = session
        self.most = most
        self.token = secrets.token_urlsafe(16)
        self.done = threading.Event()
        """Set when somebody has said so on the page."""
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"prefer": self})
        try:
            self._http = _Quiet(("127.0.0.1", port), handler)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise PreferenceError(
                    f"port {port}: cannot be used ({error.strerror}); give another with --port, "
                    "or none to take a free one"
                ) from error
            raise
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/{self.token}/"

    def __enter__(self) -> PreferServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def act(self, request: dict[str, Any]) -> tuple[HTTPStatus, dict[str, Any]]:
        """Do what the page asks for, and return what it should show."""
        with self._lock:
            session = self.session
            if request.get("n") != len(session.answers):
                return HTTPStatus.CONFLICT, self._state()
            match request.get("do"):
                case "answer" if request.get("choice") in ("first", "second", "tie"):
                    session.answer(request["choice"])
                case "undo":
                    session.undo()
                case "done":
                    self.done.set()
                case _:
                    return HTTPStatus.BAD_REQUEST, {"error": "not a request of this page"}
            return HTTPStatus.OK, self._state()

    def state(self) -> dict[str, Any]:
        """Return what the page should show."""
        with self._lock:
            return self._state()

    def _state(self) -> dict[str, Any]:
        session, stakes = self.session, self.session.stakes
        question, n = session.question, len(session.answers)
        enough = session.is_enough or question is None
        found = session.fit
        return {
            "n": n,
            "most": self.most,
            "metric": session.metric or "score",
            "finished": self.done.is_set(),
            "enough": enough,
            "rest": n >= self.most,
            "question": question and [self._outcome(outcome) for outcome in question],
            "doubt": percent(session.doubt, 1),
            "sentence": sentence(found) if found else None,
            "remarks": session.remarks,
            "path": str(session.path),
            "axes": {
                "cost": [amount(0, stakes.unit), amount(stakes.budget, stakes.unit)],
                "score": [score_text(stakes.outcome(0, y).best, stakes) for y in (0.0, 1.0)],
            },
            "curves": self._curves(),
            "asked": [
                {
                    "points": [stakes.place(a.first), stakes.place(a.second)],
                    "choice": a.choice,
                    "text": [" for ".join(outcome_text(o, stakes)) for o in (a.first, a.second)],
                }
                for a in session.answers
            ],
        }

    def _outcome(self, outcome: Any) -> dict[str, Any]:
        score, cost = outcome_text(outcome, self.session.stakes)
        return {"score": score, "cost": cost, "place": self.session.stakes.place(outcome)}

    def _curves(self) -> dict[str, Any] | None:
        """Lines of equal utility: what score makes up for a cost."""
        found = self.session.fit
        if found is None:
            return None
        x = np.linspace(0, 1, N_POINTS)
        low, high = found.price_band(x)
        return {
            "x": x.round(4).tolist(),
            "price": found.price(x).round(5).tolist(),
            "low": low.round(5).tolist(),
            "high": high.round(5).tolist(),
        }


class _Handler(BaseHTTPRequestHandler):
    """Requests to one server's page."""

    prefer: PreferServer

    def do_GET(self) -> None:
        """Send the page, its files or the state."""
        name = self._name()
        if name == "state":
            self._send_json(HTTPStatus.OK, self.prefer.state())
        elif name in FILES:
            file, kind = FILES[name]
            text = resources.files("freezethaw.prefer").joinpath(file).read_bytes()
            self._send(HTTPStatus.OK, text, kind)
        else:
            self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")

    def do_POST(self) -> None:
        """Do what the page asks for."""
        if self._name() != "act":
            self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")
            return
        self._guarded(self._act)

    def _act(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        request = json.loads(self.rfile.read(min(length, MOST_BYTES)))
        if not isinstance(request, dict):
            raise ValueError("not an object")
        self._send_json(*self.prefer.act(request))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except FreezeThawError as error:
            # The answer was not taken: the page says why and keeps its question.
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": str(error)})
        except (ValueError, RecursionError):
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": "not a request of this page"})

    def _name(self) -> str | None:
        """Return what is asked for below the token; None without the token."""
        host = (self.headers.get("Host") or "").split(":")[0]
        parts = self.path.split("?")[0].split("/")
        right = len(parts) == 3 and secrets.compare_digest(
            parts[1].encode(), self.prefer.token.encode()
        )
        # Another site's name that leads to this machine is not this page.
        return parts[2] if right and host in ("127.0.0.1", "localhost") else None

    def _send_json(self, status: HTTPStatus, data: dict[str, Any]) -> None:
        text = json.dumps(data, allow_nan=False).encode()
        self._send(status, text, "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet: the terminal shows the address and the end."""
