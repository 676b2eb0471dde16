"""Records of typed topics as the columns that Spark asked for, and what becomes of those that do not fit."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from datasource.connector.checkpoints import QUERY_ID
from datasource.connector.options import ReadOptions
from datasource.connector.registered import columns_of, formats_of, schema_of
from datasource.connector.typed_options import NEEDS_COLUMNS, DeadLetterTopic, TopicColumns, TypedOptions
from datasource.schema import check_kind
from datasource.topics.interface import ReadableTopics, WritableTopics
from datasource.topics.locations import Location
from datasource.topics.timestamps import Clamped, microseconds
from logstore.env import SYSTEM
from logstore.errors import InvalidConfigError, InvalidRecordError, InvalidRequestError, did_you_mean
from logstore.schemas.choice import made
from logstore.schemas.choice import records as records_of
from logstore.schemas.ddl import type_name
from logstore.schemas.formats import Format
from logstore.schemas.layout import CONFLUENT, CORRUPT_RECORD, Mode
from logstore.schemas.misfits import STORED, UnwritableError, dead_letters
from logstore.schemas.registry import Schemas
from logstore.schemas.typed import METADATA, TypedRecords

logger = logging.getLogger(__name__)

HELD_BYTES_MAX = 1024 * 1024
_SPARKS = {"_timestamp": pa.timestamp("us", tz="UTC")}  # where Spark's type is another than that of records


def typed_records(
    options: TypedOptions, schema: types.StructType | pa.Schema, location: Location, topic: str | None = None
) -> TypedRecords:
    """Return how records, of this topic if its schemas count, become these columns.

    Raises: InvalidConfigError: the options do not go with the columns.
    """
    columns = _checked(_arrow(schema))
    corrupt = next((field for field in columns if field.name == options.corrupt_record), None)
    records = _formatted(options, columns, _Registry(location), topic)
    _check_corrupt(corrupt, options.corrupt_record, has_value=records.value is not None)
    return replace(records, columns=tuple(_inner(field, options.corrupt_record) for field in columns))


class _Registry:
    """Gives the schemas of a place, which is looked at when somebody asks."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._topics: ReadableTopics | None = None

    def __call__(self) -> Schemas:
        self._topics = self._topics or self._location.read()
        return self._topics.schemas


def _formatted(
    options: TypedOptions, columns: Sequence[pa.Field], registry: _Registry, topic: str | None
) -> TypedRecords:
    """Return the formats of keys and values that hold these columns, whatever is asked for."""
    fields = [field for field in columns if field.name not in (*METADATA, options.corrupt_record)]
    if options.registered is not None:
        return _registered(options, options.registered, fields, registry, topic)
    return replace(records_of(options.layout, fields, registry), columns=())


def _registered(
    options: TypedOptions, found: TopicColumns, fields: Sequence[pa.Field], registry: _Registry, topic: str | None
) -> TypedRecords:
    known = found.key | found.value
    if strange := [field.name for field in fields if field.name not in known]:
        raise InvalidConfigError(f"schema: the topic has no column {strange[0]!r}{did_you_mean(strange[0], known)}")
    is_avro = CONFLUENT in (found.key_format, found.value_format)
    latest = formats_of(options, registry(), topic) if is_avro and topic is not None else None

    def side(name: str, wanted: list[pa.Field], known: Format | None) -> Format | None:
        """The latest schema of Avro, whose defaults and aliases count, as long as it has the query's columns."""
        if not wanted:
            return None
        if name == CONFLUENT and known is not None and _has(known, wanted):
            return known
        return made(name, wanted, registry)

    key = [f.with_name(f.name.removeprefix(options.layout.key_prefix)) for f in fields if f.name in found.key]
    value = [field for field in fields if field.name in found.value]
    return TypedRecords(
        columns=(),
        key=side(found.key_format, key, latest.key if latest else None),
        value=side(found.value_format, value, latest.value if latest else None),
        mode=options.layout.mode,
        key_prefix=options.layout.key_prefix,
    )


def _has(latest: Format, wanted: Sequence[pa.Field]) -> bool:
    types = {field.name: field.type for field in latest.fields}
    return all(types.get(field.name) == field.type for field in wanted)


