"""Logs of events: durable, all or none, one writer, any number of readers."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import sqlalchemy as sql

from freezethaw import storage
from freezethaw.errors import BusyError, StorageError, StudyError
from freezethaw.events import PaceFixed, Released, Reported
from freezethaw.storage import (
    Log,
    MemoryLog,
    checkpoint_folder,
    create_log,
    open_log,
    study_exists,
    study_names,
)


def fixed(n: int) -> PaceFixed:
    return PaceFixed(epochs_per_decision=n)


def numbers(log: Log) -> list[int]:
    return [event.epochs_per_decision for event in log.read()]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "study.db"


@pytest.fixture
def make(path):
    """Makes logs that are closed at the end."""
    logs = []

    def made(name="default", events=(), where=path) -> Log:
        log = create_log(where, name)
        logs.append(log)
        log.begin(list(events) or [fixed(1)])
        return log

    yield made
    for log in logs:
        log.close()


class LogContract:
    """What every backend promises."""

    @pytest.fixture
    def log(self, make) -> Log:
        raise NotImplementedError

    def test_it_begins_with_its_first_events(self, log):
        assert numbers(log) == [1]
        assert log.created > 1.6e9

    def test_events_come_back_in_order(self, log):
        log.append([fixed(2), fixed(3)])
        log.append([fixed(4)])
        assert numbers(log) == [1, 2, 3, 4]
        log.append([fixed(5)])
        assert numbers(log) == [1, 2, 3, 4, 5]

    def test_events_that_cannot_be_stored_are_not_stored_in_part(self, log):
        report = Reported(
            step_id=0, trial_id=0, epoch=1, score=0.5, seconds=1.0, extra={"x": object()}
        )
        with pytest.raises(TypeError):
            log.append([fixed(2), report])
        assert numbers(log) == [1]
        log.append([fixed(3)])
        assert numbers(log) == [1, 3]

    def test_what_was_read_is_a_copy(self, log):
        extra = {"loss": 1.0}
        log.append([Reported(step_id=0, trial_id=0, epoch=1, score=0.5, seconds=1.0, extra=extra)])
        extra["loss"] = 2.0
        log.read()[1].extra["loss"] = 3.0
        assert log.read()[1].extra == {"loss": 1.0}

    def test_closing_lets_go_and_it_can_go_on(self, log):
        log.close()
        log.close()
        assert numbers(log) == [1]
        log.append([fixed(2)])
        assert numbers(log) == [1, 2]


class TestMemoryLog(LogContract):
    @pytest.fixture
    def log(self, make):
        log = make(where=None)
        assert isinstance(log, MemoryLog)
        return log


class TestSqlLog(LogContract):
    @pytest.fixture
    def log(self, make):
        return make()


# ── making and finding ───────────────────────────────────────────────────────────────────────────


def test_two_studies_in_a_file(path, make):
    one, two = make("one", [fixed(1)]), make("two", [fixed(2)])
    one.append([fixed(3)])
    two.append([fixed(4)])
    assert study_names(path) == ["one", "two"]
    assert numbers(open_log(path, "one")) == [1, 3]
    assert numbers(open_log(path, "two")) == [2, 4]
    with pytest.raises(StudyError, match="several studies; it holds 'one', 'two'; choose one"):
        open_log(path)


def test_a_name_that_is_not_there(path, make):
    make("one")
    with pytest.raises(StudyError, match="no study 'two'; it holds 'one'"):
        open_log(path, "two")
    assert not study_exists(path, "two")
    assert study_exists(path, "one")
    assert open_log(path).name == "one"


def test_a_name_can_be_taken_once(path, make):
    make("one")
    with pytest.raises(StudyError, match="holds a study 'one' already"):
        create_log(path, "one")


def test_names_that_no_file_may_have(path, make):
    log = make("a/b ../c:?")
    assert open_log(path).name == "a/b ../c:?"
    assert {entry.parent for entry in path.parent.iterdir()} == {path.parent}
    log.close()
    assert checkpoint_folder(path, log.name).parent == path.parent


def test_paths_that_look_like_urls(tmp_path, make):
    where = tmp_path / "what?is#this%20 é.db"
    make(where=where)
    assert numbers(open_log(where)) == [1]


def test_studies_have_checkpoints_of_their_own(path):
    names = ["default", "two", "a/b", "a:b"]
    assert len({checkpoint_folder(path, name) for name in names}) == 4
    assert checkpoint_folder(path, "default").name == "study.db.checkpoints"


def test_a_missing_file(path):
    with pytest.raises(StudyError, match=r"study\.db: no such file"):
        open_log(path)
    assert not study_exists(path, "default")
    assert not path.exists()


def test_a_missing_folder(tmp_path):
    with pytest.raises(StorageError, match=r"the folder .*nowhere does not exist; create it"):
        create_log(tmp_path / "nowhere" / "study.db", "default")


def test_a_file_that_is_no_database(path):
    path.write_text("epoch,score\n" * 400)
    before = path.read_bytes()
    for call in (open_log, study_names, lambda p: create_log(p, "default")):
        with pytest.raises(StorageError, match="not a readable study"):
            call(path)
    assert path.read_bytes() == before


def test_a_database_of_something_else(path):
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    before = path.read_bytes()
    for call in (open_log, study_names, lambda p: create_log(p, "default")):
        with pytest.raises(StorageError, match="a database, but not one of freezethaw's"):
            call(path)
    assert path.read_bytes() == before


def test_a_newer_format(path, make):
    make().close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE studies SET format = 99")
    connection.close()
    with pytest.raises(StorageError, match=r"has format 99; .* reads up to 1: upgrade"):
        open_log(path)


def test_an_unknown_event(path, make):
    make().close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE events SET kind = 'teleported'")
    connection.close()
    with pytest.raises(StorageError, match=r"'teleported'.*upgrade"):
        open_log(path).read()


@pytest.mark.parametrize("content", ["empty", "no tables"])
def test_a_study_can_be_made_where_a_process_died_before_making_it(path, make, content):
    path.touch()
    if content == "no tables":
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.close()
        assert path.stat().st_size
    assert study_names(path) == []
    with pytest.raises(StudyError, match="no study; it holds none"):
        open_log(path)
    assert numbers(make()) == [1]


def test_relative_paths_hold_when_the_process_changes_directory(tmp_path, make, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log = make(where="study.db")
    log.close()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    log.append([fixed(2)])
    assert numbers(log) == [1, 2]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_nothing_is_left_open(path, make):
    """A reader holds no file; the writer holds them until it closes."""
    here = Path("/proc/self/fd")
    if not here.is_dir():
        pytest.skip("needs /proc")

    def opened() -> list[str]:
        links = [entry for entry in here.iterdir() if entry.is_symlink()]
        return [n for link in links if "study.db" in (n := os.path.realpath(link))]

    log = make()
    assert opened()
    log.close()
    assert not opened()
    reader = open_log(path)
    reader.read()
    assert not opened()


# ── one writer ───────────────────────────────────────────────────────────────────────────────────


def test_one_writer_at_a_time(path, make):
    first = make()
    second = open_log(path)
    with pytest.raises(BusyError, match=rf"being written by process {os.getpid()} on .*reading it"):
        second.lock()
    with pytest.raises(BusyError):
        second.append([fixed(2)])
    first.close()
    second.lock()
    second.close()
    assert numbers(first) == [1]


def test_other_studies_of_the_file_can_be_written(make):
    one, two = make("one"), make("two")
    one.append([fixed(2)])
    two.append([fixed(3)])
    assert (numbers(one), numbers(two)) == ([1, 2], [1, 3])


def test_a_writer_that_missed_an_event_does_not_overwrite_it(path, make, monkeypatch):
    """Should locks fail, as on some network file systems."""
    monkeypatch.setattr(storage, "_lock_file", lambda file: None)
    first = make()
    second = open_log(path)
    second.read()
    first.append([fixed(2)])
    with pytest.raises(BusyError, match="another process has written to it meanwhile"):
        second.append([fixed(3)])
    assert numbers(first) == [1, 2]
    second.close()


WRITER = """
import sys, time
from freezethaw.events import PaceFixed
from freezethaw.storage import create_log
log = create_log(sys.argv[1], "default")
log.begin([PaceFixed(epochs_per_decision=1)])
print("locked", flush=True)
n = 1
while True:
    n += 1
    log.append([PaceFixed(epochs_per_decision=n)])
    print(n, flush=True)
    time.sleep(0.01)
