"""`freezethaw demo`: a small real network, tuned on scikit-learn's handwritten digits.

Read `train` below: it is an ordinary PyTorch loop with a `yield` after every epoch.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freezethaw import report
from freezethaw.errors import ConfigError
from freezethaw.loop import tune
from freezethaw.records import Result, StopReason
from freezethaw.space import Choice, Float, Int, Parameter
from freezethaw.storage import DEFAULT_NAME, checkpoint_folder
from freezethaw.study import Study
from freezethaw.trial import Trial
from freezethaw.utility import linear
from freezethaw.views import view_of

if TYPE_CHECKING:
    import torch

SPACE: dict[str, Parameter] = {
    "lr": Float(1e-4, 1.0, log=True),
    "batch_size": Int(16, 256, log=True),
    "channels": Int(4, 24, log=True),
    "dropout": Float(0.0, 0.7),
    "weight_decay": Float(1e-6, 1e-1, log=True),
    "optimizer": Choice(["sgd", "adam"]),
    "momentum": Float(0.0, 0.99, when={"optimizer": "sgd"}),
}
MAX_EPOCHS = 30
# 180 epochs are worth as much as 15 points of accuracy: an epoch must bring 0.08 points.
UTILITY = linear(alpha=0.15, budget=180)


def train(trial: Trial) -> Iterator[float]:
    """Train one network; its validation accuracy after every epoch."""
    import torch
    from torch import nn

    x, y, x_valid, y_valid = digits()
    params: dict[str, Any] = trial.params
    net = network(params["channels"], params["dropout"])
    optimizer = make_optimizer(net, params)

    def save(folder: Path) -> None:
        torch.save([net.state_dict(), optimizer.state_dict()], folder / "state.pt")

    trial.on_freeze(save)
    if trial.checkpoint:
        weights, moments = torch.load(trial.checkpoint / "state.pt")
        net.load_state_dict(weights)
        optimizer.load_state_dict(moments)
    for _epoch in trial.epochs():
        net.train()
        for batch in torch.randperm(len(x)).split(params["batch_size"]):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(jitter(x[batch])), y[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        net.eval()
        with torch.no_grad():
            yield (net(x_valid).argmax(1) == y_valid).float().mean().item()


@lru_cache(maxsize=1)
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training and validation images [n, 1, 8, 8] and labels."""
    import torch

    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ConfigError(
            "the demo needs scikit-learn for its data: pip install 'freezethaw[demo]'"
        ) from None
    images, labels = load_digits(return_X_y=True)
    x = torch.as_tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    y = torch.as_tensor(labels)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    learn, check = order[:1200], order[1200:]
    return x[learn], y[learn], x[check], y[check]


def network(channels: int, dropout: float) -> torch.nn.Module:
    """Two convolutions and a linear layer."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, channels, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * channels * 16, 10),
    )


def make_optimizer(net: torch.nn.Module, params: dict[str, Any]) -> torch.optim.Optimizer:
    """SGD with momentum, or Adam."""
    import torch

    settings = {"lr": params["lr"], "weight_decay": params["weight_decay"]}
    if params["optimizer"] == "adam":
        return torch.optim.AdamW(net.parameters(), **settings)
    return torch.optim.SGD(net.parameters(), momentum=params["momentum"], **settings)


def jitter(images: torch.Tensor) -> torch.Tensor:
    """Shift each batch by up to a pixel and add noise: there are only 1,200 images."""
    import torch

    across, down = torch.randint(-1, 2, (2,)).tolist()
    shifted = torch.roll(images, (down, across), dims=(2, 3))
    return shifted + 0.3 * torch.randn_like(shifted)


def run_demo(folder: Path, *, seed: int, fresh: bool, quiet: bool) -> Result:
    """Tune, write the report, and say what to write next."""
    digits()  # fail before anything is shown
    storage, page = folder / "study.db", folder / "report.html"
    if fresh:
        _remove(storage, page)
    folder.mkdir(parents=True, exist_ok=True)
    result = tune(
        train,
        SPACE,
        max_epochs=MAX_EPOCHS,
        bounds=(0, 1),
        initial=0.1,
        metric="accuracy",
        utility=UTILITY,
        # Epochs take a tenth of a second here; left to itself, the tuner would decide less often.
        epochs_per_decision=1,
        storage=storage,
        seed=seed,
        quiet=quiet,
    )
    with Study.open(storage) as study:
        page.write_text(report.html(view_of(study)), encoding="utf-8")
    print(_closing(result, storage, page), file=sys.stdout)
    return result


def _remove(storage: Path, page: Path) -> None:
    """The files of an earlier demo, and nothing else that may lie in the folder."""
    for path in (storage, Path(f"{storage}-wal"), Path(f"{storage}-shm"), page):
        path.unlink(missing_ok=True)
    shutil.rmtree(checkpoint_folder(storage, DEFAULT_NAME), ignore_errors=True)


def _closing(result: Result, storage: Path, page: Path) -> str:
    best = result.best
    if result.stop.kind is StopReason.INTERRUPTED:
        return f"""
Report so far: {page}
The same command goes on from here; with --fresh it begins again."""
    where = best.checkpoint / "state.pt" if best and best.checkpoint else "none"
    return f"""
Report: {page}
Best model: {where}
The last decision explained: freezethaw why {storage}

Your own network is next. End its epoch loop with `yield score`, then:

    import freezethaw as ft
    result = ft.tune(train, space, max_epochs=30, bounds=(0, 1), initial=0.1,
                     utility=ft.linear(alpha=0.15, budget=180), storage="study.db")"""