def _checked(columns: pa.Schema) -> tuple[pa.Field, ...]:
    for field in columns:
        wanted = _SPARKS.get(field.name, METADATA[field.name][1]) if field.name in METADATA else None
        if wanted is not None and _in_utc(field.type) != wanted:
            raise InvalidConfigError(
                f"schema: column {field.name!r} is {type_name(wanted)}, not {type_name(field.type)}"
            )
        if not field.nullable:
            raise InvalidConfigError(
                f"schema: column {field.name!r} is NOT NULL, and a record may have no value: leave NOT NULL away"
            )
    _check_distinct(columns.names)
    return tuple(columns)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type with the zone that Spark's times have; those of Sail have the session's."""
    return pa.timestamp(kind.unit, tz="UTC") if pa.types.is_timestamp(kind) and kind.tz else kind


def _check_distinct(names: Sequence[str]) -> None:
    if len({name.lower() for name in names}) < len(names):
        raise InvalidConfigError(f"a column appears twice in {', '.join(names)}")


def _check_corrupt(field: pa.Field | None, name: str, *, has_value: bool) -> None:
    if field is None and name != CORRUPT_RECORD:
        raise InvalidConfigError(f"option columnNameOfCorruptRecord={name!r}: add '{name} string' to .schema(...)")
    if field is not None and not (pa.types.is_string(field.type) or pa.types.is_binary(field.type)):
        raise InvalidConfigError(f"schema: column {name!r} holds values that do not fit: string or binary")
    if field is not None and not has_value:
        raise InvalidConfigError(f"schema: beside {name!r} name a column of the value, which is looked at then")


def _arrow(schema: types.StructType | pa.Schema) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC") if isinstance(schema, types.StructType) else schema


def _inner(field: pa.Field, corrupt_record: str) -> pa.Field:
    """Return the field as `TypedRecords` knows it."""
    if field.name == corrupt_record:
        return field.with_name(CORRUPT_RECORD)
    return field.with_type(METADATA[field.name][1]) if field.name in _SPARKS else field


def spark_columns(options: ReadOptions) -> types.StructType:
    """Return the columns of a read that names none. Raises: InvalidRequestError: nor has the topic."""
    typed = options.typed
    assert typed is not None, "keys and values are columns"
    if not typed.is_registered:
        raise InvalidRequestError(NEEDS_COLUMNS)
    return from_arrow_schema(
        schema_of(typed, columns_of(typed, options.location, options.topics)), prefer_timestamp_ntz=True
    )


def prepared(options: ReadOptions, schema: types.StructType | pa.Schema) -> ReadOptions:
    """Return the options with the columns of the topics' schemas, if these count.

    Raises: InvalidConfigError: a read with these options has no such columns; as `columns_of`.
    """
    typed = options.typed
    assert typed is not None, "keys and values are columns"
    if typed.is_registered:
        typed = replace(typed, registered=columns_of(typed, options.location, options.topics))
    typed_records(typed, schema, options.location)
    return replace(options, typed=typed)


class TypedShape:
    """The columns that Spark asked for: which to read from the log, and how to make Spark's batches of them.

    One instance makes the batches of one range. Dead letters are in their topic, and durable, after `flush`.
    """

    def __init__(
        self, options: TypedOptions, schema: types.StructType | pa.Schema, location: Location, topic: str
    ) -> None:
        self._schema = _arrow(schema)
        self._records = typed_records(options, schema, location, topic)
        names = [field.name for field in self._records.columns]
        self._shown = names.index("_timestamp") if "_timestamp" in names else None
        self._letters = DeadLetters(options.dead_letters, location) if options.dead_letters else None
        self.stored = list(dict.fromkeys([*self._records.stored, *(STORED if self._letters else ())]))
        if self._shown is not None and "_offset" not in names:  # so that a time which Spark cannot hold has a place
            offset = pa.field("_offset", METADATA["_offset"][1])
            self._records = replace(self._records, columns=(*self._records.columns, offset))
        self._is_dropping = self._records.mode is Mode.DROPMALFORMED
        self._clamped = Clamped()
        self.misfits = 0  # so far

    def batch(self, records: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        """Return the batch for Spark. Raises: MisfitError: by FAILFAST; errors of the topic of dead letters."""
        rows, misfits = self._records.decode(records, topic, partition)
        if misfits:
            self.misfits += len(misfits)
            if self._letters is not None:
                self._letters.append(records, misfits, topic, partition)
        columns = rows.columns[: len(self._schema)]
        if self._shown is not None:
            known = {"timestamp": columns[self._shown], "offset": rows.column("_offset")}
            columns[self._shown] = microseconds(pa.RecordBatch.from_pydict(known), self._clamped)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def flush(self) -> None:
        """Make the dead letters durable: a task that dies before that has not ended, and runs again."""
        if self._letters is not None and self.misfits:
            self._letters.flush()

    @property
    def notes(self) -> list[str]:
        """Lines for the log, when a range is read."""
        found = [str(self._clamped)] if self._clamped.count else []
        if self.misfits:
            done = "dropped" if self._is_dropping else "rows of nulls"
            where = f", and dead letters in {self._letters.topic}" if self._letters else ""
            found.append(f"{self.misfits:,} records do not fit the columns: {done}{where}")
        return found


class DeadLetters:
    """Makes dead letters, and appends them to their topic: at least once, under the same keys each time.

    Some are held, since an append costs as much as thousands of records that fit.
    """

    def __init__(self, options: DeadLetterTopic, location: Location, query: str | None = None) -> None:
        """`query`: that which reads; None: the one that this task belongs to."""
        self.topic = options.topic
        self._query = _query_id() if query is None else query
        self._name = options.name or self._query
        self._location = location
        self._held: list[pa.RecordBatch] = []

    def of(self, records: pa.RecordBatch, reasons: Mapping[int, str], topic: str, partition: int) -> pa.RecordBatch:
        """Return a dead letter of each of these rows (of the columns `misfits.STORED`)."""
        if not self._name:
            raise InvalidRequestError(
                "Spark does not say which query a task belongs to, so dead letters have no name: set option 'dlq.name'"
            )
        return dead_letters(
            records,
            reasons,
            topic=topic,
            partition=partition,
            name=self._name,
            query=self._query,
            now_ms=SYSTEM.clock.now_ms(),
        )

    def append(self, records: pa.RecordBatch, reasons: Mapping[int, str], topic: str, partition: int) -> None:
        """Append a dead letter of each of these rows, at the latest with `flush`."""
        self._held.append(self.of(records, reasons, topic, partition))
        if sum(letters.nbytes for letters in self._held) > HELD_BYTES_MAX:
            self._append_held()

    def flush(self) -> None:
        """Make durable what `append` was given."""
        self._append_held()
        self._target.flush()

    def _append_held(self) -> None:
        held, self._held = self._held, []
        if held:
            rows = pa.Table.from_batches(held)
            self._target.append(self.topic, rows, partitioner="murmur3", compression=None, transaction=None)

    @functools.cached_property
    def _target(self) -> WritableTopics:
        return self._location.write()


def _query_id() -> str:
    """Return the id of the streaming query that this task belongs to; "": of none."""
    task = TaskContext.get()
    return (task.getLocalProperty(QUERY_ID) or "") if task is not None else ""


def prepare(options: TypedOptions, location: Location) -> None:
    """Make in a planning process what all tasks need. Raises: as `_make_topic`."""
    if options.dead_letters is not None:
        _make_topic(location, options.dead_letters.topic)


@functools.cache
def _make_topic(location: Location, topic: str) -> None:
    """Make the topic of dead letters if it is missing. Raises: InvalidRequestError: it is not compacted."""
    target = location.write()
    target.make(topic, {"cleanup.policy": "compact"})
    if not target.is_compacted(topic):
        raise InvalidRequestError(
            f"topic {topic!r}, of option 'dlq.topic', is not compacted, and would hold a dead letter as often as its "
            f"record is read: pylog topics alter {topic} --config cleanup.policy=compact"
        )


class TypedRows:
    """Rows of typed columns as rows of the log.

    Raises: InvalidRecordError, InvalidConfigError: no row of these columns can be one.
    """

    def __init__(
        self,
        options: TypedOptions,
        schema: types.StructType,
        location: Location,
        topic: str | None,
        *,
        with_headers: bool,
    ) -> None:
        names = [field.name for field in schema.fields]
        _check_distinct(names)
        if topic is None and options.is_registered:
            raise InvalidConfigError("option typed=true needs option 'topic': columns are those of one topic")
        if CONFLUENT in (options.layout.value, options.layout.key) and not options.is_registered:
            raise InvalidConfigError(f"format {CONFLUENT} writes the id of a registered schema: set typed=true instead")
        if topic is None and "_topic" not in names:
            raise InvalidRecordError("no topic: set option 'topic', or add a string column '_topic'")
        for field in schema.fields:
            if field.name in METADATA and field.name != "_offset":
                check_kind(field, field.name.removeprefix("_"))
        self._options, self._location, self._topic = options, location, topic
        self._columns = pa.schema([field.with_nullable(True) for field in _arrow(schema)])
        self._left_out = [] if with_headers else ["_headers"]
        self._records: TypedRecords | None = None
        self._known().encode(self._columns.empty_table())  # raises for what the topic has not, or of another type

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_records": None}  # a registry is asked in each process

    def _known(self) -> TypedRecords:
        if self._records is None:
            registry = _Registry(self._location)
            if self._topic is not None and self._options.is_registered:
                self._location.read().topic(self._topic)
                self._records = formats_of(self._options, registry(), self._topic)
            else:
                self._records = _formatted(self._options, list(self._columns), registry, None)
            if self._records.value is None:
                remedy = "value.fields-include=ALL puts those of the key there"
                raise InvalidRecordError(f"no column is left for the value: {remedy}")
        return self._records

    def __call__(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """Return the rows, with a column `topic` if they name theirs. Raises: InvalidRecordError: one does not fit."""
        given, records = pa.Table.from_batches(batches), self._known()
        try:
            rows = records.encode(given.select([n for n in given.column_names if n not in self._left_out]))
        except UnwritableError as error:
            raise InvalidRecordError(f"a row cannot be written: {error.reason}") from None
        return rows.append_column("topic", given.column("_topic")) if "_topic" in given.column_names else rows
