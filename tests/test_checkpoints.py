"""A checkpoint is whole or it is not there; the older one goes after the newer is durable."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from freezethaw.checkpoints import CheckpointStore, HookFailedError, clean, disk_usage
from freezethaw.errors import CheckpointError
from freezethaw.isolation import RandomState

PARAMS = {"lr": 0.1, "optimizer": "adam", "layers": 3, "nesterov": True, "none": None}


def hook(text: str = "weights") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "net.pt").write_text(text)
        (folder / "deep").mkdir()
        (folder / "deep/optimizer.pt").write_text(text * 2)

    return write


def save(store: CheckpointStore, epoch: int, *, trial: int = 12, text: str = "weights") -> Path:
    return store.save(trial, epoch, PARAMS, RandomState.capture(), hook(text)).files


def on_disk(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.glob("*/*")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "study.db.checkpoints"


def test_what_is_saved_is_found_again(folder: Path):
    state = RandomState.capture()
    CheckpointStore(folder).save(12, 7, PARAMS, state, hook())
    found = CheckpointStore(folder).get(12, 7)
    assert found is not None
    assert found.files == folder / "trial-000012/epoch-0007/files"
    assert (found.files / "deep/optimizer.pt").read_text() == "weightsweights"
    assert (found.trial_id, found.epoch, found.params) == (12, 7, PARAMS)
    assert found.random().to_json() == state.to_json()
    assert found.is_intact()
    assert on_disk(folder) == {"trial-000012/epoch-0007"}


def test_the_newest_is_found_up_to_an_epoch(folder: Path):
    store = CheckpointStore(folder)
    for epoch in (3, 10, 7):
        save(store, epoch)
    save(store, 20, trial=13)
    for each in (store, CheckpointStore(folder)):
        found = [each.newest(12, at_most=limit) for limit in (None, 10, 9, 3, 2)]
        assert [c and c.epoch for c in found] == [10, 10, 7, 3, None]
        assert each.newest(99) is None


def test_reading_makes_nothing(folder: Path):
    store = CheckpointStore(folder)
    assert store.newest(1) is None
    store.keep_only(1, ())
    assert not folder.exists()


def test_the_folder_does_not_move_with_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    store = CheckpointStore(Path("here"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert save(store, 1) == tmp_path / "here/trial-000012/epoch-0001/files"


class Damage(NamedTuple):
    name: str
    do: Callable[[Path], Any]
    seen_when_reading: bool = True


def _edit(field: str, value: object) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        state = json.loads((path / "state.json").read_text())
        state[field] = value
        (path / "state.json").write_text(json.dumps(state))

    return edit


def _cut(name: str) -> Callable[[Path], None]:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size // 2)


DAMAGES = [
    Damage("no state", lambda path: (path / "state.json").unlink()),
    Damage("half a state", _cut("state.json")),
    Damage("empty state", lambda path: (path / "state.json").write_text("")),
    Damage("a list for a state", lambda path: (path / "state.json").write_text("[1]")),
    Damage("newer format", _edit("format", 2)),
    Damage("another epoch", _edit("epoch", 8)),
    Damage("another trial", _edit("trial_id", 13)),
    Damage("a file gone", lambda path: (path / "files/net.pt").unlink()),
    Damage("the files gone", lambda path: shutil.rmtree(path / "files")),
    Damage("a file cut", _cut("files/deep/optimizer.pt")),
    Damage("half the random states", _cut("random.json")),
    Damage("flipped", lambda path: (path / "files/net.pt").write_text("weighty"), False),
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_a_damaged_checkpoint_is_not_used(folder: Path, damage: Damage):
    store = CheckpointStore(folder)
    save(store, 3)
    path = save(store, 7).parent
    damage.do(path)
    found = CheckpointStore(folder).newest(12)
    assert found is not None
    if damage.seen_when_reading:
        assert found.epoch == 3
    else:
        assert found.epoch == 7
        assert not found.is_intact()
    # It can be written again, over the damaged one.
    assert (save(CheckpointStore(folder), 7, text="new") / "net.pt").read_text() == "new"
    again = CheckpointStore(folder).newest(12)
    assert again is not None
    assert (again.epoch, again.is_intact()) == (7, True)


def test_a_file_that_vanishes_later_is_seen(folder: Path):
    store = CheckpointStore(folder)
    files = save(store, 7)
    (files / "net.pt").unlink()
    found = store.newest(12)
    assert found is not None
    assert not found.is_intact()


class Crash(BaseException):
    """The process ends here: nothing that follows is done."""


@pytest.mark.parametrize("call", ["os.replace", "os.fsync", "json.dumps"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_crash_at_any_point_leaves_the_old_or_the_new(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
):
    store = CheckpointStore(folder)
    save(store, 3, text="old")
    module = {"os": os, "json": json}[call.split(".")[0]]
    name = call.split(".")[1]
    original, calls = getattr(module, name), []

    def crash(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == nth:
            raise Crash
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, crash)
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)  # nothing is tidied up
        crashed = False
        try:
            save(store, 7, text="new")
            store.keep_only(12, {7})
        except Crash:
            crashed = True
    assert crashed == (len(calls) >= nth)

    found = CheckpointStore(folder).newest(12)
    assert found is not None
    assert found.is_intact()
    assert (found.files / "net.pt").read_text() == {3: "old", 7: "new"}[found.epoch]
    # What is left half done is gone after the next write.
    later = CheckpointStore(folder)
    save(later, 8)
    assert not list(folder.glob("*/*.tmp-*"))


def test_the_old_one_goes_only_when_told(folder: Path):
    store = CheckpointStore(folder)
    for epoch in (3, 7, 9):
        save(store, epoch)
    store.keep_only(12, {3, 9})
    assert on_disk(folder) == {"trial-000012/epoch-0003", "trial-000012/epoch-0009"}
    assert store.get(12, 7) is None


def test_a_full_disk_is_told_from_other_faults(folder: Path, monkeypatch: pytest.MonkeyPatch):
    store = CheckpointStore(folder)
    save(store, 3)

    def full(folder: Path) -> None:
        (folder / "net.pt").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match=r"the disk is full: .*trial 12 .*freezethaw clean"):
        store.save(12, 7, PARAMS, RandomState.capture(), full)
    assert on_disk(folder) == {"trial-000012/epoch-0003"}

    def torch_says_it_otherwise(folder: Path) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    with pytest.raises(HookFailedError):
        store.save(12, 7, PARAMS, RandomState.capture(), torch_says_it_otherwise)
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=4096))
    with pytest.raises(CheckpointError, match="the disk is full"):
        store.save(12, 7, PARAMS, RandomState.capture(), torch_says_it_otherwise)


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize(("code", "says"), [("ENOSPC", "disk is full"), ("EACCES", "EACCES me")])
def test_what_the_system_refuses_is_a_checkpoint_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: str, says: str
):
    store = CheckpointStore(folder)
    save(store, 3)

    def refuse(*args: Any) -> None:
        raise OSError(getattr(errno, code), f"{code} me")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(CheckpointError, match=says):
            save(store, 7)
    assert on_disk(folder) == {"trial-000012/epoch-0003"}
    newest = store.newest(12)
    assert newest is not None
    assert newest.epoch == 3
    save(store, 7)  # once there is room again


def test_a_hook_that_raises_is_quoted_and_leaves_nothing(folder: Path):
    store = CheckpointStore(folder)

    def fail(folder: Path) -> None:
        (folder / "net.pt").write_text("half")
        raise KeyError("no such layer")

    with pytest.raises(HookFailedError, match="no such layer") as caught:
        store.save(12, 7, PARAMS, RandomState.capture(), fail)
    assert "the save hook of trial 12" in caught.value.traceback
    assert 'raise KeyError("no such layer")' in caught.value.traceback
    assert caught.value.__context__ is None  # it keeps no frames alive
    assert on_disk(folder) == set()


def test_ctrl_c_in_a_hook_goes_through(folder: Path):
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CheckpointStore(folder).save(1, 1, PARAMS, RandomState.capture(), interrupted)
    assert on_disk(folder) == set()


def test_what_another_study_left_is_deleted(folder: Path):
    for epoch in (3, 7, 9):
        save(CheckpointStore(folder), epoch)
    store = CheckpointStore(folder)
    store.discard_unusable(12, PARAMS, after=7)
    assert on_disk(folder) == {"trial-000012/epoch-0003", "trial-000012/epoch-0007"}
    store.discard_unusable(12, {**PARAMS, "lr": 0.2}, after=7)
    assert on_disk(folder) == set()
    assert CheckpointStore(folder).newest(12) is None


def test_clean_frees_what_is_not_kept(folder: Path):
    store = CheckpointStore(folder)
    for trial in (1, 2):
        for epoch in (3, 7):
            save(store, epoch, trial=trial, text="x" * 1000)
    (folder / "trial-000001/epoch-0009.tmp-1").mkdir()
    (folder / "trial-000001/epoch-0009.tmp-1/net.pt").write_text("y" * 500)
    (folder / "mine.txt").write_text("not a checkpoint")
    before = disk_usage(folder)
    one = disk_usage(folder / "trial-000001/epoch-0003")
    assert one > 3000
    assert clean(folder, {(1, 7)}) == 3 * one + 500
    assert disk_usage(folder) == before - 3 * one - 500
    assert on_disk(folder) == {"trial-000001/epoch-0007"}
    assert (folder / "mine.txt").exists()
    assert not (folder / "trial-000002").exists()
    assert clean(folder, {(1, 7)}) == 0
    assert clean(folder / "nowhere", ()) == 0


def test_a_process_killed_while_it_saves_leaves_the_old_one(folder: Path):
    program = f"""
import os, random
from pathlib import Path
from freezethaw.checkpoints import CheckpointStore
from freezethaw.isolation import RandomState

def die(folder):
    (folder / "net.pt").write_text("half")
    os._exit(9)

store = CheckpointStore(Path({str(folder)!r}))
for epoch, hook in ((3, lambda folder: (folder / "net.pt").write_text("old")), (7, die)):
    store.save(12, epoch, {{}}, RandomState.capture(), hook)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, check=False)
    assert done.returncode == 9
    store = CheckpointStore(folder)
    newest = store.newest(12)
    assert newest is not None
    assert (newest.epoch, newest.is_intact()) == (3, True)
    assert len(list(folder.glob("*/*.tmp-*"))) == 1
    store.save(12, 7, {}, RandomState.capture(), hook())
    assert on_disk(folder) == {"trial-000012/epoch-0003", "trial-000012/epoch-0007"}
