"""Records of a topic as rows of typed columns, and such rows as records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidConfigError, InvalidRecordError, InvalidRequestError, did_you_mean
from logstore.records.schema import HEADERS_TYPE
from logstore.schemas.fitting import fitted
from logstore.schemas.formats import Format
from logstore.schemas.layout import CORRUPT_RECORD, Mode
from logstore.schemas.misfits import MisfitError, UnwritableError
from logstore.schemas.parsed import Parsed, taken

KEY = "_key"
# name -> the column of a record that it shows, and its type; the topic and the partition are no columns of records.
METADATA: dict[str, tuple[str | None, pa.DataType]] = {
    "_topic": (None, pa.string()),
    "_partition": (None, pa.int32()),
    "_offset": ("offset", pa.int64()),
    "_timestamp": ("timestamp", pa.timestamp("ms", tz="UTC")),
    "_headers": ("headers", HEADERS_TYPE),
    KEY: ("key", pa.binary()),
}
_WRITTEN = {KEY: "key", "_headers": "headers", "_timestamp": "timestamp", "_partition": "partition"}
PIECE_ROWS = 64 * 1024
_PIECE_BYTES = 64 * 1024 * 1024  # the text of a number is some times longer, and a column of Arrow has 2 GiB


class Decoded(NamedTuple):
    """The rows, and the reason of each record that is a misfit, by its row among the records."""

    rows: pa.RecordBatch
    misfits: dict[int, str]


class _Side(NamedTuple):
    """A key or a value as columns: `at` has the row of each record in `columns`, or -1."""

    columns: dict[str, pa.Array]
    at: np.ndarray
    reasons: dict[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRecords:
    """The columns of a topic, in order, and the formats of its keys and values; None: nobody looks at these bytes.

    A column is a field of the value, or of the key (behind `key_prefix`), or one of METADATA, or `_corrupt_record`
    (binary or string). One that is in both is read from the value, and from the key where there is no value.

    Raises: InvalidConfigError: a column is nothing of all this.
    """

    columns: tuple[pa.Field, ...]
    key: Format | None = None
    value: Format | None = None
    mode: Mode = Mode.FAILFAST
    key_prefix: str = ""

    def __post_init__(self) -> None:
        known = {*METADATA, CORRUPT_RECORD, *self._names("key"), *self._names("value")}
        for field in self.columns:
            if field.name not in known:
                raise InvalidConfigError(f"column {field.name!r} is neither in the key nor in the value")

    @property
    def schema(self) -> pa.Schema:
        """The columns as `decode` returns them: any may be null, since a record may have no value."""
        return pa.schema([field.with_nullable(True) for field in self.columns])

    @property
    def stored(self) -> list[str]:
        """The columns of records that `decode` takes."""
        names = {field.name for field in self.columns}
        shown = [column for name, (column, _) in METADATA.items() if name in names and column]
        both = [side for side in ("key", "value") if self._names(side) or CORRUPT_RECORD in names]
        return list(dict.fromkeys([*both, *shown, "offset"]))

    def only(self, columns: Sequence[str] | None) -> TypedRecords:
        """Return the same records with these columns alone, in their order; None: with all."""
        if columns is None:
            return self
        known = {field.name: field for field in self.columns}
        if strange := [name for name in columns if name not in known]:
            raise InvalidRequestError(f"no column {strange[0]!r}{did_you_mean(strange[0], known)}")
        return replace(self, columns=tuple(known[name] for name in columns))

    def decode(self, records: pa.RecordBatch, topic: str, partition: int) -> Decoded:
        """Return the records of one partition (of their columns those `stored`) as rows.

        A misfit whose key or value fits keeps the columns of that one by PERMISSIVE. Raises: MisfitError: by FAILFAST.
        """
        sides = {name: self._side(name, records.column(name)) for name in ("key", "value") if self._names(name)}
        misfits = {row: f"{name}: {reason}" for name, side in sides.items() for row, reason in side.reasons.items()}
        if misfits and self.mode is Mode.FAILFAST:
            row = min(misfits)
            raise MisfitError(topic, partition, records.column("offset")[row].as_py(), misfits[row])
        kept = np.arange(records.num_rows)
        if misfits and self.mode is Mode.DROPMALFORMED:
            kept = np.delete(kept, list(misfits))
        metadata = {"_topic": topic, "_partition": partition}
        arrays = [self._column(field, records, kept, sides, metadata) for field in self.columns]
        return Decoded(pa.RecordBatch.from_arrays(arrays, schema=self.schema), misfits)

    def encode(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        """Return the rows as records to append: `value`, and of key, headers, timestamp and partition what is given.

        `_key` (where the key has no format), `_headers`, `_timestamp` and `_partition` are taken from columns of these
        names; `_topic` and `_offset` are passed over, so that a table that was read can be written. A column that is
        missing is null. A row without any column of the value, except those that are in the key, is a tombstone if it
        has a key; a key without any column is null.

        Raises: InvalidRecordError: a column that the topic has not, or of another kind; UnwritableError: a row that
            does not fit, with its number.
        """
        self._check(rows.schema)
        if self.value is None:
            raise InvalidConfigError("the value has no format: it cannot be written")
        records, start = [], 0
        for piece in _pieces(rows):
            try:
                records.append(self._records(piece, self.value))
            except UnwritableError as error:
                raise UnwritableError(start + error.row, error.reason) from None
            start += piece.num_rows
        return pa.Table.from_batches(records)

    def _names(self, side: str) -> tuple[str, ...]:
        found: Format | None = getattr(self, side)
        prefix = self.key_prefix if side == "key" else ""
        return tuple(prefix + field.name for field in found.fields) if found else ()

    def _side(self, side: str, values: pa.Array) -> _Side:
        """Return what these keys or values became; null stays null."""
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(is_there)
        found: Parsed = getattr(self, side).decode(values.drop_null())
        at = np.full(len(values), -1)
        at[rows[found.good]] = np.arange(len(found.good))
        reasons = {int(rows[row]): reason for row, reason in found.reasons.items()}
        return _Side(dict(zip(self._names(side), found.columns, strict=True)), at, reasons)

    def _column(
        self,
        field: pa.Field,
        records: pa.RecordBatch,
        kept: np.ndarray,
        sides: dict[str, _Side],
        place: dict[str, object],
    ) -> pa.Array:
        name = field.name
        shown = [sides[side] for side in ("value", "key") if side in sides and name in sides[side].columns]
        found = [_spread(side, name, kept) for side in shown]
        if len(found) == 2:
            return pc.if_else(taken(records.column("value").is_valid(), kept), *found)
        if found:
            return found[0]
        if name == CORRUPT_RECORD:
            return _corrupt(records, kept, sides, field.type)
        if name in place:
            return pa.repeat(pa.scalar(place[name], field.type), len(kept))
        return taken(records.column(METADATA[name][0]), kept).cast(field.type)

    def _check(self, schema: pa.Schema) -> None:
        known = dict.fromkeys([*self._names("value"), *self._names("key"), *METADATA, CORRUPT_RECORD])
        for name in schema.names:
            if name not in known:
                raise InvalidRecordError(f"the topic has no column {name!r}{did_you_mean(name, known)}")
        if len(set(schema.names)) < len(schema.names):
            raise InvalidRecordError(f"a column appears twice: {', '.join(schema.names)}")

    def _records(self, rows: pa.RecordBatch, value: Format) -> pa.RecordBatch:
        fields = {*self._names("value"), *self._names("key")}
        given = set(rows.schema.names) - fields - ({KEY} if self.key else set())
        found = {to: rows.column(name) for name, to in _WRITTEN.items() if name in given}
        if CORRUPT_RECORD in rows.schema.names and (corrupt := rows.column(CORRUPT_RECORD).is_valid()).true_count:
            row = pc.index(corrupt, True).as_py()
            raise UnwritableError(row, f"{CORRUPT_RECORD}: this was a misfit; leave such rows out")
        if self.key is not None:
            keys = self._given("key", rows)
            is_null = (
                np.zeros(rows.num_rows, np.bool_) if any(not f.nullable for f in self.key.fields) else _empty(keys)
            )
            found["key"] = _encoded(self.key, keys, is_null)
        values = self._given("value", rows)
        own = [name for name in self._names("value") if name not in self._names("key")]
        is_tombstone = np.zeros(rows.num_rows, np.bool_)
        if "key" in found and own:
            is_tombstone = _empty(values.select(own)) & found["key"].is_valid().to_numpy(zero_copy_only=False)
        found["value"] = _encoded(value, values, is_tombstone)
        return pa.RecordBatch.from_pydict(found)

    def _given(self, side: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of a key or a value in their types, under the names that the format gives them."""
        fields = getattr(self, side).fields
        columns = [
            fitted(rows.column(name), field) if name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
            for name, field in zip(self._names(side), fields, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _spread(side: _Side, name: str, kept: np.ndarray) -> pa.Array:
    """Return a column with a row for each of these records; null where there is none."""
    column, at = side.columns[name], side.at[kept]
    if len(column) == len(at) and (at >= 0).all():
        return column
    return column.take(pa.array(at, mask=at < 0))


def _corrupt(records: pa.RecordBatch, kept: np.ndarray, sides: dict[str, _Side], kind: pa.DataType) -> pa.Array:
    """Return the bytes of each value that does not fit, else of a key that does not; as text as far as they are."""
    found = pa.nulls(len(kept), pa.binary())
    for name, side in sides.items():  # the value comes last
        is_misfit = np.isin(kept, list(side.reasons))
        if is_misfit.any():
            found = pc.if_else(pa.array(is_misfit), taken(records.column(name), kept), found)
    if pa.types.is_binary(kind):
        return found
    return pa.array([None if raw is None else raw.decode(errors="replace") for raw in found.to_pylist()], kind)


def _pieces(rows: pa.Table | pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    for batch in table.to_batches(max_chunksize=PIECE_ROWS) or [pa.RecordBatch.from_pylist([], table.schema)]:
        count = max(1, PIECE_ROWS if batch.nbytes <= _PIECE_BYTES else batch.num_rows * _PIECE_BYTES // batch.nbytes)
        for start in range(0, max(batch.num_rows, 1), count):
            yield batch.slice(start, count)


def _empty(columns: pa.RecordBatch) -> np.ndarray:
    """Return which rows have nothing but nulls."""
    found = np.ones(columns.num_rows, np.bool_)
    for column in columns.columns:
        if not column.null_count:
            return np.zeros(columns.num_rows, np.bool_)
        found &= column.is_null().to_numpy(zero_copy_only=False)
    return found


def _encoded(side: Format, columns: pa.RecordBatch, is_null: np.ndarray) -> pa.Array:
    """Return the bytes of these rows, except of those that are null."""
    if not is_null.any():
        return side.encode(columns)
    rows = np.flatnonzero(~is_null)
    try:
        found = side.encode(columns.take(pa.array(rows)))
    except UnwritableError as error:
        raise UnwritableError(int(rows[error.row]), error.reason) from None
    return found.take(pa.array(np.cumsum(~is_null) - 1, mask=is_null))
