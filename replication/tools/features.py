"""The features of a cluster that its brokers support and have finalized, and the raise of its level."""

from __future__ import annotations

from typing import Any

from logstore.errors import PylogError
from replication.client.admin import broker_features, update_feature
from replication.client.kafka_client import KafkaClient, UnsupportedVersionError
from replication.model.features import PYLOG_VERSION

Row = dict[str, Any]
_KRAFT = "metadata.version"  # a feature of each Kafka that has KRaft


def described(client: KafkaClient) -> list[Row]:
    """The levels of `pylog.version` that each broker supports, and the finalized one that it knows.

    A broker that is not pylog's shows all its features; one that does not answer shows none.

    Raises: UnreachableError: none does.
    """
    brokers = sorted(client.describe().brokers)
    return [{"broker": broker, **row} for broker in brokers for row in _of(client, broker)]


def _of(client: KafkaClient, broker: int) -> list[Row]:
    try:
        found = client.run(broker_features, broker)
    except (PylogError, OSError):  # down by now
        return [{"feature": PYLOG_VERSION, **dict.fromkeys(("supported_min", "supported_max", "finalized", "epoch"))}]
    names = sorted(found.supported) if _KRAFT in found.supported else [PYLOG_VERSION]
    rows = ((name, *found.supported.get(name, (0, 0)), found.finalized.get(name, 0)) for name in names)
    return [
        {"feature": name, "supported_min": first, "supported_max": last, "finalized": level, "epoch": found.epoch}
        for name, first, last, level in rows
    ]


def upgrade(client: KafkaClient, level: int, *, dry_run: bool = False) -> None:
    """Raise the level, or only have it checked; by the first broker that knows how, since older ones may be there.

    Raises: KafkaError: it is refused; UnsupportedVersionError: all brokers are of a release before levels.
    """
    lacking: PylogError | None = None
    for broker in sorted(client.describe().brokers):
        try:
            client.run(update_feature, broker, PYLOG_VERSION, level, dry_run=dry_run)
        except UnsupportedVersionError as error:
            lacking = error
        else:
            return
    if lacking is not None:
        raise lacking
