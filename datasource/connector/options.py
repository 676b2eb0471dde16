"""The options of `.option(...)`: the meaning of each, and its check, as in Spark's Kafka source.

An option that is unknown, misspelt, or not for this kind of query is refused with one line that says what to write
instead: a silently ignored option is a wrong result later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from datasource.connector import option_parsing as parse
from datasource.connector.option_names import (
    BATCH,
    CATALOG,
    COMPRESSIONS,
    ISOLATIONS,
    NO_CLUSTER,
    OPTIONS,
    READ,
    STREAM,
    WRITE,
    Uses,
    known,
    lower,
)
from datasource.connector.places import (
    GROUP,
    OffsetSpec,
    OfGroup,
    Tables,
    Topics,
    ending,
    is_latest,
    starting,
    tables_of,
    topics_of,
)
from datasource.connector.typed_options import TypedOptions, check_apart, is_typed, typed_options
from datasource.schema import COLUMNS, HEADERS
from datasource.topics.locations import Location
from datasource.topics.transactions.state import LEASED
from logstore.config import INT32_MAX, Isolation
from logstore.errors import InvalidConfigError
from logstore.records.partitioner import PARTITIONERS
from replication.client.addresses import addresses_of
from replication.client.registry_settings import PREFIX as REGISTRY
from replication.client.registry_settings import registry_of
from replication.client.security import SETTINGS, security_of

DECISION_TOPIC = "__pylog_decisions"


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
    typed: TypedOptions | None
    short_circuit: bool
    pushdown: bool
    is_latest: bool
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
    typed: TypedOptions | None
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
    if any(CATALOG.fullmatch(name.lower()) for name in options):
        return
    read_options(options, streaming=None)
    named = [name for name in OPTIONS if name.lower() in lower(options)]
    of_batch, of_stream = ([name for name in named if OPTIONS[name] == uses] for uses in (BATCH, STREAM))
    if of_batch and of_stream:
        raise InvalidConfigError(
            f"options {of_batch[0]!r} (of a batch) and {of_stream[0]!r} (of a stream) are both given: leave one away",
            option=of_batch[0],
        )


def read_options(options: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Return the checked options of a read; `streaming` None: not known yet, so options of either kind pass.

    Raises: InvalidConfigError: one line that names the option and the remedy.
    """
    uses = READ if streaming is None else STREAM if streaming else BATCH
    given = known(options, uses)
    if not is_typed(options):
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
        raise _refused(given, "shortCircuit", NO_CLUSTER)
    topics, typed = topics_of(given), typed_options(given, uses)
    check_apart(typed, topics)
    return ReadOptions(
        location=location,
        group=_group(given, location.bootstrap, uses),
        topics=topics,
        starting=starting(given, is_batch=uses == BATCH, is_known=len(uses) == 1),
        ending=ending(given),
        no_match_is_latest=parse.choice(given, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        == "latest",
        fail_on_data_loss=parse.flag(given, "failOnDataLoss", default=True),
        isolation=isolation,
        include_tiered=include_tiered,
        tables=tables,
        typed=typed,
        short_circuit=short_circuit,
        pushdown=parse.flag(given, "pushdown", default=False),
        is_latest=is_latest(given),
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
    given = known(options, WRITE)
    exactly_once = parse.flag(given, "exactlyOnce", default=True)
    _check_transaction(given, exactly_once=exactly_once, streaming=streaming)
    location = _location(given)
    return WriteOptions(
        location=location,
        topic=given["topic"].strip() if "topic" in given else None,
        partitioner=parse.choice(given, "partitioner", PARTITIONERS, "murmur3"),
        compression=parse.choice(given, "compression", COMPRESSIONS, "") or None,
        include_headers=parse.flag(given, "includeHeaders", default=True),
        typed=typed_options(given, WRITE),
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
    given = lower(options)
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


def _location(given: Mapping[str, str]) -> Location:
    bootstrap, rack = (given.get(name, "").strip() for name in ("kafka.bootstrap.servers", "kafka.client.rack"))
    secured = {
        name.removeprefix("kafka."): value for name, value in given.items() if name.removeprefix("kafka.") in SETTINGS
    }
    named = {name: value for name, value in given.items() if name.startswith(REGISTRY)}
    registry = registry_of(named) if named else None
    if "kafka.bootstrap.servers" not in given:
        for name in [*secured, *(["client.rack"] if rack else [])]:
            raise InvalidConfigError(f"option 'kafka.{name}' {NO_CLUSTER}", option=name)
        return Location(path=_path(given), registry=registry)
    if "path" in given:
        raise InvalidConfigError(
            "options 'path' (a directory) and 'kafka.bootstrap.servers' (a cluster) are both given: leave one away",
            option="path",
        )
    addresses_of(bootstrap, "kafka.bootstrap.servers")
    return Location(bootstrap=bootstrap, rack=rack, security=security_of(secured, "kafka."), registry=registry)


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
    if uses == BATCH and not starts_there:
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
