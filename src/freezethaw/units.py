"""Amounts as people write and read them: "1% accuracy", "$20", "90min", "$2.5/h", "143 epochs"."""

from __future__ import annotations

import math
import re

from freezethaw.errors import UtilityError
from freezethaw.records import Unit

_NUMBER = r"([0-9]+(?:[.,][0-9]+)?(?:[eE][-+]?[0-9]+)?|[.][0-9]+)"
_TIMES = {"s": 1.0, "sec": 1.0, "second": 1.0, "min": 60.0, "m": 60.0, "minute": 60.0,
          "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0}  # fmt: skip
_CURRENCIES = "$€£¥"


def parse_gain(gain: str | float) -> tuple[float, bool]:
    """'1% accuracy' → (0.01, relative to the range), '0.02 loss' → (0.02, absolute)."""
    if isinstance(gain, int | float):
        return float(gain), False
    match = re.fullmatch(rf"\s*{_NUMBER}\s*(%?)[^0-9%]*", gain)
    if match is None:
        raise UtilityError(f"gain {gain!r}: write a percentage or a number, as in '1% accuracy'")
    number = float(match[1].replace(",", "."))
    return (number / 100, True) if match[2] else (number, False)


def parse_cost(cost: str | float) -> tuple[float, Unit]:
    """'$20' → money, '2h' → seconds, '30 epochs' or a bare number → epochs."""
    if isinstance(cost, int | float):
        return float(cost), "epochs"
    text = cost.strip()
    if match := re.fullmatch(rf"[{_CURRENCIES}]\s*{_NUMBER}|{_NUMBER}\s*[{_CURRENCIES}]", text):
        return float((match[1] or match[2]).replace(",", ".")), "money"
    if match := re.fullmatch(rf"{_NUMBER}\s*epochs?", text):
        return float(match[1].replace(",", ".")), "epochs"
    try:
        return parse_seconds(text), "seconds"
    except UtilityError:
        raise UtilityError(
            f"cost {cost!r}: write money ('$20'), time ('90min', '2h', '1d') or '30 epochs'"
        ) from None


def parse_seconds(time: str | float) -> float:
    """'90s', '90min', '2h', '1.5d', '1h30min' → seconds; a number is seconds."""
    if isinstance(time, int | float):
        seconds = float(time)
    else:
        parts = re.findall(rf"{_NUMBER}\s*([a-z]+)\s*", time.strip())
        rest = re.sub(rf"{_NUMBER}\s*[a-z]+\s*", "", time.strip())
        known = [unit.rstrip("s") or unit for _, unit in parts]
        if not parts or rest or any(unit not in _TIMES for unit in known):
            raise UtilityError(f"time {time!r}: write it as '90s', '90min', '2h' or '1h30min'")
        seconds = sum(
            float(number.replace(",", ".")) * _TIMES[unit]
            for (number, _), unit in zip(parts, known, strict=True)
        )
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UtilityError(f"time {time!r}: must be 0 or more")
    return seconds


def parse_rate(rate: str | float | None) -> float | None:
    """'$2.5/h' → 2.5; a number is the price of an hour."""
    if rate is None or isinstance(rate, int | float):
        return None if rate is None else float(rate)
    match = re.fullmatch(
        rf"\s*[{_CURRENCIES}]?\s*{_NUMBER}\s*[{_CURRENCIES}]?\s*/\s*([a-z]+)\s*", rate
    )
    unit = match[2].rstrip("s") if match else ""
    if match is None or unit not in _TIMES:
        raise UtilityError(f"rate {rate!r}: write the price of a time, as in '$2.5/h'")
    return float(match[1].replace(",", ".")) * 3600 / _TIMES[unit]


def amount(value: float, unit: Unit) -> str:
    """A cost for people: '143 epochs', '2.5 h', '$12.40'."""
    if unit == "money":
        return f"${value:,.2f}"
    if unit == "epochs":
        return (
            f"{value:,.4g} epoch{'' if value == 1 else 's'}"
            if value < 1e4
            else f"{value:,.0f} epochs"
        )
    for size, name in ((3600, "h"), (60, "min")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g} s"
