"""Where a reset puts the offset of a partition, and the forms in which it is asked for."""

from __future__ import annotations

import csv
import enum
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import NamedTuple

from logstore.errors import InvalidRequestError
from replication.model.cluster import TopicPartition

_DURATION = re.compile(
    r"P(?=[\dT])(?:(\d+)W)?(?:(\d+)D)?(?:T(?=\d)(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE
)
_UNITS_S = (7 * 86400, 86400, 3600, 60, 1)
_CSV = "the file needs a line for each partition: TOPIC,PARTITION,OFFSET"


class Place(enum.Enum):
    """The ways to give a new offset."""

    EARLIEST = enum.auto()
    LATEST = enum.auto()
    CURRENT = enum.auto()
    OFFSET = enum.auto()
    SHIFT = enum.auto()
    TIME = enum.auto()


class Reset(NamedTuple):
    """`value`: an offset, a number of offsets (may be negative), or a time in ms, as the place says."""

    place: Place
    value: int = 0


def new_offset(reset: Reset, committed: int | None, start: int, end: int, at_time: int | None) -> int:
    """The offset for a log of `[start, end)`: within it, or its end.

    `at_time` is that of the first record at or after the time, -1 if there is none. A missing offset counts as the end:
    that is where a group begins to read.

    Raises: InvalidRequestError: a shift of what was not committed.
    """
    match reset.place:
        case Place.EARLIEST:
            wanted = start
        case Place.LATEST:
            wanted = end
        case Place.CURRENT:
            wanted = end if committed is None else committed
        case Place.OFFSET:
            wanted = reset.value
        case Place.SHIFT:
            if committed is None:
                raise InvalidRequestError("a partition without a committed offset cannot be shifted")
            wanted = committed + reset.value
        case Place.TIME:
            wanted = end if at_time is None or at_time < 0 else at_time
    return min(max(wanted, start), end)


def time_of(text: str) -> int:
    """An ISO time, of UTC where it names no zone, in ms. Raises: InvalidRequestError."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequestError(f"{text!r} is no time such as 2026-11-23T16:00:00.000") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def duration_of(text: str) -> int:
    """An ISO duration in ms. Raises: InvalidRequestError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidRequestError(f"{text!r} is no duration such as P7D or PT1H30M")
    return round(1000 * sum(unit * Decimal(count or 0) for unit, count in zip(_UNITS_S, match.groups(), strict=True)))


def offsets_of(lines: Iterable[str]) -> dict[TopicPartition, int]:
    """Partitions and their offsets out of CSV, as `csv_of` makes it. Raises: InvalidRequestError."""
    found = {}
    for row in csv.reader(lines):
        if len(row) != 3 or not (row[1].isdecimal() and row[2].isdecimal()):
            raise InvalidRequestError(f"{','.join(row)!r}: {_CSV}")
        found[TopicPartition(row[0], int(row[1]))] = int(row[2])
    if not found:
        raise InvalidRequestError(_CSV)
    return found


def csv_of(plan: Iterable[Mapping[str, object]]) -> str:
    """The new offsets of a plan, a line for each partition."""
    return "".join(f"{row['topic']},{row['partition']},{row['new_offset']}\n" for row in plan)
