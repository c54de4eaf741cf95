"""The pages keep their word: their code runs, their commands parse, their links lead somewhere.

How a page is read, block by block and in order, in a folder of its own:

- ```` ```python ```` runs, all blocks of a page in one namespace;
- ```` ```python no-run: why ```` only has to compile;
- ```` ```python file=train.py ```` and ```` ```toml file=study.toml ```` are written to that file;
- ```` ```console run ```` runs its `$ freezethaw …` lines; in other blocks they only have to parse;
- `<!-- test: what … -->` is Python that readers do not see: names that an example takes for
  granted, and checks of what the page says (`PAGE` is its path).
"""

from __future__ import annotations

import importlib
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from typer.testing import CliRunner

from freezethaw import config, events, tables
from freezethaw.cli import app
from freezethaw.errors import ExtrapolatorError
from freezethaw.pfn import weights
from freezethaw.records import StopReason

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += [*sorted((ROOT / "docs").glob("*.md")), ROOT / "curves" / "README.md"]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@dataclass(frozen=True)
class Block:
    """A fenced block, or a hidden one (`kind` is "test")."""

    page: Path
    line: int
    """Of its first line of code, from 1."""
    kind: str
    note: str
    """What follows the language after the fence."""
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.kind == "test" or (self.kind == "python" and not self.note)

    @property
    def file(self) -> str | None:
        return self.note.removeprefix("file=") if self.note.startswith("file=") else None

    def compiled(self) -> Any:
        """With the page's line numbers, so that a traceback leads to the page."""
        return compile("\n" * (self.line - 1) + self.text, str(self.page), "exec")


def blocks(page: Path) -> Iterator[Block]:
    end, start, kind, note = None, 0, "", ""
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if end is not None:
            if line.strip() == end:
                yield Block(page, start, kind, note, "\n".join(lines[start - 1 : number - 1]))
                end = None
        elif match := re.fullmatch(r"(```+)(\w*) *(.*)", line):
            end, kind, note = match[1], match[2], match[3]
            start = number + 1
        elif match := re.fullmatch(r"<!-- test: ([^>]*)", line):
            end, kind, note, start = "-->", "test", match[1], number + 1
    assert end is None, f"{page.name}:{start}: the block never ends"


def all_blocks(*kinds: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.kind in kinds]


