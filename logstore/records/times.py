"""Times that callers give: milliseconds since 1970, a datetime with a time zone, or a text of either.

A datetime without a zone is refused: it is a moment only for who knows which clock was read. Between two milliseconds
the later one counts, so that "the first record at or after" never finds one before. Lengths of time are texts, `15m`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from logstore.errors import InvalidRequestError

Time: TypeAlias = int | datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_UNITS_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
LENGTH = "a length of time like '500ms', '30s', '15m', '1h'"
ZONE_MISSING = (
    "a datetime needs a time zone: datetime.now(UTC), time.replace(tzinfo=UTC), or time.astimezone() if it is local"
)


def has_zone(time: datetime) -> bool:
    return time.utcoffset() is not None


def milliseconds(time: datetime, name: str) -> int:
    """Return the milliseconds since 1970, rounded up. Raises: InvalidRequestError: it has no time zone."""
    if not has_zone(time):
        raise InvalidRequestError(f"{name}={time.isoformat()}: {ZONE_MISSING}")
    return -((_EPOCH - time) // _MS)


def of_text(text: str) -> int | None:
    """Return the milliseconds of `1700000000000` or of an ISO time with a zone; None: it is neither."""
    if text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return milliseconds(time, "time") if has_zone(time) else None


def length_ms(text: str) -> int | None:
    """Return the milliseconds of a `LENGTH`, or of a number without a unit; None: it is neither."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    return int(match[1]) * _UNITS_MS[match[2]] if match and match[2] in _UNITS_MS else None
