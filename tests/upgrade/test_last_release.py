"""The last release beside this one: mixed clusters, a rolling upgrade and back, and who stays out once it is raised."""

import asyncio
import json
import time
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, NewTopic

from replication.coordination import cluster, features, nodes, open_tree
from tests.conformance.coordination.conftest import zookeeper  # noqa: F401  a fixture
from tests.support.asker import until
from tests.support.commands import run_pylog
from tests.support.repeats import only_long
from tests.upgrade.last_release import Mixed, installed

REFUSED = "/cluster/id is malformed: id must be a JSON str, and is ['needs a later release, do not touch']"
PARTITIONS = 6


@pytest.fixture(scope="module")
def last(tmp_path_factory):
    return installed(tmp_path_factory.mktemp("last"))


class Watched:
    """The steps of a test with a cluster of both releases, and its observations."""

    def __init__(self, mixed):
        self.mixed = mixed
        self.sent = 0
        self.seen = defaultdict(set)  # "leaders", "controllers" -> releases

    def pylog(self, *arguments):
        return run_pylog(*arguments, "--bootstrap-server", self.mixed.bootstrap)

    def in_tree(self, call):
        async def do():
            tree = await open_tree(self.mixed.coordination, on_session=lambda event: None)
            try:
                return await call(tree)
            finally:
                await tree.close()

        return asyncio.run(do())

    def level(self):
        return self.in_tree(features.read_finalized).level

    def registered(self):
        return set(self.in_tree(features.read_registered)[0])

    def controller(self):
        found = self.in_tree(lambda tree: tree.get(nodes.CONTROLLER))
        return None if found is None else nodes.decode_controller(found.data)

    def until_sound(self):
        def is_sound():
            found = self.pylog("cluster", "status", "--output", "json")
            rows = json.loads(found.out)["brokers"] if found.code == 0 else []
            return {row["broker"] for row in rows} == set(self.mixed.releases)

        until(is_sound)

    def look(self):
        """Note which releases lead and control now."""
        states = self.in_tree(cluster.read_cluster).leadership
        self.seen["leaders"] |= {self.mixed.releases[state.leader] for state in states.values()}
        self.seen["controllers"].add(self.mixed.releases[until(self.controller)])

    # ---------------------------------------------------------------- clients

    def create(self):
        admin = AdminClient({"bootstrap.servers": self.mixed.bootstrap, "log_level": 0})
        topic = NewTopic("orders", PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["orders"].result(30)

    def work(self):
        """Send with acks=all, in a transaction and outside; read it in a group, which commits."""
        settings = {"bootstrap.servers": self.mixed.bootstrap, "log_level": 0}
        failed = []
        for name in (None, "ledger"):
            options = {"enable.idempotence": True} if name is None else {"transactional.id": name}
            producer = Producer({**settings, **options, "acks": "all"})
            if name is not None:
                producer.init_transactions(60)
                producer.begin_transaction()
            for _ in range(30):
                producer.produce(
                    "orders",
                    str(self.sent),
                    partition=self.sent % PARTITIONS,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
                self.sent += 1
            if name is not None:
                producer.commit_transaction(60)
            assert producer.flush(60) == 0
        assert failed == []
        assert self.read("auditors", from_start=False) == list(range(self.sent - 60, self.sent))

    def read(self, group, *, from_start):
        """Return the numbers that a group finds behind its offsets, or from the start, and commit."""
        settings = {"bootstrap.servers": self.mixed.bootstrap, "log_level": 0, "group.id": group}
        consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
        try:
            if from_start:
                consumer.assign([Position("orders", p, 0) for p in range(PARTITIONS)])
            else:
                consumer.subscribe(["orders"])
            wanted = self.sent if from_start else 60
            found, end = [], time.monotonic() + 60
            while len(found) < wanted and time.monotonic() < end:
                message = consumer.poll(0.5)
                if message is not None and message.error() is None:
                    found.append(int(message.value()))
            if not from_start:
                consumer.commit(asynchronous=False)
            return sorted(found)
        finally:
            consumer.close()


@only_long("an old broker beside")
@pytest.mark.slow
def test_a_broker_of_the_last_release_ends_at_once_in_a_cluster_that_was_raised(last, tmp_path):
    with Mixed(tmp_path, last) as mixed:
        watched = Watched(mixed)
        mixed.start(1, "this")
        watched.pylog("features", "upgrade", "--level", 1).ok()
        said, took_s = mixed.refused(2, "last")
        assert len(said.splitlines()) == 1
        assert REFUSED in said
        assert took_s < 60  # on a busy machine; it is two seconds
        assert watched.registered() == {1}
        assert not (tmp_path / "broker-2" / "meta.properties").exists()
        mixed.stop(1)
        mixed.start(1, "this")  # under a controller epoch and a cluster id that the last release cannot read
        assert watched.level() == 1


@pytest.mark.slow
@only_long("two rolling upgrades, of three brokers each")
@pytest.mark.parametrize("store", ["sqlite", "zookeeper"])
@pytest.mark.timeout(600)
def test_brokers_of_both_releases_are_one_cluster_until_it_is_raised(last, tmp_path, store, request):
    coordination = None
    if store == "zookeeper":
        coordination = f"zookeeper:{request.getfixturevalue('zookeeper')}/{tmp_path.name}"
    with Mixed(tmp_path, last, coordination) as mixed:
        watched = Watched(mixed)
        for broker in (1, 2, 3):
            mixed.start(broker, "last")
        watched.create()
        for change in (1, 2, 3, -3, 3):  # there, back with one of them, and there again
            broker, release = abs(change), "this" if change > 0 else "last"
            mixed.stop(broker)
            mixed.start(broker, release)
            watched.until_sound()
            watched.pylog("elect-leaders", "--all-topic-partitions").ok()
            watched.look()
            watched.work()
            if "last" in mixed.releases.values():
                lacking = next(number for number, of in sorted(mixed.releases.items()) if of == "last")
                refused = watched.pylog("features", "upgrade", "--level", 1).failed()
                assert f"Broker {lacking} does not support this feature." in refused
                assert watched.level() == 0
        assert dict(watched.seen) == {"leaders": {"last", "this"}, "controllers": {"last", "this"}}

        watched.pylog("features", "upgrade", "--level", 1).ok()
        until(
            lambda: {row["finalized"] for row in watched.pylog("features", "describe", "--output", "json").json} == {1}
        )
        watched.work()
        mixed.stop(3)
        for broker in (3, 4):  # one that was a member before, and one that is new
            said, _ = mixed.refused(broker, "last")
            assert REFUSED in said
        assert watched.registered() == {1, 2}
        mixed.start(3, "this")
        watched.until_sound()
        watched.work()
        assert watched.read("all", from_start=True) == list(range(watched.sent))


@pytest.mark.slow
@only_long("sessions that end")
def test_a_broker_of_the_last_release_that_sleeps_through_the_raise_stays_out(last, tmp_path):
    with Mixed(tmp_path, last) as mixed:
        watched = Watched(mixed)
        mixed.start(1, "this")
        mixed.start(2, "last")
        mixed.pause(2)
        # Refused while its session lives, with its number.
        until(lambda: watched.pylog("features", "upgrade", "--level", 1).code == 0)
        assert watched.registered() == {1}
        mixed.resume(2)
        until(lambda: f"broker=2 is not registered: {REFUSED}" in mixed.log(2))
        assert watched.registered() == {1}
        mixed.kill(2)


@pytest.mark.slow
@only_long("an old broker beside")
def test_the_last_release_cannot_become_the_controller_once_it_is_raised(last, tmp_path):
    """It registered between its look at the cluster's id and the raise: here the raise has forgotten to refuse."""
    with Mixed(tmp_path, last) as mixed:
        watched = Watched(mixed)
        mixed.start(1, "this")
        mixed.start(2, "last")

        async def raise_all_the_same(tree):
            await features.raise_level(tree, 1, lambda finalized, brokers: None)

        watched.in_tree(raise_all_the_same)
        until(lambda: "broker 2 supports pylog.version 0 to 0" in mixed.log(1))
        mixed.kill(1)
        until(lambda: watched.controller() is None)  # its session is over
        words = "election delayed: /controller_epoch is malformed"
        tried = mixed.log(2).count(words)
        until(lambda: mixed.log(2).count(words) > tried + 1)
        assert watched.controller() is None
        mixed.kill(2)
        mixed.start(1, "this")
        until(lambda: watched.controller() == 1)
