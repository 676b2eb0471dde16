"""The state of each log at a clean stop, in the clean marker: the next start reads no file of an unchanged log.

A start opened each log by a listing and a dozen small reads: most of the time of a broker with thousands of partitions.
The stored state counts while the stats of the directory and of the active file are the same, as any view of a log does.

::

    0                   the version
    <crc32>             of the next line
    [[topic, partition, topic id, [a directory's inode, size and time], [base offsets], the same of the active file, …
"""

from __future__ import annotations

import json
import logging
import zlib
from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

from logstore.env import SETTLED_NS, FileStat
from logstore.log.leader_epochs import EpochStart
from logstore.log.log import Log
from logstore.log.segments.closed import ClosedSegments
from logstore.log.segments.directory import DirectoryView
from logstore.log.segments.end import SegmentEnd
from replication.model.cluster import TopicPartition

logger = logging.getLogger(__name__)

VERSION = "0"


class NotedLog(NamedTuple):
    topic_id: str
    view: DirectoryView
    epochs: tuple[EpochStart, ...]


def note_of(log: Log, now_ms: int) -> NotedLog | None:
    """The state of a log that was just flushed; None: the log is inconsistent, or its times are too new to tell."""
    view, before_ns = log.files.view, now_ms * 1_000_000 - SETTLED_NS
    if view.directory is None or view.aside or view.tail.damage or log.epochs.is_damaged:
        return None
    if view.active is not None and (view.active.size != view.tail.position or view.active.mtime_ns > before_ns):
        return None
    return NotedLog(log.topic_id, view, log.epochs.starts)


def encode(noted: Mapping[TopicPartition, NotedLog]) -> bytes:
    rows = [
        (*tp, topic_id, at.directory, [*at.bases], at.active, at.tail, *_names_of(at), epochs)
        for tp, (topic_id, at, epochs) in noted.items()
    ]
    text = json.dumps(rows, separators=(",", ":")).encode()
    return b"%s\n%d\n%s\n" % (VERSION.encode(), zlib.crc32(text), text)


def _names_of(view: DirectoryView) -> tuple[Any, ...]:
    return view.start_mark, view.snapshots, view.transactional, view.was_compacted


def decode(data: bytes) -> dict[TopicPartition, NotedLog]:
    """Decode the states; empty if they are damaged, or of another version: the logs are then read."""
    version, _, rest = data.partition(b"\n")
    if version != VERSION.encode():
        return {}
    check, _, text = rest.partition(b"\n")
    try:
        text = text.removesuffix(b"\n")
        if zlib.crc32(text) != int(check):
            raise ValueError("its checksum is another one")
        return dict(map(_noted, json.loads(text)))
    except (ValueError, TypeError) as error:
        logger.warning("what the clean stop noted is unreadable (%s): every log is looked at", error)
        return {}


def _noted(row: list[Any]) -> tuple[TopicPartition, NotedLog]:
    topic, number, topic_id, directory, bases, active, tail, *names, epochs = row
    start_mark, snapshots, transactional, was_compacted = names
    view = DirectoryView(
        FileStat(*directory),
        array("q", bases),
        FileStat(*active) if active is not None else None,
        SegmentEnd(*tail),
        ClosedSegments(),
        start_mark=start_mark,
        snapshots=tuple(snapshots),
        transactional=tuple(transactional),
        was_compacted=was_compacted,
    )
    return TopicPartition(topic, number), NotedLog(topic_id, view, tuple(EpochStart(*each) for each in epochs))
