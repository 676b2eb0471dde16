"""Where settings come from, as DescribeConfigs tells it: what stands in server.properties is named so."""

import asyncio
from dataclasses import fields

import pytest

from logstore.errors import PylogError
from replication.broker.feature_level import FeatureLevel
from replication.broker.handlers.configs import (
    BROKER,
    ConfigHandlers,
    topic_settings,
)
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfigs
from replication.config.live import DEFAULT, LIVE, OF_BROKER, OF_CLUSTER, OF_FILE, OF_TOPIC, Given, LiveSettings
from replication.errors import ErrorCode, KafkaError
from replication.model.metadata import Metadata
from replication.protocol.apis import ApiKey, request_class
from replication.protocol.kio_entities import build

# One as it is by default, one under another name, one that topics inherit.
GIVEN = {
    "broker.id": "7",
    "num.partitions": "1",
    "log.retention.hours": "1",
    "log.segment.bytes": "1073741824",
}


def no_session():
    raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "no session")


def handlers_of(live):
    return ConfigHandlers(live, GroupConfigs(live.config), Metadata(), FeatureLevel(), no_session)


def test_what_stands_in_the_properties_is_of_the_file_even_if_it_is_the_default():
    handlers = handlers_of(LiveSettings(BrokerConfig.from_properties(GIVEN)))
    asked = {"resource_type": BROKER, "resource_name": "7", "configuration_keys": None}
    oldest = request_class(ApiKey.DESCRIBE_CONFIGS, 1)
    body = build(oldest, {"resources": [asked], "include_synonyms": False})
    (answer,) = asyncio.run(handlers.describe(None, body))["results"]
    sources = {row["name"]: row["config_source"] for row in answer["configs"]}
    wanted = {"broker.id", "num.partitions", "log.retention.ms", "log.segment.bytes"}
    assert {name for name, source in sources.items() if source == OF_FILE} == wanted
    assert set(sources.values()) == {OF_FILE, DEFAULT}


def test_a_topic_says_what_it_has_of_itself_and_what_of_its_brokers_file():
    rows = topic_settings(LiveSettings(BrokerConfig.from_properties(GIVEN)), {"retention.ms": "5"})
    sources = {row["name"]: row["config_source"] for row in rows if row["config_source"] != DEFAULT}
    assert sources == {"retention.ms": OF_TOPIC, "segment.bytes": OF_FILE}


def test_of_four_places_the_broker_counts_first_and_the_others_are_its_synonyms():
    live = LiveSettings(BrokerConfig.from_properties(GIVEN))
    live.change(Given({"log.segment.bytes": "20"}, {"log.segment.bytes": "30", "log.retention.ms": "40"}))
    assert (live.config.log_segment_bytes, live.config.log_retention_ms) == (20, 40)
    found = {row["name"]: row for row in topic_settings(live, {"segment.bytes": "14"})}
    assert [tuple(each.values()) for each in found["segment.bytes"]["synonyms"]] == [
        ("segment.bytes", "14", OF_TOPIC),
        ("log.segment.bytes", "20", OF_BROKER),
        ("log.segment.bytes", "30", OF_CLUSTER),
        ("log.segment.bytes", "1073741824", OF_FILE),
        ("log.segment.bytes", "1073741824", DEFAULT),
    ]
    assert (found["retention.ms"]["value"], found["retention.ms"]["config_source"]) == ("40", OF_CLUSTER)
    live.change(Given({}, {}))
    assert live.config.log_config({}) == BrokerConfig.from_properties(GIVEN).log_config({})


def test_what_takes_a_restart_and_what_is_wrong_is_refused():
    live = LiveSettings(BrokerConfig())
    for key, value, error in (
        ("num.io.threads", "8", "Cannot update these configs dynamically"),
        ("log.retention.mss", "8", "did you mean 'log.retention.ms'"),
        ("log.segment.bytes", "1", "14"),
    ):
        with pytest.raises(PylogError, match=error):
            live.check(Given({}, {key: value}))


def test_the_live_settings_are_those_of_kafka():
    topics = {f.metadata["key"] for f in fields(BrokerConfig) if "topic" in f.metadata}
    others = {"max.connections", "log.cleaner.backoff.ms", "transaction.partition.verification.enable"}
    quotas = {f"{role}.replication.throttled.rate" for role in ("leader", "follower")}
    connections = {"max.connections.per.ip", "max.connections.per.ip.overrides", "max.connection.creation.rate"}
    assert set(LIVE) == topics | others | quotas | connections
