"""Transactions over the wire, request by request: what brokers refuse, and what they do when leaders change."""

import asyncio
import itertools

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from logstore.records.batch import TRANSACTIONAL, Record, build
from replication.coordinators.binary import partition_of
from replication.coordinators.transactions.machine.state import Phase
from replication.errors import ErrorCode
from replication.model.cluster import TRANSACTIONS_TOPIC, TopicPartition
from replication.network.channel import connect
from replication.protocol.apis import ApiKey
from replication.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    Isolation,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from replication.replica.leader.writers import Writers
from tests.conformance.clients.members import until
from tests.support.in_process import brokers_in_process
from tests.support.site import values_of

NONE = ErrorCode.NONE
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
names = (f"tx-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    with brokers_in_process(
        tmp_path_factory.mktemp("transactions"),
        default_replication_factor=3,
        min_insync_replicas=2,
        offsets_topic_num_partitions=1,
        transaction_state_log_num_partitions=2,
        transaction_state_log_segment_bytes=1_000_000,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=50,
        transaction_remove_expired_transaction_cleanup_interval_ms=50,
        transactional_id_expiration_ms=3_600_000,
        transaction_max_timeout_ms=60_000,
    ) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", 2, 3)])["t"].result(30)
        yield made


class Talk:
    """A producer that says what the test says, to the right broker."""

    def __init__(self, brokers, name=None):
        self.brokers = brokers
        self.name = name or next(names)
        self.pair = (-1, -1)
        self.sequences = {}

    @property
    def first(self):
        return min(self.brokers.brokers)

    def leader(self, tp):
        return self.brokers.brokers[self.first].replicas.metadata.leader(*tp)

    async def send(self, broker, key, version, body):
        endpoint = self.brokers.brokers[broker].endpoint
        connection = await connect(endpoint.host, endpoint.port, timeout_s=10)
        try:
            return await connection.send(key, version, "test", body)
        finally:
            connection.end(ConnectionAbortedError())

    def do(self, broker, key, version, body):
        return self.brokers.do(self.send(broker, key, version, body))

    @property
    def coordinator(self):
        """The coordinator of the id: the topic is created when it is looked for first."""
        body = {"key_type": 1, "coordinator_keys": [self.name]}
        while (row := self.do(self.first, ApiKey.FIND_COORDINATOR, 4, body).coordinators[0]).error_code:
            pass
        return row.node_id

    def ask(self, key, version, **body):
        """Ask the coordinator, until it is not busy."""
        head = {"transactional_id": self.name, "producer_id": self.pair[0], "producer_epoch": self.pair[1]}
        while True:
            found = self.do(self.coordinator, key, version, head | body)
            if int(found.error_code) not in (14, 15, 16, 51):
                return found

    def begin(self, **options):
        """Initialize; later requests use what is answered."""
        found = self.ask(ApiKey.INIT_PRODUCER_ID, 4, **{"transaction_timeout": 30_000, **options})
        if not found.error_code:
            self.pair, self.sequences = (found.producer_id, found.producer_epoch), {}
        return int(found.error_code)

    def add(self, *tps, version=3):
        topics = [{"name": tp.topic, "partitions": [tp.partition]} for tp in tps]
        while True:
            body = {
                "v3_and_below_transactional_id": self.name,
                "v3_and_below_producer_id": self.pair[0],
                "v3_and_below_producer_epoch": self.pair[1],
                "v3_and_below_topics": topics,
            }
            answer = self.do(self.coordinator, ApiKey.ADD_PARTITIONS_TO_TXN, version, body)
            codes = {
                (topic.name, row.partition_index): int(row.partition_error_code)
                for topic in answer.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            }
            if not {14, 15, 16, 51} & set(codes.values()):
                return codes

    def batch(self, tp, *values):
        first = self.sequences.get(tp, 0)
        records = [Record(n, 1_000, None, value) for n, value in enumerate(values)]
        return bytes(build(records, attributes=TRANSACTIONAL, producer=(*self.pair, first)))

    def produce(self, tp, *values, version=9, wait=True):
        request = ProduceRequest(
            -1,
            10_000,
            (ProduceTopic(tp.topic, (ProducePartition(tp.partition, self.batch(tp, *values)),)),),
            self.name,
        )
        work = self.send(self.leader(tp), ApiKey.PRODUCE, version, request)
        if not wait:
            return asyncio.run_coroutine_threadsafe(work, self.brokers.loop)
        (row,) = self.brokers.do(work).topics[0].partitions
        if not row.error_code:
            self.sequences[tp] = self.sequences.get(tp, 0) + len(values)
        return ErrorCode(row.error_code)

    def end(self, *, commits=True, version=3):
        found = self.ask(ApiKey.END_TXN, version, committed=commits)
        if version >= 5 and not found.error_code:
            self.pair, self.sequences = (found.producer_id, found.producer_epoch), {}
        return ErrorCode(int(found.error_code))

    def commit_offset(self, group, offset, version=3, topic="t"):
        topics = [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
                    | ({"committed_leader_epoch": -1} if version >= 2 else {})
                ],
            }
        ]
        head = {"transactional_id": self.name, "producer_id": self.pair[0], "producer_epoch": self.pair[1]}
        body = head | {"group_id": group, "topics": topics, "group_instance_id": None}
        while True:
            answer = self.do(self.keeper(group), ApiKey.TXN_OFFSET_COMMIT, version, body)
            code = ErrorCode(int(answer.topics[0].partitions[0].error_code))
            if code not in (14, 15, 16):
                return code

    def keeper(self, group):
        while True:
            row = self.do(1, ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]}).coordinators[0]
            if not row.error_code:
                return row.node_id

    def committed(self, group, topic="t"):
        """(offset, error) of the topic's first partition, stable."""
        asked = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]
        asked[0] |= {"member_id": None, "member_epoch": -1}
        while True:
            answer = self.do(self.keeper(group), ApiKey.OFFSET_FETCH, 9, {"groups": asked, "require_stable": True})
            if not answer.groups[0].error_code:
                row = answer.groups[0].topics[0].partitions[0]
                return row.committed_offset, int(row.error_code)

    def read(self, tp, start, isolation=Isolation.READ_COMMITTED, wait_ms=0):
        asked = FetchTopic(tp.topic, None, (FetchPartition(tp.partition, start, 1 << 20),))
        request = FetchRequest(wait_ms, 1, (asked,), isolation=isolation)
        return self.do(self.leader(tp), ApiKey.FETCH, 11, request).topics[0].partitions[0]

    def values(self, tp, start):
        """The values that a read_committed reader sees, once everything is decided."""
        while True:
            found = self.read(tp, start)
            if found.last_stable_offset == found.high_watermark and found.error_code == 0:
                break
        found = self.read(tp, start)  # those records may have been read before the marker came
        aborted = {each.producer_id for each in found.aborted}
        return values_of(found.records), aborted

    def end_of(self, tp):
        return self.read(tp, 0).high_watermark


