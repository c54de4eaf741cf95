"""The command line: parse, call, print."""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
import webbrowser
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console

from freezethaw import report, storage
from freezethaw.errors import ConfigError, FreezeThawError
from freezethaw.records import Result
from freezethaw.report.view import StudyView
from freezethaw.study import Study
from freezethaw.views import view_of

app = typer.Typer(
    name="freezethaw",
    help="Hyperparameter tuning that knows what a result is worth to you.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench_app = typer.Typer(help="Measurements that anyone can run again.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

StorageArgument = Annotated[Path, typer.Argument(help="The study's file.", show_default=False)]
NameOption = Annotated[
    str | None, typer.Option(help="The study's name, where the file holds several.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, and nothing else, to stdout.")
]


def main() -> None:
    """Run the command line; errors of ours are one message, not a traceback."""
    try:
        app()
    except FreezeThawError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {_escape(str(error))}", highlight=False)
        sys.exit(2)


def _escape(text: str) -> str:
    return text.replace("[", r"\[")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(version("freezethaw"))
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the study and its report go.")] = Path(
        "freezethaw-demo"
    ),
    seed: Annotated[int, typer.Option(help="Another seed, another study.")] = 0,
    fresh: Annotated[bool, typer.Option(help="Start again where a demo has been run.")] = False,
    quiet: Annotated[bool, typer.Option(help="Show only the end.")] = False,
) -> None:
    """Tune a small real network in under two minutes and write a report."""
    from freezethaw.demo import run_demo

    run_demo(folder, seed=seed, fresh=fresh, quiet=quiet)


@app.command()
def run(
    target: Annotated[
        str, typer.Argument(help="The training function, as in train.py:train.", show_default=False)
    ],
    config: Annotated[Path, typer.Option(help="The study's settings, a TOML file.")],
    storage: Annotated[Path | None, typer.Option(help="Instead of the file's `storage`.")] = None,
    name: NameOption = None,
    budget: Annotated[float | None, typer.Option(help="Another budget for the utility.")] = None,
    deadline: Annotated[
        str | None, typer.Option(help="Pause after so much time: 2h, 90min.")
    ] = None,
    quiet: Annotated[bool, typer.Option(help="Show only the end.")] = False,
    json_: JsonOption = False,
) -> None:
    """Tune a training function, or go on with a study that was stopped."""
    from freezethaw.config import read_study_file
    from freezethaw.tune import tune

    settings = read_study_file(config, inspect.signature(tune).parameters)
    module, train = _load_target(target)
    settings.setdefault("space", getattr(module, "space", None))
    if settings["space"] is None:
        raise ConfigError(
            f"{config}: no [space.…] tables, and {target.partition(':')[0]} has no `space`"
        )
    given = {
        "storage": storage,
        "name": name,
        "deadline": deadline,
        "quiet": quiet or json_ or None,
    }
    settings |= {key: value for key, value in given.items() if value is not None}
    if budget is not None:
        settings |= _with_budget(settings, budget)
    try:
        result = tune(train, **settings)
    except TypeError as error:
        raise ConfigError(f"{config}: {error}") from error
    _print_result(result, json_)


def _with_budget(settings: dict[str, Any], budget: float) -> dict[str, Any]:
    """The same price per unit, with more or less to spend."""
    from freezethaw.utility import with_budget

    if settings.get("utility") is None:
        return {"budget": budget}
    return {"utility": with_budget(settings["utility"], budget)}


def _load_target(target: str) -> tuple[ModuleType, Any]:
    """`file.py:function` → its module and the function."""
    file, _, function = target.rpartition(":")
    path = Path(file)
    if not file or not function or path.suffix != ".py":
        raise ConfigError(f"{target!r}: write the file and the function, as in train.py:train")
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    if not hasattr(module, function):
        raise ConfigError(f"{path}: has no function {function!r}")
    return module, getattr(module, function)


def _print_result(result: Result, as_json: bool) -> None:
    if as_json:
        best = result.best
        data = {
            "best": None
            if best is None
            else {
                "trial_id": best.trial_id,
                "params": dict(best.params),
                "score": best.score,
                "epoch": best.epoch,
                "checkpoint": str(best.checkpoint) if best.checkpoint else None,
            },
            "spent": result.spent,
            "unit": result.unit,
            "stop": {"kind": result.stop.kind.value, "reason": result.stop.reason},
            "study": result.study,
            "storage": result.storage,
        }
        typer.echo(json.dumps(data, allow_nan=False))


@app.command()
def status(storage: StorageArgument, name: NameOption = None, json_: JsonOption = False) -> None:
    """Where a study stands; it may be running."""
    view = _open(storage, name)
    if json_:
        typer.echo(json.dumps(report.to_json(view), allow_nan=False))
    else:
        typer.echo(report.summary(view))


@app.command()
def why(storage: StorageArgument, name: NameOption = None, json_: JsonOption = False) -> None:
    """The last decision: the leading candidates, their expected gain, chance and price."""
    view = _open(storage, name)
    if json_:
        typer.echo(json.dumps(report.why_json(view), allow_nan=False))
    else:
        Console().print(report.why(view))


@app.command(name="report")
def report_command(
    storage: StorageArgument,
    name: NameOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; default: beside the study.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
) -> None:
    """Write one self-contained HTML page about a study."""
    path = out or storage.with_suffix(".html")
    path.write_text(report.html(_open(storage, name)), encoding="utf-8")
    typer.echo(str(path))
    if open_:
        webbrowser.open(path.resolve().as_uri())


@app.command()
def clean(
    storage: StorageArgument,
    name: NameOption = None,
    all_: Annotated[
        bool, typer.Option("--all", help="Also what is needed to go on; the best model stays.")
    ] = False,
) -> None:
    """Free the disk space of checkpoints that are no longer needed."""
    from freezethaw.checkpoints import clean as clean_checkpoints

    with _open_study(storage, name) as study:
        freed = clean_checkpoints(_checkpoint_folder(study), study.needed_checkpoints(all_))
    typer.echo(f"freed {freed / 2**20:.1f} MiB")


@bench_app.command()
def overhead(
    out: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    quick: Annotated[bool, typer.Option(help="Toy size: shows that it runs.")] = False,
    json_: JsonOption = False,
) -> None:
    """What the tuner itself costs: deciding, storing, opening, memory."""
    from freezethaw.bench.overhead import measure, to_markdown

    rows = measure(quick=quick, log=None if json_ else typer.echo)
    if json_:
        typer.echo(json.dumps(rows, allow_nan=False))
    if out is not None:
        out.write_text(to_markdown(rows), encoding="utf-8")
    elif not json_:
        typer.echo(to_markdown(rows))


def _open(path: Path, name: str | None) -> StudyView:
    with _open_study(path, name) as study:
        return view_of(study)


def _open_study(path: Path, name: str | None) -> Study:
    return Study.open(path, name)


def _checkpoint_folder(study: Study) -> Path:
    assert study.storage is not None
    return storage.checkpoint_folder(study.storage, study.name)
