"""Checkpoints on disk: written beside their place, renamed into it, checked before use.

    <storage>.checkpoints/
      trial-000012/
        epoch-0007/
          files/         what the user's save hook wrote: `trial.checkpoint`
          random.json    the random streams at the end of that epoch
          state.json     trial, epoch, parameters, format, and every file's size and checksum

A folder without `.tmp-` in its name is complete. Whatever a crash leaves behind has it, and is
removed when the folder is next used.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import traceback
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freezethaw.errors import CheckpointError
from freezethaw.isolation import RandomState
from freezethaw.records import Params

FORMAT = 1

_TRIAL = re.compile(r"trial-(\d+)")
_EPOCH = re.compile(r"epoch-(\d+)")
_FULL_BELOW_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20


class HookFailedError(Exception):
    """The user's save hook raised. `traceback` is the text of it."""

    def __init__(self, text: str) -> None:
        super().__init__(text.strip().splitlines()[-1])
        self.traceback = text


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One complete checkpoint on disk."""

    folder: Path
    trial_id: int
    epoch: int
    params: Mapping[str, Any]
    manifest: Mapping[str, tuple[int, int]]
    """Size and CRC-32 of every file, by its path in the folder."""

    @property
    def files(self) -> Path:
        """The folder that the user's hook wrote."""
        return self.folder / "files"

    def random(self) -> RandomState:
        """The random streams at the end of the checkpoint's epoch."""
        return RandomState.from_json((self.folder / "random.json").read_text(encoding="utf-8"))

    def is_intact(self) -> bool:
        """Whether every file still has the content that was written (reads all of them)."""
        try:
            return all(
                _checksum(self.folder / name) == tuple(entry)
                for name, entry in self.manifest.items()
            )
        except OSError:
            return False


