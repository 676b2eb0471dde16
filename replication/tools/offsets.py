"""Offsets of a cluster's partitions: found, and moved up by deleting records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from logstore.errors import UnknownPartitionError
from logstore.records import times
from replication.client.admin import delete_records
from replication.client.fetching import LATEST
from replication.client.kafka_client import KafkaClient
from replication.client.metadata import NO_LEADER
from replication.model.cluster import TopicPartition
from replication.model.times import AskedTime, SpecialTime, TimeMs
from replication.tools.topics import present, selected

Row = dict[str, Any]
_WORDS = {"latest": SpecialTime.LATEST, "earliest": SpecialTime.EARLIEST, "max-timestamp": SpecialTime.MAX_TIMESTAMP}
_PLACES = _WORDS | {str(place.value): place for place in _WORDS.values()}


def asked_time(text: str) -> AskedTime | None:
    """A place, milliseconds, or an ISO time with a zone; None for anything else.

    Below 0 are the numbers of places, as in Kafka's tool.
    """
    time_ms = times.of_text(text)
    return _PLACES.get(text, None if time_ms is None else TimeMs(time_ms))


def offsets(
    client: KafkaClient,
    topic: str | None,
    partitions: Collection[int] | None,
    time: AskedTime,
    *,
    with_internal: bool = True,
) -> list[Row]:
    """The offset of each partition at a moment or place; None where nobody leads, or nothing is so late.

    Raises: UnknownTopicError, UnknownPartitionError, KafkaError.
    """
    found = selected(client, None if topic is None else [topic])
    led = {}
    for name, known in found.items():
        if topic is None and known.is_internal and not with_internal:
            continue
        for number in sorted(known.partitions if partitions is None else partitions):
            if number in known.partitions:
                led[TopicPartition(name, number)] = known.partitions[number].leader != NO_LEADER
            elif topic is not None:
                raise UnknownPartitionError(name, number, len(known.partitions))
    asked = {tp: time for tp, is_led in led.items() if is_led}
    offsets = client.offsets(asked) if asked else {}
    ends = {tp: found.offset for tp, found in offsets.items() if found.offset >= 0}
    return [{**tp._asdict(), "offset": ends.get(tp)} for tp in led]


def delete(client: KafkaClient, wanted: Mapping[str, Mapping[int, int]]) -> list[Row]:
    """Delete the records below these offsets, or of -1 all; return the offsets that are left.

    Raises: UnknownTopicError, UnknownPartitionError (nothing is deleted); KafkaError: an offset is above the end.
    """
    asked = {TopicPartition(name, p): offset for name, of in wanted.items() for p, offset in of.items()}
    present(client, asked)
    starts = client.run(delete_records, asked)
    ends = client.offsets(dict.fromkeys(asked, LATEST))
    return [{**tp._asdict(), "start": starts[tp], "end": ends[tp].offset} for tp in sorted(asked)]
