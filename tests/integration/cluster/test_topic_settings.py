"""Settings of topics act on brokers that run: each is changed by a client, and its effect is seen on every replica.

`unclean.leader.election.enable` has its test in test_replicas_down.
"""

import itertools
import time
from contextlib import suppress

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from logstore.errors import InvalidRequestError
from logstore.records import compaction  # noqa: F401  its kernels: to load or compile them takes longer than any test
from logstore.tools.dump import dump
from tests.support.commands import run_pylog

from .conftest import running
from .test_metrics import free_ports, samples

pytestmark = pytest.mark.slow

OFTEN = {
    "log.retention.check.interval.ms": 100,
    "log.cleaner.backoff.ms": 100,
    "log.flush.offset.checkpoint.interval.ms": 3_600_000,  # no fsync but those that a topic asks for
}
BROKERS = (1, 2, 3)


@pytest.fixture(scope="module")
def ports():
    return dict(zip(BROKERS, free_ports(3), strict=True))


@pytest.fixture(scope="module")
def site(ports, tmp_path_factory):
    own = {broker: {"metrics.port": port} for broker, port in ports.items()}
    with running(directory=tmp_path_factory.mktemp("settings"), own=own, **OFTEN) as tested:
        yield Site(tested, ports)


class Site:
    """Three brokers with a replica of each topic, and what their directories show."""

    def __init__(self, cluster, ports):
        self.cluster = cluster
        self.ports = ports
        self._producer = Producer({"bootstrap.servers": cluster.running.bootstrap, "log_level": 0, "linger.ms": 0})
        self._hasty = Producer({"bootstrap.servers": cluster.running.bootstrap, "log_level": 0, "retries": 0})
        self._times_ms = itertools.count(time.time_ns() // 1_000_000, 100)

    def create(self, **config):
        return self.cluster.create(BROKERS, **config)

    def alter(self, topic, **settings):
        given = {key.replace("_", "."): str(value) for key, value in settings.items()}
        entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in given.items()]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        self.cluster.administer("incremental_alter_configs", [resource])

    def send(self, topic, count=10, *, value=b"v" * 100, key=b"k"):
        """So many batches of a record, each acknowledged before the next; return the error of the last."""
        errors = []
        for _ in range(count):
            self._producer.produce(
                topic, value, key, timestamp=next(self._times_ms),
                on_delivery=lambda error, message: errors.append(error),
            )  # fmt: skip
            self._producer.flush(30)
        return errors[-1]

    def error(self, topic):
        """The name of what the leader answers to 200 bytes with acks=all; None: it took them."""
        errors = []
        self._hasty.produce(topic, b"v" * 200, on_delivery=lambda error, message: errors.append(error))
        self._hasty.flush(10)
        return errors[0] and errors[0].name()

    def pylog(self, *arguments):
        return run_pylog("configs", *arguments, "--bootstrap-server", self.cluster.running.bootstrap).ok()

    def files(self, topic, pattern):
        return [sorted(self.cluster.running.log_dir(b).glob(f"{topic}-0/{pattern}")) for b in BROKERS]

    def bases(self, topic):
        """The base offsets of the segments of each replica."""
        return [[int(path.stem) for path in found] for found in self.files(topic, "*.log")]

    def lines(self, topic, kind, pattern="*.log"):
        """The lines of `pylog dump-log` for each replica."""
        while True:
            with suppress(InvalidRequestError):  # a file that just left
                return [
                    [line.facts for path in found for line in dump(path, with_records=True) if line.kind == kind]
                    for found in self.files(topic, pattern)
                ]

    def sizes(self, topic):
        return [sum(path.stat().st_size for path in found) for found in self.files(topic, "*.log")]

    def recovery_points(self, topic):
        key = ("pylog_log_recovery_point", ("partition", "0"), ("topic", topic))
        return [int(samples(port)[key]) for port in self.ports.values()]

    def until(self, holds):
        self.cluster.until(holds)

    def until_sent(self, topic, holds):
        """Go on to send until it holds for each replica."""

        def sent():
            assert self.send(topic, 1) is None
            return holds()

        self.cluster.until(sent)


# setting -> (those of the topic before, the value that it is changed to)
ROLLS = {
    "segment.bytes": ({}, 200),
    "segment.ms": ({}, 50),
    "segment.index.bytes": ({"index_interval_bytes": 0}, 36),
}


@pytest.mark.parametrize("setting", ROLLS)
def test_segments_are_closed(site, setting):
    before, value = ROLLS[setting]
    topic = site.create(**before)
    site.send(topic)
    site.until(lambda: site.bases(topic) == [[0]] * 3)
    site.alter(topic, **{setting: value})
    site.until_sent(topic, lambda: all(len(found) > 1 for found in site.bases(topic)))


def test_segments_are_closed_at_different_ages(site):
    topic = site.create(segment_ms=1000)
    site.send(topic, 45)

    def lengths(leader=0):
        return {end - begin for begin, end in itertools.pairwise(site.bases(topic)[leader])}

    assert lengths() == {11}
    site.alter(topic, segment_jitter_ms=900)
    site.until_sent(topic, lambda: len(lengths()) > 1)
    assert max(lengths()) == 11


RETAINED = {"retention.ms": 1, "retention.bytes": 0}


