"""Amounts as people write them: "1% accuracy", "$20", "90min", "$2.5/h". `wording` writes them."""

from __future__ import annotations

import math
import re

from freezethaw.errors import UtilityError
from freezethaw.records import Unit

# "1,000" is a thousand, as `wording` writes it, and "1,5" is one and a half.
_THOUSANDS = r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?:[.][0-9]+)?"
_NUMBER = rf"({_THOUSANDS}|[0-9]+(?:[.,][0-9]+)?(?:e[-+]?[0-9]+)?|[.][0-9]+)"
_TIMES = {"s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0, "minute": 60.0,
          "h": 3600.0, "hr": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0}  # fmt: skip
_CURRENCIES = "$€£¥"


def parse_gain(gain: str | float) -> tuple[float, bool]:
    """'1% accuracy' → (0.01, relative to the range), '0.02 loss' → (0.02, absolute)."""
    if not isinstance(gain, str):
        return float(gain), False
    text = gain.strip().lower()
    match = re.fullmatch(rf"{_NUMBER}(?:\s*(%|percent\b))?(?!\s*[\d.,%]).*", text)
    if match is None:
        raise UtilityError(f"gain {gain!r}: write a percentage or a number, as in '1% accuracy'")
    number = _number(match[1])
    return (number / 100, True) if match[2] else (number, False)


def parse_cost(cost: str | float) -> tuple[float, Unit]:
    """'$20' → money, '2h' → seconds, '30 epochs' or a bare number → epochs."""
    if not isinstance(cost, str):
        return float(cost), "epochs"
    text = cost.strip().lower()
    if match := re.fullmatch(rf"[{_CURRENCIES}]\s*{_NUMBER}|{_NUMBER}\s*[{_CURRENCIES}]", text):
        return _number(match[1] or match[2]), "money"
    if match := re.fullmatch(rf"{_NUMBER}\s*epochs?", text):
        return _number(match[1]), "epochs"
    try:
        return parse_seconds(cost), "seconds"
    except UtilityError:
        raise UtilityError(
            f"cost {cost!r}: write money ('$20'), time ('90min', '2h', '1d') or '30 epochs'"
        ) from None


def parse_seconds(time: str | float) -> float:
    """'90s', '90min', '2h', '1.5d', '1h30min' → seconds; a number is seconds."""
    if not isinstance(time, str):
        seconds = float(time)
    else:
        text = time.strip().lower()
        part = rf"{_NUMBER}\s*([a-z]+)\s*"
        if not re.fullmatch(rf"(?:{part})+", text):
            raise UtilityError(f"time {time!r}: write it as '90s', '90min', '2h' or '1h30min'")
        seconds = sum(_number(n) * _seconds_in(unit, time) for n, unit in re.findall(part, text))
    if not (math.isfinite(seconds) and seconds >= 0):
        raise UtilityError(f"time {time!r}: must be 0 or more, and finite")
    return seconds


def parse_rate(rate: str | float | None) -> float | None:
    """'$2.5/h' → 2.5; a number is the price of an hour."""
    if rate is None or not isinstance(rate, str):
        return None if rate is None else float(rate)
    match = re.fullmatch(
        rf"[{_CURRENCIES}]?\s*{_NUMBER}\s*[{_CURRENCIES}]?\s*(?:/|per\s)\s*([a-z]+)",
        rate.strip().lower(),
    )
    if match is None:
        raise UtilityError(f"rate {rate!r}: write the price of a time, as in '$2.5/h'")
    return _number(match[1]) * 3600 / _seconds_in(match[2], rate)


def _number(text: str) -> float:
    thousands = re.fullmatch(_THOUSANDS, text)
    return float(text.replace(",", "" if thousands else "."))


def _seconds_in(unit: str, whole: str) -> float:
    """One minute, or several: 'min' and 'mins' are the same, 'ms' is no plural of 'm'."""
    singular = unit.removesuffix("s") if len(unit) > 2 else unit
    if singular not in _TIMES:
        raise UtilityError(f"{whole!r}: {unit!r} is no time; use s, min, h or d")
    return _TIMES[singular]
