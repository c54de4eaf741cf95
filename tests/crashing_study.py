"""A study that runs in a process of its own, to be killed: `python crashing_study.py DB POLICY`.

The network, its data and its training are real and deterministic, costs are in epochs, decisions
are the shipped extrapolator's. It prints a line when it begins and one after every durable epoch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import freezethaw as ft
from freezethaw.live import QuietView
from freezethaw.report.view import StudyView

SPACE = {
    "lr": ft.Float(1e-3, 3.0, log=True),
    "width": ft.Int(2, 16, log=True),
    "optimizer": ft.Choice(["sgd", "adam"]),
    "momentum": ft.Float(0.0, 0.95, when={"optimizer": "sgd"}),
}
MAX_EPOCHS = 8
BUDGET = 30


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Two interleaved half moons."""
    angle = torch.linspace(0, math.pi, 60)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    lower = torch.stack([1 - angle.cos(), 0.4 - angle.sin()], 1)
    return torch.cat([upper, lower]), torch.cat([torch.zeros(60), torch.ones(60)])


class Net(nn.Module):
    """A small network with its optimizer."""

    def __init__(self, lr: float, width: int, optimizer: str, momentum: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1)
        )
        kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
        more = {} if optimizer == "adam" else {"momentum": momentum}
        self.optimizer = kind(self.parameters(), lr=lr, **more)

    def fit_one_epoch(self) -> None:
        x, y = data()
        self.train()
        for rows in torch.randperm(len(x)).split(30):
            self.optimizer.zero_grad()
            loss = nn.functional.binary_cross_entropy_with_logits(
                self.layers(x[rows])[:, 0], y[rows]
            )
            loss.backward()
            self.optimizer.step()

    def fit(self) -> float:
        """How likely the labels are, as a smooth score in [0, 1]."""
        x, y = data()
        self.eval()
        with torch.no_grad():
            return torch.sigmoid((2 * y - 1) * self.layers(x)[:, 0]).mean().item()


def train(trial: ft.Trial) -> Iterator[float]:
    net = Net(**trial.params)

    def save(folder: Path) -> None:
        torch.save([net.state_dict(), net.optimizer.state_dict()], folder / "net.pt")

    trial.on_freeze(save)
    if trial.checkpoint:
        load(net, trial.checkpoint)
    for _ in trial.epochs():
        net.fit_one_epoch()
        yield net.fit()


def load(net: Net, folder: Path) -> None:
    weights, moments = torch.load(folder / "net.pt")
    net.load_state_dict(weights)
    net.optimizer.load_state_dict(moments)


class TellingView(QuietView):
    """Says which epochs are durable."""

    def epoch(self, view: StudyView, trial_id: int, epoch: int, score: float) -> None:
        print("told", trial_id, epoch, repr(score), flush=True)


def run(path: str, policy: str) -> ft.Result:
    torch.set_num_threads(1)
    print("begins", flush=True)
    return ft.tune(
        train,
        SPACE,
        max_epochs=MAX_EPOCHS,
        bounds=(0, 1),
        initial=0.5,
        utility=ft.linear(alpha=0.02, budget=BUDGET),
        pool_size=16,
        storage=path,
        seed=3,
        checkpoint=policy,
        stopping=ft.stopping.fixed(0.9),
        epochs_per_decision=1,
        view=TellingView(),
    )


if __name__ == "__main__":
    result = run(sys.argv[1], sys.argv[2])
    print("ends", result.stop.kind.value, flush=True)
