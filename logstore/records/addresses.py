"""Rows as their encoders take them, and what they return: plain addresses and numbers, for compiled code and Python."""

from __future__ import annotations

from typing import NamedTuple


class Rows(NamedTuple):
    """The columns to encode, int64 per row each. A size of -1 is null; an address of 0 is a missing column.

    `order` lists the rows to take (0: all as they are). `headers` is the first header of a row,
    `header_counts` how many it has; the last four are per header.
    """

    order: int
    key: int
    key_sizes: int
    value: int
    value_sizes: int
    timestamps: int
    headers: int
    header_counts: int
    header_key: int
    header_key_sizes: int
    header_value: int
    header_value_sizes: int


class Encoded(NamedTuple):
    """One batch: where to go on, bytes written (without the header), and its timestamps.

    If the first record does not fit, nothing was written (`size` is 0) and `needed` is the size of the batch
    that would hold it alone.
    """

    end: int
    size: int
    base_timestamp: int
    max_timestamp: int
    needed: int
