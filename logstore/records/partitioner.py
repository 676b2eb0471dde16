"""Which partition a record goes to.

=========== ==================================================================================================
murmur3     the key's MurmurHash3 (32 bits, seed 0), made positive, modulo the partitions; the default
murmur2     the key's hash as Kafka's Java clients compute it, so that both put a key into the same partition
round_robin one row each in turn, keys or not
sticky      all rows of the call in one partition; the next call may take the next
=========== ==================================================================================================

Rows without a key go round robin under the two hashes. An explicit partition wins over all of them.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import mmh3

from logstore.errors import InvalidRecordError, InvalidRequestError, did_you_mean
from logstore.records import few

if TYPE_CHECKING:
    from logstore.records.rows import Rows

BY_KEY = ("murmur3", "murmur2")
PARTITIONERS = (*BY_KEY, "round_robin", "sticky")


def partition_ids(data: Rows, partitions: int, *, partitioner: str = "murmur3", start: int = 0) -> Any:
    """Return the partition (int32) of every row of `data`, by its columns `partition` and `key` if there.

    `start` is where round robin and sticky begin: pass something that differs from call to call.

    Raises: InvalidRecordError: a partition out of range, or columns of a wrong type.
        InvalidRequestError: no such partitioner.
    """
    import numpy as np

    if partitioner not in PARTITIONERS:
        hint = did_you_mean(partitioner, PARTITIONERS)
        raise InvalidRequestError(f"unknown partitioner {partitioner!r}{hint}", partitioner=partitioner)
    rows = data.count
    if rows == 1 and partitioner == "murmur3" and data.partition is None and data.key.sizes is not None:
        size = int(data.key.sizes[0])
        if size >= 0:  # what a producer sends row by row: a third of the time of the way for columns
            key = ctypes.string_at(int(data.key.addresses[0]), size)
            return np.full(1, partition_of(key, partitions), dtype=np.int32)
    if partitioner == "sticky" or partitions == 1:
        ids = np.full(rows, start % partitions, dtype=np.int32)
    else:
        ids = ((np.arange(rows, dtype=np.int64) + start % partitions) % partitions).astype(np.int32)
    if partitioner in BY_KEY and "key" in data.names and partitions > 1:
        java = partitioner == "murmur2"
        kernels = few.kernels_for(few.FEW + 1 if java else rows)
        if kernels:
            kernels.partitions_of(*data.key.pointers(), rows, partitions, java, ids.ctypes.data)
        else:
            for row, found in enumerate(few.cells(*data.key.pointers(), rows)):
                if found is not None:
                    ids[row] = partition_of(found, partitions)
    if data.partition is not None:
        _explicit(data.partition, partitions, ids)
    return ids


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of this key under murmur3, the default."""
    return (mmh3.hash(key, 0, signed=False) & 0x7FFFFFFF) % partitions


def group_by_partition(ids: Any, partitions: int) -> list[tuple[int, Any]]:
    """Return (partition, its row numbers in order) for every partition that has rows, ascending."""
    import numpy as np

    if partitions == 1:
        return [(0, np.arange(len(ids)))] if len(ids) else []
    # A type that just holds the partitions: numpy sorts 16 bits by radix, many times faster than 32.
    order = np.argsort(ids.astype(np.min_scalar_type(partitions)), kind="stable")
    ends = np.cumsum(np.bincount(ids, minlength=partitions))
    starts = np.concatenate(([0], ends[:-1]))
    return [(p, order[starts[p] : ends[p]]) for p in range(partitions) if starts[p] < ends[p]]


def _explicit(column: Any, partitions: int, ids: Any) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(column.type):
        return
    if not pa.types.is_integer(column.type):
        raise InvalidRecordError(f"column 'partition' is {column.type}: it must be a whole number")
    if not len(column):
        return
    if column.null_count or isinstance(column, pa.ChunkedArray):
        named = pc.is_valid(column).to_numpy(**_copying(column))
        chosen = pc.fill_null(column, 0).to_numpy(**_copying(column))
    else:  # without `to_numpy`, which loads pandas
        named, end = np.ones(len(column), np.bool_), column.offset + len(column)
        chosen = np.frombuffer(column.buffers()[1], str(column.type))[column.offset : end]
    wrong = np.flatnonzero(named & ((chosen < 0) | (chosen >= partitions)))
    if len(wrong):
        row = int(wrong[0])
        raise InvalidRecordError(
            f"partition {chosen[row]} in row {row}: the topic has partitions 0 to {partitions - 1}",
            row=row,
            partition=int(chosen[row]),
        )
    ids[named] = chosen[named]


def _copying(column: Any) -> dict[str, bool]:
    import pyarrow as pa

    return {} if isinstance(column, pa.ChunkedArray) else {"zero_copy_only": False}
