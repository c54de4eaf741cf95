"""How steps are carried out: the seam between the tuning loop and what trains.

`freezethaw.trials.Trials` is the serial executor: it runs every step in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from freezethaw.records import Step
from freezethaw.trials import Report, TrialFailed

__all__ = ["Executor", "Report", "TrialFailed"]


class Executor(Protocol):
    """Trains trials step by step. `freezethaw.trials.Trials` documents each method."""

    def advance(self, step: Step, known_epochs: int) -> Iterator[Report]:
        """Train one trial to `step.to_epoch`, a report per epoch."""

    def replay_epochs(self, trial_id: int, known_epochs: int) -> int:
        """How many known epochs would have to be trained again before a new one."""

    def is_completed(self, trial_id: int) -> bool:
        """Whether the training function has returned by itself."""

    def keep_best(self, trial_id: int, epoch: int) -> None:
        """Say which trial and epoch are the best so far."""

    @property
    def can_save(self) -> bool:
        """Whether a trial of this study ever had a save hook."""

    def has_hook(self, trial_id: int) -> bool:
        """Whether the trial is in memory and can be saved."""

    def best_checkpoint(self, trial_id: int, epoch: int) -> Path | None:
        """Where the network of that epoch is on disk."""

    def drop(self, trial_id: int) -> None:
        """Let go of a trial that will not be trained further."""

    def finish(self, current_trial_id: int | None = None) -> None:
        """Save the current and the best trial, and let go of all."""

    def close(self) -> None:
        """Let go of everything without saving."""
