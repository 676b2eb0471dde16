"""The formats `avro`, whose values are data of one schema, and `avro-confluent`, whose values name their schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from logstore.errors import InvalidConfigError, InvalidRequestError
from logstore.records.columns import Cells, cells
from logstore.schemas.avro.schema import Schema
from logstore.schemas.avro.types import fields_of
from logstore.schemas.parsed import Parsed, joined

if TYPE_CHECKING:
    from logstore.schemas.avro.decoding import Decoder
    from logstore.schemas.avro.encoding import Encoder


class AvroFormat:
    """Data of one schema, shown in the reader's: in that of the writer, unless another one is given.

    Columns are written in the writer's schema, which then has to be the reader's, too. `column`: the name of the column
    of a schema that is no record.
    """

    name: ClassVar[str] = "avro"

    def __init__(self, writer: Schema, reader: Schema | None = None, *, column: str = "value") -> None:
        self.reader = reader or writer
        self.fields: tuple[pa.Field, ...] = fields_of(self.reader, column)
        self._columns = _Columns(self.reader, column)
        self._written = writer

    def decode(self, values: pa.Array) -> Parsed:
        """Return the columns. Bytes after a datum make a misfit of it."""
        return self._columns.decoded(0, self._written, cells(values, "value"))

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a datum for each row. Raises: UnwritableError: a row that the schema cannot carry."""
        if self._written != self.reader:
            raise InvalidConfigError("columns are written in their own schema of Avro, not in another one")
        return self._columns.encoded(columns)


class ConfluentAvroFormat:
    """Data with the id of its schema before it, each shown in the reader's schema.

    `schema_of` gives the schema of an id; its InvalidRequestError makes a misfit of each value with this id. Columns
    are written with the id of the reader's schema, `schema_id`.
    """

    name: ClassVar[str] = "avro-confluent"

    def __init__(
        self,
        reader: Schema,
        schema_of: Callable[[int], Schema],
        schema_id: int | None = None,
        *,
        column: str = "value",
    ) -> None:
        self.fields: tuple[pa.Field, ...] = fields_of(reader, column)
        self._columns = _Columns(reader, column)
        self._schema_of, self._schema_id = schema_of, schema_id
        self._schemas: dict[int, Schema] = {}  # an id never changes

    def decode(self, values: pa.Array) -> Parsed:
        """Return the columns, each value read with the schema of its id."""
        from logstore.schemas.avro import wire

        framed = wire.split(values)
        parts = []
        for schema_id in np.unique(framed.ids[framed.ids >= 0]).tolist():
            rows = np.flatnonzero(framed.ids == schema_id)
            data = Cells(framed.data.addresses[rows], framed.data.sizes[rows], framed)
            parts.append((rows, self._of_id(schema_id, data)))
        refused = np.array(sorted(framed.reasons), np.int64)
        if len(refused) or not parts:
            reasons = {number: framed.reasons[int(row)] for number, row in enumerate(refused)}
            parts.append((refused, self._columns.refused(reasons)))
        return parts[0][1] if len(parts) == 1 else joined(parts)

    def encode(self, columns: pa.RecordBatch) -> pa.Array:
        """Return a value for each row. Raises: UnwritableError: a row that the schema cannot carry."""
        from logstore.schemas.avro import wire

        if self._schema_id is None:
            raise InvalidConfigError("format avro-confluent needs the id of a registered schema to write")
        return self._columns.encoded(columns, wire.header(self._schema_id))

    def _of_id(self, schema_id: int, data: Cells) -> Parsed:
        try:
            if schema_id not in self._schemas:
                self._schemas[schema_id] = self._schema_of(schema_id)
        except InvalidRequestError as error:
            return self._columns.refused(dict.fromkeys(range(len(data.sizes)), f"schema id {schema_id}: {error}"))
        return self._columns.decoded(schema_id, self._schemas[schema_id], data)


class _Columns:
    """The columns of a reader's schema; what reads and writes them is made once, when it is needed."""

    def __init__(self, reader: Schema, column: str) -> None:
        self._reader, self._column = reader, column
        self._decoders: dict[int, Decoder] = {}
        self._encoder: Encoder | None = None

    def decoded(self, number: int, writer: Schema, values: Cells) -> Parsed:
        from logstore.schemas.avro.decoding import Decoder

        if (decoder := self._decoders.get(number)) is None:
            decoder = self._decoders[number] = Decoder(writer, self._reader, self._column)
        return decoder.decode_cells(values)

    def encoded(self, columns: pa.RecordBatch, before: bytes = b"") -> pa.Array:
        from logstore.schemas.avro.encoding import Encoder

        if self._encoder is None:
            self._encoder = Encoder(self._reader, self._column)
        return self._encoder.encode(columns, before)

    def refused(self, reasons: dict[int, str]) -> Parsed:
        """Return no rows, and these reasons."""
        fields = fields_of(self._reader, self._column)
        return Parsed([pa.array([], f.type) for f in fields], np.array([], np.int64), reasons)
