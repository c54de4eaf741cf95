"""Collects the curves of a collection, task by task, into parts that survive an interruption."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from curves.collection import Collection, Params
from curves.errors import CollectError
from curves.stacks import Initial
from curves.tasks import Task, TaskRecipe, load_dataset, write_arrays
from curves.together import Group

EPOCHS_AHEAD = 2
"""How far the program runs ahead of the device in every group."""
SECONDS_BETWEEN_REPORTS = 10.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What, beside the code, the curves depend on."""

    n_configs: int = 512
    n_epochs: int = 50
    seed: int = 0
    device: str = "cpu"
    groups_at_once: int = 16
    """On a GPU: each on a stream of its own."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """The curves of one task, `[configuration, epoch]`, as they came."""

    train_losses: NDArray[np.float32]
    valid_losses: NDArray[np.float32]
    valid_accuracies: NDArray[np.float32]
    made: dict[str, object]
    """How: what must agree between parts of one table, and how long it took."""


def part_path(folder: Path, collection: Collection, task_name: str) -> Path:
    """Return where a task's part lies."""
    return folder / collection.name / f"{task_name}.npz"


def read_part(path: Path) -> Part:
    """Read a part."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return Part(
                train_losses=file["train_losses"],
                valid_losses=file["valid_losses"],
                valid_accuracies=file["valid_accuracies"],
                made=json.loads(file["made"].item()),
            )
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise CollectError(f"{path}: {error}; remove it, and collect again") from None


def _write_part(path: Path, part: Part) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_arrays(path, {**vars(part), "made": np.array(json.dumps(part.made))})


def device_name(settings: Settings) -> str:
    """Return what the networks are trained on."""
    return torch.cuda.get_device_name() if settings.device.startswith("cuda") else "CPU"


def fingerprint(
    collection: Collection, recipe: TaskRecipe, data: Path, settings: Settings
) -> dict[str, object]:
    """Return what a part must share with what is asked for, to be taken instead."""
    configs = collection.draw(settings.n_configs, settings.seed)
    recipes = [asdict(collection.recipe(params)) for params in configs]
    return {
        "task": asdict(recipe),
        "data": _data_digest(data, recipe.dataset),
        "configs": hashlib.sha256(json.dumps(configs).encode()).hexdigest(),
        "recipes": hashlib.sha256(json.dumps(recipes).encode()).hexdigest(),
        "n_configs": settings.n_configs,
        "n_epochs": settings.n_epochs,
        "seed": settings.seed,
    }


def _products(settings: Settings) -> str:
    """Return in which precision matrices are multiplied."""
    reduced = settings.device.startswith("cuda") and torch.backends.cuda.matmul.allow_tf32
    return "TF32" if reduced else "float32"


def _data_digest(data: Path, name: str) -> str:
    """Of the numbers, not of the file: compression may differ from machine to machine."""
    dataset = load_dataset(data, name)
    digest = hashlib.sha256(repr(dataset.class_names).encode())
    for array in (dataset.targets, dataset.numbers, dataset.kinds):
        if array is not None:
            digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def collect(
    collection: Collection,
    data: Path,
    parts: Path,
    settings: Settings,
    *,
    only: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Train what is missing: one part per task, `only` those named, written when it is complete."""
    recipes = [recipe for recipe in collection.tasks if not only or recipe.name in only]
    missing = [
        recipe for recipe in recipes if not is_there(collection, recipe, data, parts, settings)
    ]
    if len(missing) < len(recipes):
        say(f"{collection.name}: {len(recipes) - len(missing)} tasks are there already")
    runs = [_Run(collection, recipe, data, settings) for recipe in missing]
    begun, n_done = time.monotonic(), 0
    jobs = ((run, job) for run in runs for job in run.jobs())
    for run in _run_groups(jobs, settings.groups_at_once, say):
        if not run.is_finished:
            continue
        n_done += 1
        part = run.part()
        _write_part(part_path(parts, collection, run.recipe.name), part)
        seconds = time.monotonic() - begun
        left = seconds / n_done * (len(missing) - n_done)
        say(
            f"{collection.name} {n_done}/{len(missing)}: {run.recipe.name}, "
            f"{_share_diverged(part):.0%} diverged; {seconds:.0f} s so far, about {left:.0f} s left"
        )


def load_tasks(collection: Collection, data: Path) -> list[Task]:
    """Return the tasks of a collection, on the CPU."""
    made = (
        collection.make_task(recipe, load_dataset(data, recipe.dataset))
        for recipe in collection.tasks
    )
    return [task.to(torch.device("cpu"), torch.float32) for task in made]


