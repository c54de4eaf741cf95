"""What `tell` is given, read: numbers of any library, whole epochs, what JSON can hold."""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from typing import Any

from freezethaw.errors import TellError
from freezethaw.trial import as_number


def read_number(score: object) -> float | None:
    """A number of any kind as a float; None where it is none."""
    number = as_number(score)
    try:
        return None if number is None or isinstance(number, bool) else float(number)
    except OverflowError:
        return None


def read_extra(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What goes with a score, if JSON can hold it."""
    kept = dict(extra)
    try:
        json.dumps(kept)
    except (TypeError, ValueError) as error:
        raise TellError(
            f"extra={extra!r}: {error}; beside the score there may be numbers, texts, True, False, "
            "None, and lists and dicts of them"
        ) from None
    return kept


def read_epoch(epoch: object, trial_id: int) -> int:
    """A whole number, numpy's included."""
    try:
        if not isinstance(epoch, bool):
            return operator.index(epoch)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TellError(f"trial {trial_id}: epoch={epoch!r}; an epoch is a whole number") from None