@pytest.mark.parametrize("setting", RETAINED)
def test_old_segments_are_deleted(site, setting):
    topic = site.create(segment_bytes=200, retention_ms=-1)
    site.send(topic)
    site.until(lambda: all(found == list(range(10)) for found in site.bases(topic)))
    site.alter(topic, **{setting: RETAINED[setting]})
    site.until(lambda: all(found[0] >= 9 for found in site.bases(topic)))


def test_deleted_files_go(site):
    """Also when the topic keeps everything from then on."""
    topic = site.create(segment_bytes=200, retention_ms=-1, retention_bytes=0, file_delete_delay_ms=3_600_000)
    site.send(topic)
    site.until(lambda: all(found == [9] for found in site.bases(topic)))
    assert all(site.files(topic, "*.deleted"))
    site.alter(topic, file_delete_delay_ms=0, retention_bytes=-1)
    site.until(lambda: not any(site.files(topic, "*.deleted")))


def test_compaction_begins(site):
    """With cleanup.policy, and for what was not dirty enough with min.cleanable.dirty.ratio."""
    deleted, patient = (
        site.create(segment_bytes=200, retention_ms=-1, cleanup_policy=policy, min_cleanable_dirty_ratio=ratio)
        for policy, ratio in (("delete", 0), ("compact", 1))
    )
    for topic in (deleted, patient):
        site.send(topic)
    full = site.sizes(deleted)[0]
    site.alter(deleted, cleanup_policy="compact")
    site.until(lambda: max(site.sizes(deleted)) < full / 2)
    assert site.sizes(patient) == [full] * 3
    site.alter(patient, min_cleanable_dirty_ratio=0)
    site.until(lambda: max(site.sizes(patient)) < full / 2)


def test_tombstones_go(site):
    topic = site.create(segment_bytes=200, cleanup_policy="compact", min_cleanable_dirty_ratio=0)

    def tombstones():
        return [{line["offset"] for line in found if line["valueSize"] == -1} for found in site.lines(topic, "record")]

    site.send(topic, 1, value=None, key=b"stays")
    site.send(topic, 5)
    site.until(lambda: all(len(found) < 5 for found in site.lines(topic, "record")))
    site.alter(topic, delete_retention_ms=0)

    def goes():
        """A new one; the first was given its time when it was compacted."""
        site.send(topic, 1, value=None, key=b"goes")
        with suppress(AssertionError):
            return site.cluster.until(lambda: site.send(topic, 1) is None and tombstones() == [{0}] * 3, timeout_s=9)

    site.cluster.until(goes, timeout_s=40)


def test_index_entries_are_nearer(site):
    topic = site.create()
    site.send(topic)
    assert not any(site.lines(topic, "entry", "*.index"))
    site.alter(topic, index_interval_bytes=0)
    site.until_sent(topic, lambda: all(len(found) > 2 for found in site.lines(topic, "entry", "*.index")))


@pytest.mark.parametrize("setting", ["flush.messages", "flush.ms"])
def test_records_are_fsynced(site, setting):
    topic = site.create()
    site.send(topic)
    assert min(site.recovery_points(topic)) < 10
    site.alter(topic, **{setting: 1})
    if setting == "flush.ms":  # that looks by itself
        site.until(lambda: site.recovery_points(topic) == [10, 10, 10])
    else:
        site.until_sent(topic, lambda: min(site.recovery_points(topic)) > 10)


REFUSED = {"max.message.bytes": (100, "MSG_SIZE_TOO_LARGE"), "min.insync.replicas": (4, "NOT_ENOUGH_REPLICAS")}


@pytest.mark.parametrize("setting", REFUSED)
def test_records_are_refused(site, setting):
    value, name = REFUSED[setting]
    topic = site.create()
    assert site.send(topic) is None
    site.alter(topic, **{setting: value})
    site.until(lambda: site.error(topic) == name)


def test_records_have_the_time_of_the_append(site):
    topic = site.create()
    site.send(topic)
    site.alter(topic, message_timestamp_type="LogAppendTime")
    site.until_sent(topic, lambda: all("LogAppendTime" in found[-1] for found in site.lines(topic, "batch")))


def test_settings_of_brokers_act_live_and_outlast_a_restart(site):
    topic, brokers = site.create(), ("--entity-type", "brokers")
    assert site.error(topic) is None
    site.pylog("alter", *brokers, "--entity-default", "--add-config", "message.max.bytes=150")
    site.until(lambda: site.error(topic) == "MSG_SIZE_TOO_LARGE")
    site.pylog("alter", *brokers, "--entity-name", 1, "--add-config", "message.max.bytes=1000")
    site.until(lambda: site.error(topic) is None)
    (one, common) = (
        site.pylog("describe", *brokers, *what, "--output", "json").json
        for what in (("--entity-name", 1), ("--entity-default",))
    )
    assert ("message.max.bytes", "1000", "DYNAMIC_BROKER_CONFIG") in [tuple(row.values())[1:4] for row in one]
    assert [tuple(row.values())[:4] for row in common] == [
        ("<default>", "message.max.bytes", "150", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    ]
    site.pylog("alter", *brokers, "--entity-name", 1, "--delete-config", "message.max.bytes")
    site.until(lambda: site.error(topic) == "MSG_SIZE_TOO_LARGE")
    site.cluster.running.stop(1)
    site.cluster.running.restart(1)
    site.cluster.until(lambda: site.cluster.state(topic).leader != -1)
    site.until(lambda: site.error(topic) == "MSG_SIZE_TOO_LARGE")
    site.pylog("alter", *brokers, "--entity-default", "--delete-config", "message.max.bytes")
    site.until(lambda: site.error(topic) is None)
