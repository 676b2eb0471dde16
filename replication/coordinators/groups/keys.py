"""Key: the subject of a record of a group in `__consumer_offsets`, but for its offsets; `Kind` has Kafka's types.

In bytes it is an int16 type, the group, and perhaps a member or a regular expression.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from replication.coordinators import binary


class Kind(enum.IntEnum):
    """CLASSIC is the one record of a classic group; the others are parts of a consumer or (SHARE_…) a share group."""

    CLASSIC = 2
    HEADER = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    SHARE_MEMBER = 10
    SHARE_HEADER = 11
    SHARE_TARGET_EPOCH = 12
    SHARE_TARGET = 13
    SHARE_CURRENT = 14
    SHARE_STATES = 15
    REGEX = 16

    @property
    def is_named(self) -> bool:
        """Does its key have a second text?"""
        return self in _NAMED

    @property
    def is_of_share(self) -> bool:
        return self.name.startswith("SHARE")


class Key(NamedTuple):
    """`of` is a member or a regular expression, "" the group itself."""

    kind: Kind
    of: str = ""


NO_KEYS: frozenset[Key] = frozenset()
_NAMED = frozenset(
    {
        *(Kind.MEMBER, Kind.TARGET, Kind.CURRENT, Kind.REGEX),
        *(Kind.SHARE_MEMBER, Kind.SHARE_TARGET, Kind.SHARE_CURRENT),
    }
)


def encode_key(group_id: str, key: Key) -> bytes:
    of = binary.string(key.of) if key.kind.is_named else b""
    return binary.SHORT.pack(key.kind) + binary.string(group_id) + of


def read_key(at: binary.Cursor, kind: int) -> tuple[str, Key]:
    """Return the group and the key of a record, behind its type."""
    group_id = at.take_string()
    return group_id, Key(Kind(kind), at.take_string() if Kind(kind).is_named else "")