def is_there(
    collection: Collection, recipe: TaskRecipe, data: Path, parts: Path, settings: Settings
) -> bool:
    """Whether a task's part is there; one that was made otherwise is refused."""
    path = part_path(parts, collection, recipe.name)
    if not path.is_file():
        return False
    wanted, made = fingerprint(collection, recipe, data, settings), read_part(path).made
    for key, value in wanted.items():
        if made.get(key) != value:
            raise CollectError(
                f"{path}: was made with {key} = {made.get(key)}, and now it is {value}; "
                "remove it, or collect into another folder"
            )
    return True


def _share_diverged(part: Part) -> float:
    return float((~np.isfinite(part.valid_losses[:, -1])).mean())


Job = Callable[[], Group]


class _Run:
    """A task on its way: its groups, and the curves of those that are done."""

    def __init__(
        self, collection: Collection, recipe: TaskRecipe, data: Path, settings: Settings
    ) -> None:
        self.collection, self.recipe, self.data, self.settings = collection, recipe, data, settings
        shape = (settings.n_configs, settings.n_epochs + 1)
        self._curves = {
            name: np.full(shape, np.nan, dtype=np.float32)
            for name in ("train_losses", "valid_losses", "valid_accuracies")
        }
        self._n_left = settings.n_configs
        self._begun = 0.0

    @property
    def is_finished(self) -> bool:
        return self._n_left == 0

    def jobs(self) -> Iterator[Job]:
        """What makes each of the groups, when there is room for it."""
        self._begun = time.monotonic()
        recipe, settings = self.recipe, self.settings
        task = self.collection.make_task(recipe, load_dataset(self.data, recipe.dataset))
        task = task.to(torch.device(settings.device), torch.float32)
        configs = self.collection.draw(settings.n_configs, settings.seed)
        for members in self.collection.groups(configs, task):
            yield lambda members=members: self._group(members, configs, task)  # type: ignore[misc]

    def _group(self, members: list[int], configs: list[Params], task: Task) -> Group:
        own = [configs[n] for n in members]
        key = f"{self.collection.name} {self.recipe.name} {self.settings.seed} {members[0]}"
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:7], "big")
        generator = torch.Generator(self.settings.device).manual_seed(seed)
        stack = self.collection.stack(own, task, Initial(len(own), generator, torch.float32))
        recipes = [self.collection.recipe(params) for params in own]
        group = Group(stack, recipes, task, self.settings.n_epochs, generator)
        group.members = members
        group.begin()
        return group

    def take(self, group: Group) -> None:
        """Read a finished group."""
        for name, curves in self._curves.items():
            curves[group.members] = getattr(group, name).detach().cpu().numpy()
        self._n_left -= len(group.members)
        group.close()

    def part(self) -> Part:
        settings = self.settings
        return Part(
            **self._curves,
            made={
                **fingerprint(self.collection, self.recipe, self.data, settings),
                "date": time.strftime("%Y-%m-%d", time.gmtime()),
                "seconds": round(time.monotonic() - self._begun, 1),
                "device": device_name(settings),
                "torch": torch.__version__,
                "products": _products(settings),
            },
        )


def _run_groups(
    jobs: Iterable[tuple[_Run, Job]], at_once: int, say: Callable[[str], None]
) -> Iterator[_Run]:
    """Train groups, several at once, and yield a group's run whenever one is finished."""
    waiting = iter(jobs)
    active: list[tuple[_Run, Group]] = []
    exhausted = False
    reported = time.monotonic()
    while active or not exhausted:
        while not exhausted and len(active) < at_once:
            found = next(waiting, None)
            if found is None:
                exhausted = True
                break
            run, job = found
            active.append((run, job()))
        idle = True
        for run, group in list(active):
            if group.n_waiting >= EPOCHS_AHEAD:
                continue
            if group.n_begun < run.settings.n_epochs:
                group.train_epoch()
                idle = False
            elif not group.n_waiting:
                active.remove((run, group))
                run.take(group)
                idle = False
                if group.on_gpu:
                    torch.cuda.empty_cache()  # a stream keeps what it has had
                yield run
        if idle:
            time.sleep(0.0005)
        if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS and active:
            reported = time.monotonic()
            say("  " + ", ".join(_progress(active)))


def _progress(active: Sequence[tuple[_Run, Group]]) -> list[str]:
    """Return how far each task's slowest group is."""
    slowest: dict[str, int] = {}
    for run, group in active:
        name = run.recipe.name
        slowest[name] = min(slowest.get(name, group.n_begun), group.n_begun)
    return [f"{name} at epoch {epoch}" for name, epoch in slowest.items()]
