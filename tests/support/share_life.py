"""Members of our own client in a share group, one after the other: how they acknowledge, and how they end."""

import itertools
import logging
import time
from contextlib import suppress
from functools import partial

import pyarrow as pa
import pytest

from logstore.errors import InvalidRequestError
from replication.client import group_admin
from replication.client.coordinators import group_key
from replication.client.share_consumer import CLOSE_S, LEAVE_S, AcknowledgeError
from replication.errors import ErrorCode, code_in
from replication.model.cluster import TopicPartition
from replication.protocol.apis import ApiKey
from replication.protocol.messages import Isolation
from tests.conformance.clients.members import until

GROUP_RESOURCE = 32
WITHIN_MS = 60_000
IDLE_MS = 1500  # so long nothing comes


def from_the_beginning(client, group):
    client.alter_settings((GROUP_RESOURCE, group), {"share.auto.offset.reset": "earliest"})


def append(client, topic, first, count):
    values = [str(number) for number in range(first, first + count)]
    client.append(topic, pa.table({"key": values, "value": values}))


def shown(rows):
    return list(zip(rows["offset"].to_pylist(), rows["delivery_count"].to_pylist(), strict=True))


def counted(*offsets, count=1):
    return [(offset, count) for offset in offsets]


def each_kind_of_acknowledgement_acts(client, topic, group):
    """On a topic of one partition, with locks of some seconds."""
    from_the_beginning(client, group)
    append(client, topic, 0, 10)
    told = []
    with client.share_consumer(
        topic, group, share_acknowledgement_mode="explicit", on_acknowledged=told.extend
    ) as member:
        rows = member.poll(WITHIN_MS)
        assert shown(rows) == counted(*range(10))
        with pytest.raises(InvalidRequestError, match="10 polled records are not acknowledged"):
            member.poll(10)
        member.acknowledge(rows.slice(0, 3))
        member.acknowledge(rows.slice(3, 2), "release")
        member.acknowledge(rows.slice(5, 2), "reject")
        member.acknowledge(rows.slice(7, 2), "renew")
        member.acknowledge(rows.to_pylist()[9], "accept")
        member.commit()
        assert [error for _, error in told] == [None]
        for lacking in ({"topic": topic, "partition": 0}, rows.select(["topic", "partition"])):
            with pytest.raises(InvalidRequestError, match="polled rows are needed: these lack offset"):
                member.acknowledge(lacking)
        released = member.poll(WITHIN_MS)
        assert shown(released) == counted(3, 4, count=2)
        with pytest.raises(InvalidRequestError, match="offset 0 is not held"):
            member.acknowledge(rows)
        renewed_to = time.monotonic() + member.lock_timeout_ms / 1000
        while time.monotonic() < renewed_to:  # longer than the first locks last
            member.acknowledge(rows.slice(7, 1), "renew")
            member.commit()
            time.sleep(member.lock_timeout_ms / 5000)
        told.clear()
        member.acknowledge(rows.slice(8, 1))
        member.acknowledge(released)
        with pytest.raises(AcknowledgeError, match="invalid record state") as refused:
            member.commit()
        assert {error.code for _, error in refused.value.refused} == {ErrorCode.INVALID_RECORD_STATE}
        assert told == [*refused.value.refused]
        member.acknowledge(rows.slice(7, 1))
        member.commit()
        late = member.poll(WITHIN_MS)
        assert shown(late) == [(3, 3), (4, 3), (8, 2)]
        member.acknowledge(late)
    assert told[-1].error is None
    with client.share_consumer(topic, group) as member:
        assert member.poll(IDLE_MS) is None
        with pytest.raises(InvalidRequestError, match="share_acknowledgement_mode='explicit'"):
            member.acknowledge(late)
    for call in (member.poll, member.commit):
        with pytest.raises(InvalidRequestError, match="the share consumer is closed"):
            call()


def a_member_that_is_late_does_not_know_that_another_one_has_accepted(client, topic, group):
    """Brokers say that they took the late word; on a topic of one partition, with locks of some seconds."""
    from_the_beginning(client, group)
    append(client, topic, 0, 10)
    with client.share_consumer(topic, group) as late, client.share_consumer(topic, group) as other:
        assert shown(late.poll(WITHIN_MS)) == counted(*range(10))
        assert shown(other.poll(WITHIN_MS)) == counted(*range(10), count=2)
        other.commit()
        with pytest.raises(
            AcknowledgeError, match="the locks had ended by the time of the answer: they may be taken, or not"
        ):
            late.commit()


