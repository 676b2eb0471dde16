"""The records of `__transaction_state`: Kafka's binary keys and values, byte for byte.

A key is version 0 and the transactional id. A value is written as version 1, whose strings and arrays are compact and
whose structs end with tagged fields (`previous_producer_id` 0, `next_producer_id` 1, `version` 2,
`next_producer_epoch` 3, and `ended_producer_epoch` 10000, which Kafka skips:
left out at their defaults; those of a later release stay); version 0, of earlier brokers, is read, too::

    producer id int64, epoch int16, timeout int32 ms, phase int8, [topic, [partition int32]], updated int64,
    started int64

A record without a value deletes the key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from replication.coordinators import binary
from replication.coordinators.transactions.machine.state import DECIDED, NO_EPOCH, NO_ID, Phase, Transaction
from replication.model.cluster import TopicPartition, rows_by_topic

KEY_VERSION, VALUE_VERSION = 0, 1
ENDED_EPOCH_TAG = 10_000
_KNOWN_TAGS = frozenset((0, 1, 2, 3, ENDED_EPOCH_TAG))
_PHASES = tuple(Phase)  # Kafka numbers them in this order


class Loaded:
    """The transactions of a partition; the last value of a key counts.

    Records of an unknown type are left alone. Raises: UnknownRecordError: a record of a known type cannot be read, so
    that nobody can say how its transaction ended.
    """

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.unknown: Counter[str] = Counter()

    def apply(self, position: int, key: bytes, value: bytes | None) -> None:
        try:
            name = read_key(key)
        except binary.UnknownTypeError as error:
            self.unknown[str(error)] += 1
            return
        self.transactions.pop(name, None)
        if value is not None:
            self.transactions[name] = read_value(name, value)

    def apply_open(self, producer_id: int, position: int, key: bytes, value: bytes | None) -> None:
        """Brokers write nothing in transactions here."""
        self.unknown["in a transaction"] += 1


def key_of(transactional_id: str) -> bytes:
    return binary.SHORT.pack(KEY_VERSION) + binary.string(transactional_id)


def read_key(data: bytes) -> str:
    at = binary.Cursor(data)
    at.take_key_version(KEY_VERSION)
    return at.take_string()


def value_of(found: Transaction) -> bytes:
    topics = rows_by_topic((tp, tp.partition) for tp in sorted(found.partitions))
    parts = [
        binary.SHORT.pack(VALUE_VERSION),
        binary.LONG.pack(found.producer_id),
        binary.SHORT.pack(found.producer_epoch),
        binary.INT.pack(found.timeout_ms),
        bytes((_PHASES.index(found.phase),)),
        binary.varint(len(topics) + 1) if found.phase is not Phase.EMPTY else binary.varint(0),
    ]
    for topic, numbers in topics.items():
        name = topic.encode()
        parts += (
            binary.varint(len(name) + 1),
            name,
            binary.varint(len(numbers) + 1),
            *map(binary.INT.pack, numbers),
            binary.varint(0),
        )
    tags = [
        (tag, data)
        for tag, value, default, data in (
            (0, found.previous_producer_id, NO_ID, binary.LONG.pack(found.previous_producer_id)),
            (1, found.next_producer_id, NO_ID, binary.LONG.pack(found.next_producer_id)),
            (2, found.version, 0, binary.SHORT.pack(found.version)),
            (3, found.next_producer_epoch, NO_EPOCH, binary.SHORT.pack(found.next_producer_epoch)),
            (ENDED_EPOCH_TAG, found.ended_producer_epoch, NO_EPOCH, binary.SHORT.pack(found.ended_producer_epoch)),
        )
        if value != default
    ]
    tags = sorted([*tags, *found.unknown_tags])
    parts += (binary.LONG.pack(found.updated_ms), binary.LONG.pack(found.started_ms), binary.varint(len(tags)))
    for tag, data in tags:
        parts += (binary.varint(tag), binary.varint(len(data)), data)
    return b"".join(parts)


def read_value(transactional_id: str, data: bytes) -> Transaction:
    """Return the transaction; one that is decided has no markers yet, as far as is known."""
    at = binary.Cursor(data)
    version = at.take_short()
    if not 0 <= version <= VALUE_VERSION:
        raise binary.UnknownRecordError(f"value version {version}")
    producer_id, producer_epoch, timeout_ms = at.take_long(), at.take_short(), at.take_int()
    number = at.take_byte()
    if number >= len(_PHASES):
        raise binary.UnknownRecordError(f"phase {number}")
    phase = _PHASES[number]
    partitions = frozenset(_read_partitions(at) if version else _read_old_partitions(at))
    updated_ms, started_ms = at.take_long(), at.take_long()
    tags = at.take_tags() if version else {}
    return Transaction(
        id=transactional_id,
        phase=phase,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        partitions=partitions,
        updated_ms=updated_ms,
        started_ms=started_ms,
        previous_producer_id=_number(tags, 0, NO_ID),
        next_producer_id=_number(tags, 1, NO_ID),
        version=_number(tags, 2, 0),
        next_producer_epoch=_number(tags, 3, NO_EPOCH),
        ended_producer_epoch=_number(tags, ENDED_EPOCH_TAG, NO_EPOCH),
        unknown_tags=tuple((tag, tags[tag]) for tag in sorted(tags.keys() - _KNOWN_TAGS)),
        unmarked=partitions if phase in DECIDED else frozenset(),
    )


def _read_partitions(at: binary.Cursor) -> Iterator[TopicPartition]:
    for _ in range(at.take_varint() - 1):
        topic = at.take_text(at.take_varint() - 1)
        for _ in range(at.take_varint() - 1):
            yield TopicPartition(topic, at.take_int())
        at.take_tags()


def _read_old_partitions(at: binary.Cursor) -> Iterator[TopicPartition]:
    for _ in range(at.take_int()):
        topic = at.take_string()
        for _ in range(at.take_int()):
            yield TopicPartition(topic, at.take_int())


def _number(tags: dict[int, bytes], tag: int, default: int) -> int:
    return int.from_bytes(tags[tag], "big", signed=True) if tag in tags else default
