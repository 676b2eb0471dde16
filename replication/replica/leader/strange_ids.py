"""StrangeIds: the look at the schema ids that the records of a batch bear, for `value.schema.validation`.

Only ids are looked at, in records that `guard` has found good: 5 bytes of each. Nulls bear none, and pass.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from logstore.records.batch import records as records_of
from logstore.records.framing import id_of
from logstore.schemas.strategies import Demand
from replication.errors import ErrorCode, InvalidRecordsError
from replication.protocol.wire import Buffer

Kernel = Callable[..., int]
Strange = list[tuple[int, int]]  # the number of a record in its batch, and its id, or that it has none
ROWS_MAX = 1000  # that an error names


class StrangeIdsError(InvalidRecordsError):
    """Records without a registered id. `may_be_news`: all have an id that a registry may just have handed out."""

    def __init__(self, demand: Demand, found: Strange) -> None:
        self.may_be_news = all(schema_id >= 0 for _, schema_id in found)
        row, schema_id = found[0]
        more = len(found) - 1
        others = f" (and so {more} more)" if more else ""
        said = f"record {row} of the batch{others}: {demand.reason(schema_id)}"
        super().__init__(ErrorCode.INVALID_RECORD, tuple(row for row, _ in found), said)


def strange_in(kernel: Kernel, address: int, size_bytes: int, demand: Demand) -> Strange:
    """Return the records without a registered id, ROWS_MAX at most, of uncompressed ones that are good."""
    ids, count = demand.ids.buffer_info()
    for rows_max in (1, ROWS_MAX):  # mostly there are none, and room for many takes time to make
        found = array("q", bytes(16 * rows_max))
        where = found.buffer_info()[0]
        strange = kernel(address, size_bytes, demand.part == "key", ids, count, where, rows_max)
        if not strange:
            return []
    return list(zip(found[: 2 * strange : 2], found[1 : 2 * strange : 2], strict=True))


def strange_slowly(records: Buffer, demand: Demand, *, limit_bytes: int) -> Strange:
    """Return the same of a whole batch, without the kernel: some microseconds a record."""
    found: Strange = []
    for row, record in enumerate(records_of(records, limit_bytes=limit_bytes)):
        field = record.key if demand.part == "key" else record.value
        if field is not None and (schema_id := id_of(field)) not in demand.ids:
            found.append((row, schema_id))
            if len(found) == ROWS_MAX:
                break
    return found


def refuse(demands: Sequence[Demand], look: Callable[[Demand], Strange]) -> None:
    """Raise StrangeIdsError for what a look finds."""
    for demand in demands:
        if found := look(demand):
            raise StrangeIdsError(demand, found)
