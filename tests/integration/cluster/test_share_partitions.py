"""ShareFetch and ShareAcknowledge of one broker, byte by byte: sessions, locks, waits and refusals, as in Kafka."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from replication.broker.share_states import Found
from replication.coordinators.share_state.states import IdPartition
from replication.errors import ErrorCode
from replication.protocol.apis import ApiKey
from tests.support.asker import Asker, until
from tests.support.in_process import brokers_in_process
from tests.support.kafka_answers.topics import create
from tests.support.sharing import ACCEPT, REJECT, RELEASE, RENEW, ShareMember, begin, codes, given, member_of, produce

NAMES = count(1)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    settings = {
        "share_coordinator_state_topic_num_partitions": 3,
        "group_share_min_record_lock_duration_ms": 1000,
        "group_share_record_lock_duration_ms": 1000,
        "group_share_max_share_sessions": 4,
    }
    with brokers_in_process(tmp_path_factory.mktemp("shares"), (1,), **settings) as running:
        yield running


@pytest.fixture
def topic(site):
    """A topic with records 0 to 9, in batches of five."""
    name = f"shared-{next(NAMES)}"
    with Asker(site.bootstrap) as asker:
        assert create(asker, name) == [0]
    for first in (0, 5):
        produce(site, name, *(b"v%d" % number for number in range(first, first + 5)))
    return name


def stored(site, group, topic):
    broker = site.brokers[1]
    at = IdPartition(broker.replicas.metadata.topic(topic).id, 0)
    return site.do(broker.coordinators.share_states.summaries(group, [at]))[at]


def test_records_are_given_once_and_again_if_they_are_let_go(site, topic):
    begin(site, "g", topic)
    with member_of(site, "g", "ann", topic) as ann, member_of(site, "g", "bob", topic) as bob:
        assert ann.given(records_max=1) == {(0, n): (1, b"v%d" % n) for n in range(5)}, "a batch is given whole"
        assert bob.given(records_max=3, is_exact=True) == {(0, n): (1, b"v%d" % n) for n in (5, 6, 7)}
        answer = ann.acknowledge({0: [(0, 2, ACCEPT), (3, 4, (RELEASE, REJECT))]})
        assert codes(answer, "error_code") == {0: 0}
        assert stored(site, "g", topic)[1:] == (1, 0, 3, 1)
        page = site.do(site.brokers[1].metrics.page())
        at = f'{{consumergroup="g",topic="{topic}",partition="0"}}'
        assert f"kafka_consumergroup_current_offset{at} 3\n" in page
        assert f"kafka_consumergroup_lag{at} 6\n" in page
        assert bob.given(records_max=1, is_exact=True) == {(0, 3): (2, b"v3")}
        assert codes(bob.fetch({0: [(3, 3, ACCEPT), (5, 7, ACCEPT)]})) == {0: 0}
        assert stored(site, "g", topic).start_offset == 8


def test_an_acknowledgement_of_another_member_is_refused_and_changes_nothing(site, topic):
    begin(site, "g", topic)
    with member_of(site, "g", "ann", topic) as ann, member_of(site, "g", "bob", topic) as bob:
        ann.given()
        bob.fetch()
        assert codes(bob.acknowledge({0: [(0, 4, ACCEPT)]}), "error_code") == {0: ErrorCode.INVALID_RECORD_STATE}
        assert codes(ann.acknowledge({0: [(0, 4, ACCEPT), (5, 99, ACCEPT)]}), "error_code") == {
            0: ErrorCode.INVALID_REQUEST
        }
        assert codes(ann.acknowledge({0: [(0, 9, ACCEPT)]}), "error_code") == {0: 0}


def test_a_lock_that_is_over_gives_the_records_to_the_next_member(site, topic):
    begin(site, "g", topic)
    with member_of(site, "g", "ann", topic) as ann, member_of(site, "g", "bob", topic) as bob:
        assert len(ann.given()) == 10
        bob.fetch()
        began = time.monotonic()
        found = bob.given(wait_ms=10_000)
        assert {count for count, _ in found.values()} == {2}
        assert len(found) == 10
        assert time.monotonic() - began < 8, "the waiting fetch is woken"
        assert codes(ann.acknowledge({0: [(0, 9, ACCEPT)]}), "error_code") == {0: ErrorCode.INVALID_RECORD_STATE}


def test_a_renewal_keeps_the_records(site, topic):
    begin(site, "g", topic)
    with member_of(site, "g", "ann", topic) as ann, member_of(site, "g", "bob", topic) as bob:
        ann.given()
        bob.fetch()
        for _ in range(4):
            assert bob.given(wait_ms=400) == {}
            assert codes(ann.acknowledge({0: [(0, 9, RENEW)]}, is_renew_ack=True), "error_code") == {0: 0}
        refused = ann.acknowledge({0: [(0, 9, RENEW)]})
        assert codes(refused, "error_code") == {0: ErrorCode.INVALID_REQUEST}, "a request says that it renews"
        wrong = ann.fetch({0: [(0, 9, RENEW)]}, is_renew_ack=True)
        assert wrong.error_code == ErrorCode.INVALID_REQUEST
        nothing = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}
        assert codes(ann.fetch({0: [(0, 9, RENEW)]}, is_renew_ack=True, **nothing)) == {0: 0}


def test_all_sessions_of_a_connection_end_with_it(site, topic):
    begin(site, "g", topic)
    sessions = site.brokers[1].coordinators.share_partitions.sessions
    until(lambda: not len(sessions))
    with member_of(site, "g", "ann", topic) as ann, member_of(site, "g", "bob", topic) as bob:
        bob.fetch(records_max=0)
        assert len(ann.given()) == 10
        other = ShareMember(ann.asker, "g", "carl", ann.topic_id)
        assert other.fetch().error_code == 0
        ann.close()
        began = time.monotonic()
        assert len(bob.given(wait_ms=5000)) == 10
        assert time.monotonic() - began < 0.9, "long before the locks are over"
        until(lambda: len(sessions) == 1)


def test_no_session_opens_on_a_connection_that_is_gone(site, topic):
    """Requests with many partitions are decoded aside, and meanwhile the clients go; the last one stays."""
    begin(site, "g", topic)
    sessions = site.brokers[1].coordinators.share_partitions.sessions
    until(lambda: not len(sessions))
    with member_of(site, "g", "zoe", topic, partitions=range(3000)) as zoe:
        for name in ("ann", "bob", "carl"):
            ShareMember(zoe.asker, "g", name, zoe.topic_id, zoe.partitions).fetch_and_go()
        assert zoe.fetch(records_max=0).error_code == 0
        until(lambda: len(sessions) == 1, within_s=5)


@pytest.mark.parametrize("way", ["connection", "another"])
def test_a_fetch_that_waits_gets_nothing_more_once_its_session_is_over(site, topic, way):
    """Its worker was killed, or is back on another connection."""
    begin(site, "g", topic, start=10)
    broker = site.brokers[1]
    sessions, replica = broker.coordinators.share_partitions.sessions, broker.replicas.leader((topic, 0)).replica
    until(lambda: not len(sessions))
    with (
        member_of(site, "g", "ann", topic) as ann, member_of(site, "g", "ann", topic) as back,
        member_of(site, "g", "bob", topic) as bob, ThreadPoolExecutor(1) as thread,
    ):  # fmt: skip
        bob.fetch()
        ann.fetch()
        fetched = thread.submit(ann.fetch, wait_ms=20_000)
        until(lambda: replica.consumers)
        if way == "connection":
            ann.close()
            until(lambda: len(sessions) == 1)
        else:
            assert back.fetch().error_code == 0
        until(lambda: not replica.consumers, within_s=10)
        produce(site, topic, b"new")
        assert bob.given() == {(0, 10): (1, b"new")}
        if way == "another":
            assert given(fetched.result(30)) == {}


@pytest.mark.parametrize("way", ["connection", "fetch", "acknowledge"])
def test_a_session_that_ends_lets_its_records_go(site, topic, way):
    begin(site, "g", topic)
    with member_of(site, "g", "ann", topic) as ann, member_of(site, "g", "bob", topic) as bob:
        bob.fetch(records_max=0)
        assert len(ann.given()) == 10
        ann.epoch = -1
        if way == "connection":
            ann.close()
        elif way == "fetch":
            assert codes(ann.fetch({0: [(0, 4, ACCEPT)]})) == {0: 0}
        else:
            assert codes(ann.acknowledge({0: [(0, 4, ACCEPT)]}), "error_code") == {0: 0}
        began = time.monotonic()
        again = bob.given(wait_ms=5000)
        assert len(again) == (10 if way == "connection" else 5)
        assert time.monotonic() - began < 0.9, "long before the locks are over"


def test_a_waiting_fetch_is_woken_by_a_new_record(site, topic):
    begin(site, "g", topic, start=10)
    with member_of(site, "g", "ann", topic) as ann:
        ann.fetch()
        began = time.monotonic()
        assert ann.given(wait_ms=300) == {}
        assert 0.25 < time.monotonic() - began < 5
        replica = site.brokers[1].replicas.leader((topic, 0)).replica
        with ThreadPoolExecutor(1) as thread:
            fetched = thread.submit(ann.given, wait_ms=15_000)
            until(lambda: replica.consumers)
            began = time.monotonic()
            produce(site, topic, b"new")
            assert fetched.result(30) == {(0, 10): (1, b"new")}
            assert time.monotonic() - began < 10


def test_sessions_are_refused_as_in_kafka(site, topic):
    begin(site, "g", topic)
    with member_of(site, "g", "ann", topic) as ann:
        assert ann.acknowledge({}).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert ann.fetch({0: [(0, 0, ACCEPT)]}).error_code == ErrorCode.INVALID_REQUEST
        for epoch in (7, -1):
            ann.epoch = epoch
            assert ann.fetch().error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
            assert ann.acknowledge({}).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
        ann.epoch = 0
        answer = ann.fetch()
        assert (answer.error_code, answer.acquisition_lock_timeout.total_seconds()) == (0, 1.0)
        ann.epoch = 7
        assert ann.fetch().error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        assert ann.acknowledge({}).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
        for wrong in ({"group_id": None}, {"member_id": ""}, {"member_id": None}):
            assert ann.fetch(**wrong).error_code == ErrorCode.INVALID_REQUEST
            assert ann.acknowledge({}, **wrong).error_code == ErrorCode.INVALID_REQUEST


def test_there_are_as_many_sessions_as_may_be(site, topic):
    begin(site, "g", topic)
    until(lambda: not len(site.brokers[1].coordinators.share_partitions.sessions))
    with (
        member_of(site, "g", "a", topic) as a, member_of(site, "g", "b", topic) as b,
        member_of(site, "g", "c", topic) as c, member_of(site, "g", "d", topic) as d,
        member_of(site, "g", "e", topic) as late,
    ):  # fmt: skip
        assert [one.fetch().error_code for one in (a, b, c, d)] == [0, 0, 0, 0]
        began = time.monotonic()
        assert late.fetch(wait_ms=300).error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
        assert time.monotonic() - began > 0.25, "a member does not ask again at once"
        a.close()
        until(lambda: late.fetch().error_code == 0)


def test_rows_of_partitions_that_are_not_here_say_so(site, topic):
    begin(site, "g", topic)
    with member_of(site, "g", "ann", topic, partitions=(0, 9)) as ann:
        answer = ann.fetch()
        assert codes(answer, "error_code") == {0: 0, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        forgotten = [{"topic_id": ann.topic_id, "partitions": (9,)}]
        assert 9 not in codes(ann.fetch(forgotten_topics_data=forgotten))
    with member_of(site, "g", "bob", topic) as bob:
        bob.topic_id = type(bob.topic_id)(int=99)
        assert codes(bob.fetch(), "error_code") == {0: ErrorCode.UNKNOWN_TOPIC_ID}


def test_a_group_that_does_not_share_the_partition_gets_nothing_until_it_does(site, topic):
    with member_of(site, "late", "ann", topic) as ann:
        ann.fetch()
        assert ann.given(wait_ms=200) == {}
        begin(site, "late", topic, start=4)
        found = {}
        until(lambda: found.update(ann.given(wait_ms=500)) or found)
        assert sorted(found) == [(0, offset) for offset in range(4, 10)]


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 10), ("by_duration:P1D", 10)])
def test_a_group_without_an_offset_begins_where_it_says(site, topic, reset, first):
    group = f"reset-{reset}-{topic}"
    with Asker(site.bootstrap) as asker:
        resource = {"resource_type": 32, "resource_name": group, "configs": [
            {"name": "share.auto.offset.reset", "config_operation": 0, "value": reset}]}  # fmt: skip
        answer = asker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
        assert answer.responses[0].error_code == 0, answer
    begin(site, group, topic, start=-1)
    with member_of(site, group, "ann", topic) as ann:
        ann.fetch(records_max=0)
        until(lambda: ann.fetch(records_max=1, wait_ms=100) and stored(site, group, topic).start_offset >= 0)
        assert stored(site, group, topic).start_offset == first


def test_a_group_that_sets_its_offset_goes_on_from_there(site, topic):
    begin(site, "g2", topic)
    with member_of(site, "g2", "ann", topic) as ann:
        assert len(ann.given()) == 10
        begin(site, "g2", topic, start=8, epoch=2)
        refused = codes(ann.acknowledge({0: [(0, 0, ACCEPT)]}), "error_code")
        assert refused == {0: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        found = {}
        until(lambda: found.update(ann.given(wait_ms=500)) or found)
        assert sorted(found) == [(0, 8), (0, 9)]


def test_what_is_stored_is_what_the_next_leader_goes_on_from(site, topic):
    topic_id = begin(site, "g3", topic)
    with member_of(site, "g3", "ann", topic) as ann:
        ann.given()
        ann.acknowledge({0: [(0, 0, ACCEPT), (2, 4, RELEASE), (6, 9, ACCEPT)]})
    states = site.brokers[1].coordinators.share_states
    until(lambda: not site.brokers[1].coordinators.share_partitions.known("g3", IdPartition(topic_id, 0)))
    found = site.do(states.read("g3", IdPartition(topic_id, 0), 5))
    assert found == Found(ErrorCode.NONE, 1, 1, ((1, 5, 0, 1), (6, 9, 2, 1)))


def test_given_ranges_name_what_the_batches_hold(site, topic):
    begin(site, "g4", topic)
    with member_of(site, "g4", "ann", topic, version=1) as ann:
        answer = ann.fetch(batch_size=5, wait_ms=5000)
        (row,) = answer.responses[0].partitions
        ranges = [(each.first_offset, each.last_offset, each.delivery_count) for each in row.acquired_records]
        assert ranges == [(0, 4, 1), (5, 9, 1)]
        assert len(given(answer)) == 10
