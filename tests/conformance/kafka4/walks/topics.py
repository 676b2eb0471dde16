"""Topics, schemas and settings."""

from replication.client.kafka_client import KafkaClient
from tests.conformance.kafka4.walks.place import READ_ONLY, walked
from tests.support.asker import until

# Topics.


@walked("topics create")
def topics_create(place):
    (row,) = place.json("topics", "create", "made-1", "--partitions", 2, "--config", "retention.ms=5000")
    assert (row["partitions"], row["replication_factor"], row["config"]) == (2, 3, {"retention.ms": "5000"})
    assert place.brokers_that_know("made-1") == {1, 2, 3}  # KRaft tells them one after the other
    assert "exists already" in place.run("topics", "create", "made-1", "--if-not-exists").ok().err
    assert "'made-1' exists already" in place.run("topics", "create", "made-1").failed()
    place.run("topics", "create", "made-2", "--replica-assignment", "1:2,2:3").ok()
    assert place.client.topic("made-2").replicas == 2
    assert READ_ONLY in place.run("topics", "create", "made-3", "--value-schema", "user string").failed()
    assert "made-3" not in place.client.topics()


@walked("topics list")
def topics_list(place):
    place.made("listed", 0, 2, **{"segment.bytes": "1048576"})
    rows = {row["topic"]: row for row in place.json("topics", "list")}
    assert (rows["listed"]["partitions"], rows["listed"]["config"]) == (2, {"segment.bytes": "1048576"})
    assert rows.keys() == place.client.topics().keys()
    assert [row["topic"] for row in place.json("topics", "list", "--topic", "list.*")] == ["listed"]
    shown = {row["topic"] for row in place.json("topics", "list", "--exclude-internal")}
    assert rows.keys() - shown == rows.keys() & {"__consumer_offsets", "__transaction_state", "__share_group_state"}


@walked("topics describe")
def topics_describe(place):
    place.made("described", 0, 3, **{"min.insync.replicas": "3"})
    (row,) = place.json("topics", "describe", "described")
    assert [sorted(each["isr"]) for each in row["partitions"]] == [[1, 2, 3]] * 3
    assert sorted(each["leader"] for each in row["partitions"]) == [1, 2, 3]
    (lacking,) = place.json("topics", "describe", "described", "--at-min-isr-partitions")
    assert len(lacking["partitions"]) == 3
    assert place.json("topics", "describe", "described", "--under-replicated-partitions") == []


@walked("topics alter")
def topics_alter(place):
    place.made("altered", 0, 1)
    (row,) = place.json("topics", "alter", "altered", "--partitions", 3, "--config", "retention.ms=7000")
    assert (row["partitions"], row["config"]) == (3, {"retention.ms": "7000"})
    for number in place.kafka.numbers:  # each shows what was altered, whichever is asked next
        with KafkaClient(place.kafka.address(number)) as one:
            assert len(one.topic("altered").leaders) == 3
    assert place.json("topics", "alter", "altered", "--delete-config", "retention.ms")[0]["config"] == {}


@walked("topics delete")
def topics_delete(place):
    place.made("deleted", 0)
    place.run("topics", "delete", "deleted", "--yes").ok()
    assert place.brokers_that_know("deleted") == set()
    assert "no topic 'deleted'" in place.run("topics", "delete", "deleted", "--yes").failed()


# Schemas: those of a Kafka that is not pylog's are read there, and not written.


@walked("schemas list")
def schemas_list(place):
    assert place.json("schemas", "list") == []


@walked("schemas level")
def schemas_level(place):
    assert [row["level"] for row in place.json("schemas", "level", "none-value")] == ["BACKWARD"]
    assert READ_ONLY in place.run("schemas", "level", "none-value", "--set", "NONE").failed()


@walked("schemas check")
def schemas_check(place):
    assert "none-value can get the schema" in place.run("schemas", "check", "none-value", "user string").ok().err


@walked("schemas infer")
def schemas_infer(place):
    place.made("inferred", 0)
    place.run("produce", "inferred", input='{"user": "Ada", "n": 1}\n{"user": "Bob", "n": 2}\n').ok()
    assert place.run("schemas", "infer", "inferred").ok().lines == ["user string, n bigint"]


# Settings.


@walked("configs describe")
def configs_describe(place):
    place.made("set", 0, **{"retention.ms": "9000"})
    of = ("configs", "describe", "--entity-type", "topics", "--entity-name", "set")
    (row,) = place.json(*of)
    assert (row["name"], row["value"], row["source"]) == ("retention.ms", "9000", "DYNAMIC_TOPIC_CONFIG")
    names = {row["name"] for row in place.json(*of, "--all")}
    assert names >= {"retention.ms", "compression.zstd.level", "min.insync.replicas"}
    (node,) = [
        row["value"]
        for row in place.json("configs", "describe", "--entity-type", "brokers", "--entity-name", 2)
        if row["name"] == "node.id"
    ]
    assert node == "2"


@walked("configs alter")
def configs_alter(place):
    place.made("set-2", 0)
    key = "log.cleaner.threads"
    for entity in (("--entity-default",), ("--entity-name", 2)):
        alter = ("configs", "alter", "--entity-type", "brokers", *entity)
        for value in "2121":  # what it prints is never what was there before
            assert value in [
                row["value"] for row in place.json(*alter, "--add-config", f"{key}={value}") if row["name"] == key
            ]
        assert key not in [row["name"] for row in place.json(*alter, "--delete-config", key)]
    assert place.json("configs", "alter", "--entity-name", "set-2", "--add-config", "retention.ms=1", "--dry-run") == []
    refused = place.run("configs", "alter", "--entity-name", "set-2", "--add-config", "retention.ms=x").failed()
    assert "retention.ms" in refused
    alter = ("configs", "alter", "--entity-type", "users", "--entity-name", "ada")
    place.run(*alter, "--add-config", "SCRAM-SHA-512=[iterations=8192,password=secret]").ok()
    described = ("configs", "describe", "--entity-type", "users", "--entity-name", "ada")
    (row,) = until(lambda: place.json(*described))  # the brokers hear of it from the controllers
    assert (row["name"], row["value"]) == ("SCRAM-SHA-512", "iterations=8192")
    place.run(*alter, "--delete-config", "SCRAM-SHA-512").ok()
    until(lambda: place.json(*described) == [])
