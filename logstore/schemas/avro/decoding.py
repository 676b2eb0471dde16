"""Avro data of one writer's schema to the columns of a reader's, many at once, without a Python object per record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from logstore.records.columns import Cells, cells
from logstore.records.kernels import avro_reading as kernel
from logstore.schemas.avro.assembly import Run
from logstore.schemas.avro.layout import VALUE_BYTES_MAX, Buffers, Layout
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
_TOO_LARGE = -1  # in place of an error of the kernel


class Decoder:
    """Reads data of one writer's schema as one reader's: a program, made once, for any number of calls and threads.

    `fields` are the columns. A null among the values is a row of nulls, whatever the schema says: a tombstone.
    """

    def __init__(self, writer: Schema, reader: Schema, column: str = "value") -> None:
        self._given = writer, reader, column
        self._layout = Layout(reader, column)
        self.fields = self._layout.fields
        self._instructions, self._null_at = reading(resolve(writer, reader), self._layout)
        self._code = self._instructions.finished(self._layout.counters)

    def __reduce__(self) -> tuple[object, ...]:
        return Decoder, self._given  # a program has addresses of this process

    def decode(self, values: pa.Array) -> Parsed:
        """Return the values (binary) as columns: the good rows, and the reasons of the bad ones."""
        return self.decode_cells(cells(values, "value"))

    def decode_cells(self, values: Cells) -> Parsed:
        """The same, of values that lie anywhere."""
        rows, run = len(values.sizes), Run(self._code)
        least = int(values.sizes.min()) if rows else 0
        buffers = Buffers(self._layout, run.counters, rows, int(values.sizes.sum()) + rows, has_nulls=least < 0)
        errors = np.empty(rows, np.int64)
        self._run(values, run, buffers, errors)
        if not errors.any():
            return Parsed(buffers.arrays(), np.arange(rows), {})
        reasons = {int(row): self._reason(int(errors[row])) for row in np.flatnonzero(errors)}
        return Parsed(buffers.arrays(), np.flatnonzero(errors == 0), reasons)

    def _run(self, values: Cells, run: Run, buffers: Buffers, errors: np.ndarray) -> None:
        work = kernel.Work(
            run.program,
            run.program + 8 * kernel.WORDS * self._null_at,
            run.counters_at,
            run.saved_at,
            run.empty_at,
            len(run.counters),
            *values.pointers(),
            0,
            len(errors),
            errors.ctypes.data,
        )
        while True:
            run.fill("buffer", buffers.addresses)
            run.fill("room", buffers.rooms)
            row, counter, needed = kernel.read_rows(work)
            if row == len(errors):
                return
            if not buffers.grow((counter - run.counters_at) // 8, needed):
                errors[row] = _TOO_LARGE
                row += 1
            work = work._replace(begin=row)

    def _reason(self, error: int) -> str:
        if error == _TOO_LARGE:
            return f"its columns would take more than {VALUE_BYTES_MAX / 2**30:.0f} GiB"
        at, code = error >> kernel.CODE_BITS, error & ((1 << kernel.CODE_BITS) - 1)
        path = self._instructions.paths[at]
        reason = self._instructions.reasons.get(at) or _REASONS[code]
        return f"{path}: {reason}" if path else reason
