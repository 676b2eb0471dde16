"""Offsets of a read: how far a stream has read, where a read starts and ends, and whether the log still has that.

`StreamOffset` stands in Spark's checkpoint::

    {"v": 1, "place": "/data", "ids": {"orders": "<topic id>"}, "offsets": {"orders": {"0": 15}},
     "epochs": {"orders": {"0": 2}}, "init": {"orders": {"0": 3}}}

`offsets` are the next offsets to read (exclusive ends), as in Spark's Kafka source. `ids` distinguish a topic from a
later one of the same name. `epochs` are those of the leaders that named the ends, where they are known: a later leader
that has not all records of such an epoch has cut the log. `init` is only in the end of batch 0: the checkpoint keeps
ends alone, and a start such as "latest" would differ when batch 0 is planned again. `place` is for people, who see this
text in the query's progress: the directory, or the addresses of the cluster. Nothing is decided by it, and checkpoints
of before have none. `misfits` is there where records that do not fit may pass (`tally`). Spark compares texts, so the
text is canonical (sorted).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from datasource.connector import places
from datasource.errors import report
from datasource.topics.interface import NO_EPOCH, LedRange, PartitionRange, ReadableTopics
from logstore import OffsetRange, errors

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from replication.client.groups import Committed

VERSION = 1

PartitionOffsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfits:
    """How many records of a stream did not fit in the batches before the one that ends here.

    `stream` and `batch` name that one to its tasks, whose counts begin at the offset `since` of their topic.
    """

    stream: str
    batch: int = 0
    count: int = 0
    since: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The next offset to read per topic and partition; topics and partitions are sorted."""

    offsets: PartitionOffsets
    ids: Mapping[str, str] = field(default_factory=dict)
    init: PartitionOffsets | None = None
    epochs: PartitionOffsets = field(default_factory=dict)
    place: str = ""
    misfits: Misfits | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the value for Spark; equal offsets give equal texts."""
        value: dict[str, Any] = {"v": VERSION} | ({"place": self.place} if self.place else {})
        value |= {"ids": dict(sorted(self.ids.items())), "offsets": _texts(self.offsets)}
        more = {"epochs": self.epochs or None, "init": self.init}
        value |= {"misfits": asdict(self.misfits)} if self.misfits else {}
        return value | {name: _texts(offsets) for name, offsets in more.items() if offsets is not None}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return what `to_json` wrote.

        Raises: StoreError: another source, or a newer pylog, wrote this checkpoint.
        """
        if not isinstance(value, dict) or value.get("v") != VERSION or not isinstance(value.get("offsets"), dict):
            raise errors.StoreError(
                f"another source, or a newer pylog, wrote this checkpoint: the offset {str(value)[:120]} is unknown; "
                "use what wrote it, or a new checkpointLocation"
            )
        init = value.get("init")
        return cls(
            offsets=_numbers(value["offsets"]),
            ids=dict(value.get("ids", {})),
            init=None if init is None else _numbers(init),
            epochs=_numbers(value.get("epochs", {})),
            place=str(value.get("place", "")),
            misfits=Misfits(**found) if (found := value.get("misfits")) else None,
        )


def behind(position: PartitionOffsets, latest: PartitionOffsets) -> dict[str, dict[int, int]]:
    """Return how many records each partition of `latest` has that `position` has not reached."""
    return {
        topic: {p: max(0, end - position.get(topic, {}).get(p, 0)) for p, end in sorted(ends.items())}
        for topic, ends in sorted(latest.items())
    }


def _texts(offsets: PartitionOffsets) -> dict[str, dict[str, int]]:
    return {topic: {str(p): parts[p] for p in sorted(parts)} for topic, parts in sorted(offsets.items())}


