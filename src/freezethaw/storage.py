"""Append and replay events. SQLite by default, through SQLAlchemy Core so that others can follow.

One file holds any number of named studies. Readers never block; one process at a time writes to a
study, and the lock goes with the process, however it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sql
from sqlalchemy.exc import DatabaseError, OperationalError

from freezethaw.errors import BusyError, StorageError, StudyError
from freezethaw.events import Event, event_from_json

FORMAT = 1
DEFAULT_NAME = "default"

_schema = sql.MetaData()
_studies = sql.Table(
    "studies",
    _schema,
    sql.Column("study_id", sql.Integer, primary_key=True),
    sql.Column("name", sql.String, nullable=False, unique=True),
    sql.Column("created", sql.Float, nullable=False),
    sql.Column("format", sql.Integer, nullable=False),
)
_events = sql.Table(
    "events",
    _schema,
    sql.Column("study_id", sql.ForeignKey("studies.study_id"), primary_key=True),
    sql.Column("sequence", sql.Integer, primary_key=True),
    sql.Column("time", sql.Float, nullable=False),
    sql.Column("writer", sql.String, nullable=False),
    sql.Column("kind", sql.String, nullable=False),
    sql.Column("body", sql.Text, nullable=False),
)


class Log(Protocol):
    """The events of one study: what every backend offers."""

    name: str
    created: float

    def read(self) -> list[Event]:
        """All events, in order."""
        ...

    def append(self, events: Sequence[Event]) -> None:
        """Make events durable, all or none, before returning."""
        ...

    def lock(self) -> None:
        """Become the one writer, or raise `BusyError`."""
        ...

    def close(self) -> None:
        """Give up the lock and the connection."""
        ...


class SqlLog:
    """One study in a SQL database."""

    def __init__(self, engine: sql.Engine, name: str, lock_path: Path | None) -> None:
        self.name = name
        self._engine = engine
        self._lock = ProcessLock(lock_path) if lock_path else None
        self._writer = f"{socket.gethostname()}:{os.getpid()}"
        with engine.connect() as connection:
            row = connection.execute(sql.select(_studies).where(_studies.c.name == name)).one()
        if row.format > FORMAT:
            raise StorageError(
                f"study {name!r} has format {row.format}; this version of freezethaw reads up to "
                f"{FORMAT}: upgrade to open it"
            )
        self._study_id: int = row.study_id
        self.created: float = row.created
        self._next = 0

    def read(self) -> list[Event]:
        """All events, in order."""
        query = (
            sql.select(_events.c.sequence, _events.c.kind, _events.c.body)
            .where(_events.c.study_id == self._study_id)
            .order_by(_events.c.sequence)
        )
        with _storage_errors(f"study {self.name!r}"), self._engine.connect() as connection:
            rows = connection.execute(query).all()
        self._next = rows[-1].sequence + 1 if rows else 0
        return [event_from_json(row.kind, row.body) for row in rows]

    def append(self, events: Sequence[Event]) -> None:
        """One transaction, flushed to disk."""
        now = time.time()
        rows = [
            {
                "study_id": self._study_id,
                "sequence": self._next + place,
                "time": now,
                "writer": self._writer,
                "kind": event.kind,
                "body": json.dumps(event.body(), separators=(",", ":"), allow_nan=False),
            }
            for place, event in enumerate(events)
        ]
        with _storage_errors(f"study {self.name!r}"), self._engine.begin() as connection:
            connection.execute(sql.insert(_events), rows)
        self._next += len(rows)

    def lock(self) -> None:
        """Become the one writer, or raise `BusyError`."""
        if self._lock:
            self._lock.acquire(self.name)

    def close(self) -> None:
        """Give up the lock and the connection."""
        if self._lock:
            self._lock.release()
        self._engine.dispose()


class ProcessLock:
    """A lock that the operating system drops when its process ends, even by kill -9."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None

    def acquire(self, name: str) -> None:
        """Take it at once or raise `BusyError`."""
        if self._file is not None:
            return
        file = self._path.open("a+")
        try:
            _lock_file(file)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            file.close()
            raise BusyError(
                f"study {name!r} is being written by {holder}: wait for it, stop it, or give this "
                "study another name=; reading it (status, why, report) always works"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let others write."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _lock_file(file: Any) -> None:
    if os.name == "nt":  # pragma: no cover
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


def create_log(storage: str | Path | None, name: str) -> SqlLog:
    """A new, empty study; None keeps it in memory. The caller writes its first event."""
    engine = _engine(storage)
    with _storage_errors(str(storage)):
        _schema.create_all(engine)
        with engine.begin() as connection:
            row = {"name": name, "created": time.time(), "format": FORMAT}
            connection.execute(sql.insert(_studies), row)
    return SqlLog(engine, name, _lock_path(storage, name))


def open_log(storage: str | Path, name: str | None = None) -> SqlLog:
    """A study that exists; its name may be left out where the file holds only one."""
    names = study_names(storage)
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or name not in names:
        what = f"no study {name!r}" if name is not None else "several studies"
        listed = ", ".join(map(repr, names)) or "none"
        raise StudyError(f"{storage}: {what}; it holds {listed}; choose one with name=")
    return SqlLog(_engine(storage), name, _lock_path(storage, name))


def study_names(storage: str | Path) -> list[str]:
    """The names of the studies in a file, oldest first."""
    if not Path(storage).is_file():
        raise StudyError(f"{storage}: no such file; a study is made by ft.tune(..., storage=...)")
    engine = _engine(storage)
    with _storage_errors(str(storage)), engine.connect() as connection:
        if not sql.inspect(engine).has_table("studies"):
            raise StorageError(f"{storage}: a database, but not one of freezethaw's")
        query = sql.select(_studies.c.name).order_by(_studies.c.study_id)
        return list(connection.execute(query).scalars())


def study_exists(storage: str | Path | None, name: str) -> bool:
    """Whether that study is there and has begun."""
    if storage is None or not Path(storage).is_file() or not Path(storage).stat().st_size:
        return False
    return name in study_names(storage)


def checkpoint_folder(storage: str | Path, name: str) -> Path:
    """Where a study keeps its checkpoints: beside its file."""
    path = Path(storage)
    suffix = "" if name == DEFAULT_NAME else f".{_file_name(name)}"
    return path.with_name(f"{path.name}{suffix}.checkpoints")


def _lock_path(storage: str | Path | None, name: str) -> Path | None:
    if storage is None:
        return None
    path = Path(storage)
    return path.with_name(f"{path.name}.{_file_name(name)}.lock")


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in name)


