"""A Target in memory: topics that grow, lose records and are recreated, as a test says."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pyarrow as pa

from datasource.connector.options import read_options
from datasource.connector.reader import BatchReader, PushingBatchReader, StreamReader
from datasource.connector.source import PylogDataSource
from datasource.topics.interface import LedRange
from logstore import OffsetRange, TopicInfo, UnknownTopicError
from replication.client.groups import Committed

BATCH = 10  # records per stored batch
RECORD_BYTES = 100


@dataclass
class Topic:
    topic_id: str
    extents: list[OffsetRange]
    timestamps: dict[int, dict[int, int]] = field(default_factory=dict)  # partition -> timestamp -> offset


class MemoryTarget:
    def __init__(self) -> None:
        self.content: dict[str, Topic] = {}
        self.reads: list[tuple[int, int, int]] = []
        self.asked = []  # about leader epochs
        self.ends = {}

    def create(self, name, *ends, topic_id=None):
        self.content[name] = Topic(topic_id or f"id-{len(self.content)}-{name}", [OffsetRange(0, e) for e in ends])

    def grow(self, name, *ends):
        topic = self.content[name]
        starts = [extent.start for extent in topic.extents] + [0] * len(ends)
        extents = [OffsetRange(start, end) for start, end in zip(starts, ends, strict=False)]
        led = [getattr(extent, "leader_epoch", None) for extent in topic.extents]
        topic.extents = [
            extent if epoch is None else LedRange(extent.start, extent.end, epoch)
            for extent, epoch in itertools.zip_longest(extents, led)
        ]

    def lose(self, name, partition, start):
        extents = self.content[name].extents
        extents[partition] = replace(extents[partition], start=start)

    # --- Target ---

    def topics(self):
        return [self.topic(name) for name in sorted(self.content)]

    def topic(self, name):
        if name not in self.content:
            raise UnknownTopicError(name, self.content, "memory")
        found = self.content[name]
        return TopicInfo.of(name, found.topic_id, len(found.extents), {})

    def offsets(self, topic):
        return dict(enumerate(self.content[topic].extents))

    def wait_for_more(self, ends, wait_ms):
        """Whether there is more by now: nothing happens while one waits here."""
        return any(
            topic not in self.content or self.offsets(topic)[p].end != end
            for topic, parts in ends.items()
            for p, end in parts.items()
        )

    def elect(self, name, epoch, *agreed_ends):
        """Another leader for every partition: this much of what others wrote it has; nothing was written since."""
        topic = self.content[name]
        self.ends = dict(enumerate(agreed_ends))
        topic.extents = [
            LedRange(min(e.start, end), end, epoch) for e, end in zip(topic.extents, agreed_ends, strict=True)
        ]

    def epoch_ends(self, topic, epochs):
        self.asked.append((topic, epochs))
        return {p: self.ends[p] for p in epochs}

    def settled(self, look):
        return look()

    def offset_for_time(self, topic, partition, timestamp_ms):
        times = self.content[topic].timestamps.get(partition, {})
        return min((offset for t, offset in times.items() if t >= timestamp_ms), default=None)

    def floor_batch(self, r, offset):
        return offset - offset % BATCH

    def size_bytes(self, r):
        return r.count * RECORD_BYTES

    def offset_after_bytes(self, r, max_bytes):
        whole = (r.start + max_bytes // RECORD_BYTES) // BATCH * BATCH
        return max(whole, (r.start // BATCH + 1) * BATCH)

    def read(self, r, columns):
        self.reads.append((r.partition, r.start, r.end))
        everything = {"offset": pa.array(range(r.start, r.end)), "value": pa.array([b"v"] * r.count)}
        yield pa.record_batch({name: everything[name] for name in columns})


class MemoryGroup:
    """The committed offsets of a group; `error` is what a commit raises."""

    def __init__(self, committed=None):
        self.offsets = {t: {p: Committed(*at) for p, at in parts.items()} for t, parts in (committed or {}).items()}
        self.error = None
        self.commits = []

    def committed(self):
        return self.offsets

    def commit(self, offsets, epochs):
        if self.error is not None:
            raise self.error
        self.commits.append(offsets)


def reader_of(kind, target, *, group=None, **options):
    """A reader of `target`, as Spark would get it for these options; with a group as if `target` were a cluster."""

    class OnMemory(kind):
        def _target(self):
            return target

        def _group(self):
            return group

    where = {"path": "/memory"} if group is None else {"kafka.bootstrap.servers": "memory:1", "groupId": "g"}
    options = where | options
    schema = PylogDataSource(options | {"columns": "partition,offset"}).schema()
    return OnMemory(read_options(options, streaming=kind is StreamReader), schema)


def batch_reader(target, **options):
    return reader_of(BatchReader, target, **options)


def pushing_reader(target, **options):
    return reader_of(PushingBatchReader, target, **options)


def stream_reader(target, **options):
    return reader_of(StreamReader, target, **options)


def planned(partitions):
    """(topic, partition, start, end) of every range, over all tasks."""
    return [(r.topic, r.partition, r.start, r.end) for p in partitions for r in p.ranges]
