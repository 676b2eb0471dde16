"""Which partitions a read covers, where it starts and ends there, and whether that is still in the log."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from datasource.connector.offsets import PartitionOffsets, StreamOffset
from datasource.connector.options import (
    EARLIEST,
    Assign,
    Everywhere,
    Offsets,
    OffsetSpec,
    Subscribe,
    SubscribePattern,
    Time,
    Topics,
)
from datasource.errors import report
from datasource.topics import PartitionRange, ReadableTopics
from logstore import (
    InvalidRequestError,
    OffsetOutOfRangeError,
    OffsetRange,
    UnknownPartitionError,
    UnknownTopicError,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """A topic as it is now: its id, and the offsets that each chosen partition holds."""

    topic_id: str
    extents: Mapping[int, OffsetRange]


Heads = Mapping[str, TopicExtent]


def extents(target: ReadableTopics, topics: Topics, *, missing_ok: bool = False) -> dict[str, TopicExtent]:
    """Return what the chosen partitions hold now, topics sorted; of a transaction over them all or nothing.

    Raises: UnknownTopicError, UnknownPartitionError: what the user names is not there (unless `missing_ok`).
    """
    return target.settled(lambda: _heads(target, topics, missing_ok))


def _heads(target: ReadableTopics, topics: Topics, missing_ok: bool) -> dict[str, TopicExtent]:
    if isinstance(topics, SubscribePattern):
        names = [info.name for info in target.topics() if re.fullmatch(topics.pattern, info.name)]
        missing_ok = True  # deleted since the line above
    else:
        names = sorted(topics.topics if isinstance(topics, Subscribe) else topics.partitions)
    found = {}
    for name in names:
        try:
            head = head_of(target, name)
        except UnknownTopicError:
            if not missing_ok:
                raise
            continue
        found[name] = _only(head, name, topics.partitions[name]) if isinstance(topics, Assign) else head
    return found


def warn_if_nothing(topics: Topics, now: Heads) -> None:
    """Log a warning when a pattern matches no topic (yet): that is no error, and easily a slip."""
    if isinstance(topics, SubscribePattern) and not now:
        logger.warning(
            "option subscribePattern=%r matches no topic (it must match whole names): nothing to read so far",
            topics.pattern,
        )


def head_of(target: ReadableTopics, topic: str) -> TopicExtent:
    """Return what all partitions of a topic hold now."""
    info = target.topic(topic)
    return TopicExtent(info.topic_id, target.offsets(topic))


def _only(head: TopicExtent, topic: str, partitions: Iterable[int]) -> TopicExtent:
    for partition in partitions:
        if partition not in head.extents:
            raise UnknownPartitionError(topic, partition, len(head.extents))
    return TopicExtent(head.topic_id, {p: head.extents[p] for p in partitions})


def latest(now: Heads) -> StreamOffset:
    """Return the position after everything that is there now."""
    return StreamOffset(
        offsets={topic: {p: extent.end for p, extent in head.extents.items()} for topic, head in now.items()},
        ids={topic: head.topic_id for topic, head in now.items()},
    )


# --- places ---


def resolve(
    target: ReadableTopics, place: OffsetSpec, now: Heads, *, side: str, no_match_is_latest: bool
) -> PartitionOffsets:
    """Return the offset of `place` in every partition; `side` is "starting" or "ending".

    Raises: InvalidRequestError: a partition is not mentioned, or not chosen, or has no record at or after the
    time at which to start; OffsetOutOfRangeError: an offset beyond the end.
    """
    match place:
        case Everywhere(offset):
            return {t: {p: _special(offset, e) for p, e in head.extents.items()} for t, head in now.items()}
        case Offsets(offsets):
            _check_complete(offsets, now, f"{side}Offsets")
            return {
                t: {p: _explicit(offsets[t][p], e, f"{t}-{p}", side) for p, e in h.extents.items()}
                for t, h in now.items()
            }
        case Time(timestamp_ms):
            times: PartitionOffsets = {
                t: dict.fromkeys(head.extents, timestamp_ms) for t, head in now.items()
            }
        case _:
            times = place.timestamps
            _check_complete(times, now, f"{side}OffsetsByTimestamp")
    strict = side == "starting" and not no_match_is_latest
    return {
        t: {p: _at_time(target, t, p, times[t][p], e, strict) for p, e in head.extents.items()}
        for t, head in now.items()
    }


def _special(offset: int, extent: OffsetRange) -> int:
    return extent.start if offset == EARLIEST else extent.end


def _explicit(offset: int, extent: OffsetRange, where: str, side: str) -> int:
    if offset < 0:
        return _special(offset, extent)
    if offset > extent.end:
        error = OffsetOutOfRangeError(offset, extent.start, extent.end, where)
        error.args = (f"option {side}Offsets: {error}; give {extent.end} or less",)
        raise error
    return offset


def _at_time(
    target: ReadableTopics, topic: str, partition: int, timestamp_ms: int, extent: OffsetRange, strict: bool
) -> int:
    found = target.offset_for_time(topic, partition, timestamp_ms)
    if found is None and strict:
        raise InvalidRequestError(
            f"{topic}-{partition} has no record at or after timestamp {timestamp_ms}; choose an earlier one, "
            "or set option startingOffsetsByTimestampStrategy=latest to start such partitions at their end"
        )
    return extent.end if found is None else min(found, extent.end)


def _check_complete(given: Mapping[str, Mapping[int, Any]], now: Heads, option: str) -> None:
    """Every chosen partition is mentioned, and no other: there is no right guess for a forgotten one."""
    chosen = {f"{t}-{p}" for t, head in now.items() for p in head.extents}
    named = {f"{t}-{p}" for t, parts in given.items() for p in parts}
    for wrong, what in (
        (chosen - named, "does not mention"),
        (named - chosen, "mentions, but the query does not read,"),
    ):
        if wrong:
            raise InvalidRequestError(
                f"option {option} {what} {', '.join(sorted(wrong)[:10])}; it must name exactly the "
                "partitions that are read"
            )


# --- loss ---


def between(start: StreamOffset, end: StreamOffset) -> list[PartitionRange]:
    """Return the range of each partition of `end`; partitions that are new since `start` begin at 0."""
    return [
        PartitionRange(
            topic, p, _known(start, topic, end.ids.get(topic, "")).get(p, 0), stop, end.ids.get(topic, "")
        )
        for topic, parts in end.offsets.items()
        for p, stop in parts.items()
    ]


def _known(position: StreamOffset, topic: str, topic_id: str) -> Mapping[int, int]:
    """The position in a topic; none in one that was created since, under the same name."""
    return position.offsets.get(topic, {}) if position.ids.get(topic, topic_id) == topic_id else {}


def position_after(ranges: Iterable[PartitionRange]) -> StreamOffset:
    """Return the position of a reader that has read these ranges."""
    offsets: dict[str, dict[int, int]] = {}
    for r in sorted(ranges):
        offsets.setdefault(r.topic, {})[r.partition] = r.end
    return StreamOffset(offsets=offsets, ids={r.topic: r.topic_id for r in ranges})


def lost_topics(position: StreamOffset, now: Heads, topics: Topics) -> list[str]:
    """Return a line for each topic of the position that is not read on: not chosen any more, or deleted since."""
    lines = []
    for topic, parts in position.offsets.items():
        head = now.get(topic)
        unread = ", ".join(f"{topic}-{p} from offset {offset} on" for p, offset in parts.items())
        if not _is_chosen(topic, topics):
            lines.append(
                f"topic {topic!r} was read by this query before and is not chosen any more; its position is "
                f"forgotten: {unread}; choose it again, or begin with a new checkpointLocation"
            )
        elif not head or head.topic_id != position.ids.get(topic, head.topic_id):
            what = "deleted and created again" if head else "deleted"
            lines.append(f"topic {topic!r} was {what}; what had not been read of it is lost: {unread}")
    return lines


def _is_chosen(topic: str, topics: Topics) -> bool:
    match topics:
        case SubscribePattern(pattern):
            return re.fullmatch(pattern, topic) is not None
        case Subscribe(names):
            return topic in names
        case Assign(partitions):
            return topic in partitions


def available(wanted: PartitionRange, now: Heads) -> tuple[PartitionRange | None, str]:
    """Return the part of `wanted` that is in the log, and one line about the rest ("" if nothing is lost)."""
    head = now.get(wanted.topic)
    if head is None or wanted.partition not in head.extents:
        return None, f"{wanted} is lost: the topic was deleted"
    if wanted.topic_id and head.topic_id != wanted.topic_id:
        return None, f"{wanted} is lost: the topic was deleted and created again"
    extent = head.extents[wanted.partition]
    start = min(max(wanted.start, extent.start), extent.end)
    end = max(start, min(wanted.end, extent.end))
    rest = replace(wanted, start=start, end=end)
    if wanted.start < extent.start:
        gone = replace(wanted, end=extent.start)
        return (
            rest,
            f"{gone} is lost: the log starts at offset {extent.start} now (older records were deleted)",
        )
    if (last := max(wanted.start, wanted.end)) > extent.end:
        gone = replace(wanted, start=extent.end, end=last)
        return (
            rest,
            f"{gone} is lost: the log ends at offset {extent.end} now (cut, or restored from a backup)",
        )
    return rest, ""


def checked(wanted: Iterable[PartitionRange], now: Heads, *, fail: bool) -> list[PartitionRange]:
    """Return the parts of `wanted` that are in the log. Raises: DataLossError: some are not, and `fail`."""
    found = [available(r, now) for r in wanted]
    report((line for _, line in found), fail=fail)
    return [r for r, _ in found if r is not None]
