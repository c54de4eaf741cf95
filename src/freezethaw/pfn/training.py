"""Training of the network on the synthetic prior, by wall clock, resumable.

    python -m freezethaw.pfn.training --minutes 18 --out cfbo-nt.safetensors

Run again with the same `--out` after an interruption (or with `--pause-after`) and it goes on from
`<out>.resume.pt`, which is written every minute, where the schedule was. `--start-from` begins a
schedule of its own at the weights of an earlier run.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from freezethaw.errors import ExtrapolatorError
from freezethaw.pfn import weights
from freezethaw.pfn.episodes import Episode, make_episode
from freezethaw.pfn.model import CurveNetwork, Shape
from freezethaw.pfn.prior import Draws, sample_tasks

AVERAGE_OVER = 1500
"""Steps in the exponential moving average of the weights, which is what is kept."""

LOG_EVERY = 500
"""Steps."""
SAVE_EVERY = 60.0
"""Seconds: a killed run loses no more."""
COMPILE_MODE = "reduce-overhead"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one training run does."""

    shape: Shape = field(default_factory=Shape)
    minutes: float = 18.0
    tasks: int = 96
    configs: int = 128
    queries: int = 512
    learning_rate: float = 1.5e-3
    warm_up: float = 0.03
    weight_decay: float = 0.01
    seed: int = 0
    start_from: str | None = None
    """Weights to begin with, a shipped name or a file; None: random ones."""


class Source:
    """Draws one episode after another. On CUDA its few hundred small kernels are one graph."""

    def __init__(self, plan: Plan, generator: torch.Generator) -> None:
        self.plan, self.generator = plan, generator
        self._graph: torch.cuda.CUDAGraph | None = None
        self._episode: Episode

    def next(self) -> Episode:
        """The next episode; on CUDA it lies where the one before it lay."""
        if self.generator.device.type != "cuda":
            return self._draw()
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()
        return self._episode

    @torch.no_grad()
    def _draw(self) -> Episode:
        plan = self.plan
        drawn = sample_tasks(
            self.generator,
            tasks=plan.tasks,
            configs=plan.configs,
            epochs=plan.shape.max_epochs,
        )
        draw = Draws(self.generator)
        return make_episode(drawn, draw, context=plan.shape.max_context, queries=plan.queries)

    def _capture(self) -> None:
        state = self.generator.get_state()
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self._draw()
        torch.cuda.current_stream().wait_stream(aside)
        self.generator.set_state(state)
        self._graph = torch.cuda.CUDAGraph()
        self._graph.register_generator_state(self.generator)
        with torch.cuda.graph(self._graph):
            self._episode = self._draw()


