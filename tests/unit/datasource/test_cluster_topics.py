"""What a verification over a cluster makes of answers that no sound broker gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from datasource.cluster_topics import ClusterTopics
from logstore.errors import CorruptLogError, OffsetOutOfRangeError
from logstore.records.batch import Record, build
from replication.client.fetching import Fetched
from replication.client.producer import Extent


def batch(offset: int, count: int = 2) -> bytes:
    return bytes(build([Record(offset + i, 0, None, b"value") for i in range(count)]))


class Answers:
    """The part of a client that is used: a log of [start, end), and answers or errors in their order."""

    def __init__(self, end: int, answers: Sequence[bytes | Exception], starts: Sequence[int] = (0,)) -> None:
        self.end, self.answers, self.starts = end, list(answers), list(starts)

    def extents(self, topic: str, **_: object) -> dict[int, Extent]:
        return {0: Extent(self.starts.pop(0) if len(self.starts) > 1 else self.starts[0], self.end, 0)}

    def fetch(self, topic: str, partition: int, start: int, end: int) -> Iterator[Fetched]:
        while start < end:
            found = self.answers.pop(0)
            if isinstance(found, Exception):
                raise found
            start += 2
            yield Fetched((memoryview(found),), start)


def verified(*answers: bytes | Exception, end: int | None = None, starts: Sequence[int] = (0,)):
    found = Answers(2 * len(answers) if end is None else end, answers, starts)
    size_bytes, damage = ClusterTopics(found, "read_uncommitted").verify("t", 0)
    return size_bytes, [(file.rpartition("from ")[2], reason) for file, _, reason in damage]


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_all_of_a_sound_partition_is_counted():
    assert verified(batch(0), batch(2)) == (2 * len(batch(0)), [])


def test_each_answer_with_damage_is_told_and_the_next_one_is_read():
    _, damage = verified(damaged(batch(0)), batch(2), damaged(batch(4)))
    assert [where for where, _ in damage] == ["offset 0 on", "offset 4 on"]
    assert all("CRC" in reason for _, reason in damage)


def test_offsets_that_go_back_are_damage():
    assert verified(batch(2) + batch(0), batch(2))[1] == [
        ("offset 0 on", "its base offset is not above the offsets before it")
    ]


def test_behind_a_damaged_header_nothing_is_read():
    error = CorruptLogError("fetched from offset 2", 7, "magic 9")
    assert verified(batch(0), error, batch(4))[1] == [("offset 2", "magic 9")]


def test_what_retention_deletes_meanwhile_is_no_damage():
    gone = OffsetOutOfRangeError(2, 4, 6, "t-0")
    assert verified(batch(0), gone, batch(4), end=6, starts=(0, 4)) == (2 * len(batch(0)), [])


def test_a_leader_that_denies_its_own_offsets_is_told():
    with pytest.raises(OffsetOutOfRangeError):
        verified(OffsetOutOfRangeError(0, 0, 2, "t-0"), end=2)
