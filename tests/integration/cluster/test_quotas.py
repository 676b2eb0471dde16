"""Replication quotas (KIP-73) on real brokers: what is throttled takes its time, and nothing else waits for it."""

import json
import time

import pytest

from replication.client.kafka_client import KafkaClient
from replication.client.settings import BROKER_RESOURCE, TOPIC_RESOURCE, alter_settings, describe_settings
from replication.model.cluster import TopicPartition
from replication.tools.reassignments import FOLLOWERS, LEADERS, RATES, copied, request, under_way
from tests.support.commands import rows_of
from tests.support.repeats import times

pytestmark = pytest.mark.slow

SIZE_BYTES, RATE = 3_000_000, 600_000
RECORDS = ["x" * 10_000] * (SIZE_BYTES // 10_000)


@pytest.fixture
def client(cluster):
    with KafkaClient(cluster.running.bootstrap) as client:
        yield client
        for broker in (1, 2, 3):
            alter(client, BROKER_RESOURCE, str(broker), deleted=RATES)


def alter(client, kind, name, given=(), deleted=()):
    client.run(lambda cluster: alter_settings(cluster, (kind, name), dict(given), deleted))


def own(client, kind, name):
    """The settings of throttles that it has."""
    (settings,) = client.run(lambda cluster: describe_settings(cluster, kind, [name])).values()
    return {key: each.value for key, each in settings.items() if each.is_own and "throttled" in key}


@pytest.mark.parametrize("side", ["leader", "follower"][: times(1, 2)])
def test_a_throttled_replica_takes_its_time(cluster, client, side):
    topic = cluster.create((1,))
    assert cluster.produce(topic, RECORDS, **{"compression.type": "none"}) == []
    rate = f"{side}.replication.throttled.rate"
    alter(client, TOPIC_RESOURCE, topic, {f"{side}.replication.throttled.replicas": "0:1,0:2"})
    for broker in (1, 2):
        alter(client, BROKER_RESOURCE, str(broker), {rate: RATE})
        log = cluster.running.log_dir(broker) / "broker" / "server.log"
        cluster.until(lambda log=log: f"'{rate}': '{RATE}'" in log.read_text())  # it has heard of both

    begin = time.monotonic()
    assert request(client, {TopicPartition(topic, 0): (1, 2)})[0]["error"] is None
    cluster.until(lambda: set(cluster.state(topic).isr) == {1, 2})
    # The first second's worth comes at once, and so does one answer: 1 MiB of a partition.
    assert time.monotonic() - begin >= (SIZE_BYTES - 2**20) / RATE - 1


def test_a_throttle_of_a_plan_is_set_changed_and_removed(pylog, cluster, client, tmp_path):
    topic, other = cluster.create((1,)), cluster.create((1, 2))
    assert cluster.produce(topic, RECORDS, **{"compression.type": "none"}) == []
    alter(client, TOPIC_RESOURCE, other, {LEADERS: "*", FOLLOWERS: "*"})
    (tmp_path / "plan.json").write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [2]}]}))
    plan = ("--reassignment-json-file", tmp_path / "plan.json")

    begun = pylog("reassign-partitions", "--execute", *plan, "--throttle", 10_000).ok()  # which takes five minutes
    assert "throttled to 10000 bytes per second on brokers 1, 2" in begun.err
    rates = dict.fromkeys(RATES, "10000")
    assert [own(client, BROKER_RESOURCE, str(broker)) for broker in (1, 2, 3)] == [rates, rates, {}]
    assert own(client, TOPIC_RESOURCE, topic) == {LEADERS: "0:1", FOLLOWERS: "0:2"}
    # This would take a minute; but its replicas are in sync, and so they stay.
    assert cluster.produce(other, RECORDS[:60], **{"batch.num.messages": 1, "linger.ms": 0}) == []
    cluster.until(lambda: set(cluster.state(other).isr) == {1, 2})
    pending = pylog("reassign-partitions", "--verify", *plan)
    assert (pending.code, rows_of(pending)[0][-2:], "removed" in pending.err) == (1, ["in", "progress"], False)

    moving = under_way(client, {TopicPartition(topic, 0): (2,)})
    done, total = cluster.until(lambda: (found := copied(client, moving))[0] and found)[1]
    assert done < total
    assert total >= SIZE_BYTES

    pylog("reassign-partitions", "--execute", *plan, "--throttle", 100_000_000).ok()
    assert own(client, TOPIC_RESOURCE, topic) == {LEADERS: "0:1", FOLLOWERS: "0:2"}
    pylog("reassign-partitions", "--verify", *plan, "--preserve-throttles", "--wait").ok()
    assert own(client, BROKER_RESOURCE, "2") == dict.fromkeys(RATES, "100000000")
    assert copied(client, moving) == (total, total)
    done = pylog("reassign-partitions", "--verify", *plan).ok()
    assert "throttle removed from 1 topic and 2 brokers" in done.err
    assert [own(client, BROKER_RESOURCE, str(broker)) for broker in (1, 2, 3)] == [{}] * 3
    assert own(client, TOPIC_RESOURCE, topic) == {}
    assert "removed" not in pylog("reassign-partitions", "--verify", *plan).ok().err


def test_what_is_wrong_with_a_throttle_is_refused(pylog, client, cluster):
    topic = cluster.create((1,))
    assert pylog("reassign-partitions", "--list", "--throttle", 5).code == 2
    assert pylog("reassign-partitions", "--execute", "--throttle", 0).code == 2
    assert pylog("reassign-partitions", "--list", "--preserve-throttles").code == 2
    assert pylog("reassign-partitions", "--list", "--wait").code == 2
    for value in ("0", "1-2", "0:1;0:2", "*:1"):
        refused = pylog("configs", "alter", "--entity-type", "topics", "--entity-name", topic,
                        "--add-config", f"{LEADERS}={value}")  # fmt: skip
        assert refused.code == 1
        assert "partition:broker" in refused.err