def on_leader(brokers, tp, act):
    """Call `act` with the leader's role, in the brokers' loop."""

    async def main():
        found = brokers.brokers[brokers.brokers[1].replicas.metadata.leader(*tp)]
        return act(found.replicas.leader(tp))

    return brokers.do(main())


def test_a_batch_of_a_transaction_that_does_not_hold_the_partition_is_refused(brokers):
    """(T4) Never added, ended, or of an older instance: nothing is written, and nobody waits for it."""
    talk = Talk(brokers)
    assert talk.begin() == NONE
    end = talk.end_of(T0)
    assert talk.produce(T0, b"never added") is ErrorCode.INVALID_TXN_STATE
    assert set(talk.add(T1).values()) == {NONE}
    assert talk.produce(T0, b"another one was added") is ErrorCode.INVALID_TXN_STATE
    assert set(talk.add(T0).values()) == {NONE}
    assert talk.produce(T0, b"good") is NONE
    assert talk.end() is NONE
    assert talk.values(T0, end)[0][0] == b"good"
    assert talk.produce(T0, b"late") is ErrorCode.INVALID_TXN_STATE
    old = talk.pair
    assert talk.begin() == NONE
    talk.add(T0)
    new, talk.pair, talk.sequences = talk.pair, old, {T0: 1}
    assert talk.produce(T0, b"zombie") is ErrorCode.INVALID_PRODUCER_EPOCH
    talk.pair, talk.sequences = new, {}
    assert talk.end(commits=False) is NONE
    assert talk.read(T0, 0).last_stable_offset == talk.end_of(T0)