"""


@pytest.fixture
def writer(path):
    """Another process that writes to the study all the time."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WRITER), str(path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_readers_while_another_process_writes_and_its_end(path, writer):
    with pytest.raises(BusyError, match=f"process {writer.pid} on"):
        open_log(path).lock()
    seen = 0
    for _ in range(20):
        now = numbers(open_log(path))
        assert now == list(range(1, len(now) + 1))
        assert len(now) >= seen
        seen = len(now)
    for line in writer.stdout:
        if int(line) > seen + 5:
            break
    os.kill(writer.pid, signal.SIGKILL)
    told = int(line)
    rest = writer.stdout.read().split()
    writer.wait()
    told = int(rest[-1]) if rest else told
    log = open_log(path)
    log.lock()  # the lock has gone with its process
    after = numbers(log)
    # What was told to be written is there; the last one may be there without having been told.
    assert after in (list(range(1, told + 1)), list(range(1, told + 2)))
    log.append([fixed(len(after) + 1)])
    log.close()


# ── a full disk ──────────────────────────────────────────────────────────────────────────────────


def fill(log: Log) -> int:
    """Append until it fails; return how often it did not."""
    written = []

    def write() -> None:
        for number in range(5000):
            log.append([fixed(number), Released(step_id=number)])
            written.append(number)

    with pytest.raises(StorageError, match="disk is full; nothing reported before is lost"):
        write()
    return len(written)


