"""Dead letters: which there are, as rows for people and programs, and how they are sent again, each once.

A dead letter counts once, however often its key is in the topic. A record that is sent again leaves two records
in its transaction: a tombstone under the key of the dead letter, so that compaction frees its room, and a mark under
`<key>|replayed`, which stays: a reader that runs again and writes the same dead letter once more brings nothing back.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from logstore.errors import BatchConflictError, InvalidRequestError, TransactionAbortedError
from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas.misfits import KEY, NULL, PREFIX, TRIES, VALUE, tries_of
from logstore.store.reading import OffsetRange

if TYPE_CHECKING:
    import pyarrow as pa

    from logstore.store.store import LogStore

Row = dict[str, Any]
Headers = tuple[tuple[str, bytes | None], ...]

REPLAYED = b"|replayed"  # ends the key of a mark; that of a dead letter ends with an offset
_APPENDED_BYTES = 4 * 1024 * 1024
_FACTS = ("reason", "topic", "partition", "offset", "timestamp")


class DeadLetter(NamedTuple):
    """`topic`, `partition`, `offset` and `timestamp_ms` are those of the record, `failed_ms` is when it did not fit."""

    topic: str
    partition: int
    offset: int
    id: bytes
    reason: str
    query: str
    tries: int
    failed_ms: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Wanted(NamedTuple):
    """Which dead letters: that failed in [since, until), whose reason contains a text, whose key is this."""

    since_ms: int | None = None
    until_ms: int | None = None
    reason: str | None = None
    key: bytes | None = None

    def has(self, letter: DeadLetter) -> bool:
        return (
            (self.since_ms is None or letter.failed_ms >= self.since_ms)
            and (self.until_ms is None or letter.failed_ms < self.until_ms)
            and (self.reason is None or self.reason in letter.reason)
            and (self.key is None or self.key == letter.key)
        )


class Replayed(NamedTuple):
    """The dead letters that were sent again; how many stay because of their tries, and because of the limit."""

    sent: list[DeadLetter]
    tired: int
    left: int


class Range(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


Append = Callable[[str, "pa.RecordBatch"], object]


class Place(Protocol):
    """A directory or a cluster."""

    def extents(self, topic: str) -> Mapping[int, Range]:
        """The offsets of each partition that are decided. Raises: UnknownTopicError."""
        ...

    def read(self, topic: str, partition: int, found: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The committed records of a range."""
        ...

    def replaying(self, topic: str) -> AbstractContextManager[Append]:
        """A transaction over the dead letters of `topic`: the one before of that topic is committed, or never will be.

        All appends are visible at its end, or none.
        """
        ...


