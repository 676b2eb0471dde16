"""The `state-change.log` files of several brokers as one: in the order of time, and what they say of a partition.

The files are those of Kafka 0.9 and of pylog. A line without a time belongs to the one above.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from logstore.errors import InvalidRequestError

TIME = "%Y-%m-%d %H:%M:%S,%f"
_TIME_CHARS = 25  # with its brackets
_LINE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] (\w+) ")
_PARTITION = re.compile(r"\[([^\],]+),(\d+)\]|for partition ([\w.-]+)-(\d+)")
# A line of a request from the controller to brokers: it is decided then.
_SENT = re.compile(r"Controller \d+ epoch (\d+) sending .*\(Leader:(-?\d+),ISR:([\d,]*),LeaderEpoch:(\d+),")


class Entry(NamedTuple):
    """A line with those that belong to it. Entries are ordered by time; `time` is as the file has it."""

    time: str
    level: str
    text: str

    @property
    def partition(self) -> tuple[str, int] | None:
        """The first partition that the line names."""
        found = _PARTITION.search(self.text, _TIME_CHARS)
        if found is None:
            return None
        return (found[1], int(found[2])) if found[1] is not None else (found[3], int(found[4]))


class Period(NamedTuple):
    """The leader of a partition from `time` on, and its ISR. `leader` -1: none."""

    time: str
    leader: int
    isr: tuple[int, ...]
    leader_epoch: int
    controller_epoch: int


def time_of(text: str) -> str:
    """A time as the files have it, out of that form or an ISO time. Raises: InvalidRequestError."""
    try:
        time = datetime.strptime(text, TIME) if "," in text else datetime.fromisoformat(text)  # noqa: DTZ007
    except ValueError:
        raise InvalidRequestError(f"{text!r} is no time such as '2026-11-23 16:00:00,000'") from None
    return f"{time:%Y-%m-%d %H:%M:%S},{time.microsecond // 1000:03d}"


def entries(lines: Iterable[str]) -> Iterator[Entry]:
    """The entries of one file, in its order; what is before the first time is left out."""
    head: re.Match[str] | None = None
    texts: list[str] = []
    for line in lines:
        if (found := _LINE.match(line)) is not None:
            if head is not None:
                yield Entry(head[1], head[2], "\n".join(texts))
            head, texts = found, []
        texts.append(line.rstrip("\n"))
    if head is not None:
        yield Entry(head[1], head[2], "\n".join(texts))


def merged(
    files: Iterable[Iterable[str]],
    *,
    topic: str | None = None,
    partitions: Collection[int] | None = None,
    start: str = "",
    end: str = "~",
) -> Iterator[Entry]:
    """The entries of all files by time, of this topic and its partitions, with start <= time <= end.

    Each file is read once, from its begin on. Entries of one time are in the order of the files.
    """
    for entry in heapq.merge(*map(entries, files), key=lambda entry: entry.time):
        if start <= entry.time <= end and _is_wanted(entry, topic, partitions):
            yield entry


def _is_wanted(entry: Entry, topic: str | None, partitions: Collection[int] | None) -> bool:
    if topic is None:
        return True
    found = entry.partition
    return found is not None and found[0] == topic and (partitions is None or found[1] in partitions)


def timeline(found: Iterable[Entry]) -> dict[tuple[str, int], list[Period]]:
    """Leader and ISR of each partition over time, as controllers sent them; a period begins where they change."""
    periods: dict[tuple[str, int], list[Period]] = {}
    for entry in found:
        sent, tp = _SENT.search(entry.text), entry.partition
        if sent is None or tp is None:
            continue
        isr = tuple(int(broker) for broker in sent[3].split(",") if broker)
        period = Period(entry.time, int(sent[2]), isr, int(sent[4]), int(sent[1]))
        rows = periods.setdefault(tp, [])
        if not rows or rows[-1][1:4] != period[1:4]:
            rows.append(period)
    return dict(sorted(periods.items()))


def drawn(rows: Iterable[Period], brokers: Collection[int]) -> Iterator[str]:
    """A line for each period, with a column for each broker: ● leads, ○ is in sync, · is not."""
    for row in rows:
        marks = ("●" if broker == row.leader else "○" if broker in row.isr else "·" for broker in sorted(brokers))
        cells = "".join(mark.rjust(len(str(broker)) + 1) for mark, broker in zip(marks, sorted(brokers), strict=True))
        yield f"{row.time} {cells}  epoch {row.leader_epoch}"