class CheckpointStore:
    """The checkpoints of one study. Reads lazily; one process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()  # the training function may change directory
        self._by_trial: dict[int, dict[int, Checkpoint]] = {}
        self._swept = self._made = False

    def exists(self) -> bool:
        """Whether `make` was called, now or by an earlier process: there are networks to save."""
        return self._folder.is_dir()

    def make(self) -> None:
        """Make the folder. As long as no trial has anything to save, there is none."""
        if not self._made:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(
                    f"the folder of the checkpoints cannot be made: {self._folder} "
                    f"({error.strerror}). See that its place can be written to and run again."
                ) from error
            self._made = True

    def get(self, trial_id: int, epoch: int) -> Checkpoint | None:
        """The checkpoint of exactly that epoch."""
        return self._of(trial_id).get(epoch)

    def newest(self, trial_id: int, *, at_most: int | None = None) -> Checkpoint | None:
        """The trial's checkpoint of the latest epoch, up to `at_most`."""
        epochs = [e for e in self._of(trial_id) if at_most is None or e <= at_most]
        return self._of(trial_id)[max(epochs)] if epochs else None

    def save(
        self,
        trial_id: int,
        epoch: int,
        params: Params,
        random: RandomState,
        hook: Callable[[Path], object],
    ) -> Checkpoint:
        """Let `hook` write its files and make them durable, all of them or none."""
        self._sweep()
        final = self._place(trial_id, epoch)
        pending = final.with_name(f"{final.name}.tmp-{os.getpid()}")
        try:
            try:
                (pending / "files").mkdir(parents=True)
                _call(hook, pending / "files", trial_id)
                (pending / "random.json").write_text(random.to_json(), encoding="utf-8")
                state = _state(pending, trial_id, epoch, params)
                (pending / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
                _sync_tree(pending)
                if final.exists():  # damaged: an intact one is not written again
                    _remove(final)
                pending.replace(final)
                _sync_folder(final.parent)
                _sync_folder(self._folder)
            finally:
                # After success it is gone. After a failure it must not fill the disk.
                shutil.rmtree(pending, ignore_errors=True)
        except OSError as error:
            raise _not_written(trial_id, final, error) from error
        checkpoint = _read(final)
        if checkpoint is None:
            raise CheckpointError(
                f"trial {trial_id}: {final} cannot be read back; "
                "a save hook must have written all its files when it returns"
            )
        self._of(trial_id)[epoch] = checkpoint
        return checkpoint

    def keep_only(self, trial_id: int, epochs: Collection[int]) -> None:
        """Delete the trial's checkpoints of all other epochs, and its damaged ones."""
        known = self._of(trial_id)
        for path in _matching(self._trial_folder(trial_id), _EPOCH):
            epoch = _number(_EPOCH, path)
            if epoch not in epochs or epoch not in known:
                known.pop(epoch, None)
                _remove(path)

    def discard(self, checkpoint: Checkpoint) -> None:
        """Delete one checkpoint."""
        self._of(checkpoint.trial_id).pop(checkpoint.epoch, None)
        _remove(checkpoint.folder)

    def discard_unusable(self, trial_id: int, params: Params, *, after: int) -> None:
        """Delete what is ahead of the study (later than `after`) or was left by another study."""
        for checkpoint in list(self._of(trial_id).values()):
            if checkpoint.epoch > after or checkpoint.params != dict(params):
                self.discard(checkpoint)

    def _of(self, trial_id: int) -> dict[int, Checkpoint]:
        if trial_id not in self._by_trial:
            paths = _matching(self._trial_folder(trial_id), _EPOCH)
            found = (_read(path) for path in paths)
            self._by_trial[trial_id] = {c.epoch: c for c in found if c is not None}
        return self._by_trial[trial_id]

    def _trial_folder(self, trial_id: int) -> Path:
        return self._folder / f"trial-{trial_id:06d}"

    def _place(self, trial_id: int, epoch: int) -> Path:
        return self._trial_folder(trial_id) / f"epoch-{epoch:04d}"

    def _sweep(self) -> None:
        """Once, before the first write: remove what an earlier process left half done."""
        if not self._swept:
            self._swept = True
            for path in _leftovers(self._folder):
                shutil.rmtree(path, ignore_errors=True)


def clean(folder: Path, keep: Collection[tuple[int, int]]) -> int:
    """Delete all checkpoints but those of the given (trial id, epoch); return the bytes freed.

    No study may be running on the folder.
    """
    before = disk_usage(folder)
    for path in _leftovers(folder):
        shutil.rmtree(path, ignore_errors=True)
    for trial in _matching(folder, _TRIAL):
        for path in _matching(trial, _EPOCH):
            if (_number(_TRIAL, trial), _number(_EPOCH, path)) not in keep:
                _remove(path)
        if not any(trial.iterdir()):
            trial.rmdir()
    return before - disk_usage(folder)


def disk_usage(folder: Path) -> int:
    """Bytes in all files under `folder` (0 if it does not exist)."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def _call(hook: Callable[[Path], object], folder: Path, trial_id: int) -> None:
    """Run the user's hook; tell a full disk, which must pause the study, from a fault in it."""
    text = ""
    try:
        hook(folder)
    except Exception as error:
        # Torch reports a full disk as a RuntimeError, so the disk is asked as well.
        if _says_full(error) or shutil.disk_usage(folder).free < _FULL_BELOW_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        text = f"the save hook of trial {trial_id} raised\n{traceback.format_exc()}"
    if text:  # raised here, it does not keep the frames of the hook alive
        raise HookFailedError(text)


def _says_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _not_written(trial_id: int, path: Path, error: OSError) -> CheckpointError:
    if _says_full(error):
        return CheckpointError(
            f"the disk is full: the checkpoint of trial {trial_id} was not written to {path}. "
            "All scores are kept. Free some space (`freezethaw clean` deletes checkpoints that "
            "are no longer needed) and run again to go on."
        )
    return CheckpointError(
        f"the checkpoint of trial {trial_id} was not written to {path}: {error}. "
        "All scores are kept. See that the folder can be written to and run again to go on."
    )


def _state(folder: Path, trial_id: int, epoch: int, params: Params) -> dict[str, Any]:
    manifest = {str(p.relative_to(folder).as_posix()): _checksum(p) for p in _files(folder)}
    return {
        "format": FORMAT,
        "trial_id": trial_id,
        "epoch": epoch,
        "params": dict(params),
        "files": manifest,
    }


def _read(path: Path) -> Checkpoint | None:
    """The checkpoint in `path` if it is whole as far as file sizes tell, else None."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        whole = (
            state["format"] == FORMAT
            and state["epoch"] == _number(_EPOCH, path)
            and state["trial_id"] == _number(_TRIAL, path.parent)
            and all((path / f).stat().st_size == size for f, (size, _) in state["files"].items())
        )
        if not whole:
            return None
        return Checkpoint(
            folder=path,
            trial_id=state["trial_id"],
            epoch=state["epoch"],
            params=state["params"],
            manifest={name: (size, crc) for name, (size, crc) in state["files"].items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _checksum(path: Path) -> tuple[int, int]:
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            size += len(block)
            crc = zlib.crc32(block, crc)
    return size, crc


def _matching(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if pattern.fullmatch(path.name))


def _number(pattern: re.Pattern[str], path: Path) -> int:
    match = pattern.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name} does not match {pattern.pattern}")
    return int(match[1])


def _leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.glob("trial-*/*.tmp-*") if path.is_dir()]


def _remove(path: Path) -> None:
    """Delete a checkpoint so that at no moment a part of it looks whole.

    One that cannot be deleted does no harm: nothing refers to it any more.
    """
    doomed = path.with_name(f"{path.name}.tmp-{os.getpid()}-old")
    shutil.rmtree(doomed, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.replace(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    if os.name != "posix":
        return  # elsewhere a file that is open for reading cannot be synced
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            _sync_folder(path)


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # elsewhere a folder cannot be opened
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