class Directory:
    """`Place` of a store. Two replays at once take the same number of a batch: one of them is committed."""

    def __init__(self, store: LogStore) -> None:
        self._store = store

    def extents(self, topic: str) -> Mapping[int, OffsetRange]:
        return self._store.offsets(topic)

    def read(self, topic: str, partition: int, found: Range, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from self._store.read(topic, partition=partition, start=found.start, end=found.end, columns=columns)

    @contextmanager
    def replaying(self, topic: str) -> Iterator[Append]:
        name, transactions = replay_id(topic), self._store.transactions
        transactions.abort_name(name, reason="another replay of these dead letters began")
        last = transactions.last_batch(name)
        try:
            with self._store.transaction(name, batch_id=0 if last is None else last + 1) as transaction:
                yield partial(self._store.append, transaction=transaction)
        except (BatchConflictError, TransactionAbortedError) as error:
            raise InvalidRequestError(
                f"{topic}: another replay began meanwhile, and this one sent nothing; look at what is left, "
                f"with `pylog dlq list {topic}`"
            ) from error


def replay_id(topic: str) -> str:
    """The name of the transactions that send dead letters of this topic again."""
    return f"pylog-dlq-replay-{topic}"


# ------------------------------------------------------------------------- looking


def summary(place: Place, topic: str) -> list[Row]:
    """How many dead letters each topic has for each reason, the most first. Raises: UnknownTopicError."""
    found: dict[tuple[str, str], Row] = {}
    for letter in letters(place, topic):
        row = found.setdefault(
            (letter.topic, letter.reason),
            {
                "topic": letter.topic,
                "reason": letter.reason,
                "records": 0,
                "first_ms": letter.failed_ms,
                "last_ms": letter.failed_ms,
            },
        )
        row["records"] += 1
        row["first_ms"] = min(row["first_ms"], letter.failed_ms)
        row["last_ms"] = max(row["last_ms"], letter.failed_ms)
    return sorted(found.values(), key=lambda row: (row["topic"], -row["records"], row["reason"]))


def first(place: Place, topic: str, wanted: Wanted, count: int) -> list[DeadLetter]:
    """So many dead letters, in the order of their records. Raises: UnknownTopicError."""
    return heapq.nsmallest(count, filter(wanted.has, letters(place, topic)))


def letters(place: Place, topic: str) -> Iterator[DeadLetter]:
    """Each dead letter that is in the topic and was not sent again, once. Raises: UnknownTopicError."""
    extents = place.extents(topic)
    alive = _alive(place, topic, extents)
    for number, found in extents.items():
        for batch in place.read(topic, number, found, ["offset", "key", "value", "headers", "timestamp"]):
            times = batch.column("timestamp").cast("int64").to_pylist()  # a datetime has not room for all of them
            for row, failed_ms in zip(batch.drop_columns(["timestamp"]).to_pylist(), times, strict=True):
                is_last = alive.get(row["key"]) == (number, row["offset"])
                if is_last and (letter := letter_of(row, failed_ms)) is not None:
                    yield letter


def _alive(place: Place, topic: str, extents: Mapping[int, Range]) -> dict[bytes, tuple[int, int]]:
    """Partition and offset of the last record of each key that was not sent again."""
    last: dict[bytes, tuple[int, int]] = {}
    replayed = set()
    for number, found in extents.items():
        for batch in place.read(topic, number, found, ["offset", "key"]):
            for offset, key in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if key is not None and key.endswith(REPLAYED):
                    replayed.add(key.removesuffix(REPLAYED))
                elif key is not None:
                    last[key] = number, offset
    return {key: at for key, at in last.items() if key not in replayed}


def letter_of(row: Mapping[str, Any], failed_ms: int) -> DeadLetter | None:
    """The dead letter that a record is; None: it is none, such as a tombstone."""
    pairs = tuple((pair["key"], pair["value"]) for pair in row["headers"] or ())
    facts = {name: (value or b"").decode("utf-8", "replace") for name, value in pairs if name.startswith(PREFIX)}
    if any(f"{PREFIX}{fact}" not in facts for fact in _FACTS):
        return None
    try:
        partition, offset, timestamp_ms = (int(facts[f"{PREFIX}{fact}"]) for fact in _FACTS[2:])
    except ValueError:
        return None
    return DeadLetter(
        topic=facts[f"{PREFIX}topic"],
        partition=partition,
        offset=offset,
        id=row["key"],
        reason=facts[f"{PREFIX}reason"],
        query=facts.get(f"{PREFIX}query", ""),
        tries=tries_of(pairs),
        failed_ms=failed_ms,
        timestamp_ms=timestamp_ms,
        key=dict(pairs).get(KEY),
        value=None if dict(pairs).get(VALUE) == NULL else row["value"],
        headers=tuple(pair for pair in pairs if not pair[0].startswith(PREFIX)),
    )


# ----------------------------------------------------------------------- sending again


def replay(  # noqa: PLR0913  each of them is one choice of the caller
    place: Place,
    topic: str,
    wanted: Wanted,
    *,
    to: str | None = None,
    tries_max: int,
    count_max: int,
    dry_run: bool = False,
) -> Replayed:
    """Send dead letters again, to the topics that they came from or to one, all of them in one transaction.

    A record has its key, value, headers and timestamp again, and the header `dlq.tries`. In the topic that it came from
    it goes to its partition. A dead letter with `tries_max` tries or more stays.

    Raises: UnknownTopicError; InvalidRequestError: `to` is the topic of the dead letters, or another replay began, and
    this one sent nothing; KafkaError: the same on a cluster.
    """
    if to == topic:
        raise InvalidRequestError(f"{topic} has the dead letters: name another topic to send them to")
    if dry_run:
        return _chosen(place, topic, wanted, tries_max, count_max)
    if to is not None:
        place.extents(to)  # it is there
    with place.replaying(topic) as append:
        found = _chosen(place, topic, wanted, tries_max, count_max)
        partitions = {name: len(place.extents(name)) for name in {to or letter.topic for letter in found.sent}}
        for part in _portions(found.sent):
            for name, count in partitions.items():
                if rows := [_again(letter, to, count) for letter in part if name == (to or letter.topic)]:
                    append(name, _batch(rows))
            append(topic, _batch([row for letter in part for row in _marks(letter, to or letter.topic)]))
    return found


def _chosen(place: Place, topic: str, wanted: Wanted, tries_max: int, count_max: int) -> Replayed:
    tired = fit = 0

    def counted() -> Iterator[DeadLetter]:
        nonlocal tired, fit
        for letter in filter(wanted.has, letters(place, topic)):
            if letter.tries >= tries_max:
                tired += 1
            else:
                fit += 1
                yield letter

    sent = heapq.nsmallest(count_max, counted())
    return Replayed(sent, tired, fit - len(sent))


def _portions(sent: Sequence[DeadLetter]) -> Iterator[list[DeadLetter]]:
    part: list[DeadLetter] = []
    size = 0
    for letter in sent:
        part.append(letter)
        size += len(letter.value or b"") + len(letter.key or b"") + 500
        if size > _APPENDED_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _again(letter: DeadLetter, to: str | None, partitions: int) -> Row:
    own = to in (None, letter.topic) and letter.partition < partitions
    tries = (TRIES, str(letter.tries).encode())
    return {
        "key": letter.key,
        "value": letter.value,
        "headers": _pairs((*letter.headers, tries)),
        "timestamp": letter.timestamp_ms if letter.timestamp_ms >= 0 else None,
        "partition": letter.partition if own else None,
    }


def _marks(letter: DeadLetter, to: str) -> Iterator[Row]:
    empty: Row = {"headers": None, "timestamp": None, "partition": None}
    yield {"key": letter.id, "value": None, **empty}
    yield {"key": letter.id + REPLAYED, "value": to.encode(), **empty}


def _pairs(headers: Headers) -> list[Row]:
    return [{"key": name, "value": value} for name, value in headers]


def _batch(rows: Sequence[Row]) -> pa.RecordBatch:
    import pyarrow as pa

    fields = [RECORD_SCHEMA.field(name) for name in ("key", "value", "headers", "timestamp")]
    schema = pa.schema([*fields, pa.field("partition", pa.int32())])
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)
