"""The settings of each broker of a LocalCluster: those that are given, and those that are the cluster's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from logstore.errors import InvalidConfigError
from replication.config.broker import BrokerConfig
from replication.model.cluster import BrokerId

# Other defaults than a broker's: groups do not wait for more members, and the last broker that stops not for others.
DEFAULTS = {"group.initial.rebalance.delay.ms": "0", "controlled.shutdown.max.retries": "1"}
# Settings that a cluster sets for each of its brokers, and how to set them instead.
_OWN = {
    "broker.id": "the brokers of a cluster are numbered; --brokers says how many",
    "log.dirs": "each broker has a directory below that of the cluster: --dir",
    "log.dir": "each broker has a directory below that of the cluster: --dir",
    "listeners": "each broker has a port of its own on 127.0.0.1; for other addresses: pylog broker start",
    "advertised.listeners": "each broker has a port of its own on 127.0.0.1; for other addresses: pylog broker start",
    "coordination": "give it as --coordination STORE",
    "zookeeper.connect": "give it as --coordination zookeeper:HOST:PORT/CHROOT",
    "parent": "this is no setting: brokers end with the process that starts them",
}
METRICS_PORT = "metrics.port"


def settings_of_each(given: Mapping[str, Any], brokers: Iterable[BrokerId]) -> dict[BrokerId, dict[str, str]]:
    """Return the settings of each broker. Raises: InvalidConfigError: one is wrong, or the cluster's own."""
    for key in sorted(given.keys() & _OWN.keys()):
        raise InvalidConfigError(f"{key}: {_OWN[key]}", key=key)
    settings = {key: str(value) for key, value in given.items()}
    port = BrokerConfig.from_properties(settings).metrics_port
    each: dict[BrokerId, dict[str, str]] = {}
    for number, broker in enumerate(brokers):
        each[broker] = {**settings, METRICS_PORT: str(port + number)} if port > 0 else settings
        BrokerConfig.from_properties(each[broker])
    return each


def check_replicas(given: Mapping[BrokerId, Mapping[str, str]]) -> None:
    """Raises: InvalidConfigError: topics with the default number of replicas could not be created."""
    for settings in given.values():
        replicas = BrokerConfig.from_properties(settings).default_replication_factor
        if replicas > len(given):
            key = "default.replication.factor"
            raise InvalidConfigError(
                f"{key}={replicas}: more replicas than the cluster has brokers ({len(given)}), so no topic could be "
                "created automatically; use fewer replicas, or more --brokers",
                key=key,
            )