def _numbers(offsets: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {topic: {int(p): int(parts[p]) for p in sorted(parts, key=int)} for topic, parts in sorted(offsets.items())}


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """The id of a topic, and the offsets that each chosen partition holds now, with leaders' epochs if known."""

    topic_id: str
    extents: Mapping[int, OffsetRange]

    @property
    def epochs(self) -> dict[int, int]:
        """By partition, as far as they are known."""
        led = {p: e.leader_epoch for p, e in self.extents.items() if isinstance(e, LedRange)}
        return {p: epoch for p, epoch in led.items() if epoch != NO_EPOCH}


Extents = Mapping[str, TopicExtent]


def extents(target: ReadableTopics, topics: places.Topics, *, missing_ok: bool = False) -> dict[str, TopicExtent]:
    """Return what the chosen partitions hold now, topics sorted; all of a transaction or nothing.

    Raises: UnknownTopicError, UnknownPartitionError: the user names one that does not exist (unless `missing_ok`).
    """
    return target.settled(lambda: _extents(target, topics, missing_ok))


def _extents(target: ReadableTopics, topics: places.Topics, missing_ok: bool) -> dict[str, TopicExtent]:
    if isinstance(topics, places.SubscribePattern):
        names = [info.name for info in target.topics() if topics.matches(info.name)]
        missing_ok = True  # deleted since the line above
    else:
        names = sorted(topics.topics if isinstance(topics, places.Subscribe) else topics.partitions)
    found = {}
    for name in names:
        try:
            head = extent_of(target, name)
        except errors.UnknownTopicError:
            if not missing_ok:
                raise
            continue
        found[name] = _only(head, name, topics.partitions[name]) if isinstance(topics, places.Assign) else head
    return found


def warn_if_nothing(topics: places.Topics, now: Extents) -> None:
    """Log a warning if a pattern matches no topic (yet): that may be a slip, and is no error."""
    if isinstance(topics, places.SubscribePattern) and not now:
        logger.warning(
            "option subscribePattern=%r matches no topic (it must match whole names): nothing to read so far",
            topics.pattern,
        )


def extent_of(target: ReadableTopics, topic: str) -> TopicExtent:
    info = target.topic(topic)
    return TopicExtent(info.topic_id, target.offsets(topic))


def _only(head: TopicExtent, topic: str, partitions: Iterable[int]) -> TopicExtent:
    for partition in partitions:
        if partition not in head.extents:
            raise errors.UnknownPartitionError(topic, partition, len(head.extents))
    return TopicExtent(head.topic_id, {p: head.extents[p] for p in partitions})


def latest(now: Extents) -> StreamOffset:
    return StreamOffset(
        offsets={topic: {p: extent.end for p, extent in head.extents.items()} for topic, head in now.items()},
        ids={topic: head.topic_id for topic, head in now.items()},
        epochs=epochs_of(now),
    )


def epochs_of(now: Extents) -> PartitionOffsets:
    """Return the epochs of the leaders, as far as they are known."""
    return {topic: epochs for topic, head in now.items() if (epochs := head.epochs)}


def resolve(
    target: ReadableTopics, place: places.OffsetSpec, now: Extents, *, side: str, no_match_is_latest: bool
) -> PartitionOffsets:
    """Return the offset of `place` in every partition; `side` is "starting" or "ending".

    Raises: InvalidRequestError: a partition is not mentioned, or not chosen, or has no record at or after the starting
    time; OffsetOutOfRangeError: an offset is beyond the end.
    """
    match place:
        case places.Everywhere(offset):
            return {t: {p: _special(offset, e) for p, e in head.extents.items()} for t, head in now.items()}
        case places.Offsets(offsets):
            _check_complete(offsets, now, f"{side}Offsets")
            return {
                t: {p: _explicit(offsets[t][p], e, f"{t}-{p}", side) for p, e in h.extents.items()}
                for t, h in now.items()
            }
        case places.Time(timestamp_ms):
            times: PartitionOffsets = {t: dict.fromkeys(head.extents, timestamp_ms) for t, head in now.items()}
        case _:
            times = place.timestamps
            _check_complete(times, now, f"{side}OffsetsByTimestamp")
    strict = side == "starting" and not no_match_is_latest
    return {
        t: {p: _at_time(target, t, p, times[t][p], e, strict) for p, e in head.extents.items()}
        for t, head in now.items()
    }


def of_group(
    place: places.OfGroup, committed: Mapping[str, Mapping[int, Committed]], now: Extents
) -> tuple[PartitionOffsets, PartitionOffsets]:
    """Return (offsets, epochs) as committed, also where the log does not hold them; a warning names the others."""
    missing = [f"{t}-{p}" for t, h in now.items() for p in h.extents if p not in committed.get(t, {})]
    if missing:
        where = "earliest" if place.otherwise == places.EARLIEST else "latest"
        logger.warning("the group has no committed offset of %s: read from the %s one", ", ".join(missing), where)
    offsets, epochs = {}, {}
    for topic, head in now.items():
        known = {p: each for p, each in committed.get(topic, {}).items() if p in head.extents}
        rest = {p: _special(place.otherwise, e) for p, e in head.extents.items()}
        offsets[topic] = rest | {p: each.offset for p, each in known.items()}
        committed_epochs = {p: each.leader_epoch for p, each in known.items() if each.leader_epoch != NO_EPOCH}
        epochs[topic] = head.epochs | committed_epochs
    return offsets, {topic: parts for topic, parts in epochs.items() if parts}


def _special(offset: int, extent: OffsetRange) -> int:
    return extent.start if offset == places.EARLIEST else extent.end


def _explicit(offset: int, extent: OffsetRange, where: str, side: str) -> int:
    if offset < 0:
        return _special(offset, extent)
    if offset > extent.end:
        error = errors.OffsetOutOfRangeError(offset, extent.start, extent.end, where)
        error.args = (f"option {side}Offsets: {error}; give {extent.end} or less",)
        raise error
    return offset


def _at_time(
    target: ReadableTopics, topic: str, partition: int, timestamp_ms: int, extent: OffsetRange, strict: bool
) -> int:
    found = target.offset_for_time(topic, partition, timestamp_ms)
    if found is None and strict:
        raise errors.InvalidRequestError(
            f"{topic}-{partition} has no record at or after timestamp {timestamp_ms}; choose an earlier one, "
            "or set option startingOffsetsByTimestampStrategy=latest to start such partitions at their end"
        )
    return extent.end if found is None else min(found, extent.end)


def _check_complete(given: Mapping[str, Mapping[int, Any]], now: Extents, option: str) -> None:
    """Raise InvalidRequestError unless exactly the chosen partitions are mentioned: a guess could be wrong."""
    chosen = {f"{t}-{p}" for t, head in now.items() for p in head.extents}
    named = {f"{t}-{p}" for t, parts in given.items() for p in parts}
    for wrong, what in (
        (chosen - named, "does not mention"),
        (named - chosen, "mentions, but the query does not read,"),
    ):
        if wrong:
            raise errors.InvalidRequestError(
                f"option {option} {what} {', '.join(sorted(wrong)[:10])}; it must name exactly the "
                "partitions that are read"
            )


_CUT = (
    "cut from the log: a leader without these records was elected (unclean.leader.election.enable), other records "
    "may have their offsets now"
)


def between(start: StreamOffset, end: StreamOffset) -> list[PartitionRange]:
    """Return the range of each partition of `end`; partitions that are new since `start` begin at 0."""
    return [
        PartitionRange(
            topic,
            p,
            _known(start, topic, end.ids.get(topic, "")).get(p, 0),
            stop,
            end.ids.get(topic, ""),
            end.epochs.get(topic, {}).get(p, NO_EPOCH),
        )
        for topic, parts in end.offsets.items()
        for p, stop in parts.items()
    ]


def _known(position: StreamOffset, topic: str, topic_id: str) -> Mapping[int, int]:
    """Return the offsets in a topic; none if it was created again under the same name."""
    return position.offsets.get(topic, {}) if position.ids.get(topic, topic_id) == topic_id else {}


def position_after(ranges: Iterable[PartitionRange]) -> StreamOffset:
    """Return the offsets of a reader that has read these ranges."""
    offsets: dict[str, dict[int, int]] = {}
    epochs: dict[str, dict[int, int]] = {}
    for r in sorted(ranges):
        offsets.setdefault(r.topic, {})[r.partition] = r.end
        if r.leader_epoch != NO_EPOCH:
            epochs.setdefault(r.topic, {})[r.partition] = r.leader_epoch
    return StreamOffset(offsets=offsets, ids={r.topic: r.topic_id for r in ranges}, epochs=epochs)


def agreed(target: ReadableTopics, now: Extents, epochs: PartitionOffsets) -> PartitionOffsets:
    """Return where the records of these epochs end, in partitions that have another leader epoch now."""
    found = {}
    for topic, parts in epochs.items():
        head = now[topic].epochs if topic in now else {}
        if asked := {p: epoch for p, epoch in parts.items() if head.get(p, epoch) != epoch}:
            ends, extents = target.epoch_ends(topic, asked), now[topic].extents
            found[topic] = {p: max(end, extents[p].start) for p, end in ends.items()}
    return found


def rewound(position: StreamOffset, now: Extents, agreed: PartitionOffsets) -> tuple[StreamOffset, list[str]]:
    """Return the position, set back to where the log was cut since it was read, and a line for each cut."""
    lines, offsets = [], {}
    for topic, parts in position.offsets.items():
        is_same = topic in now and now[topic].topic_id == position.ids.get(topic, now[topic].topic_id)
        ends = agreed.get(topic, {}) if is_same else {}
        offsets[topic] = {p: min(offset, ends.get(p, offset)) for p, offset in parts.items()}
        lines += [
            f"{topic}-{p} [{kept}, {parts[p]}) was read, and is {_CUT}"
            for p, kept in offsets[topic].items()
            if kept < parts[p]
        ]
    return replace(position, offsets=offsets), lines


def lost_topics(position: StreamOffset, now: Extents, topics: places.Topics) -> list[str]:
    """Return a line for each topic of the position that is no longer read: not chosen any more, or deleted."""
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


def _is_chosen(topic: str, topics: places.Topics) -> bool:
    match topics:
        case places.SubscribePattern():
            return topics.matches(topic)
        case places.Subscribe(names):
            return topic in names
        case places.Assign(partitions):
            return topic in partitions


def available(wanted: PartitionRange, now: Extents, agreed: PartitionOffsets) -> tuple[PartitionRange | None, str]:
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
    if (kept := max(rest.start, agreed.get(wanted.topic, {}).get(wanted.partition, end))) < end:
        return replace(rest, end=kept), f"{replace(wanted, start=kept, end=end)} is lost: {_CUT}"
    if (last := max(wanted.start, wanted.end)) > extent.end:
        gone = replace(wanted, start=extent.end, end=last)
        return (
            rest,
            f"{gone} is lost: the log ends at offset {extent.end} now (cut, or restored from a backup)",
        )
    return rest, ""


def checked(
    wanted: Iterable[PartitionRange], now: Extents, agreed: PartitionOffsets | None = None, *, fail: bool
) -> list[PartitionRange]:
    """Return the parts of `wanted` that are in the log; `agreed`: where leaders have cut it since it was planned.

    Raises: DataLossError: some are not, and `fail`.
    """
    found = [available(r, now, agreed or {}) for r in wanted]
    report((line for _, line in found), fail=fail)
    return [r for r, _ in found if r is not None]