# ── code ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _one_thread():
    """Where others use the cores too, two threads that wait for each other take far longer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_page(page: Path, folder: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__", "PAGE": str(page)}
    for block in blocks(page):
        if block.file is not None:
            folder.joinpath(block.file).write_text(block.text + "\n", encoding="utf-8")
        elif block.runs:
            exec(block.compiled(), namespace)
        elif block.kind == "console" and block.note == "run":
            for command in commands(block):
                result = CliRunner().invoke(app, command[1:])
                if result.exception is not None:
                    raise result.exception


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    loaded = set(sys.modules)
    try:
        run_page(page, tmp_path)
    except ExtrapolatorError as error:
        if weights.DEFAULT in weights.shipped():
            raise
        pytest.skip(f"needs the shipped weights: {error}")
    finally:
        for name in {Path(b.file).stem for b in blocks(page) if b.file} - loaded:
            sys.modules.pop(name, None)


def test_code_that_does_not_run_compiles_and_says_why():
    for block in all_blocks("python", "test"):
        block.compiled()
        if block.kind == "python" and not block.runs and block.file is None:
            assert re.fullmatch(r"no-run: \w.*", block.note), block.place


def test_toml_is_toml():
    for block in all_blocks("toml"):
        tomllib.loads(block.text)


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


def commands(block: Block) -> Iterator[list[str]]:
    """The commands in a `console` block (after `$`) or a `bash` block (each line), in words."""
    text = re.sub(r"\\\n\s*", "", block.text)
    for line in text.splitlines():
        if block.kind == "console":
            if not line.startswith("$ "):
                continue
            line = line.removeprefix("$ ")
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if words:
                yield words


COMMANDS = [
    pytest.param(words, id=f"{block.place} {' '.join(words[:3])}")
    for block in all_blocks("console", "bash")
    for words in commands(block)
]


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_parse(words, monkeypatch, capsys):
    program, *arguments = words
    if program == "freezethaw":
        parse_freezethaw(arguments)
    elif program == "make":
        assert set(arguments) <= make_targets()
    elif program == "pip":
        check_pip(arguments)
    elif program == "pytest":
        check_pytest(arguments)
    elif program == "python":
        check_module(arguments, monkeypatch, capsys)
    elif program in ("ruff", "mypy"):
        assert program in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    else:
        assert program in ("git", "cd", ".", "sbatch", ".ci/run")


def parse_freezethaw(arguments: list[str]) -> list[str]:
    """Parse as the command line would; the names of the command."""
    command: Any = typer.main.get_command(app)
    path: list[str] = []
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        assert name in command.commands, f"freezethaw has no command {' '.join([*path, name])!r}"
        command = command.commands[name]
        path.append(name)
    if not {"--help", "--version"} & set(arguments):
        command.make_context("freezethaw", list(arguments))
    return path


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY:(.*)$", makefile, flags=re.MULTILINE)
    targets = set(re.findall(r"^([\w-]+):(?!=)", makefile, flags=re.MULTILINE))
    assert phony
    assert targets == set(phony[1].split())
    return targets


def check_pip(arguments: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert arguments[0] == "install"
    for extras in re.findall(r"\[([\w,]+)\]", " ".join(arguments)):
        assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def check_pytest(arguments: list[str]) -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(text)["tool"]["pytest"]["ini_options"]["markers"]
    markers = {marker.partition(":")[0] for marker in declared}
    if "-m" in arguments:
        assert arguments[arguments.index("-m") + 1] in markers
    for argument in arguments:
        if argument.startswith("tests/"):
            assert (ROOT / argument.partition("::")[0]).exists()


def check_module(arguments: list[str], monkeypatch, capsys) -> None:
    """`python -m ours --option`: the module's own --help knows the options."""
    assert arguments[0] == "-m"
    if arguments[1] == "curves":
        importlib.import_module("curves.__main__").parser().parse_args(arguments[2:])
        return
    if not arguments[1].startswith("freezethaw."):
        assert arguments[1] in ("venv", "pip")
        return
    main = importlib.import_module(arguments[1]).main
    monkeypatch.setattr(sys, "argv", [arguments[1], "--help"])
    with pytest.raises(SystemExit):
        main()
    text = capsys.readouterr().out
    for argument in arguments[2:]:
        if argument.startswith("--"):
            assert argument.partition("=")[0] in text


def test_a_command_with_a_wrong_option_is_seen():
    with pytest.raises(Exception, match="--colour"):
        parse_freezethaw(["status", "study.db", "--colour"])
    with pytest.raises(AssertionError, match="no command"):
        parse_freezethaw(["train"])


def test_every_command_is_documented():
    shown = {
        " ".join(parse_freezethaw(words[1:]))
        for block in all_blocks("console", "bash")
        for words in commands(block)
        if words[0] == "freezethaw"
    }
    root: Any = typer.main.get_command(app)
    assert set(_leaves(root, "")) <= shown


def _leaves(command: Any, path: str) -> Iterator[str]:
    for name, each in command.commands.items():
        whole = f"{path} {name}".strip()
        if hasattr(each, "commands"):
            yield from _leaves(each, whole)
        else:
            yield whole


# ── links ────────────────────────────────────────────────────────────────────────────────────────


def prose(page: Path) -> str:
    """The page without its code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """As the usual renderers make them from headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    text = prose(page)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    links += re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_every_page_is_reached_from_the_readme():
    text = prose(ROOT / "README.md")
    for name in NAMES[1:]:
        assert f"({name})" in text, name


# ── completeness ─────────────────────────────────────────────────────────────────────────────────


def page_text(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_reason_to_stop_is_explained():
    text = page_text("method.md")
    assert [reason for reason in StopReason if f"`{reason.value}`" not in text] == []


def test_every_kind_of_event_is_explained():
    text = page_text("files.md")
    assert [kind for kind in events.EVENTS if f"`{kind}`" not in text] == []


def test_every_key_of_a_curve_table_is_explained():
    text = page_text("curve-tables.md")
    assert [key for key in tables._KEYS if f"`{key}`" not in text] == []


def test_every_form_of_utility_is_explained():
    text = page_text("utility.md")
    assert [form for form in config._UTILITIES if form not in text] == []
