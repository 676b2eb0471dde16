"""StreamOffset: how far a stream has read, as it stands in Spark's checkpoint.

::

    {"v": 1, "ids": {"orders": "<topic id>"}, "offsets": {"orders": {"0": 15}}, "init": {"orders": {"0": 3}}}

`offsets` are the next offsets to read (exclusive ends), as in Spark's Kafka source. `ids` tell a topic from a
later one of the same name. `init` stands only in the end of batch 0: the checkpoint keeps ends only, and a
start such as "latest" would be another one when batch 0 is planned again. The text is canonical (sorted):
Spark compares texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from logstore.errors import StoreError

VERSION = 1

PartitionOffsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Next offsets per topic and partition; topics and partitions are sorted."""

    offsets: PartitionOffsets
    ids: Mapping[str, str] = field(default_factory=dict)
    init: PartitionOffsets | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the value for Spark; equal positions give equal texts."""
        value = {"v": VERSION, "ids": dict(sorted(self.ids.items())), "offsets": _texts(self.offsets)}
        return value if self.init is None else {**value, "init": _texts(self.init)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the position that `to_json` wrote.

        Raises: StoreError: another source, or a newer pylog, wrote this checkpoint.
        """
        if value.get("v") != VERSION or not isinstance(value.get("offsets"), dict):
            raise StoreError(
                f"the checkpoint holds offsets that this pylog does not know ({str(value)[:120]}); "
                "use the version that wrote it, or a new checkpointLocation"
            )
        init = value.get("init")
        return cls(
            offsets=_numbers(value["offsets"]),
            ids=dict(value.get("ids", {})),
            init=None if init is None else _numbers(init),
        )


def behind(position: PartitionOffsets, latest: PartitionOffsets) -> dict[str, dict[int, int]]:
    """Return how many records each partition of `latest` has that `position` has not reached."""
    return {
        topic: {p: max(0, end - position.get(topic, {}).get(p, 0)) for p, end in sorted(ends.items())}
        for topic, ends in sorted(latest.items())
    }


def _texts(offsets: PartitionOffsets) -> dict[str, dict[str, int]]:
    return {topic: {str(p): parts[p] for p in sorted(parts)} for topic, parts in sorted(offsets.items())}


def _numbers(offsets: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    return {
        topic: {int(p): int(parts[p]) for p in sorted(parts, key=int)}
        for topic, parts in sorted(offsets.items())
    }
