"""A client that is neither a controller nor a broker, and reaches the port of one, achieves nothing.

A broker of the cluster that does not know the epoch of another one achieves nothing either: that is looked at behind
the proof, and was all that there was below feature level 4.
"""

import asyncio

import pytest

from replication.errors import ErrorCode, ProtocolError
from replication.model.cluster import topic_uuid
from replication.network.client import Client
from replication.network.security import PLAINTEXT, Security
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey
from tests.support.proving import BROKER, secret_of
from tests.support.repeats import times

pytestmark = pytest.mark.slow

LAST_EPOCH = 2**31 - 1
GUESSES = (*range(-1, 1000), 2**31 - 1, 2**62, 2**63 - 1)
CLOSED = (OSError, ProtocolError)


@pytest.fixture
def say(cluster):
    """Send requests to a broker one after the other, again over a new connection whenever it closes one.

    Returns the error codes of the answers; None where there was none.
    """

    def send(broker, key, requests, security=PLAINTEXT):
        async def all_of_them():
            client = Client(*address(cluster, broker), "stranger", timeout_ms=20_000, security=security)
            found = []
            for request in requests:
                try:
                    answer = await client.call(key, request)
                    found.append(int(getattr(answer, "error_code", 0)))
                except CLOSED:
                    found.append(None)
            client.close()
            return found

        return asyncio.run(all_of_them())

    return send


def proved(cluster):
    """A broker of this cluster, as others know it."""
    return Security(broker=BROKER, secret=secret_of(cluster.running.coordination))


def address(cluster, broker):
    host, _, port = cluster.running.address(broker).rpartition(":")
    return host, int(port)


def term(cluster):
    """The controller, and the epochs that all states of the tree were written in."""
    return cluster.running.controller(), {
        state.controller_epoch for state in cluster.running.describe().leadership.values()
    }


def stop_replica(topic, **head):
    state = ib.StopReplicaPartition(partition_index=0, leader_epoch=-2, delete_partition=True)
    return ib.StopReplicaRequest(
        controller_id=3,
        topic_states=(ib.StopReplicaTopic(topic_name=topic, partition_states=(state,)),),
        **head,
    )


def leader_and_isr(topic, **head):
    state = ib.LeaderAndIsrPartition(
        partition_index=0, controller_epoch=head["controller_epoch"], leader=3, leader_epoch=2**31 - 1,
        isr=(3,), zk_version=9, replicas=(1, 2, 3), is_new=False,
    )  # fmt: skip
    named = ib.LeaderAndIsrTopic(topic_name=topic, topic_id=topic_uuid("a" * 22), partition_states=(state,))
    return ib.LeaderAndIsrRequest(controller_id=3, topic_states=(named,), live_leaders=(), **head)


def update_metadata(topic, **head):
    nowhere = ib.UpdateMetadataEndpoint(port=1, host="nowhere", listener="PLAINTEXT")
    gone = tuple(ib.UpdateMetadataBroker(id=broker, endpoints=(nowhere,), rack=None) for broker in (1, 2, 3))
    return ib.UpdateMetadataRequest(controller_id=3, topic_states=(), live_brokers=gone, **head)


@pytest.mark.parametrize(
    ("key", "made"),
    [
        (ApiKey.STOP_REPLICA, stop_replica),
        (ApiKey.LEADER_AND_ISR, leader_and_isr),
        (ApiKey.UPDATE_METADATA, update_metadata),
    ][: times(1, 3)],
)
def test_who_guesses_the_epoch_of_a_broker_is_no_controller(cluster, say, key, made):
    topic = cluster.create((1, 2, 3))
    assert cluster.produce(topic, range(5)) == []
    before, states = term(cluster), cluster.states(topic)

    guesses = [made(topic, broker_epoch=guess, controller_epoch=LAST_EPOCH) for guess in GUESSES]
    assert set(say(1, key, guesses)) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    assert set(say(1, key, guesses, proved(cluster))) <= {ErrorCode.STALE_BROKER_EPOCH, None}
    assert cluster.produce(topic, range(5, 10)) == []
    assert cluster.values(topic, 10) == [str(number) for number in range(10)]
    new = cluster.create((1, 2, 3))
    assert cluster.produce(new, range(5)) == []
    assert term(cluster) == before
    assert cluster.states(topic) == states


def test_who_guesses_it_ends_no_broker_either(cluster, say):
    controller, one, two = cluster.roles()
    topic = cluster.create((one, two))

    asked = [ib.ControlledShutdownRequest(broker_id=one, broker_epoch=guess) for guess in GUESSES[:100]]
    assert set(say(controller, ApiKey.CONTROLLED_SHUTDOWN, asked)) == {ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
    answers = say(controller, ApiKey.CONTROLLED_SHUTDOWN, asked, proved(cluster))
    assert set(answers) <= {ErrorCode.STALE_BROKER_EPOCH, None}
    assert cluster.states(topic) == {0: (one, [one, two], 0)}


def test_guesses_cost_a_connection_and_a_line(cluster, say):
    log = cluster.running.directory / "broker-2" / "broker" / "server.log"
    before = log.read_text().count("\n")

    wrong = [stop_replica("t", broker_epoch=guess, controller_epoch=LAST_EPOCH) for guess in range(40)]
    answers = say(2, ApiKey.STOP_REPLICA, wrong, proved(cluster))

    assert answers == 4 * ([ErrorCode.STALE_BROKER_EPOCH] * 9 + [None])
    assert log.read_text().count("\n") - before <= 4
