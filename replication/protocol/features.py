"""Features in ApiVersions: the levels that a broker supports, and those of its cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Feature(NamedTuple):
    """A feature in ApiVersions: the levels that this broker supports, and that of the cluster; 0 is none."""

    name: str
    first: int
    last: int  # included
    level: int


class Features(NamedTuple):
    """`epoch` grows with every change of a level: clients believe the answer with the highest."""

    all: tuple[Feature, ...]
    epoch: int = 0


# KIP-890: Produce 12 and TxnOffsetCommit 5 add partitions, EndTxn 5 begins another epoch. Java's producers do so only
# where the brokers of a cluster tell that all of them can.
TRANSACTION_VERSION = Feature("transaction.version", 0, 2, 2)
# The leader of a partition of `_schemas` judges the records of clients: see `replica.leader.schema_records`.
SCHEMAS = Feature("pylog.schemas", 0, 1, 0)
DEFAULT_FEATURES = Features((TRANSACTION_VERSION,))


def fields_of(features: Features, version: int) -> Mapping[str, Any]:
    """Return the fields of an answer of this version.

    Version 3 has no supported features: Java's clients that ask in it take none that begins at 0 (KAFKA-17011).
    """
    answer: dict[str, Any] = {
        "finalized_features_epoch": features.epoch,
        "finalized_features": [
            {"name": each.name, "max_version_level": each.level, "min_version_level": each.level}
            for each in features.all
            if each.level
        ],
    }
    if version >= 4:
        answer["supported_features"] = [
            {"name": each.name, "min_version": each.first, "max_version": each.last} for each in features.all
        ]
    return answer
