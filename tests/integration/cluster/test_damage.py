"""Damage in what was flushed, in brokers as they run: it is never served, and copied from who is sound."""

import pytest

from logstore.errors import PylogError
from replication.client.kafka_client import KafkaClient
from tests.integration.cluster.conftest import running
from tests.support.repeats import only_long, times

pytestmark = pytest.mark.slow

SETTINGS = {
    "log.flush.offset.checkpoint.interval.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 200,
    "replica.fetch.backoff.ms": 100,
    "log.scrub.interval.ms": 500,
    # Longer than the scrub takes to find what a test did: who is paused meanwhile still leads then.
    "zookeeper.session.timeout.ms": 8000,
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with running(directory=tmp_path_factory.mktemp("damage"), **SETTINGS) as tested:
        yield tested


@pytest.fixture
def cluster(site):
    yield site
    site.running.mend()


def log_of(cluster, broker, topic):
    return cluster.running.log_dir(broker) / f"{topic}-0" / f"{0:020d}.log"


def produce(cluster, topic, *values):
    """Each in a batch of its own."""
    for value in values:
        assert cluster.produce(topic, [value]) == []


def until_flushed(cluster, broker, topic, offset):
    path = cluster.running.log_dir(broker) / "recovery-point-offset-checkpoint"
    cluster.until(lambda: path.exists() and f"{topic} 0 {offset}" in path.read_text().split("\n"))


def flip(path, needle):
    """One bit of a value on the disk is another one."""
    data = path.read_bytes()
    at = data.index(needle.encode())
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 0x20]))


def kept(cluster, broker, topic):
    return sorted(log_of(cluster, broker, topic).parent.glob("*.damaged"))


def read_at(cluster, topic, offset):
    """The value there, or None: its leader says that it cannot be read."""
    with KafkaClient(cluster.running.bootstrap, timeout_ms=1500) as client:

        def answer():
            try:
                rows = next(client.read(topic, 0, offset, offset + 1, columns=["value"]))
                return [rows["value"][0].as_py().decode()]
            except PylogError as error:
                return [None] if "kafka storage error" in str(error) else []

        return cluster.until(answer)[1][0]


@pytest.mark.parametrize("how", ["kill", "stop"][: times(1, 2)])
def test_a_replica_that_lost_its_flushed_end_is_cut_there_and_copied(cluster, how):
    """Half of its last batch is left: the damaged file is kept beside the log, which is filled up again."""
    topic = cluster.create((1, 2, 3))
    produce(cluster, topic, "first", "second", "third")
    until_flushed(cluster, 2, topic, 3)
    getattr(cluster.running, how)(2)
    path = log_of(cluster, 2, topic)
    whole = path.read_bytes()
    with path.open("r+b") as file:
        file.truncate(len(whole) - 20)
    cluster.running.restart(2)
    cluster.until(lambda: sorted(cluster.state(topic).isr) == [1, 2, 3])
    assert path.read_bytes() == whole
    assert len(kept(cluster, 2, topic)) == 1


@only_long("brokers that restart")
def test_a_replica_that_was_not_recovered_is_not_trusted_after_a_clean_stop(cluster):
    """R20: nobody else has it, so nothing of it is cut; what is damaged is refused, whatever ends cleanly."""
    topic = cluster.create((3,))
    produce(cluster, topic, "first", "second", "third")
    until_flushed(cluster, 3, topic, 3)
    cluster.running.kill(3)
    flip(log_of(cluster, 3, topic), "second")
    size = log_of(cluster, 3, topic).stat().st_size

    cluster.running.restart(3)
    assert cluster.running.stop(3) == [0]
    cluster.running.restart(3)

    cluster.until(lambda: cluster.states(topic)[0][:2] == (3, [3]))
    assert [read_at(cluster, topic, offset) for offset in range(3)] == ["first", None, "third"]
    produce(cluster, topic, "fourth")
    assert read_at(cluster, topic, 3) == "fourth"
    assert log_of(cluster, 3, topic).stat().st_size > size
    assert kept(cluster, 3, topic) == []


