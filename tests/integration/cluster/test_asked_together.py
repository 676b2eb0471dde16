"""The partitions of one Produce are added to their transaction, and asked about, together."""

import itertools

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from replication.coordinators.binary import partition_of
from replication.errors import ErrorCode
from replication.model.cluster import TRANSACTIONS_TOPIC, TopicPartition
from replication.network.client import Clients
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.integration.cluster.test_transactions import Talk
from tests.support.in_process import brokers_in_process

LEADER = 1
TPS = [TopicPartition("t", number) for number in range(8)]
NONE = ErrorCode.NONE


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    """Two, of which the first leads all partitions, and each coordinates some transactions."""
    directory = tmp_path_factory.mktemp("together")
    with brokers_in_process(directory, (1, 2), transaction_state_log_num_partitions=2) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap, "log_level": 0})
        topic = NewTopic("t", len(TPS), replica_assignment=[[LEADER]] * len(TPS))
        admin.create_topics([topic])["t"].result(30)
        yield made


class Wide(Talk):
    """A producer that writes to all partitions in one request. `stored`: how much its coordinator has."""

    def __init__(self, brokers, coordinator):
        names = (f"wide-{number}" for number in itertools.count())
        super().__init__(brokers, next(name for name in names if Talk(brokers, name).coordinator == coordinator))
        while self.begin() != NONE:
            pass
        self.replicas = brokers.brokers[coordinator].replicas

    @property
    def stored(self):
        tp = TopicPartition(TRANSACTIONS_TOPIC, partition_of(self.name, 2))
        return self.replicas.leader(tp).replica.log.log_end_offset

    def write(self, version, timeout_ms=10_000):
        rows = tuple(ProducePartition(tp.partition, self.batch(tp, b"x")) for tp in TPS)
        request = ProduceRequest(-1, timeout_ms, (ProduceTopic("t", rows),), self.name)
        answer = self.do(LEADER, ApiKey.PRODUCE, version, request)
        return [ErrorCode(row.error_code) for row in answer.topics[0].partitions]


@pytest.mark.parametrize("coordinator", [1, 2], ids=["at the leader", "elsewhere"])
def test_partitions_of_one_request_are_one_append_of_the_coordinator(brokers, coordinator):
    talk = Wide(brokers, coordinator)
    before = talk.stored
    assert talk.write(12) == [NONE] * len(TPS)
    assert talk.stored == before + 1
    assert talk.end(version=5) is NONE


def test_partitions_of_one_request_are_asked_about_in_one(brokers, monkeypatch):
    talk = Wide(brokers, 2)
    assert set(talk.add(*TPS).values()) == {NONE}
    call, asked = Clients.call, []

    def counted(clients, host, port, key, request, **bounds):
        asked.append(key)
        return call(clients, host, port, key, request, **bounds)

    monkeypatch.setattr(Clients, "call", counted)
    assert talk.write(9) == [NONE] * len(TPS)
    assert asked.count(ApiKey.ADD_PARTITIONS_TO_TXN) == 1
    assert talk.end() is NONE


def test_a_partition_that_is_refused_takes_no_other_one_with_it(brokers, monkeypatch):
    """The coordinator adds all partitions of a request, or none, and may not know a topic yet."""
    talk = Wide(brokers, 2)
    leader = talk.replicas.metadata.leader
    monkeypatch.setattr(talk.replicas.metadata, "leader", lambda *tp: None if tp == TPS[3] else leader(*tp))
    found = talk.write(12, timeout_ms=1000)
    assert found == [ErrorCode.NOT_ENOUGH_REPLICAS if tp == TPS[3] else NONE for tp in TPS]
    assert talk.end(version=5) is NONE
