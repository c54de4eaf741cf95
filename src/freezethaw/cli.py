"""The command line: parse, call, print."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import sys
import webbrowser
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console

from freezethaw import report
from freezethaw.errors import ConfigError, FreezeThawError
from freezethaw.records import Result, StopReason
from freezethaw.report.view import StudyView
from freezethaw.storage import DEFAULT_NAME, file_name
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

EXIT_CODES = {StopReason.FAILURES: 1, StopReason.INTERRUPTED: 130}
"""Of `freezethaw run` and `demo`, where it is not 0."""

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
    fresh: Annotated[bool, typer.Option(help="Remove what an earlier demo left there.")] = False,
    quiet: Annotated[bool, typer.Option(help="Show only the end.")] = False,
) -> None:
    """Tune a small real network in under two minutes and write a report."""
    from freezethaw.demo import run_demo

    result = run_demo(folder, seed=seed, fresh=fresh, quiet=quiet)
    raise typer.Exit(EXIT_CODES.get(result.stop.kind, 0))


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
    """Tune a training function, or go on with a study that was stopped.

    Exit status: 0 when the study has stopped by itself or at its deadline, 1 when too many trials
    failed, 130 when it was interrupted, 2 for an error.
    """
    # What the training function prints must not come between the JSON.
    with contextlib.redirect_stdout(sys.stderr if json_ else sys.stdout):
        result = _run(target, config, storage, name, budget, deadline, quiet or json_)
    if json_:
        typer.echo(json.dumps(_result_json(result), allow_nan=False))
    raise typer.Exit(EXIT_CODES.get(result.stop.kind, 0))


def _run(
    target: str,
    config: Path,
    storage: Path | None,
    name: str | None,
    budget: float | None,
    deadline: str | None,
    quiet: bool,
) -> Result:
    from freezethaw.config import read_study_file
    from freezethaw.loop import tune

    settings = read_study_file(config)
    module, train = _load_target(target)
    settings.setdefault("space", getattr(module, "space", None))
    if settings["space"] is None:
        raise ConfigError(
            f"{config}: no [space.…] tables, and {target.partition(':')[0]} has no `space`"
        )
    given = {"storage": storage, "name": name, "deadline": deadline, "quiet": quiet or None}
    settings |= {key: value for key, value in given.items() if value is not None}
    if budget is not None:
        settings |= _with_budget(settings, budget)
    return tune(train, **settings)


def _with_budget(settings: dict[str, Any], budget: float) -> dict[str, Any]:
    """The same price per unit, with more or less to spend."""
    from freezethaw.utility import Worth, with_budget

    utility = settings.get("utility")
    if utility is None:
        return {"budget": budget}
    if isinstance(utility, Worth):
        raise ConfigError(
            f"--budget {budget:g}: the budget of a `worth` utility follows from its exchange rate; "
            "change gain or cost in the file"
        )
    return {"utility": with_budget(utility, budget)}


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


def _result_json(result: Result) -> dict[str, Any]:
    best = result.best
    return {
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
    view = _open(storage, name)
    suffix = "" if view.name == DEFAULT_NAME else f".{file_name(view.name)}"
    path = out or storage.with_name(f"{storage.stem}{suffix}.html")
    _write(path, report.html(view))
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
    with Study.open(storage, name) as study:
        freed = study.clean(only_best=all_)
    typer.echo(f"freed {freed / 2**20:.1f} MiB")


@app.command()
def prefer(
    budget: Annotated[
        str | None, typer.Option(help="The most that may be spent: 300, 20h, '$20'.")
    ] = None,
    goal: Annotated[str | None, typer.Option(help="maximize (the default) or minimize.")] = None,
    bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(help="The lowest and highest score to ask about; default 0 1."),
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="The price of an hour, for a budget in money: '$2.5/h'.")
    ] = None,
    metric: Annotated[str | None, typer.Option(help="What the score is called.")] = None,
    form: Annotated[
        str | None,
        typer.Option(help="linear, quadratic, square_root, power, staircase, mix or any."),
    ] = None,
    study: Annotated[Path | None, typer.Option(help="Ask about where this study has been.")] = None,
    name: NameOption = None,
    questions: Annotated[int, typer.Option(help="The most to ask.")] = 10,
    out: Annotated[Path, typer.Option("--out", "-o", help="The utility file.")] = Path(
        "utility.json"
    ),
    fresh: Annotated[
        bool, typer.Option(help="Begin anew; what the file held is kept as utility.json~.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Other questions.")] = 0,
    web: Annotated[bool, typer.Option(help="Ask on a page in the browser.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of the page; 0: any free one.")] = 0,
    json_: JsonOption = False,
) -> None:
    """Find out what a result is worth to you, in ten questions.

    One key per answer; every answer is saved, and the same command goes on where you left. The
    file is what `ft.tune(utility="utility.json")` and study.toml take.
    """
    from freezethaw.prefer.command import Asked, ask

    asked = Asked(
        budget=budget, goal=goal, bounds=bounds, rate=rate, metric=metric, form=form, study=study,
        name=name, questions=questions, out=out, fresh=fresh, seed=seed, web=web, port=port,
    )  # fmt: skip
    found = ask(asked, Console(stderr=json_))
    if json_:
        typer.echo(json.dumps(found, allow_nan=False))


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
        _write(out, to_markdown(rows))
    elif not json_:
        typer.echo(to_markdown(rows))


@bench_app.command(name="preference")
def preference_command(
    out: Annotated[Path | None, typer.Option(help="Also write the page to this file.")] = None,
    quick: Annotated[bool, typer.Option(help="Toy size: shows that it runs.")] = False,
    json_: JsonOption = False,
) -> None:
    """How well questions find out a utility, and what a wrong one would cost."""
    from freezethaw.bench.preference import measure, to_markdown

    found = measure(quick=quick, log=(lambda _: None) if json_ else typer.echo)
    if json_:
        typer.echo(json.dumps(found, allow_nan=False))
    if out is not None:
        _write(out, to_markdown(found))
    elif not json_:
        typer.echo(to_markdown(found))


@bench_app.command()
def preference_figures(
    out: Annotated[Path, typer.Option(help="The folder for them.")] = Path("results"),
    task: Annotated[str, typer.Option(help="Of `tabular`: whose trajectory is shown.")] = "vehicle",
) -> None:
    """Draw true and fitted utilities, and the user who prefers what lies above a trajectory."""
    from freezethaw.bench.preference_figures import write_figures

    for path in write_figures(out, task):
        typer.echo(str(path))


def _open(path: Path, name: str | None) -> StudyView:
    with Study.open(path, name) as study:
        return view_of(study)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