def until_in_sync(cluster, topic, members):
    cluster.until(lambda: set(cluster.states(topic)[0][1]) == set(members), timeout_s=40)


def until_same(cluster, topic, one, other):
    logs = log_of(cluster, one, topic), log_of(cluster, other, topic)
    cluster.until(lambda: logs[0].read_bytes() == logs[1].read_bytes(), timeout_s=40)


def server_log(cluster, broker):
    return (cluster.running.log_dir(broker) / "broker" / "server.log").read_text()


def test_a_damaged_follower_is_copied_from_its_leader_and_is_in_sync_again(cluster):
    """S3: found while it runs, by the scrub; what is damaged is kept, what is below is not copied again."""
    topic = cluster.create((1, 2, 3))
    produce(cluster, topic, "first", "second", "third")
    until_same(cluster, topic, 1, 3)

    flip(log_of(cluster, 3, topic), "second")

    cluster.until(lambda: kept(cluster, 3, topic))
    until_same(cluster, topic, 1, 3)
    until_in_sync(cluster, topic, (1, 2, 3))
    (aside,) = kept(cluster, 3, topic)
    assert b"Second" in aside.read_bytes()
    told = [line for line in server_log(cluster, 3).split("\n") if f"tp={topic}-0" in line]
    for step in (
        "-0 damaged:",  # and no "what is damaged:"
        "is offline:",
        "cut to=1,",
        "copies from leader=1 from offset=1",
        "is online again",
    ):
        (_,) = [line for line in told if step in line]


def test_a_damaged_leader_has_another_lead_first_and_is_copied_from_it(cluster):
    """S4."""
    topic = cluster.create((2, 1))
    produce(cluster, topic, "first", "second", "third")
    until_same(cluster, topic, 1, 2)

    flip(log_of(cluster, 2, topic), "second")

    cluster.until(lambda: kept(cluster, 2, topic))
    assert cluster.states(topic)[0][2] > 0
    until_same(cluster, topic, 1, 2)
    until_in_sync(cluster, topic, (1, 2))
    assert [read_at(cluster, topic, offset) for offset in range(3)] == ["first", "second", "third"]


def test_damage_in_the_only_member_is_refused_and_the_rest_is_served_and_nothing_is_cut(cluster):
    """S3."""
    topic = cluster.create((3,))
    produce(cluster, topic, "first", "second", "third")
    data = log_of(cluster, 3, topic).read_bytes()

    flip(log_of(cluster, 3, topic), "second")

    cluster.until(lambda: f"tp={topic}-0 is offline" in server_log(cluster, 3))
    produce(cluster, topic, "fourth")
    found = [read_at(cluster, topic, offset) for offset in range(4)]
    assert found == ["first", None, "third", "fourth"]
    assert log_of(cluster, 3, topic).read_bytes()[: len(data)] == data.replace(b"second", b"Second")
    assert kept(cluster, 3, topic) == []


def test_two_of_three_are_damaged_and_each_is_copied_from_who_is_sound(cluster):
    topic = cluster.create((1, 2, 3))
    produce(cluster, topic, "first", "second", "third")
    for other in (2, 3):
        until_same(cluster, topic, 1, other)

    flip(log_of(cluster, 1, topic), "first")
    flip(log_of(cluster, 2, topic), "third")

    cluster.until(lambda: kept(cluster, 1, topic) and kept(cluster, 2, topic))
    for other in (1, 2):
        until_same(cluster, topic, 3, other)
    until_in_sync(cluster, topic, (1, 2, 3))
    assert [read_at(cluster, topic, offset) for offset in range(3)] == ["first", "second", "third"]


