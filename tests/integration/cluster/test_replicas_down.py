"""When all replicas are down, and when followers are slow: what is led by whom, what is taken, what is read."""

import shutil
import time

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.integration.cluster.conftest import running
from tests.support.commands import rows
from tests.support.repeats import only_long

pytestmark = pytest.mark.slow


def test_all_replicas_down_and_the_one_that_was_not_in_sync_comes_back_first(cluster, pylog):
    _, one, two = cluster.roles()
    clean, unclean, by_hand = (cluster.create((one, two)) for _ in range(3))
    for topic in (clean, unclean, by_hand):
        assert cluster.produce(topic, range(10)) == []

    cluster.running.kill(two)
    for topic in (clean, unclean, by_hand):
        cluster.until_states(topic, {0: (one, [one], 1)})
        assert cluster.produce(topic, range(10, 20)) == []

    cluster.running.kill(one)
    for topic in (clean, by_hand):
        cluster.until_states(topic, {0: (-1, [one], 2)})
    election = ("elect-leaders", "--election-type", "unclean", "--yes", "--topic", by_hand, "--partition", 0)
    vain = pylog(*election)
    assert (vain.code, cluster.states(by_hand)) == (1, {0: (-1, [one], 2)})
    assert "eligible leaders not available" in vain.out
    cluster.until(lambda: cluster.states(unclean)[0][0] == -1)
    assert cluster.states(unclean)[0][2] == 2

    change = ConfigEntry("unclean.leader.election.enable", "true", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, unclean, incremental_configs=[change])
    cluster.administer("incremental_alter_configs", [resource])  # a setting acts live
    cluster.running.restart(two)
    cluster.until_states(unclean, {0: (two, [two], 4)})
    for topic in (clean, by_hand):
        assert cluster.states(topic) == {0: (-1, [one], 2)}
    elected = pylog(*election)
    assert rows(elected) == [[by_hand, "0", "-1", str(two), "-"]]
    assert elected.err == "elected 1 leader; 0 led before\nrecords that the new leaders lack are lost\n"
    assert cluster.states(by_hand) == {0: (two, [two], 3)}
    assert cluster.produce(by_hand, range(20, 30)) == []
    assert pylog(*election).ok().err == "elected 0 leaders; 1 led before\n"
    assert cluster.states(clean) == {0: (-1, [one], 2)}
    (error,) = cluster.produce(clean, ["refused"], **{"message.timeout.ms": 1500})
    assert error.name() == "_MSG_TIMED_OUT"

    cluster.running.restart(one)
    cluster.until_states(clean, {0: (one, [one, two], 3)})
    cluster.until_states(unclean, {0: (two, [two, one], 4)})
    cluster.until_states(by_hand, {0: (two, [two, one], 3)})
    assert cluster.values(by_hand, count=20) == [str(number) for number in (*range(10), *range(20, 30))]
    assert cluster.values(clean, count=20) == [str(number) for number in range(20)]
    assert cluster.values(unclean, count=10) == [
        str(number) for number in range(10)
    ]  # what only the old leader had is lost


def lose_power(log_dir, topic):
    """Leave half of a replica of which nothing was flushed, and another boot, like a power failure."""
    (log_dir / "broker.boot").write_text("the boot before the power failed\n")
    (log_dir / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    segment = log_dir / f"{topic}-0" / "00000000000000000000.log"
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)


def test_r11_the_last_replica_in_sync_loses_its_page_cache_leads_and_the_loss_is_announced(cluster):
    """Nobody is known to have more; who follows cuts what the leader does not have, and counts it."""
    _, one, two = cluster.roles()
    topic = cluster.create((one, two))
    assert cluster.produce(topic, range(10), **{"batch.num.messages": 1}) == []
    cluster.until_states(topic, {0: (one, [one, two], 0)})
    cluster.running.kill(two)
    cluster.until_states(topic, {0: (one, [one], 1)})
    cluster.running.kill(one)
    lose_power(cluster.running.log_dir(one), topic)

    cluster.running.restart(one)

    cluster.until(lambda: cluster.states(topic)[0][:2] == (one, [one]))
    left = cluster.values(topic, count=1)
    assert left == [str(number) for number in range(len(left))]
    assert 0 < len(left) < 10
    lines = [
        line
        for broker in cluster.running.live
        for line in _lines(cluster.running.log_dir(broker), "state-change.log")
        if f"[{topic},0]" in line and "potential data loss" in line
    ]
    assert len(lines) == 1
    assert " WARN Controller " in lines[0]
    cluster.running.restart(two)
    cluster.until(lambda: cluster.states(topic)[0][:2] == (one, [one, two]))
    cuts = [line for line in _lines(cluster.running.log_dir(two), "server.log") if f"tp={topic}-0" in line]
    assert any("data is lost" in line or "truncated to" in line for line in cuts), cuts
    assert cluster.values(topic, count=len(left)) == left


