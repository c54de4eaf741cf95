"""Append and replay events. SQLite by default, through SQLAlchemy Core so that others can follow.

One file holds any number of named studies. Readers never block and leave nothing open; one process
at a time writes to a study, and the lock goes with the process, however it ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import sqlalchemy as sql
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError

from freezethaw.errors import BusyError, StorageError, StudyError
from freezethaw.events import Event, event_from_json, event_to_json

FORMAT = 1
DEFAULT_NAME = "default"
PATIENCE = 30
"""Seconds to wait for another process that writes to the same file."""
_FULL_BELOW_BYTES = 1 << 16

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

    def begin(self, events: Sequence[Event]) -> None:
        """Make the study, with its first events, and become its one writer."""
        ...

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
        """Let others write; reading goes on to work."""
        ...


class MemoryLog:
    """A study that lives no longer than its process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.created = time.time()
        self._rows: list[tuple[str, str]] = []

    def begin(self, events: Sequence[Event]) -> None:
        """Nobody else can see it."""
        self.append(events)

    def read(self) -> list[Event]:
        """All events, in order."""
        return [event_from_json(kind, body) for kind, body in self._rows]

    def append(self, events: Sequence[Event]) -> None:
        """As text, so that it accepts what a file would."""
        self._rows += [(event.kind, event_to_json(event)) for event in events]

    def lock(self) -> None:
        """There is one writer."""

    def close(self) -> None:
        """Nothing is open."""


