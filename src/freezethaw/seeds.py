"""Seeds that follow from the study's seed alone, the same on every machine and in every process."""

from __future__ import annotations

import hashlib


def trial_seed(study_seed: int, trial_id: int) -> int:
    """The 32-bit seed of one trial."""
    digest = hashlib.sha256(f"freezethaw trial {study_seed} {trial_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
