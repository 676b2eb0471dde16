"""Share groups in a cluster: the next coordinator goes on where the last one was; a group has times of its own."""

import asyncio
import json
import time

import pytest

from replication.coordinators.groups.consumer.state import ConsumerGroup
from replication.coordinators.groups.share.state import ShareGroup
from replication.protocol.apis import ApiKey
from tests.support import kafka_answers
from tests.support.asker import Asker, until
from tests.support.commands import run_pylog
from tests.support.in_process import begun_by_an_earlier_release, brokers_in_process
from tests.support.kafka_answers.consumers import Member
from tests.support.kafka_answers.settings import SET, alter
from tests.support.kafka_answers.shares import Sharer
from tests.support.kafka_answers.topics import create, topic_id

QUICK = {
    "group_share_min_session_timeout_ms": 1,
    "group_share_min_heartbeat_interval_ms": 1,
    "group_consumer_min_session_timeout_ms": 1,
    "group_consumer_min_heartbeat_interval_ms": 1,
}


def joined(member):
    until(lambda: member.hear()[0] == 0)
    until(member.reads)
    return member


def coordinator(asker, group):
    (row,) = asker.ask(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]}).coordinators
    return row.node_id if row.error_code.value == 0 else None


def group_at(broker, name, kind):
    group = broker.groups.group(name)
    assert isinstance(group, kind)
    return group


def test_the_next_coordinator_goes_on_with_the_members_and_their_epochs(tmp_path):
    with brokers_in_process(tmp_path, (1, 2), share_coordinator_state_topic_min_isr=1) as running:
        bootstraps = {number: str(broker.endpoint) for number, broker in running.brokers.items()}
        with Asker(bootstraps[1], "moving") as first, Asker(bootstraps[2], "moving") as second:
            askers = {1: first, 2: second}
            create(first, first.named("t"), num_partitions=2, replication_factor=2)
            until(lambda: topic_id(second, second.named("t")))
            found = until(lambda: coordinator(first, first.named("g")))
            members = [joined(Sharer(askers[found], "g", f"m{number}")) for number in range(2)]
            until(lambda: [len(member.reads()[0]) for member in members] == [1, 1])
            for member in members:
                member.hear()
            known = [(member.epoch, member.reads()) for member in members]
            running.do(running.brokers.pop(found).stop())
            after = askers[3 - found]
            for member, (epoch, reads) in zip(members, known, strict=True):
                member.asker = after
                until(lambda member=member: member.hear()[0] == 0)
                assert (member.epoch, member.reads()) == (epoch, reads)
            assert members[0].described()[4] == [("m0", None, known[0][1]), ("m1", None, known[1][1])]


@pytest.fixture
def one(tmp_path):
    with brokers_in_process(tmp_path, (1,), **QUICK) as running, Asker(running.bootstrap, "one") as asker:
        kafka_answers.prepare(asker)
        yield running.brokers[1], asker


@pytest.mark.parametrize(
    ("make", "kind", "group_class"), [(Sharer, "share", ShareGroup), (Member, "consumer", ConsumerGroup)]
)
def test_times_of_a_group_are_those_that_it_was_given(one, make, kind, group_class):
    broker, asker = one
    own, other = make(asker, f"own-{kind}"), make(asker, f"other-{kind}")
    times = (f"{kind}.session.timeout.ms", SET, "700"), (f"{kind}.heartbeat.interval.ms", SET, "300")
    assert alter(asker, 32, asker.named(f"own-{kind}"), *times) == [0]

    def pause(member):
        answer = member.ask(member.epoch, *(({},) if make is Sharer else (1, {})))
        return answer.heartbeat_interval.total_seconds()

    for member in (own, other):
        until(lambda member=member: member.hear()[0] == 0)
    assert (pause(own), pause(other)) == (0.3, 5.0)
    begun = time.monotonic()
    until(lambda: not group_at(broker, asker.named(f"own-{kind}"), group_class).members)
    assert time.monotonic() - begun > 0.5
    assert group_at(broker, asker.named(f"other-{kind}"), group_class).members
    other.epoch = -1
    assert pause(other) == 0


def test_below_their_level_share_groups_and_settings_of_groups_are_not_there(tmp_path):
    asyncio.run(begun_by_an_earlier_release(f"sqlite:{tmp_path / 'tree.db'}"))
    with brokers_in_process(tmp_path, (1,)) as running, Asker(running.bootstrap, "low") as asker:
        kafka_answers.prepare(asker)
        member = Sharer(asker, "low")
        assert (member.hear()[0], member.described()[0], member.offsets()[0]) == (35, 35, 35)
        assert (member.altered({0: 1})[0], member.deleted()[0]) == (35, 35)
        assert alter(asker, 32, asker.named("low"), ("share.delivery.count.limit", SET, "7")) == [35]


def test_our_command_gives_a_group_settings_and_shows_them(one):
    broker, asker = one
    group, at = asker.named("../a group"), ("--bootstrap-server", str(broker.endpoint))
    words = "--entity-type", "groups", "--entity-name", group
    setting = "share.auto.offset.reset=by_duration:PT1H"
    assert json.loads(
        run_pylog("configs", "alter", *words, "--add-config", setting, *at, "--output", "json").ok().out
    ) == [
        {
            "entity": group,
            "name": "share.auto.offset.reset",
            "value": "by_duration:PT1H",
            "source": "DYNAMIC_GROUP_CONFIG",
            "read_only": False,
        }
    ]
    assert broker.group_configs.of(group).reset_ms == 3_600_000
    shown = json.loads(run_pylog("configs", "describe", "--entity-type", "groups", *at, "--output", "json").ok().out)
    assert [row["entity"] for row in shown] == [group]
    refused = run_pylog("configs", "alter", *words, "--add-config", "share.delivery.count.limit=99", *at).failed()
    assert "must be between 2 (group.share.min.delivery.count.limit) and 10" in refused
    run_pylog("configs", "alter", *words, "--delete-config", "share.auto.offset.reset", *at).ok()
    assert broker.group_configs.of(group) == broker.group_configs.default