def polls_and_ends_of_blocks_accept_or_release(client, topic, group):
    """On a topic of one partition: what was polled is accepted by the next call, unless the block raises."""
    from_the_beginning(client, group)
    for first in range(0, 30, 10):
        append(client, topic, first, 10)
    with client.share_consumer(topic, group, share_acquire_mode="record_limit", max_poll_records=7) as member:
        assert shown(member.poll(WITHIN_MS)) == counted(*range(7))
        assert shown(member.poll(WITHIN_MS)) == counted(*range(7, 14))
        member.commit()
        assert shown(member.poll(WITHIN_MS)) == counted(*range(14, 21))
    with suppress(ZeroDivisionError), client.share_consumer(topic, group) as member:
        assert shown(member.poll(WITHIN_MS)) == counted(*range(21, 30))
        raise ZeroDivisionError
    with client.transaction(f"{group}-1") as transaction:
        transaction.append(topic, pa.table({"value": ["a"]}))  # its marker, at 31, is a gap
    ends = partial(client.extents, topic, isolation=Isolation.READ_COMMITTED)
    until(lambda: ends()[0].end == 32, "the marker", within_s=30)
    append(client, topic, 0, 1)
    with client.share_consumer(topic, group) as member:
        found = []
        while len(found) < 11:
            found += shown(member.poll(WITHIN_MS))
        assert sorted(found) == [*counted(*range(21, 30), count=2), (30, 1), (32, 1)], found
        member.commit()
    with client.share_consumer(topic, group) as member:
        assert member.poll(IDLE_MS) is None


def an_expelled_member_joins_again(client, topic, group, caplog):
    from_the_beginning(client, group)
    append(client, topic, 0, 10)
    with client.share_consumer(topic, group) as member:
        assert shown(member.poll(WITHIN_MS)) == counted(*range(10))
        (before,) = client.run(group_admin.describe_group, group).members
        leave = {"member_id": before.id, "member_epoch": -1, "rack_id": None, "subscribed_topic_names": None}
        asked = group_key(group), ApiKey.SHARE_GROUP_HEARTBEAT, {"group_id": group, **leave}, code_in
        with caplog.at_level(logging.WARNING):
            client.run(lambda cluster: cluster.coordinators.call(*asked))
            until(lambda: "is out, the group does not know it any more" in caplog.text, "expelled", within_s=30)
        assert f"member {before.id} of epoch" in caplog.text
        append(client, topic, 10, 10)
        found = []
        while len(found) < 10:
            rows = member.poll(WITHIN_MS)
            found += [offset for offset, _ in shown(rows) if offset >= 10]
        assert found == list(range(10, 20))
        assert [each.id for each in client.run(group_admin.describe_group, group).members] == [before.id]


def led_by_its_coordinator(client, group, prefix):
    """Make topics until the coordinator of the group leads one; return that one and the broker."""
    request = {"key": group, "key_type": 0, "coordinator_keys": [group]}
    answer = client.run(lambda cluster: cluster.call_any(ApiKey.FIND_COORDINATOR, request))
    broker = answer.coordinators[0].node_id
    for topic in (f"{prefix}-{number}" for number in itertools.count()):
        tp = TopicPartition(topic, 0)
        client.create_topic(topic, replicas=3)
        if client.run(lambda cluster, tp=tp: cluster.leader(tp)).broker == broker:
            return topic, broker


def a_member_ends_in_time(client, topic, group, lose, caplog):
    """`lose` the leader, and coordinator, and the records are told as not acknowledged, and the member ends."""
    from_the_beginning(client, group)
    append(client, topic, 0, 10)
    member = client.share_consumer(topic, group)
    assert member.poll(WITHIN_MS).num_rows == 10
    lose()
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        member.close()
    assert time.monotonic() - begun < CLOSE_S + LEAVE_S + 2
    assert "not acknowledged: " in caplog.text
    assert "offsets 0-9 accept" in caplog.text
