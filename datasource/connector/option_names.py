"""Every name of `.option(...)`, and where it acts; one that is unknown, misspelt or out of place has a hint."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import get_args

from datasource.connector.places import STORAGE
from datasource.delta.storage_options import NAMES as STORAGE_OPTIONS
from logstore.config import Isolation
from logstore.errors import InvalidConfigError
from logstore.records.compression import Codec
from logstore.records.partitioner import PARTITIONERS
from replication.client.registry_settings import NAMES as REGISTRY
from replication.client.security import SETTINGS, hint_of

ISOLATIONS: tuple[str, ...] = get_args(Isolation)
COMPRESSIONS = tuple(codec.name.lower() for codec in Codec)


class Use(StrEnum):
    BATCH_READ = "batch read"
    STREAM_READ = "stream read"
    WRITE = "write"


Uses = frozenset[Use]

READ = frozenset({Use.BATCH_READ, Use.STREAM_READ})
BATCH, STREAM, WRITE = frozenset({Use.BATCH_READ}), frozenset({Use.STREAM_READ}), frozenset({Use.WRITE})

# name -> where it acts. Refusals come from this table, and a test compares it with docs/spark.md.
OPTIONS: dict[str, Uses] = {
    "path": READ | WRITE,
    "kafka.bootstrap.servers": READ | WRITE,
    "assign": READ,
    "subscribe": READ,
    "subscribePattern": READ,
    "columns": READ,
    "typed": READ | WRITE,
    "value.subject": READ | WRITE,
    "key.subject": READ | WRITE,
    "metadata": READ,
    "rescued": READ,
    "schema.evolution": STREAM,
    "value.format": READ | WRITE,
    "key.format": READ | WRITE,
    "key.fields": READ | WRITE,
    "key.fields-prefix": READ | WRITE,
    "value.fields-include": READ | WRITE,
    "mode": READ,
    "columnNameOfCorruptRecord": READ,
    "dlq.topic": READ,
    "dlq.name": READ,
    "includeHeaders": READ | WRITE,
    "includeTiered": READ,
    "tieredTable": READ,
    **{f"{STORAGE}{name.lower()}": READ for name in STORAGE_OPTIONS},
    "startingOffsets": READ,
    "startingTimestamp": READ,
    "startingOffsetsByTimestamp": READ,
    "startingOffsetsByTimestampStrategy": READ,
    "groupId": READ,
    "endingOffsets": BATCH,
    "endingTimestamp": BATCH,
    "endingOffsetsByTimestamp": BATCH,
    "failOnDataLoss": READ,
    "isolation": READ,
    "shortCircuit": READ,
    "kafka.client.rack": READ,
    "pushdown": BATCH,
    "view": BATCH,
    "minPartitions": READ,
    "maxRecordsPerPartition": READ,
    "maxOffsetsPerTrigger": STREAM,
    "minOffsetsPerTrigger": STREAM,
    "maxBytesPerTrigger": STREAM,
    "maxTriggerDelay": STREAM,
    "fetchOffset.numRetries": READ,
    "fetchOffset.retryIntervalMs": READ,
    "topic": WRITE,
    "partitioner": WRITE,
    "compression": WRITE,
    "exactlyOnce": WRITE,
    "txnId": WRITE,
    "txnVersion": WRITE,
    "transaction.timeout.ms": WRITE,
    "decisionTopic": WRITE,
    **{f"kafka.{name}": READ | WRITE for name in sorted(SETTINGS)},
    **dict.fromkeys(sorted(REGISTRY), READ | WRITE),
    # Spark adds these two by itself to what a stream writer gets.
    "checkpointLocation": WRITE,
    "queryName": WRITE,
}

_WRONG_PLACE = {
    ("topic", Use.BATCH_READ): "a read chooses topics by 'subscribe', 'subscribePattern' or 'assign'",
    ("topic", Use.STREAM_READ): "a read chooses topics by 'subscribe', 'subscribePattern' or 'assign'",
    ("subscribe", Use.WRITE): "a write names its topic by the option 'topic' or a column 'topic'",
    ("assign", Use.WRITE): "a write chooses partitions by a column 'partition'",
    ("endingoffsets", Use.STREAM_READ): "a stream has no end; to stop at today's end use trigger(availableNow=True)",
    ("endingtimestamp", Use.STREAM_READ): "a stream has no end; use a batch read for a range of time",
    ("view", Use.STREAM_READ): "a stream reads every change; datasource.upsert keeps the last state of each key",
    ("maxoffsetspertrigger", Use.BATCH_READ): "a batch has no triggers; bound it by 'endingOffsets'",
    ("maxbytespertrigger", Use.BATCH_READ): "a batch has no triggers; bound it by 'endingOffsets'",
    ("checkpointlocation", Use.STREAM_READ): "give it to writeStream",
}
NO_CLUSTER = "needs a cluster: a directory is read directly"
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
CATALOG = re.compile(r"option\..*|location|provider|owner|external|is_managed_location|comment")


def lower(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def known(options: Mapping[str, str], uses: Uses) -> dict[str, str]:
    """Return the options under lower-case names. Raises: InvalidConfigError: one is unknown, or not for `uses`."""
    given = lower(options)
    if not {"path", "kafka.bootstrap.servers"} & given.keys() and all(CATALOG.fullmatch(name) for name in given):
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
