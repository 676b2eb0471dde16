"""Verification and tiering over a cluster meet answers that no sound cluster gives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from datasource.delta.owner import Owner, TierConfig, owner_of, read_note, write_note
from datasource.delta.storage import TableDirectory
from datasource.delta.tiering import check_not_cut
from datasource.delta.topic_tables import TieringTask
from datasource.topics.cluster import ClusterTopics
from datasource.topics.interface import LedRange
from datasource.topics.locations import Location
from logstore import StoreError, TopicInfo
from logstore.errors import CorruptLogError, OffsetOutOfRangeError
from logstore.records import arrow
from logstore.records.batch import Record, build, header_at, stamp
from replication.client.fetching import Fetched
from replication.client.metadata import Extent
from tests.support.poison import POISON


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


def at_offset(data: bytearray, offset: int) -> bytes:
    """The batch with this base offset."""
    copy = bytearray(data)
    stamp(copy, 0, offset, 0)
    return bytes(copy)


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_all_of_a_sound_partition_is_counted():
    assert verified(batch(0), batch(2)) == (2 * len(batch(0)), [])


def test_each_answer_with_damage_is_told_and_the_next_one_is_read():
    _, damage = verified(damaged(batch(0)), batch(2), damaged(batch(4)))
    assert [where for where, _ in damage] == ["offset 0 on", "offset 4 on"]
    assert all("CRC" in reason for _, reason in damage)


@pytest.mark.parametrize("is_plain", [True, False])
def test_each_batch_that_cannot_be_decoded_is_told_and_what_is_behind_it(monkeypatch, is_plain):
    monkeypatch.setattr(arrow, "_plain_calls", itertools.count(0 if is_plain else arrow.PLAIN_CALLS_MAX))
    data, wanted, end = b"", [], 0
    for poison in POISON.values():
        last = end + header_at(poison).last_offset_delta
        wanted.append(f"offsets {end} to {last} cannot be decoded")
        data, end = data + at_offset(poison, end) + batch(last + 1), last + 3
    _, damage = verified(data + damaged(batch(end)) + at_offset(POISON["garbage"], end + 2), end=2)
    reasons = [reason.partition(" (")[0] for _, reason in damage]
    assert reasons[:-1] == wanted
    assert "CRC" in reasons[-1]


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


class Leader:
    """A leader of an epoch, whose log has these records of earlier ones."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends = ends

    def epoch_ends(self, topic: str, epochs: dict[int, int]) -> dict[int, int]:
        return {p: self.ends[epoch] for p, epoch in epochs.items()}


@pytest.mark.parametrize(
    ("noted_epoch", "epoch", "kept", "is_cut"),
    [
        (3, 3, 0, False),
        (3, 5, 100, False),
        (3, 5, 99, True),
        (3, 5, -1, True),
        (-1, 5, 0, False),
        (3, -1, 0, False),
    ],
)
def test_a_log_that_lost_what_the_table_holds_is_told_by_its_leader_epochs(tmp_path, noted_epoch, epoch, kept, is_cut):
    owner = Owner("kafka:c", "t", "id", place := TableDirectory(tmp_path), "_pylog")
    note = TierConfig(place, tiered={0: (100, noted_epoch)})
    write_note(owner, note)
    assert read_note(owner) == note
    task = TieringTask(location=Location(bootstrap="a:1"), owner=owner, table=place, note=note)
    if is_cut:
        with pytest.raises(StoreError, match=f"cut the log at offset {max(0, kept)}.* holds records up to 100"):
            check_not_cut(Leader({3: kept}), task, 0, LedRange(0, 200, epoch))
    else:
        check_not_cut(Leader({3: kept}), task, 0, LedRange(0, 200, epoch))


def test_a_topic_of_a_kafka_without_topic_ids_is_named_by_its_cluster(monkeypatch, tmp_path):
    class Named:
        identity = "kafka:abc"

    monkeypatch.setattr(Location, "read", lambda self: Named)
    for topic_id, wanted in (("uuid", "uuid"), ("", "abc.t")):
        found = owner_of(Location(bootstrap="a:1"), TopicInfo.of("t", topic_id, 1, {}), TableDirectory(tmp_path / "t"))
        assert (found.name, found.topic_id) == ("kafka:abc", wanted)
        assert found.shown_note == str(tmp_path / "t" / "_pylog" / f"{wanted}.json")
