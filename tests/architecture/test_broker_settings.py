"""Every setting of a broker is used by something, or is the default of a topic setting, which act elsewhere."""

from dataclasses import fields
from pathlib import Path

import pytest

from logstore.config import LogConfig
from logstore.errors import InvalidConfigError
from replication.config import BrokerConfig, properties_of

SOURCES = "\n".join(
    path.read_text()
    for path in (Path(__file__).parents[2] / "replication").rglob("*.py")
    if path.name != "config.py"
)
OWN = """
    @property
    def listener: self.listeners
    def advertised: self.advertised_listeners
"""


@pytest.mark.parametrize("setting", fields(BrokerConfig), ids=lambda f: f.metadata["key"])
def test_a_setting_is_used(setting):
    if topic := setting.metadata.get("topic"):
        assert topic in {f.metadata["key"] for f in fields(LogConfig)}
    else:
        assert f".{setting.name}" in SOURCES + OWN


def test_defaults_of_topics_reach_them_and_give_way_to_their_own():
    broker = BrokerConfig.from_properties({"log.retention.ms": "1000", "min.insync.replicas": "2"})
    assert broker.log_config({}).retention_ms == 1000
    assert broker.log_config({"retention.ms": "5"}).retention_ms == 5
    assert broker.log_config({}).min_insync_replicas == 2


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_the_finest_unit_of_a_time_counts(given, expected):
    assert BrokerConfig.from_properties(given).log_retention_ms == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num.partition": "3"}, "did you mean 'num.partitions'"),
        ({"num.partitions": "0"}, "must be between 1"),
        ({"auto.create.topics.enable": "yes"}, "true or false"),
        ({"listeners": "SSL://h:1"}, "PLAINTEXT://"),
        ({"listeners": "PLAINTEXT://h:1,PLAINTEXT://i:2"}, "PLAINTEXT://"),
        ({"log.dirs": "/a,/b"}, "one directory"),
        ({"log.dirs": ""}, "one directory"),
        ({"log.retention.hours": "two"}, "a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_hint(given, says):
    with pytest.raises(InvalidConfigError, match=says):
        BrokerConfig.from_properties(given)


def test_a_file_of_properties():
    text = "# a comment\n\nbroker.id = 3\nzookeeper.connect=h:2181/kafka\n"
    assert properties_of(text) == {"broker.id": "3", "zookeeper.connect": "h:2181/kafka"}
    assert BrokerConfig.from_properties(properties_of(text)).coordination == "zookeeper:h:2181/kafka"
    for wrong in ("broker.id", "a=1\na=2"):
        with pytest.raises(InvalidConfigError, match=r"server.properties, line \d"):
            properties_of(wrong)