@only_long("brokers that restart")
def test_a_leader_that_is_damaged_behind_its_only_follower_and_that_one_are_both_mended(cluster):
    """S3: each has what the other lacks, whoever is found first."""
    topic = cluster.create((1, 2))
    produce(cluster, topic, "first", "second", "third")
    until_same(cluster, topic, 1, 2)
    for broker in (1, 2):
        until_flushed(cluster, broker, topic, 3)
    before = log_of(cluster, 1, topic).read_bytes()

    flip(log_of(cluster, 1, topic), "third")
    flip(log_of(cluster, 2, topic), "first")

    cluster.until(lambda: kept(cluster, 1, topic) and kept(cluster, 2, topic), timeout_s=40)
    for broker in (1, 2):
        cluster.until(lambda broker=broker: log_of(cluster, broker, topic).read_bytes() == before, timeout_s=40)
    until_in_sync(cluster, topic, (1, 2))
    assert [read_at(cluster, topic, offset) for offset in range(3)] == ["first", "second", "third"]
    produce(cluster, topic, "fourth")
    assert read_at(cluster, topic, 3) == "fourth"


@only_long("brokers that restart")
def test_nothing_is_cut_while_the_leader_does_not_answer(cluster):
    """It was killed, and its session is not over. It may come back with less than is said of it."""
    _, leader, damaged = cluster.roles()
    topic = cluster.create((leader, damaged))
    produce(cluster, topic, "first", "second", "third")
    until_same(cluster, topic, leader, damaged)
    for broker in (leader, damaged):
        until_flushed(cluster, broker, topic, 3)
    before = log_of(cluster, damaged, topic).read_bytes()

    cluster.running.kill(leader)
    flip(log_of(cluster, damaged, topic), "second")

    cluster.until(lambda: f"tp={topic}-0 is not cut yet" in server_log(cluster, damaged))
    assert log_of(cluster, damaged, topic).read_bytes() == before.replace(b"second", b"Second")
    assert kept(cluster, damaged, topic) == []
    cluster.running.restart(leader)
    until_in_sync(cluster, topic, (leader, damaged))
    until_same(cluster, topic, leader, damaged)


@only_long("brokers that restart")
def test_a_broker_that_is_killed_while_it_mends_goes_on_with_that(cluster):
    leader = cluster.until(cluster.running.controller)[1]
    mending = next(broker for broker in (1, 2, 3) if broker != leader)
    topic = cluster.create((leader, mending))
    produce(cluster, topic, "first", "second", "third")
    until_same(cluster, topic, leader, mending)
    cluster.running.pause(leader)  # and with it the controller: nothing is decided
    notes = cluster.running.log_dir(mending) / "damaged-replicas"

    flip(log_of(cluster, mending, topic), "second")
    cluster.until(lambda: notes.exists() and topic in notes.read_text())
    cluster.running.kill(mending)
    cluster.running.resume(leader)
    cluster.running.restart(mending)

    cluster.until(lambda: kept(cluster, mending, topic))
    until_same(cluster, topic, leader, mending)
    until_in_sync(cluster, topic, (leader, mending))
    cluster.until(lambda: topic not in notes.read_text())


@only_long("brokers that restart")
def test_a_clean_restart_begins_with_the_damage_that_was_noted(cluster):
    """Before anybody hears of the broker: it is not elected, though all others are gone."""
    topic = cluster.create((3,))
    produce(cluster, topic, "first", "second")
    flip(log_of(cluster, 3, topic), "first")
    cluster.until(lambda: f"tp={topic}-0 is offline" in server_log(cluster, 3))
    assert cluster.running.stop(3) == [0]
    before = server_log(cluster, 3)

    cluster.running.restart(3)

    told = server_log(cluster, 3)[len(before) :]
    assert told.index(f"tp={topic}-0 is offline") < told.index("started at")
    assert [read_at(cluster, topic, offset) for offset in range(2)] == [None, "second"]


def test_what_a_crash_left_is_looked_through_before_anybody_reads_it(cluster):
    """S2: above the recovery point a batch whose CRC is wrong is the end, and no record."""
    topic = cluster.create((3,))
    produce(cluster, topic, "first")
    until_flushed(cluster, 3, topic, 1)
    cluster.running.kill(3)
    data = bytearray(log_of(cluster, 3, topic).read_bytes())
    data[7] = 1  # the next offset
    with log_of(cluster, 3, topic).open("ab") as file:
        file.write(data.replace(b"first", b"forst"))

    cluster.running.restart(3)

    produce(cluster, topic, "second")
    assert cluster.values(topic, count=2) == ["first", "second"]
