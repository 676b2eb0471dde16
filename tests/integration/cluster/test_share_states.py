"""States of share groups in a cluster: any broker asks, their coordinators answer, and move with their partitions."""

import pytest

from replication.broker.share_states import Written
from replication.coordinators.share_state.machine.batches import DeliveryState, StateBatch
from replication.coordinators.share_state.machine.state import SharePartitionKey
from replication.coordinators.share_state.states import IdPartition, Summary
from replication.errors import ErrorCode
from replication.model.cluster import SHARE_STATE_TOPIC, topic_uuid
from replication.protocol.apis import ApiKey
from tests.support.asker import Asker, until
from tests.support.in_process import brokers_in_process
from tests.support.kafka_answers.topics import create
from tests.support.proving import prove
from tests.support.sharing import ACCEPT, REJECT, RELEASE, begin, codes, leader_of, member_of, produce

NONE = ErrorCode.NONE
GROUPS = [f"group-{number}" for number in range(8)]
SETTINGS = {
    "share_coordinator_state_topic_num_partitions": 5,
    "share_coordinator_state_topic_prune_interval_ms": 300,
    "share_coordinator_snapshot_update_records_per_snapshot": 2,
}


@pytest.fixture
def site(tmp_path):
    with brokers_in_process(tmp_path, **SETTINGS) as running:
        with Asker(running.bootstrap) as asker:
            create(asker, "shared", num_partitions=2, replication_factor=3)
        until(lambda: all(shared(running, number) for number in running.brokers))
        yield running


def shared(site, number):
    return site.brokers[number].replicas.metadata.topic("shared")


def calls(site, number):
    return site.brokers[number].coordinators.share_states


def done_to(offset):
    return Written(1, 1, offset, 0, (StateBatch(offset + 1, offset + 1, DeliveryState.ACKNOWLEDGED, 1),))


def test_a_state_is_kept_wherever_its_coordinator_goes(site):
    at = IdPartition(shared(site, 1).id, 1)
    for place, group in enumerate(GROUPS):
        asker = calls(site, 1 + place % 3)
        assert site.do(asker.initialize(group, {at: (1, 0)})) == {at: NONE}
        assert site.do(asker.read(group, at, 1)).error is NONE
    for offset in range(1, 6):
        for place, group in enumerate(GROUPS):
            assert site.do(calls(site, 1 + (place + 1) % 3).write(group, at, done_to(offset))) is NONE
    kept = Summary(NONE, 1, 1, 5, 0)
    assert {site.do(calls(site, 2).summaries(group, [at]))[at] for group in GROUPS} == {kept}

    until(lambda: starts(site) and max(starts(site)) > 0, story=lambda: f"records are deleted: {starts(site)}")
    site.do(site.brokers.pop(3).stop())
    for group in GROUPS:
        found = site.do(calls(site, 1).read(group, at, 2))
        assert found == (NONE, 1, 5, (StateBatch(5, 6, DeliveryState.ACKNOWLEDGED, 1),)), group
        assert site.do(calls(site, 2).write(group, at, done_to(9))) is ErrorCode.FENCED_LEADER_EPOCH
    assert site.do(calls(site, 1).delete(GROUPS[0], [at])) == {at: NONE}
    assert site.do(calls(site, 2).summaries(GROUPS[0], [at]))[at] == Summary()


def starts(site):
    """Where the partitions of the internal topic begin at their leaders."""
    found = [partition for broker in site.brokers.values() for partition in broker.replicas.partitions().values()]
    return [one.replica.start for one in found if one.replica.tp.topic == SHARE_STATE_TOPIC]