def _engine(storage: str | Path | None) -> sql.Engine:
    if storage is None:
        # One connection for all, or each would see an empty database of its own.
        return sql.create_engine(
            "sqlite://",
            poolclass=sql.StaticPool,
            connect_args={"check_same_thread": False},
        )
    path = Path(storage)
    if not path.parent.is_dir():
        raise StorageError(f"{storage}: the folder {path.parent} does not exist; create it first")
    engine = sql.create_engine(f"sqlite:///{path}", connect_args={"timeout": 30})
    sql.event.listen(engine, "connect", _make_durable)
    return engine


def _make_durable(connection: Any, _record: Any) -> None:
    """Readers do not block the writer (WAL), and a commit survives a power cut (FULL)."""
    cursor = connection.cursor()
    with contextlib.suppress(Exception):  # a read-only file system: reading still works
        cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


@contextlib.contextmanager
def _storage_errors(where: str) -> Iterator[None]:
    """Database errors as ours, with what to do."""
    try:
        yield
    except OperationalError as error:
        text = str(error.orig)
        if "full" in text:
            raise StorageError(
                f"{where}: the disk is full; nothing reported before is lost: free some space "
                "(`freezethaw clean`) and run again"
            ) from error
        raise StorageError(f"{where}: {text}") from error
    except DatabaseError as error:
        raise StorageError(f"{where}: not a readable study ({error.orig})") from error
