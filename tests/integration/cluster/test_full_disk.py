"""A broker whose disk is really full, in a cluster of processes: it hands over, and takes its leaderships back."""

import re
import threading
import time

import pytest
from confluent_kafka import Producer

from tests.unit.logstore.store.test_full_disk import fill, small_file_system

from .conftest import running
from .test_metrics import samples

pytestmark = pytest.mark.slow

LAG_S = 40
SETTINGS = {
    "auto.leader.rebalance.enable": "true",
    "leader.imbalance.check.interval.seconds": 3600,
    "replica.lag.time.max.ms": LAG_S * 1000,
    "controlled.shutdown.enable": "false",
    "metrics.port": 0,
}


class Producing:
    """Records with acks=all to some partitions, one after the other to each, until it is over."""

    def __init__(self, cluster, topic, partitions):
        self.sent, self.errors = [], []
        self.longest_s, self.last = 0.0, time.monotonic()
        self._is_over = threading.Event()
        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": cluster.running.bootstrap, **settings})
        self._thread = threading.Thread(target=self._run, args=(topic, partitions))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._is_over.set()
        self._thread.join()

    def _run(self, topic, partitions):
        while not self._is_over.is_set():
            for partition in range(partitions):
                value = str(len(self.sent))
                self.sent.append(value)
                self._producer.produce(topic, value.encode(), partition=partition, on_delivery=self._done)
            assert self._producer.flush(60) == 0
            now = time.monotonic()
            self.longest_s, self.last = max(self.longest_s, now - self.last), now

    def _done(self, error, message):
        if error:
            self.errors.append(error)


def test_a_broker_with_a_full_disk_hands_over_at_once_and_leads_again_when_there_is_room(tmp_path):
    """(S9) Producers stand still for a moment, and not for replica.lag.time.max.ms; what was acknowledged is there."""
    disk = tmp_path / "broker-1"
    with small_file_system(disk, "48m"), running(3, tmp_path, **SETTINGS) as cluster:
        topic = cluster.create((1, 2, 3), (2, 1, 3))
        alone = cluster.create((1,))
        assert cluster.produce(alone, ["kept"]) == []
        (metrics,) = re.findall(r"metrics at port (\d+)", (disk / "broker" / "server.log").read_text())
        with Producing(cluster, topic, 2) as producing:
            cluster.until(lambda: len(producing.sent) > 50)
            producing.longest_s = 0.0
            fill(disk / "filler")
            handed_s = cluster.until_states(topic, {0: (2, [2, 3], 1), 1: (2, [2, 3], 1)}, timeout_s=LAG_S / 2)
            before = len(producing.sent)
            cluster.until(lambda: len(producing.sent) > before + 20)
            stalled_s = producing.longest_s
            print(f"handed over within {handed_s:.2f} s, producers stood still for {stalled_s:.2f} s")
            assert stalled_s < LAG_S / 2

            gauges = samples(metrics)
            assert gauges[("pylog_disk_full",)] == 1
            assert gauges[("pylog_disk_free_bytes",)] < 48 << 20 == gauges[("pylog_disk_total_bytes",)]
            assert gauges[("kafka_server_replicamanager_offlinereplicacount",)] >= 3

            # Records that no other replica has stay: they are read, and new ones are refused.
            assert cluster.states(alone) == {0: (1, [1], 0)}
            assert cluster.produce(alone, ["refused" * 2000], **{"delivery.timeout.ms": 1500}) != []
            assert cluster.values(alone, count=1) == ["kept"]

            (disk / "filler").unlink()
            cluster.until(
                lambda: [(s[0], set(s[1])) for s in cluster.states(topic).values()] == [(1, {1, 2, 3}), (2, {1, 2, 3})],
                timeout_s=30,
            )
        assert producing.errors == []
        assert samples(metrics)["pylog_disk_full",] == 0
        found = [value for number in (0, 1) for value in cluster.values(topic, len(producing.sent) // 2, number)]
        assert sorted(found, key=int) == producing.sent
        assert cluster.produce(alone, ["again"]) == []
        logged = (disk / "broker" / "server.log").read_text()
        assert logged.count("are offline") <= 1, "one line per change, as far as there was room for it"
        assert "Traceback" not in logged
        said = (tmp_path / "broker-1.stderr").read_text()
        assert "Traceback" not in said
