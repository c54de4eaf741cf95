"""freezethaw: hyperparameter tuning that knows what a result is worth to you.

    result = ft.tune(train, space, max_epochs=50, bounds=(0, 1),
                     utility=ft.linear(alpha=0.1, budget=300), storage="study.db")

Public names are imported when they are first used: `import freezethaw` does not load torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from freezethaw import stopping, utility
    from freezethaw.errors import FreezeThawError
    from freezethaw.loop import tune
    from freezethaw.records import Result, Step, Stop, StopReason
    from freezethaw.space import Choice, Float, Int
    from freezethaw.study import Study
    from freezethaw.trial import Trial
    from freezethaw.utility import (
        custom,
        hard_budget,
        linear,
        mix,
        power,
        quadratic,
        square_root,
        staircase,
        worth,
    )

__all__ = [
    "Choice",
    "Float",
    "FreezeThawError",
    "Int",
    "Result",
    "Step",
    "Stop",
    "StopReason",
    "Study",
    "Trial",
    "custom",
    "hard_budget",
    "linear",
    "mix",
    "power",
    "quadratic",
    "square_root",
    "staircase",
    "stopping",
    "tune",
    "utility",
    "worth",
]

_HOMES = {
    "errors": ["FreezeThawError"],
    "loop": ["tune"],
    "records": ["Result", "Step", "Stop", "StopReason"],
    "space": ["Choice", "Float", "Int"],
    "study": ["Study"],
    "trial": ["Trial"],
    "utility": [
        "custom",
        "hard_budget",
        "linear",
        "mix",
        "power",
        "quadratic",
        "square_root",
        "staircase",
        "worth",
    ],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("stopping", "utility")


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name == "__version__":
        from importlib.metadata import version

        return version("freezethaw")
    if name in _MODULES:
        return importlib.import_module(f"freezethaw.{name}")
    if name in _HOME_OF:
        value = getattr(importlib.import_module(f"freezethaw.{_HOME_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'freezethaw' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
