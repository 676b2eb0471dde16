"""The movement in a place: the size of topics, what comes in, what readers take out, and how far these are behind.

Two looks give rates: `view` compares them. `look_at` looks into a directory; that of a cluster is above this package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from logstore.errors import PylogError
from logstore.store.description import TopicDescription
from logstore.store.reading import OffsetRange
from logstore.store.store import LogStore

Row = dict[str, Any]
Offsets = Mapping[str, Mapping[int, int]]  # topic -> partition -> the next offset


class TopicLook(NamedTuple):
    """One topic. `extents` lacks partitions that could not be reached; `size_bytes` None: it is not known."""

    topic_id: str
    extents: Mapping[int, OffsetRange]
    size_bytes: int | None
    partitions: int


class Reader(NamedTuple):
    """A group, or a query of Spark. `ids` are those of its topics, and `place` is theirs, as far as it names them."""

    kind: str
    name: str
    state: str
    offsets: Offsets
    ids: Mapping[str, str] = {}
    place: str = ""


class Look(NamedTuple):
    """A place at one moment. `problems` has a line for each thing that could not be reached."""

    at_ms: int
    topics: Mapping[str, TopicLook]
    readers: Sequence[Reader]
    problems: Sequence[str] = ()


class View(NamedTuple):
    """Rows for people and programs: topics by what comes in, readers by their lag."""

    topics: Sequence[Row]
    readers: Sequence[Row]
    problems: Sequence[str]


def view(before: Look, now: Look) -> View:
    """Compare two looks at one place; rates are in records per second, None where there is nothing to compare."""
    seconds = max(1, now.at_ms - before.at_ms) / 1000
    former = {(each.kind, each.name): each for each in before.readers}
    readers, problems, out = list[Row](), list(now.problems), dict[str, float]()
    for reader in now.readers:
        for topic, offsets in reader.offsets.items():
            here = now.topics.get(topic)
            if here is None or reader.ids.get(topic, here.topic_id) != here.topic_id:
                place = f"; it reads {reader.place}" if reader.place else ""
                problems.append(
                    f"{reader.kind} {reader.name}: its topic {topic!r} is not here, or was made again{place}"
                )
                continue
            known = former.get((reader.kind, reader.name))
            rate = _rate(known.offsets.get(topic, {}), offsets, seconds) if known else None
            if rate is not None:
                out[topic] = out.get(topic, 0.0) + rate
            lag = sum(max(0, here.extents[p].end - offset) for p, offset in offsets.items() if p in here.extents)
            readers.append(
                {
                    "reader": reader.name,
                    "kind": reader.kind,
                    "state": reader.state,
                    "topic": topic,
                    "lag": lag,
                    "out_per_s": rate,
                }
            )
    topics = [
        _topic_row(name, before.topics.get(name), each, seconds, out.get(name)) for name, each in now.topics.items()
    ]
    topics.sort(key=lambda row: (-(row["in_per_s"] or 0), -(row["out_per_s"] or 0), -(row["bytes"] or 0), row["topic"]))
    readers.sort(key=lambda row: (-row["lag"], row["reader"], row["topic"]))
    return View(topics, readers, problems)


def _topic_row(name: str, before: TopicLook | None, now: TopicLook, seconds: float, out: float | None) -> Row:
    is_same = before is not None and before.topic_id == now.topic_id
    ends = {p: extent.end for p, extent in before.extents.items()} if before is not None and is_same else {}
    return {
        "topic": name,
        "partitions": now.partitions,
        "records": sum(extent.count for extent in now.extents.values()),
        "bytes": now.size_bytes,
        "in_per_s": _rate(ends, {p: extent.end for p, extent in now.extents.items()}, seconds) if is_same else None,
        "out_per_s": out,
    }


def _rate(before: Mapping[int, int], now: Mapping[int, int], seconds: float) -> float | None:
    """Records per second over the partitions that both name; None: there are none."""
    both = before.keys() & now.keys()
    return round(sum(max(0, now[p] - before[p]) for p in both) / seconds, 1) if both else None


def look_at(store: LogStore, readers: Iterable[Reader] = (), problems: Iterable[str] = ()) -> Look:
    """Look at every topic of a directory; `problems` gets a line for each that cannot be read."""
    topics, failed = dict[str, TopicLook](), list(problems)
    for info in store.topics():
        if info.damage is not None:
            failed.append(str(info.damage))
        else:
            topics[info.name] = _look_at_topic(store, info, failed)
    return Look(store.env.clock.monotonic_ms(), topics, tuple(readers), tuple(failed))


def _look_at_topic(store: LogStore, info: TopicDescription, failed: list[str]) -> TopicLook:
    extents, size_bytes = dict[int, OffsetRange](), 0
    for partition in range(info.partitions):
        try:
            log = store.log(info.name, partition)
            extents[partition] = OffsetRange(log.log_start_offset, log.log_end_offset)
            size_bytes += sum(segment.size_bytes for segment in log.segments())
        except PylogError as error:
            failed.append(str(error))
    return TopicLook(info.topic_id, extents, size_bytes, info.partitions)
