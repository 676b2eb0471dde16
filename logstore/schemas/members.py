"""Declared columns as the kernels of JSON take them: which members a document may have, and what fits them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from logstore.records.columns import cells

_DEPTH_MAX = 64
_DIGITS_MAX = 4000  # Python refuses an integer of 4,300
_WHOLE_DIGITS = {16: 4, 32: 38, 64: 308}  # of a float that is surely finite, by its bits
_ANY_SCALE = 1 << 40
_INT64_MAX = (1 << 63) - 1


class Members(NamedTuple):
    """Members as kernels take them, and the memory that they point to."""

    numbers: Any
    memory: object


def members(fields: Sequence[pa.Field]) -> Members:
    """Return the members of these names and types."""
    return _members(tuple(fields))


@lru_cache(maxsize=256)
def _members(fields: tuple[pa.Field, ...]) -> Members:
    from logstore.records import kernels

    names = cells(pa.array([f.name for f in fields], pa.string()), "name")
    rules = np.array([_rule(f) for f in fields], np.int64).reshape(-1, 6).T.copy()
    kinds, rules_, digits, scales, limits, required = (row.ctypes.data for row in rules)
    numbers = kernels.Members(
        *names.pointers(), kinds, rules_, digits, scales, limits, len(fields), required, int(rules[-1].sum()),
        _DEPTH_MAX, _DIGITS_MAX,
    )  # fmt: skip
    return Members(numbers, (names, rules))


def _rule(f: pa.Field) -> tuple[int, ...]:
    """Return the kinds of JSON that may fit a field, the rule for texts and numbers with its numbers, and NOT NULL."""
    from logstore.records import kernels as k

    kind, types = f.type, pa.types
    rule = digits = scale = limit = 0
    if types.is_integer(kind):
        limit = min((1 << kind.bit_width - types.is_signed_integer(kind)) - 1, _INT64_MAX)
        kinds, rule, digits = k.NUMBER, k.INTEGER, len(str(limit))
    elif types.is_floating(kind):
        kinds, rule, digits, scale = k.NUMBER, k.FRACTION, _WHOLE_DIGITS[kind.bit_width], _ANY_SCALE
    elif types.is_decimal(kind):
        kinds, rule, digits, scale = k.NUMBER | k.TEXT, k.FRACTION, kind.precision - kind.scale, kind.scale
    elif types.is_date(kind):
        kinds, rule = k.TEXT, k.DAY
    elif types.is_timestamp(kind):
        kinds, rule = k.TEXT, k.LOCAL_MOMENT if kind.tz is None else k.MOMENT
    elif types.is_binary(kind):
        kinds, rule = k.TEXT, k.BASE64
    elif types.is_string(kind):
        kinds = k.TEXT
    elif types.is_boolean(kind):
        kinds = k.BOOLEAN
    else:
        kinds = k.ARRAY if types.is_list(kind) else k.OBJECT
    return kinds | (k.NULL if f.nullable else 0), rule, digits, scale, limit, int(not f.nullable)
