"""Brokers may do everything with each other, where clients at the same port may do nothing: with an authorizer, too.

The listener where they meet asks nobody for a name, and nobody without one has a right.
"""

import pyarrow as pa
import pytest

from replication.client.groups import Committed
from replication.client.kafka_client import KafkaClient
from replication.errors import ErrorCode
from replication.model.cluster import TopicPartition
from replication.protocol.apis import ApiKey
from tests.support.asker import Asker, fetch_request, until
from tests.support.in_process import brokers_in_process
from tests.support.kafka_answers.case import METADATA_FLAGS
from tests.support.proving import prove, secret_of
from tests.support.share_life import from_the_beginning

pytestmark = pytest.mark.slow

NUMBERS = (1, 2, 3)
ADMIN, PASSWORD = "admin", "secret"
RIGHTS = {
    "listeners": "BROKERS://127.0.0.1:0,USERS://127.0.0.1:0",
    "listener.security.protocol.map": "BROKERS:PLAINTEXT,USERS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "BROKERS",
    "sasl.enabled.mechanisms": "PLAIN",
    "plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'user_{ADMIN}="{PASSWORD}";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{ADMIN}",
    "default.replication.factor": 3,
    "min.insync.replicas": 3,
    **dict.fromkeys(("offsets.topic.num.partitions", "transaction.state.log.num.partitions"), 1),
    "share.coordinator.state.topic.num.partitions": 1,
    **dict.fromkeys(("group.share.min.heartbeat.interval.ms", "group.share.heartbeat.interval.ms"), 100),
}
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": ADMIN,
    "sasl.password": PASSWORD,
}  # fmt: skip
TOPIC = "t"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with brokers_in_process(tmp_path_factory.mktemp("rights"), NUMBERS, **RIGHTS) as made:
        made.coordination = made.brokers[1].config.coordination
        yield made


@pytest.fixture(scope="module")
def admin(running):
    with KafkaClient(at(running, 1, "USERS"), security=LOGIN) as client:
        client.create_topic(TOPIC, partitions=3, replicas=3)
        yield client


def at(running, number, listener):
    return str(next(each.endpoint for each in running.brokers[number].told if each.name == listener))


def rows(*numbers):
    partitions = pa.array([number % 3 for number in numbers], pa.int32())
    return pa.table({"value": [str(number) for number in numbers], "partition": partitions})


def values(client):
    found = [client.read(TOPIC, number, 0, extent.end) for number, extent in client.extents(TOPIC).items()]
    return sorted(int(row["value"]) for batches in found for batch in batches for row in batch.to_pylist())


def test_brokers_replicate_and_keep_groups_transactions_and_shares_among_themselves(running, admin):
    assert {leader.broker for leader in admin.topic(TOPIC).leaders.values()} == set(NUMBERS)
    admin.append(TOPIC, rows(*range(6)))  # acks=all, of all three
    with admin.transaction("t") as transaction:
        transaction.append(TOPIC, rows(6, 7, 8))
    assert values(admin) == list(range(9))

    tp = TopicPartition(TOPIC, 0)
    admin.commit("g", {tp: Committed(2)})
    assert admin.committed("g", [tp])[tp].offset == 2

    from_the_beginning(admin, "s")
    taken = []
    with admin.share_consumer(TOPIC, "s") as member:
        while len(taken) < 9:
            taken += [int(row["value"]) for row in member.poll(20_000).to_pylist()]
            member.commit()
    assert sorted(taken) == list(range(9))


def test_those_who_say_at_their_port_that_they_are_brokers_are_not(running, admin):
    follower = fetch_request(TOPIC, replica_id=2, max_wait_ms=100)
    shared = {"key_type": 2, "coordinator_keys": ["g:AAAAAAAAAAAAAAAAAAAAAA:0"]}

    def told(asker):
        found = asker.ask(ApiKey.FETCH, 11, follower)
        (row,) = asker.ask(ApiKey.FIND_COORDINATOR, 6, shared).coordinators
        names = asker.ask(ApiKey.METADATA, 12, {"topics": None, **dict.fromkeys(METADATA_FLAGS, False)}).topics
        return (
            found.error_code or found.topics[0].partitions[0].error_code,
            row.error_code,
            [each.name for each in names],
        )

    leader = admin.topic(TOPIC).leaders[0].broker
    refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    with Asker(at(running, leader, "BROKERS")) as stranger:
        assert told(stranger) == (refused, refused, [])
        prove(stranger.ask, secret_of(running.coordination))
        first, second, names = until(lambda: told(stranger))
        assert refused not in (first, second)
        assert TOPIC in names
