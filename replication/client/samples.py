"""Samples: how large the records of a range are, by its first batches."""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.batch import batches
from replication.client.fetching import Fetched

SAMPLE_BYTES = 64 * 1024


class Sample(NamedTuple):
    """Some batches at the begin of a range: their size, and how many offsets they and the first one span."""

    size_bytes: int
    offsets: int
    first_batch_offsets: int

    def bytes_of(self, offsets: int) -> int:
        """About the stored bytes of so many offsets, if all are like these."""
        return round(self.size_bytes / max(1, self.offsets) * offsets)

    def offsets_of(self, size_bytes: int) -> int | None:
        """About the offsets that so many bytes have; None: there is no batch to tell it by."""
        return size_bytes * self.offsets // self.size_bytes if self.size_bytes else None


def sample_of(fetched: Fetched, start: int, end: int) -> Sample:
    """The sample that a fetch of the range [start, end) is."""
    headers = [header for part in fetched.parts for _, header in batches(part)]
    if not headers:
        return Sample(0, end - start, 0)
    size_bytes = sum(map(len, fetched.parts))
    return Sample(size_bytes, headers[-1].next_offset - headers[0].base_offset, headers[0].next_offset - start)
