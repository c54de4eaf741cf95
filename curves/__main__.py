"""`python -m curves fetch | collect | …`: see curves/README.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from curves.assemble import assemble
from curves.cards import write_card
from curves.collect import (
    Settings,
    collect,
    device_name,
    load_tasks,
    part_path,
    read_part,
)
from curves.costs import fit_costs, read_costs, write_costs
from curves.errors import CollectError
from curves.spaces import COLLECTIONS
from curves.throughput import measure, table_of
from freezethaw.tables import write_table

HERE = Path(__file__).parent
SHIPPED = HERE.parent / "src" / "freezethaw" / "data"
IN_THE_WHEEL = ("tabular",)
"""For benchmarks that run anywhere: a small table, and real."""


def parser() -> argparse.ArgumentParser:
    """Return the commands and their options."""
    whole = argparse.ArgumentParser(prog="python -m curves", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True)

    fetching = commands.add_parser("fetch", help="download the data sets and read them")
    fetching.add_argument("--data", type=Path, default=HERE / "data")
    fetching.add_argument("--packages", type=Path, default=HERE / "packages")

    collecting = commands.add_parser("collect", help="train the networks of a collection")
    collecting.add_argument("collections", nargs="+", choices=COLLECTIONS, metavar="COLLECTION")
    collecting.add_argument("--tasks", nargs="+", default=[], metavar="TASK")
    collecting.add_argument("--data", type=Path, default=HERE / "data")
    collecting.add_argument("--parts", type=Path, default=HERE / "parts")
    collecting.add_argument("--configs", type=int, default=Settings.n_configs)
    collecting.add_argument("--epochs", type=int, default=Settings.n_epochs)
    collecting.add_argument("--seed", type=int, default=Settings.seed)
    collecting.add_argument("--groups-at-once", type=int, default=Settings.groups_at_once)
    collecting.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")

    timing = commands.add_parser("time", help="fit what an epoch costs alone, on this CPU")
    timing.add_argument("collections", nargs="+", choices=COLLECTIONS, metavar="COLLECTION")
    timing.add_argument("--data", type=Path, default=HERE / "data")
    timing.add_argument("--costs", type=Path, default=HERE / "costs.json")

    racing = commands.add_parser("throughput", help="time networks side by side and one by one")
    racing.add_argument("collections", nargs="+", choices=COLLECTIONS, metavar="COLLECTION")
    racing.add_argument("--data", type=Path, default=HERE / "data")
    racing.add_argument("--configs", type=int, default=Settings.n_configs)
    racing.add_argument("--groups-at-once", type=int, default=Settings.groups_at_once)
    racing.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    racing.add_argument("--out", type=Path, help="write the table here as well")

    building = commands.add_parser("tables", help="put what was collected into tables and cards")
    building.add_argument("collections", nargs="+", choices=COLLECTIONS, metavar="COLLECTION")
    building.add_argument("--data", type=Path, default=HERE / "data")
    building.add_argument("--parts", type=Path, default=HERE / "parts")
    building.add_argument("--costs", type=Path, default=HERE / "costs.json")
    building.add_argument("--tables", type=Path, help="the folder of the tables")
    building.add_argument("--cards", type=Path, default=HERE / "cards")
    building.add_argument("--configs", type=int, default=Settings.n_configs)
    building.add_argument("--epochs", type=int, default=Settings.n_epochs)
    building.add_argument("--seed", type=int, default=Settings.seed)
    return whole


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status."""
    chosen = parser().parse_args(arguments)
    try:
        match chosen.command:
            case "fetch":
                _fetch(chosen)
            case "collect":
                _collect(chosen)
            case "time":
                _time(chosen)
            case "throughput":
                _throughput(chosen)
            case "tables":
                _tables(chosen)
    except CollectError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def _fetch(chosen: argparse.Namespace) -> None:
    from curves.fetch import fetch
    from curves.sources import SOURCES

    fetch(SOURCES.values(), chosen.data, chosen.packages, _say)


def _collect(chosen: argparse.Namespace) -> None:
    settings = _settings(chosen, n_epochs=chosen.epochs, seed=chosen.seed)
    for name in chosen.collections:
        collection = COLLECTIONS[name]
        only = [task for task in chosen.tasks if task in {t.name for t in collection.tasks}]
        if chosen.tasks and not only:
            continue
        collect(collection, chosen.data, chosen.parts, settings, only=only, say=_say)


def _settings(chosen: argparse.Namespace, *, n_epochs: int, seed: int) -> Settings:
    on_gpu = chosen.device.startswith("cuda")
    if on_gpu:
        # Half of a float's digits are enough to multiply with, and eight times as fast.
        torch.backends.cuda.matmul.allow_tf32 = True
    return Settings(
        n_configs=chosen.configs,
        n_epochs=n_epochs,
        seed=seed,
        device=chosen.device,
        groups_at_once=chosen.groups_at_once if on_gpu else 1,
    )


def _time(chosen: argparse.Namespace) -> None:
    for name in chosen.collections:
        collection = COLLECTIONS[name]
        model = fit_costs(collection, load_tasks(collection, chosen.data))
        write_costs(chosen.costs, name, model)
        ratio = model.seconds_per_step / max(model.seconds_per_multiply_add, 1e-30)
        _say(
            f"{name}: a step costs as much as {ratio:,.0f} multiply-adds more than it makes; "
            f"median error {model.median_error:.0%}"
        )


def _throughput(chosen: argparse.Namespace) -> None:
    settings = _settings(chosen, n_epochs=1, seed=0)
    results = [measure(COLLECTIONS[name], chosen.data, settings) for name in chosen.collections]
    command = f"python -m curves throughput {' '.join(chosen.collections)}"
    page = table_of(results, device_name(settings), command)
    if chosen.out:
        chosen.out.write_text(page, encoding="utf-8")
    _say(page)


def _tables(chosen: argparse.Namespace) -> None:
    settings = Settings(n_configs=chosen.configs, n_epochs=chosen.epochs, seed=chosen.seed)
    for name in chosen.collections:
        collection = COLLECTIONS[name]
        costs, tasks = read_costs(chosen.costs, name), load_tasks(collection, chosen.data)
        table = assemble(collection, chosen.data, chosen.parts, settings, costs)
        folder = chosen.tables or (SHIPPED if name in IN_THE_WHEEL else HERE / "tables")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.npz"
        write_table(path, table)
        parts = [read_part(part_path(chosen.parts, collection, task)) for task in table.tasks]
        write_card(chosen.cards, collection, table, tasks, parts, costs, path.stat().st_size)
        _say(f"{path}: {path.stat().st_size / 1e6:.2f} MB; its card: {chosen.cards / name}.md")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