def test_brokers_are_asked_over_the_network_as_in_kafka(site):
    topic_id = shared(site, 1).id
    key = str(SharePartitionKey("a:b", topic_id, 0))
    secret = site.brokers[1].inter_broker.users.secret
    with Asker(site.bootstrap) as asker:
        prove(asker.ask, secret)

        def find(version, key):
            (row,) = asker.ask(
                ApiKey.FIND_COORDINATOR, version, {"key_type": 2, "coordinator_keys": (key,)}
            ).coordinators
            return row

        assert find(5, key).error_code == ErrorCode.INVALID_REQUEST
        assert find(6, "a:b").error_code == ErrorCode.INVALID_REQUEST
        row = until(lambda: (found := find(6, key)).error_code == NONE and found)
    address = f"{row.host}:{row.port}"
    with Asker(address) as asker:
        prove(asker.ask, secret)

        def ask(key, version, **fields):
            body = {"topic_id": topic_uuid(topic_id), "partitions": [{"partition": 0, **fields}]}
            (result,) = asker.ask(key, version, {"group_id": "a:b", "topics": [body]}).results
            return result.partitions[0]

        def begun():
            return ask(ApiKey.INITIALIZE_SHARE_GROUP_STATE, 0, state_epoch=4, start_offset=7).error_code == NONE

        until(begun)
        batch = {"first_offset": 8, "last_offset": 9, "delivery_state": 0, "delivery_count": 3}
        written = {"state_epoch": 4, "leader_epoch": 2, "start_offset": 7, "state_batches": [batch]}
        for version in (0, 1):
            fields = written | {"delivery_complete_count": 5}
            assert ask(ApiKey.WRITE_SHARE_GROUP_STATE, version, **fields).error_code == NONE
        found = ask(ApiKey.READ_SHARE_GROUP_STATE, 0, leader_epoch=2)
        assert (found.state_epoch, found.start_offset) == (4, 7)
        assert [(b.first_offset, b.last_offset, b.delivery_state, b.delivery_count) for b in found.state_batches] == [
            (8, 9, 0, 3)
        ]
        for version in (0, 1):
            summary = ask(ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, version, leader_epoch=2)
            assert (summary.state_epoch, summary.leader_epoch, summary.start_offset) == (4, 2, 7)
        assert summary.delivery_complete_count == 5
        assert ask(ApiKey.READ_SHARE_GROUP_STATE, 0, leader_epoch=1).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert ask(ApiKey.DELETE_SHARE_GROUP_STATE, 0).error_code == NONE
        assert ask(ApiKey.READ_SHARE_GROUP_STATE, 0, leader_epoch=3).error_code == ErrorCode.INVALID_REQUEST


def test_the_states_of_a_deleted_topic_go(site):
    at = IdPartition(shared(site, 1).id, 0)
    assert site.do(calls(site, 1).initialize("g", {at: (0, -1)})) == {at: NONE}
    with Asker(site.bootstrap) as asker:
        asker.ask(ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "shared", "topic_id": None}], "timeout": 10_000})
    until(lambda: not any(slots(site)))
    assert site.do(calls(site, 2).summaries("g", [at]))[at].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def slots(site):
    return [term.slots for broker in site.brokers.values() for term in broker.coordinators.shares.terms.all()]


def test_the_next_leader_gives_what_was_not_accepted_and_nothing_else(site):
    begin(site, "g", "shared")
    leader = leader_of(site, "shared")
    produce(site, "shared", *(b"v%d" % number for number in range(10)))
    with member_of(site, "g", "ann", "shared") as ann:
        assert len(ann.given()) == 10
        parts = {0: [(0, 1, ACCEPT), (2, 3, RELEASE), (5, 5, ACCEPT), (7, 7, REJECT)]}
        assert codes(ann.acknowledge(parts), "error_code") == {0: NONE}
        assert sorted(ann.given()) == [(0, 2), (0, 3)]
        site.do(site.brokers.pop(leader).stop())
    until(lambda: leader_of(site, "shared") in site.brokers)
    with member_of(site, "g", "ann", "shared") as ann:
        found = {}
        until(lambda: found.update(ann.given(wait_ms=500)) or len(found) >= 6)
        assert found == {(0, n): (2 if n in (2, 3) else 1, b"v%d" % n) for n in (2, 3, 4, 6, 8, 9)}
        assert codes(ann.acknowledge({0: [(2, 4, ACCEPT), (6, 6, ACCEPT), (8, 9, ACCEPT)]}), "error_code") == {0: NONE}
    at = IdPartition(next(iter(site.brokers.values())).replicas.metadata.topic("shared").id, 0)
    asked = next(iter(site.brokers.values())).coordinators.share_states
    assert site.do(asked.summaries("g", [at]))[at].start_offset == 10
