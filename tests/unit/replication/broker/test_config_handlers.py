"""Where settings come from, as DescribeConfigs tells it: what stands in server.properties is named so."""

import asyncio
from types import SimpleNamespace

from replication.broker.handlers.configs import (
    BROKER,
    DEFAULT,
    OF_FILE,
    OF_TOPIC,
    ConfigHandlers,
    topic_settings,
)
from replication.config.broker import BrokerConfig
from replication.model.metadata import Metadata

# One as it is by default, one under another name, one that topics inherit.
GIVEN = {
    "broker.id": "7",
    "num.partitions": "1",
    "log.retention.hours": "1",
    "log.segment.bytes": "1073741824",
}


def test_what_stands_in_the_properties_is_of_the_file_even_if_it_is_the_default():
    handlers = ConfigHandlers(BrokerConfig.from_properties(GIVEN), Metadata(), lambda: None)
    asked = SimpleNamespace(resource_type=BROKER, resource_name="7", configuration_keys=None)
    body = SimpleNamespace(resources=[asked], include_synonyms=False)
    (answer,) = asyncio.run(handlers.describe(None, body))["results"]
    sources = {row["name"]: row["config_source"] for row in answer["configs"]}
    wanted = {"broker.id", "num.partitions", "log.retention.ms", "log.segment.bytes"}
    assert {name for name, source in sources.items() if source == OF_FILE} == wanted
    assert set(sources.values()) == {OF_FILE, DEFAULT}


def test_a_topic_says_what_it_has_of_itself_and_what_of_its_brokers_file():
    rows = topic_settings(BrokerConfig.from_properties(GIVEN), {"retention.ms": "5"})
    sources = {row["name"]: row["config_source"] for row in rows if row["config_source"] != DEFAULT}
    assert sources == {"retention.ms": OF_TOPIC, "segment.bytes": OF_FILE}
