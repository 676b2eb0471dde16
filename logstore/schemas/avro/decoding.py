"""Avro data of one writer's schema to the columns of a reader's, many at once, without a Python object per record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from logstore.records.columns import Cells, cells
from logstore.records.kernels import avro_reading as kernel
from logstore.schemas.avro.assembly import addresses
from logstore.schemas.avro.layout import Buffers, Layout
from logstore.schemas.avro.reading import reading
from logstore.schemas.avro.resolution import resolve
from logstore.schemas.avro.schema import Schema
from logstore.schemas.parsed import Parsed

_REASONS = {
    kernel.CUT: "the data ends too early",
    kernel.BAD_BOOLEAN: "a boolean is neither 0 nor 1",
    kernel.BAD_INT: "the number does not fit int",
    kernel.BAD_LENGTH: "a length is negative, or beyond the end of the data",
    kernel.BAD_BRANCH: "the union has no branch of this number",
    kernel.BAD_SYMBOL: "the enum has no symbol of this number",
    kernel.BAD_TEXT: "the text is not UTF-8",
    kernel.BAD_DECIMAL: "the decimal has too many digits",
    kernel.BAD_COUNT: "a block has more items than the data has room for",
    kernel.LEFT_OVER: "bytes are left after the data",
    kernel.BAD_TIME: "the time is out of range",
    kernel.MISMATCH: "the reader has no such symbol, and no default",
}


class Decoder:
    """Reads data of one writer's schema as one reader's: a program, made once, for any number of calls and threads.

    `fields` are the columns. A null among the values is a row of nulls, whatever the schema says: a tombstone.
    """

    def __init__(self, writer: Schema, reader: Schema, column: str = "value") -> None:
        self._given = writer, reader, column
        self._layout = Layout(reader, column)
        self.fields = self._layout.fields
        self._instructions, self._null_at = reading(resolve(writer, reader), self._layout)
        self._code = self._instructions.finished()

    def __reduce__(self) -> tuple[object, ...]:
        return Decoder, self._given  # a program has addresses of this process

    def decode(self, values: pa.Array) -> Parsed:
        """Return the values (binary) as columns: the good rows, and the reasons of the bad ones."""
        return self.decode_cells(cells(values, "value"))

    def decode_cells(self, values: Cells) -> Parsed:
        """The same, of values that lie anywhere."""
        rows = len(values.sizes)
        buffers = Buffers(self._layout, rows, int(np.maximum(values.sizes, 0).sum()))
        errors = np.empty(rows, np.int64)
        self._run(values, buffers, errors)
        bad = np.flatnonzero(errors)
        return Parsed(
            buffers.arrays(),
            np.flatnonzero(errors == 0) if len(bad) else np.arange(rows),
            {int(row): self._reason(int(errors[row])) for row in bad},
        )

    def _run(self, values: Cells, buffers: Buffers, errors: np.ndarray) -> None:
        code, saved = self._code.for_a_run(), np.empty_like(buffers.counts)
        places = np.zeros(1 + self._instructions.places, np.int64)
        code.fill("counter", addresses(buffers.counts))
        code.fill("place", addresses(places)[1:])
        row = 0
        while True:
            code.fill("buffer", buffers.addresses())
            code.fill("room", buffers.rooms)
            work = kernel.Work(
                code.address,
                code.address + 8 * kernel.WORDS * self._null_at,
                buffers.counts.ctypes.data,
                saved.ctypes.data,
                places.ctypes.data,
                len(saved),
                *values.pointers(),
                row,
                len(errors),
                errors.ctypes.data,
            )
            row, counter, needed = kernel.read_rows(work)
            if row == len(errors):
                return
            buffers.grow((counter - buffers.counts.ctypes.data) // 8, needed)

    def _reason(self, error: int) -> str:
        at, code = error >> kernel.CODE_BITS, error & ((1 << kernel.CODE_BITS) - 1)
        path = self._instructions.paths[at]
        reason = self._instructions.reasons.get(at) or _REASONS[code]
        return f"{path}: {reason}" if path else reason
