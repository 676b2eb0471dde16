"""Times of records in Spark's unit, microseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class Clamped:
    """Records of one partition whose time Spark cannot hold: how many, and the first of them."""

    count: int = 0
    first_offset: int = -1

    def note(self, offsets: pa.Array) -> None:
        """Count these; called in the order of offsets."""
        if not self.count:
            self.first_offset = offsets[0].as_py()
        self.count += len(offsets)

    def __str__(self) -> str:
        return (
            f"Spark cannot hold the time of {self.count} records, the first at offset {self.first_offset}: "
            "they have Spark's first or last moment"
        )


def microseconds(records: pa.RecordBatch, clamped: Clamped) -> Any:
    """Return the timestamps in Spark's unit; one that Spark cannot hold becomes its first or last, and counts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    target = pa.timestamp("us", tz="UTC")
    milliseconds = records.column("timestamp")
    try:
        return milliseconds.cast(target)
    except pa.ArrowInvalid:
        limit, given = pa.scalar((2**63 - 1) // 1000), milliseconds.cast(pa.int64())
        near = pc.max_element_wise(pc.min_element_wise(given, limit), pc.negate(limit))
        clamped.note(records.column("offset").filter(pc.not_equal(near, given)))
        return pc.multiply(near, 1000).cast(target)
