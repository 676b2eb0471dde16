"""The options of `.option(...)`: every name, its meaning and its check, as in Spark's Kafka source.

An option that is unknown, misspelt, or not for this kind of query is refused with one line that says what to write
instead: a silently ignored option is a wrong result later.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import cast, get_args

from datasource.connector import option_parsing as parse
from datasource.connector.places import (
    GROUP,
    STORAGE,
    OffsetSpec,
    OfGroup,
    Tables,
    Topics,
    ending,
    starting,
    tables_of,
    topics_of,
)
from datasource.delta.storage_options import NAMES as STORAGE_OPTIONS
from datasource.schema import COLUMNS, HEADERS
from datasource.topics.locations import Location
from datasource.topics.transactions.state import LEASED
from logstore.config import INT32_MAX, Isolation
from logstore.errors import InvalidConfigError
from logstore.records.compression import Codec
from logstore.records.partitioner import PARTITIONERS
from replication.client.addresses import addresses_of
from replication.client.security import SETTINGS, hint_of, security_of

ISOLATIONS: tuple[str, ...] = get_args(Isolation)
DECISION_TOPIC = "__pylog_decisions"
COMPRESSIONS = tuple(codec.name.lower() for codec in Codec)


class Use(StrEnum):
    BATCH_READ = "batch read"
    STREAM_READ = "stream read"
    WRITE = "write"


Uses = frozenset[Use]

_READ = frozenset({Use.BATCH_READ, Use.STREAM_READ})
_BATCH, _STREAM, _WRITE = frozenset({Use.BATCH_READ}), frozenset({Use.STREAM_READ}), frozenset({Use.WRITE})

# name -> where it acts. Refusals come from this table, and a test compares it with docs/spark.md.
OPTIONS: dict[str, Uses] = {
    "path": _READ | _WRITE,
    "kafka.bootstrap.servers": _READ | _WRITE,
    "assign": _READ,
    "subscribe": _READ,
    "subscribePattern": _READ,
    "columns": _READ,
    "includeHeaders": _READ | _WRITE,
    "includeTiered": _READ,
    "tieredTable": _READ,
    **{f"{STORAGE}{name.lower()}": _READ for name in STORAGE_OPTIONS},
    "startingOffsets": _READ,
    "startingTimestamp": _READ,
    "startingOffsetsByTimestamp": _READ,
    "startingOffsetsByTimestampStrategy": _READ,
    "groupId": _READ,
    "endingOffsets": _BATCH,
    "endingTimestamp": _BATCH,
    "endingOffsetsByTimestamp": _BATCH,
    "failOnDataLoss": _READ,
    "isolation": _READ,
    "shortCircuit": _READ,
    "kafka.client.rack": _READ,
    "pushdown": _BATCH,
    "minPartitions": _READ,
    "maxRecordsPerPartition": _READ,
    "maxOffsetsPerTrigger": _STREAM,
    "minOffsetsPerTrigger": _STREAM,
    "maxBytesPerTrigger": _STREAM,
    "maxTriggerDelay": _STREAM,
    "fetchOffset.numRetries": _READ,
    "fetchOffset.retryIntervalMs": _READ,
    "topic": _WRITE,
    "partitioner": _WRITE,
    "compression": _WRITE,
    "exactlyOnce": _WRITE,
    "txnId": _WRITE,
    "txnVersion": _WRITE,
    "transaction.timeout.ms": _WRITE,
    "decisionTopic": _WRITE,
    **{f"kafka.{name}": _READ | _WRITE for name in sorted(SETTINGS)},
    # Spark adds these two by itself to what a stream writer gets.
    "checkpointLocation": _WRITE,
    "queryName": _WRITE,
}

_WRONG_PLACE = {
    ("topic", Use.BATCH_READ): "a read chooses topics by 'subscribe', 'subscribePattern' or 'assign'",
    ("topic", Use.STREAM_READ): "a read chooses topics by 'subscribe', 'subscribePattern' or 'assign'",
    ("subscribe", Use.WRITE): "a write names its topic by the option 'topic' or a column 'topic'",
    ("assign", Use.WRITE): "a write chooses partitions by a column 'partition'",
    ("endingoffsets", Use.STREAM_READ): "a stream has no end; to stop at today's end use trigger(availableNow=True)",
    ("endingtimestamp", Use.STREAM_READ): "a stream has no end; use a batch read for a range of time",
    ("maxoffsetspertrigger", Use.BATCH_READ): "a batch has no triggers; bound it by 'endingOffsets'",
    ("maxbytespertrigger", Use.BATCH_READ): "a batch has no triggers; bound it by 'endingOffsets'",
    ("checkpointlocation", Use.STREAM_READ): "give it to writeStream",
}
_NO_CLUSTER = "needs a cluster: a directory is read directly"
_NO_MEANING = {
    "groupidprefix": "no group is made for a query; option 'groupId' names one to commit its progress to",
    "kafkaconsumer.polltimeoutms": "nothing is polled here; remove it",
    "bootstrap.servers": "a cluster is named by option 'kafka.bootstrap.servers', a directory by 'path'",
    "paths": "one directory only: .load('/the/directory')",
    "location": "give the directory by option 'path'",
}
_MEANT = {"topics": "subscribe", "brokers": "kafka.bootstrap.servers", "directory": "path"}
_KAFKA_HINTS = {
    "kafka.group.id": "use option 'groupId': the progress of the query is committed to that group",
    "kafka.partitioner.class": f"use option 'partitioner', one of {', '.join(PARTITIONERS)}",
    "kafka.compression.type": f"use option 'compression', one of {', '.join(COMPRESSIONS)}",
    "kafka.isolation.level": f"use option 'isolation', one of {', '.join(ISOLATIONS)}",
    "kafka.transactional.id": "writes are exactly-once by themselves; option 'txnId' names a transaction",
    "kafka.transaction.timeout.ms": "use option 'transaction.timeout.ms'",
    "kafka.enable.idempotence": "writes are exactly-once unless option 'exactlyOnce' is false",
    "kafka.auto.offset.reset": "use option 'startingOffsets'",
}
# Spark's catalog adds these to a table that was created with `USING pylog`.
_CATALOG = re.compile(r"option\..*|location|provider|owner|external|is_managed_location|comment")


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLimits:
    """How much a micro-batch takes; None: no limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    """How a range of offsets is cut into Spark tasks; None: no limit."""

    min_partitions: int | None = None
    max_records: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A checked read: which topics of which directory, from where to where, how much at a time."""

    location: Location
    group: str  # "": none
    topics: Topics
    starting: OffsetSpec | OfGroup
    ending: OffsetSpec
    no_match_is_latest: bool
    fail_on_data_loss: bool
    isolation: Isolation
    include_tiered: bool
    tables: Tables
    short_circuit: bool
    pushdown: bool
    trigger: TriggerLimits
    tasks: TaskLimits
    retries: int
    retry_interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A checked write; `topic` None: a column names the topic of each row."""

    location: Location
    topic: str | None
    partitioner: str
    compression: str | None
    include_headers: bool
    exactly_once: bool
    transaction: str | None
    batch_id: int | None
    transaction_timeout_ms: int
    decision_topic: str
    checkpoint: str | None


