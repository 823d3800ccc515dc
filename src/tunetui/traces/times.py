"""Moments as recordings write them, read as seconds since 1970 UTC.

It reads no dates without a year (`vllm_log` does).
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from tunetui.traces.lines import BrokenLine

_EPOCH_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))  # above the first: nano-, micro-, milliseconds
_CLF = re.compile(r"\d{1,2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4}")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def moment_s(value: object, name: str = "the time") -> float:
    """Seconds since 1970 of ISO 8601 text (UTC unless it says otherwise), of an access log's 02/Dec/2026:09:10:11
    +0000, or of a number: seconds, or milli-, micro- or nanoseconds where it is too large for them.

    Raises BrokenLine naming it.
    """
    if value is None or value == "":
        raise BrokenLine(f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BrokenLine(f"{name} is not a time")
    if isinstance(value, str) and ("-" in value[1:] or "/" in value) and "e-" not in value:
        return iso_s(value, name)
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise BrokenLine(f"{name} is not a time") from None
    if not math.isfinite(number):
        raise BrokenLine(f"{name} is not a number")
    return next((number / unit for above, unit in _EPOCH_UNITS if abs(number) > above), number)


def iso_s(text: str, name: str = "the time") -> float:
    """Seconds since 1970 of a date and time in text; UTC where it has no zone. Raises BrokenLine naming it."""
    try:
        moment = _clf(text) if _CLF.fullmatch(text) else datetime.fromisoformat(text)
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise BrokenLine(f"{name} is not a time") from None
    if seconds < 0:
        raise BrokenLine(f"{name} is before 1970")
    return seconds


def _clf(text: str) -> datetime:
    """By hand: strptime reads the names of months in the language of this machine."""
    day, month, rest = text.split("/")
    year, hour, minute, second = rest.split(" ")[0].split(":")
    zone = text[-5:-2] + ":" + text[-2:]
    return datetime.fromisoformat(f"{year}-{_MONTHS.index(month) + 1:02}-{int(day):02}T{hour}:{minute}:{second}{zone}")