class SqlLog:
    """One study in a SQL database. The writer keeps a connection; readers open one to read."""

    def __init__(self, storage: str | Path, name: str) -> None:
        self.name = name
        self.created = math.nan
        self._storage = storage
        self._engine = _engine(storage)
        self._lock = ProcessLock(_lock_path(storage, name))
        self._writer = f"{socket.gethostname()}:{os.getpid()}"
        self._connection: sql.Connection | None = None
        self._study_id = -1
        self._next = 0

    def begin(self, events: Sequence[Event]) -> None:
        """One transaction: there is no study without its first events."""
        self.created = time.time()
        row = {"name": self.name, "created": self.created, "format": FORMAT}
        try:
            connection = self._writable()
            with _storage_errors(self._storage, self.name), connection.begin():
                connection.exec_driver_sql("BEGIN IMMEDIATE")  # waits for its turn
                _schema.create_all(connection)
                made = sql.insert(_studies).values(**row).returning(_studies.c.study_id)
                self._study_id = connection.execute(made).scalar_one()
                connection.execute(sql.insert(_events), self._rows(events))
        except BaseException:
            self.close()
            raise
        self._next = len(events)

    def find(self) -> None:
        """Look the study up, which must exist."""
        query = sql.select(_studies).where(_studies.c.name == self.name)
        with self._reading() as connection:
            row = connection.execute(query).one()
        if row.format > FORMAT:
            raise StorageError(
                f"{self._storage}: study {self.name!r} has format {row.format}; this version of "
                f"freezethaw reads up to {FORMAT}: upgrade to open it"
            )
        self._study_id, self.created = row.study_id, row.created

    def read(self) -> list[Event]:
        """All events, in order."""
        query = (
            sql.select(_events.c.sequence, _events.c.kind, _events.c.body)
            .where(_events.c.study_id == self._study_id)
            .order_by(_events.c.sequence)
        )
        with self._reading() as connection:
            rows = connection.execute(query).all()
        self._next = rows[-1].sequence + 1 if rows else 0
        return [event_from_json(row.kind, row.body) for row in rows]

    def append(self, events: Sequence[Event]) -> None:
        """One transaction, flushed to disk."""
        connection, rows = self._writable(), self._rows(events)
        with _storage_errors(self._storage, self.name), connection.begin():
            connection.execute(sql.insert(_events), rows)
        self._next += len(rows)

    def lock(self) -> None:
        """Become the one writer, or raise `BusyError`."""
        self._writable()

    def close(self) -> None:
        """Let others write; reading goes on to work."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._lock.release()

    def _reading(self) -> contextlib.AbstractContextManager[sql.Connection]:
        return _reading(self._engine, self._storage, self.name)

    def _writable(self) -> sql.Connection:
        self._lock.acquire(self.name)
        if self._connection is None:
            with _storage_errors(self._storage, self.name):
                self._connection = self._engine.connect()
                _write_ahead(self._connection)
        return self._connection

    def _rows(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        now = time.time()
        return [
            {
                "study_id": self._study_id,
                "sequence": self._next + place,
                "time": now,
                "writer": self._writer,
                "kind": event.kind,
                "body": event_to_json(event),
            }
            for place, event in enumerate(events)
        ]


class ProcessLock:
    """A lock that the operating system drops when its process ends, even by kill -9."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None

    def acquire(self, name: str) -> None:
        """Take it at once or raise `BusyError`."""
        if self._file is not None:
            return
        try:
            file = self._path.open("a+b", buffering=0)
        except OSError as error:
            raise StorageError(
                f"{self._path} cannot be written ({error.strerror}): a study's folder must be "
                "writable to go on with it; reading it (status, why, report) always works"
            ) from error
        if not _lock_soon(file):
            holder = _read_holder(file)
            file.close()
            raise BusyError(
                f"study {name!r} is being written by {holder}: wait for it, stop it, or give this "
                "study another name=; reading it (status, why, report) always works"
            )
        self._file = file
        _held.add(self)
        with contextlib.suppress(OSError):  # who holds it is for people; the disk may be full
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())

    def release(self) -> None:
        """Let others write."""
        if self._file is not None:
            # A forked child shares the lock: closing alone would leave it with the child.
            with contextlib.suppress(OSError):
                _unlock_file(self._file)
            self._forget()

    def _forget(self) -> None:
        """Close the file without giving the lock back."""
        if self._file is not None:
            self._file.close()
            self._file = None
        _held.discard(self)

    def holder(self) -> str | None:
        """Who writes now: "process 123 on host"; None if nobody does."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            try:
                _lock_file(file)
            except OSError:
                return _read_holder(file)
            _unlock_file(file)
        return None


_held: set[ProcessLock] = set()
"""The locks of this process."""


def _leave_to_parent() -> None:
    """In a forked child, such as a data loader: it must not hold a lock when its parent is gone."""
    for lock in list(_held):
        lock._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def _read_holder(file: Any) -> str:
    file.seek(0)
    return file.read().decode().strip() or "another process"


def _lock_soon(file: Any) -> bool:
    """Whether the lock could be taken; whoever only looks at it holds it for a moment."""
    for _ in range(4):
        try:
            _lock_file(file)
        except OSError:
            time.sleep(0.02)
        else:
            return True
    return False


def _unlock_file(file: Any) -> None:
    if os.name == "nt":  # pragma: no cover
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_UN)


def _lock_file(file: Any) -> None:
    if os.name == "nt":  # pragma: no cover
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        import fcntl

        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


# ── opening ──────────────────────────────────────────────────────────────────────────────────────


def create_log(storage: str | Path | None, name: str) -> Log:
    """A new study, which exists once `begin` was called; None keeps it in memory."""
    if storage is None:
        return MemoryLog(name)
    if study_exists(storage, name):
        raise StudyError(f"{storage} holds a study {name!r} already; open it or use another name=")
    return SqlLog(storage, name)


def open_log(storage: str | Path, name: str | None = None) -> SqlLog:
    """A study that exists; its name may be left out where the file holds only one."""
    names = study_names(storage)
    if name is None and len(names) == 1:
        name = names[0]
    if name is None or name not in names:
        what = "no study" if not names else "several studies"
        what = what if name is None else f"no study {name!r}"
        listed = ", ".join(map(repr, names)) or "none"
        raise StudyError(f"{storage}: {what}; it holds {listed}; choose one with name=")
    log = SqlLog(storage, name)
    log.find()
    return log


def study_names(storage: str | Path) -> list[str]:
    """The names of the studies in a file, oldest first."""
    if not Path(storage).is_file():
        raise StudyError(f"{storage}: no such file; a study is made by ft.tune(..., storage=...)")
    with _reading(_engine(storage), storage) as connection:
        tables = sql.inspect(connection).get_table_names()
        if not tables:  # empty, or made by a process that got no further
            return []
        if _studies.name not in tables:
            raise StorageError(f"{storage}: a database, but not one of freezethaw's")
        query = sql.select(_studies.c.name).order_by(_studies.c.study_id)
        return list(connection.execute(query).scalars())


def study_exists(storage: str | Path | None, name: str) -> bool:
    """Whether that study is there."""
    return storage is not None and Path(storage).is_file() and name in study_names(storage)


def writer(storage: str | Path, name: str) -> str | None:
    """Who writes to a study now: "process 123 on host"; None if nobody does."""
    return ProcessLock(_lock_path(storage, name)).holder()


def checkpoint_folder(storage: str | Path, name: str) -> Path:
    """Where a study keeps its checkpoints: beside its file."""
    path = Path(storage).absolute()
    suffix = "" if name == DEFAULT_NAME else f".{file_name(name)}"
    return path.with_name(f"{path.name}{suffix}.checkpoints")


def _lock_path(storage: str | Path, name: str) -> Path:
    path = Path(storage).absolute()
    return path.with_name(f"{path.name}.{file_name(name)}.lock")


def file_name(name: str) -> str:
    """A study's name as a part of a file's."""
    return "".join(c if c.isalnum() or c in "-_" else f"%{ord(c):x}" for c in name)


@contextlib.contextmanager
def _reading(
    engine: sql.Engine, storage: str | Path, name: str | None = None
) -> Iterator[sql.Connection]:
    """A connection to read with, also where nothing may be written."""
    with _storage_errors(storage, name):
        try:
            connection = engine.connect()
            connection.exec_driver_sql("SELECT 1 FROM sqlite_master").close()
        except OperationalError as error:
            if "readonly" not in str(error.orig):
                raise
            connection = _unchanging(engine).connect()
        with connection:
            yield connection


def _unchanging(engine: sql.Engine) -> sql.Engine:
    """The database as a file that nobody writes to.

    With a write-ahead log SQLite wants to make files beside it even to read. Nobody is writing
    where there is none of them.
    """
    path = Path(str(engine.url.database))
    if path.with_name(f"{path.name}-wal").exists():
        raise StorageError(f"{path}: cannot be read while another user is writing to it")
    uri = f"file:{quote(str(path))}?mode=ro&immutable=1&uri=true"
    return sql.create_engine(f"sqlite:///{uri}", poolclass=sql.NullPool)


def _engine(storage: str | Path) -> sql.Engine:
    if "://" in str(storage):
        raise StorageError(f"storage={str(storage)!r}: pass a path, as in storage='study.db'")
    path = Path(storage).absolute()  # the training function may change directory
    if path.is_dir():
        raise StorageError(f"{storage}: a folder; name a file in it, as in {path / 'study.db'}")
    if not path.parent.is_dir():
        raise StorageError(f"{storage}: the folder {path.parent} does not exist; create it first")
    engine = sql.create_engine(
        sql.URL.create("sqlite", database=str(path)),
        # What is open is then exactly what the code below holds open.
        poolclass=sql.NullPool,
        # A study may be made in one thread and used in another, though not at the same time.
        connect_args={"timeout": PATIENCE, "check_same_thread": False},
    )
    sql.event.listen(engine, "connect", _make_durable)
    return engine


def _write_ahead(connection: sql.Connection) -> None:
    """A write-ahead log: readers do not block the writer, nor the writer them.

    SQLite does not wait by itself where another process is just doing the same.
    """
    patience = time.monotonic() + PATIENCE
    while True:
        try:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        except OperationalError as error:
            connection.rollback()
            if "locked" not in str(error.orig) or time.monotonic() > patience:
                raise
            time.sleep(0.02)
        else:
            connection.rollback()
            return


def _make_durable(connection: Any, _record: Any) -> None:
    """A commit survives a power cut."""
    connection.execute("PRAGMA synchronous=FULL").close()


@contextlib.contextmanager
def _storage_errors(storage: str | Path, name: str | None = None) -> Iterator[None]:
    """Database errors as ours, with what to do."""
    where = f"{storage}" if name is None else f"{storage}: study {name!r}"
    try:
        yield
    except IntegrityError as error:
        raise BusyError(
            f"{where}: another process has written to it meanwhile; run again to go on"
        ) from error
    except OperationalError as error:
        text = str(error.orig)
        # Even to read, SQLite needs room for a small file, and calls its absence an I/O error.
        if "full" in text or ("I/O" in text and _is_full(Path(storage).absolute().parent)):
            raise StorageError(
                f"{where}: the disk is full; nothing reported before is lost: free some space "
                "(`freezethaw clean`) and run again"
            ) from error
        raise StorageError(f"{where}: {text}") from error
    except DatabaseError as error:
        raise StorageError(f"{where}: not a readable study ({error.orig})") from error


def _is_full(folder: Path) -> bool:
    return shutil.disk_usage(folder).free < _FULL_BELOW_BYTES
