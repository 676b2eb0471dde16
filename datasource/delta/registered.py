"""The columns of a topic's registered schema beside the bytes of its values, in the topic's Delta table.

Nothing is lost: a value that does not fit has nulls in these columns, and its bytes. A later version of the schema
adds its new columns, which are null in the rows before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasource.delta.columns import RAW
from logstore.errors import InvalidRequestError, StoreError
from logstore.schemas.choice import format_of
from logstore.schemas.conversion import is_supported
from logstore.schemas.ddl import type_name
from logstore.schemas.formats import Format
from logstore.schemas.registry import Schemas, UnknownSchemaError
from logstore.schemas.strategies import subject_of


@dataclass(frozen=True, slots=True)
class Beside:
    """The version of a schema, and its columns as the table has them."""

    subject: str
    schema_id: int
    version: int
    fields: tuple[pa.Field, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*RAW, *self.fields])

    @property
    def note(self) -> str:
        """The version, as the commit names it that adds its columns."""
        return f"{self.subject} version {self.version}, id {self.schema_id}"

    def missing(self, there: pa.Schema) -> list[pa.Field]:
        """Return the columns that a table lacks. Raises: StoreError: it has others of these names."""
        known = {field.name.lower(): field for field in there}
        for field in RAW:
            if field.name not in there.names or there.field(field.name).type != field.type:
                raise StoreError(
                    f"the table has no column {field.name!r} of records: it holds parsed values alone; give another "
                    "table (--table) for registered columns"
                )
        for field in self.fields:
            found = known.get(field.name.lower())
            if found is not None and (found.name != field.name or found.type != field.type):
                raise StoreError(
                    f"column {field.name!r} is {type_name(field.type)} in {self.note}, and {found.name!r} "
                    f"{type_name(found.type)} in the table: give another table (--table)"
                )
        return [field for field in self.fields if field.name.lower() not in known]

    def format(self, schemas: Schemas) -> Format:
        return format_of(schemas, schemas.by_id(self.schema_id), self.schema_id, column="value")

    def decoded(self, rows: pa.RecordBatch, format: Format) -> tuple[pa.RecordBatch, int]:
        """Return rows of RAW with the columns beside, and how many values do not fit: these have nulls there."""
        values = rows.column("value")
        there = np.flatnonzero(np.asarray(pc.is_valid(values)))
        parsed = format.decode(values if len(there) == len(values) else values.take(pa.array(there)))
        if len(parsed.good) == rows.num_rows:
            found: Sequence[pa.Array] = parsed.columns
        else:
            place = np.full(rows.num_rows, -1, np.int64)
            place[there[parsed.good]] = np.arange(len(parsed.good))
            taken = pa.array(place, mask=place < 0)
            found = [column.take(taken) for column in parsed.columns]
        cast = [column.cast(field.type) for column, field in zip(found, self.fields, strict=True)]
        return pa.RecordBatch.from_arrays([*rows.columns, *cast], schema=self.schema), len(parsed.reasons)


def beside(schemas: Schemas, topic: str) -> Beside | None:
    """Return the columns of the last version of the topic's values; None: they have no schema.

    Raises: InvalidRequestError: a column that a table cannot have.
    """
    subject = subject_of(topic, "value")
    try:
        entry = schemas.latest(subject)
    except UnknownSchemaError:
        return None
    fields = format_of(schemas, entry.schema, entry.id, column="value").fields
    ours = {name.lower() for name in RAW.names}
    named = [f.with_name(f"value_{f.name}") if f.name.lower() in ours else f for f in fields]
    names = [f.name.lower() for f in named]
    for field in named:
        if not is_supported(field.type):
            raise InvalidRequestError(
                f"{subject}: column {field.name!r} cannot be {type_name(field.type)} in a Delta table"
            )
        if names.count(field.name.lower()) > 1:
            raise InvalidRequestError(
                f"{subject}: column {field.name!r} appears twice, because Delta's names have no case"
            )
    return Beside(subject, entry.id, entry.version, tuple(_as_delta(f) for f in named))


def _as_delta(field: pa.Field) -> pa.Field:
    """The field as a table returns it; null is allowed, for what does not fit."""
    from deltalake import Schema

    found = pa.schema(Schema.from_arrow(pa.schema([field.with_nullable(True)])).to_arrow())
    return found.field(0)
