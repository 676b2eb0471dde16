"""Key: the subject of a record of a group in `__consumer_offsets`, but for its offsets; `Kind` has Kafka's types."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Kind(enum.IntEnum):
    """CLASSIC is the one record of a classic group; the others are parts of a group of the consumer protocol."""

    CLASSIC = 2
    HEADER = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


class Key(NamedTuple):
    """`of` is a member or a regular expression, "" the group itself."""

    kind: Kind
    of: str = ""


NO_KEYS: frozenset[Key] = frozenset()