def test_a_marker_that_overtakes_the_coordinators_answer_voids_it(brokers):
    """(T4) The batch would open a transaction that has ended."""
    talk = Talk(brokers)
    talk.begin()
    talk.add(T0)
    broker = brokers.brokers[talk.leader(T0)]
    verification, held = broker.coordinators.verification, asyncio.Event()
    ask = verification._ask_once

    async def slow(tp, asked):
        found = await ask(tp, asked)
        await held.wait()
        return found

    setattr(verification, ask.__name__, slow)
    end = talk.end_of(T0)
    answer = talk.produce(T0, b"late", wait=False)
    while not on_leader(brokers, T0, lambda role: role.writers.asks):
        pass
    assert talk.end() is NONE
    while not done(talk):
        pass
    brokers.loop.call_soon_threadsafe(held.set)
    (row,) = answer.result(20).topics[0].partitions
    setattr(verification, ask.__name__, ask)
    assert row.error_code == ErrorCode.INVALID_TXN_STATE
    assert talk.end_of(T0) == end


def described(talk):
    """The coordinator's description, once it has loaded."""
    body = {"transactional_ids": [talk.name]}
    while True:
        (row,) = talk.do(talk.coordinator, ApiKey.DESCRIBE_TRANSACTIONS, 0, body).transaction_states
        if int(row.error_code) not in (14, 15, 16):
            return row


def done(talk):
    return described(talk).transaction_state.startswith("Complete")


def test_a_late_marker_does_not_end_the_next_transaction(brokers):
    """(T3) Its epoch is not above that of the open transaction; that of an older coordinator is refused, too."""
    talk = Talk(brokers)
    talk.begin()
    first = talk.pair
    assert talk.produce(T0, b"one", version=12) is NONE
    assert talk.end(version=5) is NONE
    assert talk.pair == (first[0], first[1] + 1)
    assert talk.produce(T0, b"two", version=12) is NONE
    row = {
        "producer_id": talk.pair[0],
        "producer_epoch": talk.pair[1],
        "transaction_result": False,
        "topics": [{"name": "t", "partition_indexes": [0]}],
        "coordinator_epoch": 1_000,
        "transaction_version": 2,
    }
    for late, code in (
        (row, ErrorCode.INVALID_PRODUCER_EPOCH),
        (row | {"producer_epoch": first[1]}, ErrorCode.INVALID_PRODUCER_EPOCH),
    ):
        answer = talk.do(talk.leader(T0), ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [late]})
        assert answer.markers[0].topics[0].partitions[0].error_code == code
    assert talk.end(version=5) is NONE
    stale = row | {"producer_epoch": talk.pair[1], "coordinator_epoch": -1}
    assert talk.produce(T0, b"three", version=12) is NONE
    answer = talk.do(talk.leader(T0), ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [stale | {"transaction_version": 0}]})
    assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert talk.end(version=5) is NONE
    values, aborted = talk.values(T0, 0)
    assert {b"one", b"two", b"three"} <= set(values)
    assert talk.pair[0] not in aborted


@pytest.mark.parametrize("has_begun", [True, False])
def test_the_second_batch_of_a_transaction_waits_for_the_first_one_also_at_a_new_leader(brokers, has_begun):
    """(T17) The former leader may have had the first one on its way, or have stored it."""
    talk = Talk(brokers)
    assert talk.begin() == NONE
    first = talk.end_of(T0)
    if has_begun:
        assert talk.produce(T0, b"one", version=12) is NONE
        leader = brokers.brokers[talk.leader(T0)].replicas.leader(T0)
        brokers.do(asyncio.wait_for(forget(leader), 10))
    else:
        talk.sequences = {T0: 1}
        assert talk.produce(T0, b"two", version=12) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        talk.sequences = {}
        assert talk.produce(T0, b"one", version=12) is NONE
    assert talk.produce(T0, b"two", version=12) is NONE
    assert talk.end(version=5) is NONE
    assert talk.values(T0, first)[0][:2] == [b"one", b"two"]


async def forget(leader):
    """A new leader has the same log, and knows of nobody whose transaction holds it."""
    leader.writers = Writers()


def test_offsets_in_a_transaction_count_once_it_is_committed(brokers):
    talk = Talk(brokers)
    group = f"group-{talk.name}"
    talk.begin()
    assert talk.commit_offset(group, 5) is ErrorCode.INVALID_TXN_STATE, "the group's partition was not added"
    assert int(talk.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, group_id=group).error_code) == NONE
    assert talk.commit_offset(group, 5) is NONE
    assert talk.committed(group) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert talk.end() is NONE
    while (found := talk.committed(group)) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT):
        pass
    assert found == (5, NONE)
    assert talk.commit_offset(group, 9, version=5) is NONE, "it adds the partition itself"
    assert talk.end(commits=False, version=5) is NONE
    while (found := talk.committed(group))[1]:
        pass
    assert found == (5, NONE)