class Trainer:
    """Network, its running average, optimizer and clock."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan, self.device = plan, device
        torch.manual_seed(plan.seed)
        self.network = _first_network(plan).to(device).requires_grad_(True).train()
        self.average = copy.deepcopy(self.network)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(),
            lr=plan.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=plan.weight_decay,
            fused=device.type == "cuda",
        )
        self.generator = torch.Generator(device).manual_seed(plan.seed)
        self.source = Source(plan, self.generator)
        self.steps, self.seconds = 0, 0.0
        self.loss: Callable[[Episode], Tensor] = self._loss
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            # The kernels are short: launched one by one they would wait for Python.
            self.loss = torch.compile(self._loss, dynamic=False, mode=COMPILE_MODE)

    def _loss(self, episode: Episode) -> Tensor:
        """Eq. 1: mean −log density of the queries, in nats."""
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            memory = self.network.remember(
                episode.points, episode.scores, episode.max_epochs, episode.padding
            )
            logits = self.network.forecast(memory, episode.queries, episode.own, episode.max_epochs)
        bins = self.plan.shape.bins
        target = (episode.target * bins).long().clamp(0, bins - 1)
        return F.cross_entropy(logits.float().flatten(0, 1), target.flatten()) - math.log(bins)

    def step(self) -> Tensor:
        """One optimizer step; returns the loss without waiting for it."""
        plan = self.plan
        done = min(1.0, self.seconds / (60 * plan.minutes))
        rate = min(1.0, done / plan.warm_up) * 0.5 * (1 + math.cos(math.pi * done))
        for group in self.optimizer.param_groups:
            group["lr"] = plan.learning_rate * rate + 1e-7
        # Before the loss: a replayed graph writes gradients where the last ones lay.
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.source.next())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.steps += 1
        share = max(1.0 / AVERAGE_OVER, 1.0 / self.steps)
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.parameters()), list(self.network.parameters()), share
            )
        return loss.detach().clone()

    def run(
        self,
        pause_after: float,
        log: Callable[[dict[str, float]], None],
        save: Callable[[], None] = lambda: None,
    ) -> bool:
        """Train until the plan's minutes are over (True) or for `pause_after` minutes (False)."""
        self.step()  # compiles, which is not training time
        began, before = time.monotonic(), self.seconds
        recent: list[Tensor] = []
        logged, saved = self.steps, before
        while self.seconds < 60 * self.plan.minutes:
            recent.append(self.step())
            if len(recent) == 50:  # .item() waits for the device: seldom
                loss = torch.stack(recent).mean().item()
                recent.clear()
                self.seconds = before + time.monotonic() - began
                if self.steps >= logged + LOG_EVERY:
                    logged = self.steps
                    log({"step": self.steps, "seconds": round(self.seconds, 1), "nll": loss})
                if self.seconds - before > 60 * pause_after:
                    return False
                if self.seconds > saved + SAVE_EVERY:
                    saved = self.seconds
                    save()
        return True

    def save_state(self, path: Path) -> None:
        """Everything needed to go on; whole at every moment, so that it can be killed at any."""
        pending = path.with_name(f"{path.name}.tmp")
        torch.save(
            {
                "network": self.network.state_dict(),
                "average": self.average.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "generator": self.generator.get_state(),
                "steps": self.steps,
                "seconds": self.seconds,
            },
            pending,
        )
        pending.replace(path)

    def load_state(self, path: Path) -> None:
        """Go on from a state of our own (tensors and numbers only)."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"].cpu())
        self.steps, self.seconds = state["steps"], state["seconds"]


def _first_network(plan: Plan) -> CurveNetwork:
    if plan.start_from is None:
        return CurveNetwork(plan.shape)
    network = weights.load(weights.find(plan.start_from))
    if network.shape != plan.shape:
        raise ExtrapolatorError(
            f"weights {plan.start_from!r} have {network.shape}, the plan has {plan.shape}; "
            "training can only go on with a network of the same shape"
        )
    return network


def train(plan: Plan, out: Path, *, pause_after: float = math.inf, device: str = "auto") -> bool:
    """Train, write `out` and its log `<out>.log.jsonl`; True when the plan is finished."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    trainer = Trainer(plan, torch.device(device))
    state = out.with_suffix(".resume.pt")
    if state.exists():
        trainer.load_state(state)
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.with_suffix(".log.jsonl").open("a") as file:

        def log(row: dict[str, float]) -> None:
            line = json.dumps(row)
            print(line, flush=True)
            file.write(line + "\n")
            file.flush()

        def save() -> None:
            trainer.save_state(state)
            about = {key: value for key, value in asdict(plan).items() if key != "shape"}
            weights.save(
                out,
                trainer.average,
                steps=trainer.steps,
                seconds=round(trainer.seconds),
                plan=about,
            )

        finished = trainer.run(pause_after, log, save)
        save()
    if finished:
        state.unlink()
    return finished


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="weights file to write")
    parser.add_argument("--minutes", type=float, default=Plan.minutes, help="wall-clock length")
    parser.add_argument("--pause-after", type=float, default=math.inf, help="stop after, resumable")
    parser.add_argument("--start-from", help="weights to begin with: a shipped name or a file")
    parser.add_argument("--tasks", type=int, default=Plan.tasks, help="tasks per step")
    parser.add_argument("--width", type=int, default=Shape.width)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--learning-rate", type=float, default=Plan.learning_rate)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    shape = Shape(
        width=given.width, layers=given.layers, hidden=2 * given.width, heads=given.width // 32
    )
    plan = Plan(
        shape=shape,
        minutes=given.minutes,
        tasks=given.tasks,
        learning_rate=given.learning_rate,
        seed=given.seed,
        start_from=given.start_from,
    )
    done = train(plan, given.out, pause_after=given.pause_after, device=given.device)
    print("finished" if done else f"paused; run again to go on from {given.out}")


if __name__ == "__main__":
    main()
