"""The time that ListOffsets asks for: a moment, or a place. On the wire both are one number; elsewhere two types."""

from __future__ import annotations

import enum
from typing import NewType, TypeAlias

from logstore.config import INT64_MAX

TimeMs = NewType("TimeMs", int)  # since 1970; below 0 before that


class SpecialTime(enum.Enum):
    """A place, and the number that stands for it on the wire. No IntEnum: it is never compared with a moment."""

    LATEST = -1
    EARLIEST = -2
    MAX_TIMESTAMP = -3
    EARLIEST_LOCAL = -4
    LATEST_TIERED = -5
    EARLIEST_PENDING_UPLOAD = -6


AskedTime: TypeAlias = TimeMs | SpecialTime


def to_wire(time: AskedTime) -> int:
    """Return the number for the wire.

    A moment before 1970 has none: it asks for the first record, so earlier ones may come, and none is passed over. A
    moment beyond 64 bits becomes the last one that the wire can carry.
    """
    if isinstance(time, SpecialTime):
        return time.value
    return SpecialTime.EARLIEST.value if time < 0 else min(time, INT64_MAX)


def from_wire(number: int) -> AskedTime | None:
    """Return the time or place that a number on the wire asks for; None: a place that is not known here."""
    if number >= 0:
        return TimeMs(number)
    return SpecialTime(number) if number in _PLACES else None


_PLACES = frozenset(place.value for place in SpecialTime)
