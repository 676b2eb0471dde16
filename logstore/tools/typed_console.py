"""Rows of typed columns for `pylog produce` and `pylog consume`: lines of JSON to records, and records to lines."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import did_you_mean
from logstore.records.schema import RECORD_SCHEMA
from logstore.schemas.documents import scan_members
from logstore.schemas.formats import RESCUED, JsonFormat
from logstore.schemas.misfits import UnwritableError
from logstore.schemas.rendering import render
from logstore.schemas.typed import METADATA, TypedRecords
from logstore.store.description import TopicDescription
from logstore.store.reading import OffsetRange
from logstore.tools.console import ConsoleRecord, LineTarget, Shower


class TypedTarget:
    """A target of lines that are JSON objects of these columns: each is checked, and written in the topic's format."""

    def __init__(self, target: LineTarget, records: TypedRecords) -> None:
        self._target = target
        self._records = records
        self._columns = [field for field in records.columns if field.name not in METADATA]
        self._lines = JsonFormat((*self._columns, pa.field(RESCUED, pa.string())))

    def topic(self, name: str) -> TopicDescription:
        return self._target.topic(name)

    def log(self, topic: str, partition: int) -> object:
        return self._target.log(topic, partition)

    def append(self, topic: str, data: pa.RecordBatch, *, compression: str | None) -> Mapping[int, OffsetRange]:
        """Append the values of these records. Raises: UnwritableError: one does not fit the columns."""
        rows = self._rows(data.column("value").cast(pa.binary()))
        for name in ("key", "headers", "partition"):
            if name in data.schema.names:
                rows = rows.append_column("_" + name, data.column(name))
        records = self._records.encode(rows).combine_chunks().to_batches()[0]
        return self._target.append(topic, records, compression=compression)

    def _rows(self, values: pa.Array) -> pa.RecordBatch:
        found = self._lines.decode(values)
        if found.reasons:
            row = min(found.reasons)
            raise UnwritableError(row, found.reasons[row])
        *columns, more = found.columns
        if more.null_count < len(more):
            row = pc.index(more.is_valid(), True).as_py()
            names = [field.name for field in self._columns]
            name = next(iter(scan_members(more[row].as_py())))
            raise UnwritableError(row, f"the topic has no column {name!r}{did_you_mean(name, names)}")
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(self._columns).with_metadata(None))


def formatter(records: TypedRecords, output: str) -> Shower:
    """Return a function that prints a record as its columns: a line of JSON, or (table) of cells, below their names.

    A record that is dropped is nothing. The function raises MisfitError, by mode FAILFAST.
    """
    names = [field.name for field in records.columns]
    head = "\t".join(names).encode() + b"\n"

    def print_record(record: ConsoleRecord) -> bytes | None:
        nonlocal head
        rows = records.decode(_batch(record), record.topic, record.partition).rows
        if not rows.num_rows:
            return None  # a misfit, by DROPMALFORMED
        [line] = render(rows).to_pylist()
        if output == "json":
            return bytes(line) + b"\n"
        before, head = head, b""
        members = scan_members(line.decode())
        return before + "\t".join(_cell(members.get(name)) for name in names).encode() + b"\n"

    return print_record


def _cell(text: str | None) -> str:
    """Return a text without its quotes; one with a tab or an end of line keeps them."""
    if text is None:
        return "null"
    plain = json.loads(text) if text.startswith('"') else text
    return plain if plain.isprintable() else text


def _batch(record: ConsoleRecord) -> pa.RecordBatch:
    headers = [{"key": name, "value": value} for name, value in record.headers]
    row: dict[str, object] = {
        "key": record.key,
        "value": record.value,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
    }
    row |= {"timestampType": record.timestamp_type, "headers": headers}
    return pa.RecordBatch.from_pylist([row], RECORD_SCHEMA)
