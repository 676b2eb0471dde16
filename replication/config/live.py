"""The settings of a broker that change while it runs: which, and what of four places counts.

The order is Kafka's: values for this broker, values for all brokers of the cluster, server.properties, the default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, replace
from typing import Any, NamedTuple

from logstore.config import LogConfig, format_value, settings_from
from logstore.errors import InvalidConfigError, did_you_mean
from replication.config.broker import BrokerConfig
from replication.config.unsupported import reason

# Where a value is from, as DescribeConfigs has it.
OF_TOPIC, OF_BROKER, OF_CLUSTER, OF_FILE, DEFAULT, OF_GROUP = 1, 2, 3, 4, 5, 8

LIVE: Mapping[str, Field[Any]] = {f.metadata["key"]: f for f in fields(BrokerConfig) if f.metadata.get("is_live")}
_OF_TOPICS = {f.metadata["topic"]: f for f in LIVE.values() if "topic" in f.metadata}


class NotLiveError(InvalidConfigError):
    """A setting of brokers that takes a restart."""


class Given(NamedTuple):
    """The settings that one broker, and that all brokers of the cluster, were given live: key -> value, as text."""

    broker: Mapping[str, str]
    cluster: Mapping[str, str]


NOTHING_GIVEN = Given({}, {})


class Source(NamedTuple):
    """A value that a setting has, or would have if there were none before it."""

    key: str
    value: str
    place: int


class LiveSettings:
    """`config` is the one that all of the broker has: `change` gives it other values, which are read when needed."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.given = NOTHING_GIVEN
        self._file = replace(config)

    def check(self, given: Given) -> BrokerConfig:
        """Return the settings that these make.

        Raises: InvalidConfigError: a value that is not allowed; NotLiveError: a setting that takes a restart.
        """
        for key in (*given.broker, *given.cluster):
            if key not in LIVE:
                known = {f.metadata["key"] for f in fields(BrokerConfig)}
                if key not in known:
                    why = reason(key)
                    said = f"unknown broker setting {key!r}"
                    raise InvalidConfigError(f"{said}: {why}" if why else said + did_you_mean(key, LIVE), key=key)
                raise NotLiveError(
                    f"Cannot update these configs dynamically: Set({key}); set it in server.properties, and restart",
                    key=key,
                )
        new = settings_from(self._file, {**given.cluster, **given.broker}, "broker setting")
        new.log_config({}).check()
        return new

    def change(self, given: Given) -> bool:
        """Have what these make from now on; return whether that is something else. Raises: as `check`."""
        new = self.check(given)
        is_other = given != self.given
        self.given = given
        for f in LIVE.values():
            object.__setattr__(self.config, f.name, getattr(new, f.name))
        return is_other

    def sources(self, setting: Field[Any], given: Given | None = None) -> list[Source]:
        """The values of a broker's setting, the one that counts first."""
        key, (broker, cluster) = setting.metadata["key"], self.given if given is None else given
        found = [(broker[key], OF_BROKER)] if key in broker else []
        found += [(cluster[key], OF_CLUSTER)] if key in cluster else []
        found += [(format_value(getattr(self._file, setting.name)), OF_FILE)] if key in self.config.given else []
        return [Source(key, *each) for each in (*found, (format_value(setting.default), DEFAULT))]

    def sources_of_topic(self, setting: Field[Any], overrides: Mapping[str, str], config: LogConfig) -> list[Source]:
        """The same of a topic's setting: what the topic was given, and then what its broker has."""
        key = setting.metadata["key"]
        own = [Source(key, format_value(getattr(config, setting.name)), OF_TOPIC)] if key in overrides else []
        of_broker = _OF_TOPICS.get(key)
        return own + (
            [Source(key, format_value(setting.default), DEFAULT)] if of_broker is None else self.sources(of_broker)
        )
