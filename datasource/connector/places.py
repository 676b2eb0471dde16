"""Which topics and partitions a read takes, and where it starts and ends: values, out of the options' texts.

`given` maps lower-case option names to texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from datasource.connector import option_parsing as parse
from datasource.delta.storage_options import StorageOptions, scheme_of, storage_options
from logstore.errors import InvalidConfigError
from logstore.records import times

EARLIEST, LATEST = -2, -1  # in Kafka's JSON, in place of an offset
GROUP = "group"  # a value of startingOffsets
MISFITS = "__pylog_misfits"  # the topic in which tasks tell how many records did not fit
STORAGE = "storage."  # before the names of storage options


@dataclass(frozen=True, slots=True)
class Assign:
    """These partitions of these topics, and no others."""

    partitions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """All partitions of these topics, those to come included."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """All topics whose whole name matches this (Python) regular expression, those to come included.

    MISFITS is none of them: what a stream tells there would come back as its records.
    """

    pattern: str

    def matches(self, topic: str) -> bool:
        return topic != MISFITS and re.fullmatch(self.pattern, topic) is not None


Topics = Assign | Subscribe | SubscribePattern


@dataclass(frozen=True, slots=True)
class Everywhere:
    """EARLIEST or LATEST in every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Offsets:
    """An offset per partition, or EARLIEST or LATEST in its place."""

    offsets: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Time:
    """The first record at or after this time, in every partition."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Times:
    """The first record at or after a time per partition."""

    timestamps: Mapping[str, Mapping[int, int]]


OffsetSpec = Everywhere | Offsets | Time | Times


@dataclass(frozen=True, slots=True)
class OfGroup:
    """The committed offsets of the read's group; `otherwise` (EARLIEST or LATEST) in partitions without a commit."""

    otherwise: int


@dataclass(frozen=True, slots=True)
class Tables:
    """The topics' tables in a read: over a cluster their place, in which {topic} is the topic's name; else ""."""

    place: str
    storage: StorageOptions


def tables_of(given: Mapping[str, str], *, include_tiered: bool, is_directory: bool) -> Tables:
    """Return where tables are, and how an object store is reached.

    Raises: InvalidConfigError: a read of tables over a cluster does not name them, or another read does; storage
    options are none of the table's.
    """
    place = given.get("tieredtable", "").strip()
    if place and (is_directory or not include_tiered):
        remedy = "a directory knows its tables: remove it" if is_directory else "needs includeTiered=true"
        raise parse.bad("tieredTable", place, remedy)
    if include_tiered and not is_directory and not place:
        remedy = "option 'tieredTable' names the directory or the URL of the Delta table, {topic} for the topic's name"
        raise parse.bad("includeTiered", given["includetiered"].strip(), f"over a cluster {remedy}")
    named = {name.removeprefix(STORAGE): text for name, text in given.items() if name.startswith(STORAGE)}
    storage = storage_options(named, STORAGE)
    if named and not include_tiered:
        raise InvalidConfigError(
            f"option '{STORAGE}{next(iter(named))}' is for tables in an object store: it needs includeTiered=true",
            option=STORAGE,
        )
    if place:
        storage.check_scheme(scheme_of(place))
    return Tables(place, storage)


def topics_of(given: Mapping[str, str]) -> Topics:
    """Return what to read. Raises: InvalidConfigError: nothing, or two things at once."""
    chosen = [name for name in ("assign", "subscribe", "subscribePattern") if name.lower() in given]
    if len(chosen) != 1:
        found = f"{' and '.join(chosen)} are given" if chosen else "none is given"
        raise InvalidConfigError(
            f"give exactly one of 'subscribe', 'subscribePattern', 'assign'; {found}",
            option="subscribe",
        )
    text = given[chosen[0].lower()].strip()
    match chosen[0]:
        case "assign":
            return Assign(parse.assignment("assign", text))
        case "subscribe":
            topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
            if not topics:
                raise parse.bad("subscribe", text, "one or more topic names, separated by commas")
            return Subscribe(topics)
        case _:
            return SubscribePattern(parse.pattern("subscribePattern", text))


_WORDS = {"earliest": EARLIEST, "latest": LATEST}


def starting(given: Mapping[str, str], *, is_batch: bool, is_known: bool) -> OffsetSpec | OfGroup:
    """Return where a read starts; not `is_known`: whether it is a batch or a stream. Raises: InvalidConfigError."""
    words = ("earliest",) if is_batch else ("latest", "earliest")
    by_time = {"startingtimestamp", "startingoffsetsbytimestamp"} & given.keys()
    if not by_time and given.get("startingoffsets", "").strip().lower() == GROUP:
        return OfGroup(_WORDS[words[0]])
    return _place(given, "starting", words, "" if is_known else "'earliest', in a stream also 'latest'")


def ending(given: Mapping[str, str]) -> OffsetSpec:
    """Return where a batch ends. Raises: InvalidConfigError."""
    return _place(given, "ending", ("latest",))


def _place(given: Mapping[str, str], side: str, words: tuple[str, ...], allowed: str = "") -> OffsetSpec:
    """Return where a read starts or ends: one time goes before times per partition, and these before offsets.

    `words` are allowed on this side, the default first; `allowed` says that in an error.
    """
    if f"{side}timestamp" in given:
        return Time(parse.time_ms(given, f"{side}Timestamp"))
    name = f"{side}OffsetsByTimestamp"
    if name.lower() in given:
        example = '{"orders":{"0":1700000000000}}; a time may be a text with a zone, too: "2026-11-28 16:00:00+01:00"'
        return Times(parse.per_partition(name, given[name.lower()], 0, example, number_of=times.of_text))
    name = f"{side}Offsets"
    text = given.get(name.lower(), words[0]).strip()
    if text.lower() in words:
        return Everywhere(_WORDS[text.lower()])
    example = f'{{"orders":{{"0":23,"1":{_WORDS[words[-1]]}}}}}'
    if not text.startswith("{"):
        raise parse.bad(name, text, f"{allowed or ' or '.join(map(repr, words))}, or JSON like {example}")
    offsets = parse.per_partition(name, text, EARLIEST, example)
    for word, offset in _WORDS.items():
        if word not in words and any(offset in parts.values() for parts in offsets.values()):
            raise parse.bad(name, text, f"{offset} ({word}) is not allowed here")
    return Offsets(offsets)


def is_latest(given: Mapping[str, str]) -> bool:
    """Whether a read is of the latest value of each key. Raises: InvalidConfigError: with an option that cuts keys."""
    if not parse.choice(given, "view", ("latest",), ""):
        return False
    start, task = (
        "reads from the beginning: remove it; endingOffsets bounds it",
        "reads a partition in one task: remove it",
    )
    refused = {
        "startingOffsets": start,
        "startingTimestamp": start,
        "startingOffsetsByTimestamp": start,
        "startingOffsetsByTimestampStrategy": start,
        "minPartitions": task,
        "maxRecordsPerPartition": task,
    }
    for name, why in refused.items():
        if name.lower() in given:
            raise parse.bad(name, given[name.lower()].strip(), f"view=latest {why}")
    return True
