"""Every byte is read once per interval, evenly, and never more than a tenth of the time is spent."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from logstore.env import Env
from replication.config.broker import BrokerConfig
from replication.model.cluster import TopicPartition
from replication.replica import scrub
from replication.replica.maintenance import Maintenance
from replication.replica.scrub import BYTES_PER_S_MIN, Progress, Scrub, bytes_per_s, left_of, pause_s
from replication.replica.storage.replica_log import ReplicaCounters
from tests.support.partition import appended, batch, make

WEEK_MS = 7 * 24 * 3_600_000
T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_the_speed_follows_from_size_and_interval_within_bounds():
    assert bytes_per_s(1000, WEEK_MS) == BYTES_PER_S_MIN
    terabytes = 10 * 1000**4
    assert bytes_per_s(terabytes, WEEK_MS) * WEEK_MS / 1000 == pytest.approx(terabytes)
    assert pause_s(1_000_000, 0.001, 1_000_000) == pytest.approx(0.999)
    assert pause_s(1_000_000, 0.5, 1_000_000) == 4.5  # a disk that is slow is not pressed


def test_a_pass_goes_on_where_it_was():
    assert left_of([U0, T1, T0], Progress(0)) == [T0, T1, U0]
    assert left_of([U0, T1, T0], Progress(0, T1, 5)) == [T1, U0]


class Site:
    """Two logs, and what a scrub is given of a broker."""

    def __init__(self, root):
        self.root, self.env, self.counters, self.found = root, Env(), ReplicaCounters(), threading.Event()
        self.partitions, self.suspected = {}, []
        self.repairs = SimpleNamespace(suspect=self._suspect)
        for tp in (T0, T1):
            log = make(root, self.env, name=str(tp), segment_bytes=200, max_message_bytes=150)
            for number in range(6):
                appended(log, batch(b"%d in " % number + str(tp).encode()))
            self.partitions[tp] = SimpleNamespace(replica=SimpleNamespace(log=log))

    def _suspect(self, tp, error):
        self.suspected.append((tp, error.path, error.position))
        self.found.set()

    def scrub(self, interval_ms=WEEK_MS):
        config = BrokerConfig.from_properties({"log.dirs": str(self.root), "log.scrub.interval.ms": interval_ms})
        return Scrub(config, self.env, self)

    def size(self):
        return sum(path.stat().st_size for path in self.root.glob("*/*.log"))


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def run_until(made, holds):
    thread = threading.Thread(target=made.run)
    thread.start()
    pause = threading.Event()
    for _ in range(2000):
        if holds():
            break
        pause.wait(0.005)
    made.end()
    thread.join()
    assert holds()


def test_a_flipped_byte_in_any_segment_is_found(site):
    (path,) = [p for p in site.root.glob("t-1/*.log") if b"3 in t-1" in p.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(b"3 in t-1")] ^= 1
    path.write_bytes(data)
    run_until(site.scrub(), site.found.is_set)
    assert {(tp, path_) for tp, path_, _ in site.suspected} == {(T1, str(path))}


def test_all_is_read_once_per_interval_and_a_restart_does_not_begin_anew(site):
    run_until(site.scrub(), lambda: site.counters.scrub_passes == 1)
    assert site.counters.scrubbed_bytes == site.size()
    again = site.scrub()
    thread = threading.Thread(target=again.run)
    thread.start()
    again.end()
    thread.join()
    assert (site.counters.scrub_passes, site.counters.scrubbed_bytes) == (1, site.size())
    run_until(site.scrub(interval_ms=10), lambda: site.counters.scrub_passes > 3)


def test_a_pass_that_was_interrupted_goes_on(site, monkeypatch):
    monkeypatch.setattr(scrub, "SAVE_MS", 0)
    made, seen = site.scrub(), []
    pace = made._pace

    def paced(size_bytes):
        pace(size_bytes)
        seen.append(size_bytes)
        if len(seen) == 4:
            made.end()

    monkeypatch.setattr(made, pace.__name__, paced)
    made.run()
    assert site.counters.scrubbed_bytes < site.size()
    run_until(site.scrub(), lambda: site.counters.scrub_passes == 1)
    assert site.size() <= site.counters.scrubbed_bytes < site.size() + 200


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_it_may_be_off(site, interval_ms):
    async def begun():
        config = BrokerConfig.from_properties({"log.dirs": str(site.root), "log.scrub.interval.ms": interval_ms})
        maintenance = Maintenance(config, site.env, site)
        maintenance.begin()
        names = [thread.name for thread in threading.enumerate()]
        await maintenance.end()
        return names

    assert "scrub" not in asyncio.run(begun())
