"""`python -m curves fetch | collect | …`: see curves/README.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from curves.collect import Settings, collect
from curves.errors import CollectError
from curves.spaces import COLLECTIONS

HERE = Path(__file__).parent


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m curves", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

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
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        match chosen.command:
            case "fetch":
                _fetch(chosen)
            case "collect":
                _collect(chosen)
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
    settings = Settings(
        n_configs=chosen.configs,
        n_epochs=chosen.epochs,
        seed=chosen.seed,
        device=chosen.device,
        groups_at_once=chosen.groups_at_once if chosen.device.startswith("cuda") else 1,
    )
    if settings.device.startswith("cuda"):
        # Half of a float's digits are enough to multiply with, and eight times as fast.
        torch.backends.cuda.matmul.allow_tf32 = True
    for name in chosen.collections:
        collection = COLLECTIONS[name]
        only = [task for task in chosen.tasks if task in {t.name for t in collection.tasks}]
        if chosen.tasks and not only:
            continue
        collect(collection, chosen.data, chosen.parts, settings, only=only, say=_say)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