@only_long("brokers that restart")
def test_r11_one_that_lost_its_page_cache_is_not_elected_while_another_member_may_come_back(cluster):
    """Nothing that was acknowledged is lost: the other one is waited for, and leads."""
    controller, one, two = cluster.roles()
    topic = cluster.create((one, two))
    assert cluster.produce(topic, range(10), **{"batch.num.messages": 1}) == []
    cluster.until_states(topic, {0: (one, [one, two], 0)})
    for broker in (controller, one, two):
        cluster.running.kill(broker)
    lose_power(cluster.running.log_dir(two), topic)

    cluster.running.restart(two)
    cluster.running.restart(controller)

    cluster.until(lambda: cluster.states(topic)[0][:2] == (-1, [one]))
    cluster.running.restart(one)
    cluster.until(lambda: cluster.states(topic)[0][:2] == (one, [one, two]))
    assert cluster.values(topic, count=10) == [str(number) for number in range(10)]


def _lines(log_dir, name):
    return (log_dir / "broker" / name).read_text().splitlines()


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Followers leave the ISR soon, sessions last."""
    settings = {"replica.lag.time.max.ms": 1500, "zookeeper.session.timeout.ms": 20_000}
    with running(directory=tmp_path_factory.mktemp("slow"), **settings) as tested:
        tested.session_s = 20
        yield tested


def test_a_follower_that_stands_still_leaves_the_isr_and_comes_back_at_its_end(slow):
    topic = slow.create((1, 2, 3))
    assert slow.produce(topic, range(5)) == []

    slow.running.pause(2)
    begin = time.monotonic()
    assert slow.produce(topic, range(5, 10)) == []  # waits for the shrink: two members are not enough before
    try:
        slow.until_states(topic, {0: (1, [1, 3], 0)}, timeout_s=8)
        assert time.monotonic() - begin > 1
    finally:
        slow.running.resume(2)

    slow.until_states(topic, {0: (1, [1, 3, 2], 0)})
    assert slow.values(topic, count=10) == [str(number) for number in range(10)]


def test_too_few_in_sync_replicas_refuse_acks_all_and_nothing_else(slow):
    topic = slow.create((1, 2), min_insync_replicas=2)
    assert slow.produce(topic, ["before"]) == []
    slow.running.pause(2)
    try:
        (after,) = slow.produce(topic, ["one"], retries=0)  # in the log when the ISR shrinks
        (before,) = slow.produce(topic, ["two"], retries=0)
        assert slow.produce(topic, ["three"], acks=1) == []
    finally:
        slow.running.resume(2)

    assert after.name() == "NOT_ENOUGH_REPLICAS_AFTER_APPEND"
    assert before.name() == "NOT_ENOUGH_REPLICAS"
    slow.until_states(topic, {0: (1, [1, 2], 0)})
    assert slow.values(topic, count=3) == ["before", "one", "three"]


@only_long("brokers that restart")
def test_a_killed_broker_that_comes_back_at_once_does_not_wait_for_its_former_session(slow):
    _, one, two = slow.roles()
    topic = slow.create((one, two), (two, one))
    assert slow.produce(topic, range(10)) == []
    begin = time.monotonic()
    slow.running.kill(one)
    slow.running.restart(one)

    assert time.monotonic() - begin < slow.session_s
    # It leads nothing now; where it followed, it may never have been missed.
    slow.until(lambda: [state[:2] for state in slow.states(topic).values()] == [(two, [two, one])] * 2)
    assert slow.values(topic, count=10) == [str(number) for number in range(10)]


@only_long("brokers that restart")
def test_a_leader_that_lost_its_disk_leads_no_more_and_copies_everything(cluster):
    _, one, two = cluster.roles()
    topic = cluster.create((one, two))
    assert cluster.produce(topic, range(100)) == []
    cluster.running.kill(one)
    shutil.rmtree(cluster.running.log_dir(one))

    cluster.running.restart(one)

    cluster.until(lambda: cluster.states(topic)[0][:2] == (two, [two, one]))
    assert cluster.values(topic, count=100) == [str(number) for number in range(100)]
    cluster.running.kill(two)
    cluster.until(lambda: cluster.states(topic)[0][:2] == (one, [one]))
    assert cluster.values(topic, count=100) == [str(number) for number in range(100)]