def check_read(options: Mapping[str, str]) -> None:
    """Raise InvalidConfigError for options with which neither a batch nor a stream could read.

    Options of CREATE TABLE may be incomplete: a read of the table adds its own by WITH.
    """
    if any(_CATALOG.fullmatch(name.lower()) for name in options):
        return
    read_options(options, streaming=None)
    named = [name for name in OPTIONS if name.lower() in _lower(options)]
    of_batch, of_stream = ([name for name in named if OPTIONS[name] == uses] for uses in (_BATCH, _STREAM))
    if of_batch and of_stream:
        raise InvalidConfigError(
            f"options {of_batch[0]!r} (of a batch) and {of_stream[0]!r} (of a stream) are both given: leave one away",
            option=of_batch[0],
        )


def read_options(options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Return the checked options of a read; `streaming` None: not known yet, so options of either kind pass.

    Raises: InvalidConfigError: one line that names the option and the remedy.
    """
    uses = _READ if streaming is None else _STREAM if streaming else _BATCH
    given = _known(options, uses)
    selected_columns(options)
    trigger = TriggerLimits(
        max_offsets=parse.positive(given, "maxOffsetsPerTrigger"),
        max_bytes=parse.positive(given, "maxBytesPerTrigger"),
        min_offsets=parse.positive(given, "minOffsetsPerTrigger"),
        max_delay_ms=parse.duration_ms(given, "maxTriggerDelay", TriggerLimits().max_delay_ms),
    )
    if trigger.max_offsets and trigger.min_offsets and trigger.min_offsets > trigger.max_offsets:
        raise _refused(given, "minOffsetsPerTrigger", "must not be above maxOffsetsPerTrigger")
    isolation: Isolation = cast("Isolation", parse.choice(given, "isolation", ISOLATIONS, ISOLATIONS[0]))
    include_tiered = parse.flag(given, "includeTiered", default=False)
    if include_tiered and isolation != "read_committed":
        raise _refused(given, "isolation", "includeTiered reads committed records: leave one away")
    location = _location(given)
    tables = tables_of(given, include_tiered=include_tiered, is_directory=bool(location.path))
    short_circuit = parse.flag(given, "shortCircuit", default=False)
    if short_circuit and not location.bootstrap:
        raise _refused(given, "shortCircuit", _NO_CLUSTER)
    return ReadOptions(
        location=location,
        group=_group(given, location.bootstrap, uses),
        topics=topics_of(given),
        starting=starting(given, is_batch=uses == _BATCH, is_known=len(uses) == 1),
        ending=ending(given),
        no_match_is_latest=parse.choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        == "latest",
        fail_on_data_loss=parse.flag(given, "failOnDataLoss", default=True),
        isolation=isolation,
        include_tiered=include_tiered,
        tables=tables,
        short_circuit=short_circuit,
        pushdown=parse.flag(given, "pushdown", default=False),
        trigger=trigger,
        tasks=TaskLimits(
            min_partitions=parse.positive(given, "minPartitions"),
            max_records=parse.positive(given, "maxRecordsPerPartition"),
        ),
        retries=parse.whole(given, "fetchOffset.numRetries", 3),
        retry_interval_ms=parse.whole(given, "fetchOffset.retryIntervalMs", 10),
    )


def write_options(options: Mapping[str, str], *, streaming: bool = False) -> WriteOptions:
    """Return the checked options of a write.

    Raises: InvalidConfigError: one line that names the option and the remedy.
    """
    given = _known(options, _WRITE)
    exactly_once = parse.flag(given, "exactlyOnce", default=True)
    _check_transaction(given, exactly_once=exactly_once, streaming=streaming)
    location = _location(given)
    return WriteOptions(
        location=location,
        topic=given["topic"].strip() if "topic" in given else None,
        partitioner=parse.choice(given, "partitioner", PARTITIONERS, "murmur3"),
        compression=parse.choice(given, "compression", COMPRESSIONS, "") or None,
        include_headers=parse.flag(given, "includeHeaders", default=True),
        exactly_once=exactly_once,
        transaction=given.get("txnid"),
        batch_id=parse.whole(given, "txnVersion", 0) if "txnversion" in given else None,
        transaction_timeout_ms=_transaction_timeout_ms(given, location),
        decision_topic=_decision_topic(given, location, exactly_once=exactly_once),
        checkpoint=given.get("checkpointlocation"),
    )


def _transaction_timeout_ms(given: Mapping[str, str], location: Location) -> int:
    name = "transaction.timeout.ms"
    timeout_ms = parse.duration_ms(given, name, 15 * 60 * 1000)
    if location.bootstrap and timeout_ms > INT32_MAX:
        raise _refused(given, name, f"at most {INT32_MAX} ms over a cluster")
    return timeout_ms


def _decision_topic(given: Mapping[str, str], location: Location, *, exactly_once: bool) -> str:
    topic = given.get("decisiontopic", DECISION_TOPIC).strip()
    if "decisiontopic" in given and not (location.bootstrap and exactly_once and topic):
        remedy = "a directory keeps decisions itself: remove it" if location.path else "name a topic"
        raise _refused(given, "decisionTopic", remedy if exactly_once else "needs exactlyOnce=true")
    return topic


def _check_transaction(given: Mapping[str, str], *, exactly_once: bool, streaming: bool) -> None:
    """Raise InvalidConfigError unless the options that name a transaction go together."""
    named = [name for name in ("txnId", "txnVersion") if name.lower() in given]
    if named and not exactly_once:
        raise _refused(given, named[0], "needs exactlyOnce=true")
    if "txnid" in given and not given["txnid"].strip():
        raise _refused(given, "txnId", "must not be empty")
    if "path" not in given and given.get("txnid", "").startswith(LEASED):
        raise _refused(given, "txnId", f"must not begin with {LEASED!r}: those names are lent to batch writes")
    if streaming and "txnversion" in given:
        raise _refused(given, "txnVersion", "a stream numbers its batches itself; remove it")
    if not streaming and len(named) == 1:
        both = "txnId names the writer, txnVersion grows from write to write (in foreachBatch: the batch id)"
        raise _refused(given, named[0], f"a batch write takes both: {both}")


def selected_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of a read, in order: option `columns`, else all (headers if asked for)."""
    given = _lower(options)
    if "columns" not in given:
        return (*COLUMNS, HEADERS) if parse.flag(given, "includeHeaders", default=False) else COLUMNS
    names = {name.lower(): name for name in (*COLUMNS, HEADERS)}
    wanted = [part.strip().lower() for part in given["columns"].split(",")]
    for name in wanted:
        if name not in names:
            raise _refused(given, "columns", f"{name!r} is no column; there are {', '.join(names.values())}")
    if len(set(wanted)) < len(wanted):
        raise _refused(given, "columns", "a column is named twice")
    return tuple(names[name] for name in wanted)


def _refused(given: Mapping[str, str], name: str, rule: str) -> InvalidConfigError:
    return parse.bad(name, given[name.lower()].strip(), rule)


def _lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _known(options: Mapping[str, str], uses: Uses) -> dict[str, str]:
    """Return the options under lower-case names. Raises: InvalidConfigError: one is unknown, or not for `uses`."""
    given = _lower(options)
    if not {"path", "kafka.bootstrap.servers"} & given.keys() and all(_CATALOG.fullmatch(name) for name in given):
        raise InvalidConfigError(
            "option 'path' (the directory of the log) is missing. If this table was made by CREATE TABLE: "
            "Spark does not hand its OPTIONS to a Python data source; make views by "
            "datasource.register(spark, place), or write SELECT ... FROM t WITH (path='...', subscribe='...') and "
            "INSERT INTO t WITH (path='...', topic='...') ...",
            option="path",
        )
    names = {name.lower(): name for name in OPTIONS}
    of_both = is_of_both(given)
    for name in given:
        if name not in names:
            raise InvalidConfigError(_unknown(name, uses, names), option=name)
        if not (of_both or uses & OPTIONS[names[name]]):
            raise InvalidConfigError(f"option {_of_others(name, uses, names)}", option=name)
    return {name: value for name, value in given.items() if uses & OPTIONS[names[name]]}


def is_of_both(given: Mapping[str, str]) -> bool:
    """Whether options are of a view that is read and written: `subscribe` and `topic` name the same topic.

    A read then skips options of writes, and a write skips those of reads.
    """
    return "topic" in given and given["topic"].strip() == given.get("subscribe", "").strip()


def _named(uses: Uses) -> str:
    return "read" if len(uses) > 1 else min(uses)


def _of_others(name: str, uses: Uses, names: Mapping[str, str]) -> str:
    reason = _WRONG_PLACE.get((name, min(uses)), f"it belongs to a {' or '.join(sorted(OPTIONS[names[name]]))}")
    return f"{names[name]!r} has no meaning in a {_named(uses)}: {reason}"


def _unknown(name: str, uses: Uses, names: Mapping[str, str]) -> str:
    if hint := _NO_MEANING.get(name):
        return f"option {name!r} has no meaning for pylog: {hint}"
    here = [lower for lower, full in names.items() if uses & OPTIONS[full]]
    if name.startswith("kafka."):
        hint = _KAFKA_HINTS.get(name) or hint_of(name.removeprefix("kafka."))
        if not hint and (near := difflib.get_close_matches(name, here, n=1, cutoff=0.9)):
            return f"unknown option {name!r}; did you mean {names[near[0]]!r}?"
        hint = hint or "of Kafka's settings only those of addresses, rack, TLS and SASL are taken; remove it"
        return f"option {name!r} has no meaning for pylog: {hint}"
    if (meant := _MEANT.get(name)) and meant.lower() in here:
        return f"unknown option {name!r}; did you mean {meant!r}?"
    sure = difflib.get_close_matches(name, here, n=1, cutoff=0.9)
    if near := sure or difflib.get_close_matches(name, here, n=3, cutoff=0.6):
        return f"unknown option {name!r}; did you mean {', '.join(repr(names[lower]) for lower in near)}?"
    if near := difflib.get_close_matches(name, names, n=1, cutoff=0.8):
        return f"unknown option {name!r}; {_of_others(near[0], uses, names)}"
    here = [lower for lower in here if not lower.startswith(STORAGE)]
    return f"unknown option {name!r}; a {_named(uses)} takes {', '.join(names[lower] for lower in here)}"


def _location(given: Mapping[str, str]) -> Location:
    bootstrap, rack = (given.get(name, "").strip() for name in ("kafka.bootstrap.servers", "kafka.client.rack"))
    secured = {
        name.removeprefix("kafka."): value for name, value in given.items() if name.removeprefix("kafka.") in SETTINGS
    }
    if "kafka.bootstrap.servers" not in given:
        for name in [*secured, *(["client.rack"] if rack else [])]:
            raise InvalidConfigError(f"option 'kafka.{name}' {_NO_CLUSTER}", option=name)
        return Location(path=_path(given))
    if "path" in given:
        raise InvalidConfigError(
            "options 'path' (a directory) and 'kafka.bootstrap.servers' (a cluster) are both given: leave one away",
            option="path",
        )
    addresses_of(bootstrap, "kafka.bootstrap.servers")
    return Location(bootstrap=bootstrap, rack=rack, security=security_of(secured, "kafka."))


def _group(given: Mapping[str, str], bootstrap: str, uses: Uses) -> str:
    """The group of a read, "" if it has none."""
    starts_there = given.get("startingoffsets", "").strip().lower() == GROUP
    if "groupid" not in given:
        if starts_there:
            raise _refused(given, "startingOffsets", "needs the option 'groupId', which names the group")
        return ""
    group = given["groupid"].strip()
    if not group:
        raise _refused(given, "groupId", "must not be empty")
    if not bootstrap:
        remedy = "positions live in the query's checkpoint; remove it"
        raise _refused(given, "groupId", f"a directory keeps no groups: {remedy}")
    if uses == _BATCH and not starts_there:
        remedy = "add startingOffsets=group to begin there, or remove it"
        raise _refused(given, "groupId", f"a batch read commits nothing: {remedy}")
    return group


def _path(given: Mapping[str, str]) -> str:
    path = given.get("path", "").strip()
    if not path:
        raise InvalidConfigError(
            "option 'path' (the directory of the log) is missing: add .option('path', '/the/directory'), or for a "
            "cluster .option('kafka.bootstrap.servers', 'HOST:PORT')",
            option="path",
        )
    if scheme := re.match(r"(?i)([a-z][a-z0-9+.-]+):/", path):
        if scheme[1].lower() != "file":
            raise _refused(given, "path", "must be a directory of a local or mounted file system")
        path = "/" + path[scheme.end() :].lstrip("/")
    return path
