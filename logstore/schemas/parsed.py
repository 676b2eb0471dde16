"""Many values as columns: the rows that fit, and the reasons of those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa


class Parsed(NamedTuple):
    """The columns of the good rows, the rising numbers of these rows, and the reasons of the bad ones by row."""

    columns: list[pa.Array]
    good: np.ndarray
    reasons: dict[int, str]


def joined(parts: Sequence[tuple[np.ndarray, Parsed]]) -> Parsed:
    """Return the parts of some values as one: each has the numbers of its rows among all, and what they became."""
    good = np.concatenate([rows[part.good] for rows, part in parts])
    order = pa.array(np.argsort(good, kind="stable"))
    columns = [
        pa.concat_arrays(pieces).take(order) for pieces in zip(*(part.columns for _, part in parts), strict=True)
    ]
    reasons = {int(rows[row]): reason for rows, part in parts for row, reason in part.reasons.items()}
    return Parsed(columns, np.sort(good), reasons)


def are_utf8(values: pa.Array) -> np.ndarray:
    """Return whether each of these values (binary) is text; null is."""
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([_is_utf8(value) for value in values.to_pylist()], np.bool_)  # only where one of them is not
    return np.ones(len(values), np.bool_)


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
