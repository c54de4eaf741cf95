"""Numbers as people read them: amounts, shares, scores, parameters.

The text is ASCII, so that it survives any terminal; a page sets it with `typeset`.
"""

from __future__ import annotations

import math
import re

from freezethaw.records import Params, ParamValue, Unit


def number(value: float, digits: int = 4) -> str:
    """A number to `digits` significant digits: 0.9812, 12,340, 5e34, -3.2e-7, NaN, inf."""
    value = float(value)
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if -4 <= power < 6:
        text = f"{float(f'{mantissa}e{power}'):,.{max(digits - 1 - power, 0)}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{power}"


def typeset(text: str) -> str:
    """With true minus signs before numbers, for a page; exponents and dates are left alone."""
    return re.sub(r"(?<![\w.-])-(?=[$<]?\.?\d|inf)", "−", text)


def signed(value: float, digits: int = 2) -> str:
    """A change, with its sign: +0.012."""
    return ("+" if value > 0 else "") + number(value, digits)


def percent(share: float, digits: int = 2) -> str:
    """A share of one as per cent, never rounded to certainty: 4%, 0.4%, 99.7%, <0.1%, >99.9%."""
    if not math.isfinite(share):
        return "?%"
    if share <= 0 or share >= 1:
        return f"{100 * share:.0f}%"
    if share < 0.001:
        return "<0.1%"
    if share > 0.999:
        return ">99.9%"
    if share > 0.99:
        return f"{min(100 * share, 99.9):.1f}%"
    return f"{number(100 * share, digits)}%"


def two_percents(a: float, b: float) -> tuple[str, str]:
    """Two shares with as many digits as it takes to tell them apart."""
    for digits in (2, 3, 4):
        pair = percent(a, digits), percent(b, digits)
        if pair[0] != pair[1] or a == b:
            break
    return pair


def count(n: float, noun: str, plural: str | None = None) -> str:
    """1 epoch, 2 epochs, 10,000 epochs, 2.5 epochs."""
    text = f"{n:,.0f}" if math.isfinite(n) and abs(n - round(n)) < 1e-9 else number(n, 3)
    return f"{text} {noun if text == '1' else plural or noun + 's'}"


def duration(seconds: float) -> str:
    """0.35 s, 42 s, 3 min 20 s, 1 h 12 min, 3 d 4 h: two units at most."""
    if not math.isfinite(seconds):
        return "unlimited" if seconds > 0 else "? s"
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 59.5:
        return f"{number(seconds, 2)} s" if seconds >= 0.0005 else "0 s"
    if (whole := round(seconds)) < 3600:
        return _two(whole // 60, "min", whole % 60, "s")
    if (minutes := round(seconds / 60)) < 48 * 60:
        return _two(minutes // 60, "h", minutes % 60, "min")
    hours = round(seconds / 3600)
    return _two(hours // 24, "d", hours % 24, "h")


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    text = f"{large:,} {large_unit}"
    return f"{text} {small} {small_unit}" if small else text


def money(value: float) -> str:
    """$20, $4.20, $0.032, $1,234."""
    if not math.isfinite(value):
        return "unlimited" if value > 0 else "$?"
    if value < 0:
        return "-" + money(-value)
    if value == 0:
        return "$0"
    if value < 0.0001:
        return "<$0.0001"
    if value < 0.0995:
        return f"${number(value, 2)}"
    text = f"{value:,.0f}" if value >= 999.5 else f"{value:,.2f}"
    return "$" + text.removesuffix(".00")


def amount(value: float, unit: Unit) -> str:
    """A cost in the study's unit: 5 epochs, 3 min 20 s, $4.20."""
    if unit == "seconds":
        return duration(value)
    return money(value) if unit == "money" else count(value, "epoch")


def of_budget(spent: float, budget: float, unit: Unit) -> str:
    """143 of 300 epochs; 12 min of 3 h; $4.20 of $20."""
    if unit == "epochs":
        return f"{count(spent, 'epoch').split(' ')[0]} of {count(budget, 'epoch')}"
    return f"{amount(spent, unit)} of {amount(budget, unit)}"


def printable(text: str) -> str:
    """One line without control characters: a name from a file must not steer the terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def param(value: ParamValue) -> str:
    """One hyperparameter's value; floats to three digits."""
    if isinstance(value, float):
        return number(value, 3).replace(",", "")
    return printable(str(value))


def params(values: Params, width: int | None = None) -> str:
    """lr=0.0031 width=128 optimizer=adam, cut after the last whole one that fits."""
    parts = [f"{printable(name)}={param(value)}" for name, value in values.items()]
    text = " ".join(" ".join(part.split()) for part in parts)
    if width is None or len(text) <= width:
        return text
    cut = text[: max(width - 3, 0) + 1].rsplit(" ", 1)[0]
    return cut[: max(width - 4, 0)] + " ..." if width > 4 else ""


def chance(share: float) -> str:
    """A chance with its article: "a 4% chance", "an 8% chance", "no chance"."""
    if share <= 0:
        return "no chance"
    if math.isnan(share):
        return "an unknown chance"
    text = percent(share)
    if text.startswith("<"):
        return f"less than a {text[1:]} chance"
    if text.startswith(">"):
        return f"more than a {text[1:]} chance"
    whole = text.rstrip("%").split(".")[0]
    # What is spoken with a vowel first: eight, eleven, eighteen, eighty.
    an = whole in {"8", "11", "18"} or (len(whole) == 2 and whole[0] == "8")
    return f"{'an' if an else 'a'} {text} chance"