def test_offsets_in_a_transaction_do_not_count_for_a_later_topic_of_that_name(brokers):
    """(R29) A group would skip the first records of that topic."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
    talk = Talk(brokers)
    group = f"group-{talk.name}"
    admin.create_topics([NewTopic("again", 1, 3)])["again"].result(30)
    talk.begin()
    assert talk.commit_offset(group, 5, version=5, topic="again") is NONE
    admin.delete_topics(["again"], operation_timeout=30)["again"].result(30)
    admin.create_topics([NewTopic("again", 1, 3)])["again"].result(30)
    until(lambda: talk.committed(group, "again") == (-1, NONE), "the offset of the former topic is there")
    assert talk.end(version=5) is NONE
    other = Talk(brokers)
    other.begin()
    assert other.commit_offset(group, 3, version=5, topic="again") is NONE
    assert other.end(version=5) is NONE
    until(lambda: talk.committed(group, "again") == (3, NONE), "nothing is committed")


def test_one_bad_partition_and_nothing_is_added(brokers):
    talk = Talk(brokers)
    talk.begin()
    none = TopicPartition("none", 3)
    assert talk.add(T0, none) == {
        tuple(T0): ErrorCode.OPERATION_NOT_ATTEMPTED,
        tuple(none): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert talk.end() is ErrorCode.INVALID_TXN_STATE
    nameless = {"transactional_id": "", "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    assert int(talk.do(1, ApiKey.INIT_PRODUCER_ID, 4, nameless).error_code) == ErrorCode.INVALID_REQUEST
    assert talk.begin(transaction_timeout=60_001) == ErrorCode.INVALID_TRANSACTION_TIMEOUT


def test_old_clients_are_told_of_fencing_in_the_words_that_they_know(brokers):
    talk = Talk(brokers)
    talk.begin()
    old = talk.pair
    talk.begin()
    talk.pair = old
    assert set(talk.add(T0, version=1).values()) == {ErrorCode.INVALID_PRODUCER_EPOCH}
    assert set(talk.add(T0, version=2).values()) == {ErrorCode.PRODUCER_FENCED}


def test_administrators_see_transactions_and_producers_and_can_abort(brokers):
    talk = Talk(brokers)
    talk.begin()
    talk.add(T1)
    assert talk.produce(T1, b"hangs") is NONE
    row = described(talk)
    assert (row.transaction_state, row.producer_id, row.producer_epoch) == ("Ongoing", *talk.pair)
    assert [(topic.topic, topic.partitions) for topic in row.topics] == [("t", (1,))]
    asked = {
        "state_filters": ["Ongoing", "Bad"],
        "producer_id_filters": [talk.pair[0]],
        "duration_filter": -1,
    }
    listed = talk.do(talk.coordinator, ApiKey.LIST_TRANSACTIONS, 1, asked)
    assert [one.transactional_id for one in listed.transaction_states] == [talk.name]
    assert listed.unknown_state_filters == ("Bad",)
    old = talk.do(talk.coordinator, ApiKey.LIST_TRANSACTIONS, 1, asked | {"duration_filter": 3_600_000})
    assert old.transaction_states == ()
    producers = (
        talk.do(
            talk.leader(T1),
            ApiKey.DESCRIBE_PRODUCERS,
            0,
            {"topics": [{"name": "t", "partition_indexes": [1]}]},
        )
        .topics[0]
        .partitions[0]
        .active_producers
    )
    (mine,) = [one for one in producers if one.producer_id == talk.pair[0]]
    assert (mine.producer_epoch, mine.last_sequence) == (talk.pair[1], 0)
    assert mine.current_txn_start_offset >= 0
    missing = talk.do(1, ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": ["nobody"]}).transaction_states[0]
    assert int(missing.error_code) in (ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR)
    assert talk.end(commits=False) is NONE


def test_a_transaction_that_is_too_old_is_aborted(brokers):
    talk = Talk(brokers)
    talk.begin(transaction_timeout=200)
    talk.add(T1)
    assert talk.produce(T1, b"old") is NONE
    while described(talk).transaction_state != Phase.COMPLETE_ABORT:
        pass
    assert talk.end() is ErrorCode.PRODUCER_FENCED
    assert talk.pair[0] in talk.values(T1, 0)[1]


def test_the_topic_of_transactions_is_made_by_the_settings(brokers):
    talk = Talk(brokers)
    talk.begin()
    topic = brokers.brokers[1].replicas.metadata.topic(TRANSACTIONS_TOPIC)
    assert len(topic.partitions) == 2
    assert all(len(partition.replicas) == 3 for partition in topic.partitions.values())
    tp = TopicPartition(TRANSACTIONS_TOPIC, partition_of(talk.name, 2))
    config = on_leader(brokers, tp, lambda role: role.replica.config)
    assert (config.min_insync_replicas, config.segment_bytes) == (2, 1_000_000)
    assert config.is_compacted
    assert not config.unclean_leader_election_enable


def test_the_last_stable_offset_outlives_its_leader(tmp_path):
    """(T5) So do the aborted transactions, and a decision whose markers a stopped broker was to write."""
    with brokers_in_process(
        tmp_path, default_replication_factor=3, min_insync_replicas=2, transaction_state_log_num_partitions=1
    ) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", 2, 3)])["t"].result(30)
        aborts, stays = Talk(brokers), Talk(brokers)
        for talk in (aborts, stays):
            talk.begin()
            talk.add(T0, T1)
            assert talk.produce(T0, b"aborted" if talk is aborts else b"open") is NONE
        assert aborts.end(commits=False) is NONE
        while not done(aborts):
            pass
        before = brokers.do(seen(aborts))
        assert before == (1, [aborts.pair[0]])
        leader = aborts.leader(T0)
        brokers.do(brokers.brokers.pop(leader).stop())
        until(lambda: aborts.leader(T0) in brokers.brokers, "another one leads")
        until(lambda: brokers.do(seen(aborts)) == before, "as before, once the high watermark is back")
        until(lambda: stays.produce(T0, b"more") is NONE, "the coordinator is there again")
        assert stays.end() is NONE
        values, aborted = stays.values(T0, 0)
        assert (b"open" in values, b"more" in values, aborted) == (True, True, {aborts.pair[0]})


async def seen(talk):
    """(last stable offset, the producers of aborted transactions) of T0, as its leader tells it."""
    asked = FetchTopic("t", None, (FetchPartition(0, 0, 1 << 20),))
    request = FetchRequest(0, 1, (asked,), isolation=Isolation.READ_COMMITTED)
    answer = await talk.send(talk.leader(T0), ApiKey.FETCH, 11, request)
    row = answer.topics[0].partitions[0]
    return row.last_stable_offset, [each.producer_id for each in row.aborted or ()]


def test_a_prepared_transaction_is_kept_over_restarts_and_ended_by_whoever_knows_it(tmp_path):
    settings = {
        "transaction_two_phase_commit_enable": True,
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": 20,
        "transaction_state_log_num_partitions": 1,
        "transactional_id_expiration_ms": 1500,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 100,
        "transaction_partition_verification_enable": False,
    }
    two_phase = {"enable2_pc": True, "keep_prepared_txn": False}
    with brokers_in_process(tmp_path, (1,), **settings) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(30)
        talk = Talk(brokers, "prepared")
        shown = talk.do(1, ApiKey.API_VERSIONS, 4, {"client_software_name": "t", "client_software_version": "1"})
        assert (22, 0, 6) in [(row.api_key, row.min_version, row.max_version) for row in shown.api_keys]
        first = talk.ask(ApiKey.INIT_PRODUCER_ID, 6, transaction_timeout=1, **two_phase)
        talk.pair = first.producer_id, first.producer_epoch
        assert talk.produce(T0, b"prepared", version=12) is NONE
        unasked = Talk(brokers, "unasked")
        assert unasked.begin() == NONE
        assert unasked.produce(T1, b"believed") is NONE, "without verification leaders ask nobody"
        assert unasked.begin() == NONE
    with brokers_in_process(tmp_path, (1,), **settings) as brokers:
        talk.brokers = brokers
        assert described(talk).transaction_state == "Ongoing"
        kept = talk.ask(ApiKey.INIT_PRODUCER_ID, 6, transaction_timeout=1, enable2_pc=True, keep_prepared_txn=True)
        assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == talk.pair
        assert kept.producer_epoch > talk.pair[1]
        prepared = talk.pair
        for _ in range(2):  # a decision may be carried out twice
            talk.pair = prepared
            assert talk.end(version=5) is NONE
            assert talk.pair == (kept.producer_id, kept.producer_epoch)
        assert talk.values(T0, 0)[0][0] == b"prepared"
        until(
            lambda: int(described(talk).error_code) == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            "an id that nobody uses is forgotten",
        )


def test_two_phase_commits_are_refused_unless_they_are_switched_on(brokers):
    talk = Talk(brokers)
    asked = {"transaction_timeout": 1000, "enable2_pc": True, "keep_prepared_txn": False}
    found = talk.ask(ApiKey.INIT_PRODUCER_ID, 6, **asked)
    assert int(found.error_code) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