def test_a_full_disk_loses_nothing(path, make, monkeypatch):
    """SQLite's own limit in place of a disk's."""
    engine = storage._engine

    def small(where):
        made = engine(where)
        sql.event.listen(made, "connect", lambda raw, _: raw.execute("PRAGMA max_page_count = 12"))
        return made

    monkeypatch.setattr(storage, "_engine", small)
    log = make()
    written = fill(log)
    assert written > 50
    events = log.read()
    assert len(events) == 1 + 2 * written
    assert events[-1] == Released(step_id=written - 1)
    log.close()
    monkeypatch.setattr(storage, "_engine", engine)
    again = open_log(path)
    assert again.read() == events
    again.append([fixed(0)])
    assert len(again.read()) == 2 + 2 * written
    again.close()


@pytest.fixture
def tiny_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=320k", "tmpfs", str(disk)]
    if os.name != "posix" or os.geteuid() or not shutil.which("mount"):
        pytest.skip("needs root to mount a small disk")
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("cannot mount a small disk here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_really_full(tiny_disk, make):
    ballast = tiny_disk / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    log = make(where=tiny_disk / "study.db")
    written = fill(log)
    log.close()
    ballast.unlink()
    again = open_log(tiny_disk / "study.db")
    assert len(again.read()) == 1 + 2 * written
    again.append([fixed(0)])
    assert len(again.read()) == 2 + 2 * written
    again.close()


def test_room_made_on_the_disk_is_used_at_once(tiny_disk, make):
    ballast = tiny_disk / "ballast"
    log = make(where=tiny_disk / "study.db")
    ballast.write_bytes(b"x" * 100_000)
    written = fill(log)
    ballast.unlink()
    log.append([fixed(0)])
    assert len(log.read()) == 2 + 2 * written
    log.close()


def test_no_room_to_begin(tiny_disk):
    (tiny_disk / "ballast").write_bytes(b"x" * 320 * 1024)
    log = create_log(tiny_disk / "study.db", "default")
    with pytest.raises(StorageError):
        log.begin([fixed(1)])
    (tiny_disk / "ballast").unlink()
    assert not study_exists(tiny_disk / "study.db", "default")
    log = create_log(tiny_disk / "study.db", "default")
    log.begin([fixed(1)])
    log.close()


def test_many_processes_can_make_studies_in_one_new_file(path):
    """They come to the tables at the same time."""
    code = (
        "import sys, time\n"
        "from freezethaw.events import PaceFixed\n"
        "from freezethaw.storage import create_log\n"
        "log = create_log(sys.argv[1], sys.argv[2])\n"
        "time.sleep(max(0, float(sys.argv[3]) - time.time()))\n"
        "log.begin([PaceFixed(epochs_per_decision=1)])\n"
        "log.close()\n"
    )
    for attempt in range(3):
        file, at = path.with_name(f"{attempt}.db"), str(time.time() + 2)
        command = [sys.executable, "-c", code, str(file)]
        running = [subprocess.Popen([*command, f"n{i}", at]) for i in range(4)]
        assert [process.wait() for process in running] == [0, 0, 0, 0]
        assert sorted(study_names(file)) == ["n0", "n1", "n2", "n3"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_does_not_keep_the_lock(path):
    """A data loader's worker may outlive the process that forked it."""
    code = (
        "import os, sys, time\n"
        "from freezethaw.events import PaceFixed\n"
        "from freezethaw.storage import create_log\n"
        "log = create_log(sys.argv[1], 'default')\n"
        "log.begin([PaceFixed(epochs_per_decision=1)])\n"
        "if os.fork() == 0:\n"
        "    print('child', flush=True)\n"
        "    time.sleep(30)\n"
        "    os._exit(0)\n"
        "time.sleep(30)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout.readline() == "child\n"
        log = open_log(path)
        with pytest.raises(BusyError):
            log.lock()
        parent.kill()
        parent.wait()
        log.lock()
        log.close()
        os.killpg(parent.pid, signal.SIGKILL)


def test_closing_frees_the_lock_though_a_child_has_it_open(path):
    log = create_log(path, "default")
    log.begin([PaceFixed(epochs_per_decision=1)])
    copy = os.dup(log._lock._file.fileno())  # what a child forked before would hold
    log.close()
    again = open_log(path)
    again.lock()
    again.close()
    os.close(copy)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="a superuser may write everywhere"
)
def test_a_study_in_a_folder_that_cannot_be_written_can_be_read(path):
    log = create_log(path, "default")
    log.begin([PaceFixed(epochs_per_decision=1)])
    log.close()
    path.parent.chmod(0o555)
    try:
        assert len(open_log(path).read()) == 1
    finally:
        path.parent.chmod(0o755)


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("sqlite:///study.db", "pass a path, as in storage='study.db'"),
        ("/", "a folder; name a file"),
    ],
)
def test_what_is_no_file(storage, words):
    with pytest.raises(StorageError, match=words):
        create_log(storage, "default").begin([PaceFixed(epochs_per_decision=1)])


def test_who_writes_can_be_seen(path, make):
    log = make()
    assert storage.writer(path, "default") == f"process {os.getpid()} on {socket.gethostname()}"
    log.close()
    assert storage.writer(path, "default") is None
    assert storage.writer(path, "other") is None
