"""The promises to producers in transactions and to groups, whoever fails: client, coordinator or leader.

A reader of committed data sees the numbers of a transaction all or not at all, each once; those of an acknowledged
commit, and of none that was not asked to commit. A producer that was fenced before it asked appends and ends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from logstore.records.batch import Record
from replication.client.transactions import Pair
from replication.model.cluster import TopicPartition


@dataclass
class Attempt:
    """One transaction, as its writer knows it."""

    number: int
    pair: Pair
    rows: dict[TopicPartition, range] = field(default_factory=dict)
    end: int = 0  # behind the last number
    is_asked: bool = False  # to commit
    is_committed: bool = False  # as was said

    def records(self, tp: TopicPartition) -> list[Record]:
        return [Record(i, 1000, None, b"%d %d" % (self.number, n)) for i, n in enumerate(self.rows[tp])]

    @property
    def values(self) -> set[tuple[TopicPartition, int]]:
        return {(tp, n) for tp, numbers in self.rows.items() for n in numbers}


class Copied:
    """Attempts to copy; a coordinator whose log was lost, beyond what is promised, knows no later pair any more."""

    def __init__(self, is_whole: Callable[[], bool]) -> None:
        self._is_whole = is_whole
        self.attempts: list[Attempt] = []
        self.position: int | None = None  # of the group, when all is over
        self._newest = Pair(-1, -1)
        self._writer: dict[int, int] = {}  # number -> the attempt that wrote it, of what was read
        self._read: set[tuple[TopicPartition, int, int]] = set()

    @property
    def committed(self) -> int:
        return sum(attempt.is_committed for attempt in self.attempts)

    def begin(self, pair: Pair) -> Attempt:
        attempt = Attempt(len(self.attempts), pair)
        self.attempts.append(attempt)
        self._newest = max(self._newest, pair)
        return attempt

    def is_fenced(self, attempt: Attempt) -> bool:
        """Somebody has got a later pair."""
        return attempt.pair < self._newest

    def appended(self, attempt: Attempt, tp: TopicPartition, *, was_fenced: bool) -> None:
        assert not (was_fenced and self._is_whole()), f"{attempt} was fenced by {self._newest}, and appends to {tp}"

    def ended(self, attempt: Attempt, *, was_fenced: bool, commits: bool) -> None:
        assert not (was_fenced and self._is_whole()), f"{attempt} was fenced by {self._newest}, and ends"
        attempt.is_committed = commits

    def read(self, tp: TopicPartition, values: Iterable[bytes]) -> None:
        for value in values:
            number, n = map(int, value.split())
            attempt = self.attempts[number]
            assert attempt.is_asked, f"{tp}: {n} of {attempt} is read, and is not to be committed"
            assert (tp, number, n) not in self._read, f"{tp}: {n} of {attempt} is read twice"
            self._read.add((tp, number, n))
            writer = self._writer.setdefault(n, number)
            assert writer == number, f"{tp}: {n} was written by {self.attempts[writer]} and by {attempt}"

    def check_end(self, content: Mapping[TopicPartition, Sequence[bytes]]) -> None:
        """`content`: the committed values of the logs."""
        seen: dict[int, list[tuple[TopicPartition, int]]] = {}
        for tp, values in content.items():
            for value in values:
                number, n = map(int, value.split())
                seen.setdefault(number, []).append((tp, n))
        for attempt in self.attempts:
            found = seen.get(attempt.number, [])
            assert len(found) == len(set(found)), f"{attempt} is there twice: {found}"
            assert attempt.is_asked or not found, f"{attempt} was not to be committed: {found}"
            assert not attempt.is_committed or set(found) == attempt.values, f"{attempt} is committed: {found}"
            assert not found or set(found) == attempt.values, f"{attempt} is torn: {found}"
        numbers = sorted(n for found in seen.values() for _, n in found)
        assert self.position is not None, "the position is not known at the end"
        assert numbers == list(range(self.position)), f"the position is {self.position}, there are {numbers}"


class Read:
    """A group reads every committed record, and begins nowhere below what it was told that it has committed."""

    def __init__(self, ends: Mapping[TopicPartition, int], is_whole: Callable[[], bool]) -> None:
        self._ends, self._is_whole = ends, is_whole
        self._read_to: dict[TopicPartition, int] = {}  # everything below was handed out
        self.stored: dict[TopicPartition, int] = {}  # the acknowledged offset

    def reads(self, tp: TopicPartition, offsets: Sequence[int]) -> None:
        first, last = offsets[0], offsets[-1]
        assert list(offsets) == list(range(first, last + 1)), f"{tp}: read with gaps: {offsets}"
        if self._is_whole():
            assert first <= self._read_to.get(tp, 0), f"{tp}: {offsets} follow {self._read_to.get(tp, 0)}"
            assert last < self._ends[tp], f"{tp}: {offsets} are read, {self._ends[tp]} is committed"
        self._read_to[tp] = max(last + 1, self._read_to.get(tp, 0))

    @property
    def count(self) -> int:
        """How many records the group has committed."""
        return sum(self.stored.values())

    def begins(self, tp: TopicPartition, offset: int, stored: int) -> None:
        """A member gets the partition, and goes on here; `stored` was acknowledged before it asked."""
        read_to = self._read_to.get(tp, 0)
        assert stored <= offset <= read_to or not self._is_whole(), f"{tp}: {offset}, not {stored} to {read_to}"

    def commits(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, offset in offsets.items():
            self.stored[tp] = max(offset, self.stored.get(tp, 0))

    def check_end(self, offsets: Mapping[TopicPartition, int]) -> None:
        for tp, stored in self.stored.items():
            self.begins(tp, offsets.get(tp, 0), stored)
