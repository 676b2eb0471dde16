"""`pylog cluster start` that does not come to an end, or should not begin: stopped, bounded, refused, told."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from replication.local_cluster import LocalCluster, LocalClusterError
from tests.support.repeats import only_long, times

from .conftest import running
from .test_commands import PYLOG, produce

pytestmark = pytest.mark.slow

NOBODY = "zookeeper:127.0.0.1:1/x"
TIMEOUT_S = 30


@contextmanager
def starting(*arguments, group="cluster"):
    """`pylog cluster start` in a process group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", PYLOG, group, "start", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield process
    finally:
        if is_group_there(process):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def is_group_there(process):
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def until(holds):
    end = time.monotonic() + TIMEOUT_S
    while not (found := holds()):
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)
    return found


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def texts(directory):
    """The lines of the text files beside and in the directories of brokers."""
    names = [*directory.glob("*.stderr"), *directory.glob("broker-*/broker/*.log")]
    return {name: name.read_bytes() for name in names}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT][: times(1, 2)])
def test_a_cluster_that_is_starting_stops_at_once_with_all_its_brokers(tmp_path, number):
    with starting("--brokers", 2, "--dir", tmp_path, "--coordination", NOBODY) as process:
        until(lambda: len(list(tmp_path.glob("broker-*/broker"))) == 2)
        begin = time.monotonic()
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0
        assert time.monotonic() - begin < 12  # ZooKeeper's client alone tries for 15
        assert not is_group_there(process)
        assert process.stdout.read() == ""
        assert process.stderr.read().splitlines()[-1] == "stopped while broker 1 was starting"


@only_long("a cluster of its own")
def test_a_broker_that_waits_for_zookeeper_stops_at_once(tmp_path):
    settings = ["--set", f"log.dirs={tmp_path}/data", "--set", "listeners=PLAINTEXT://127.0.0.1:0"]
    with starting(*settings, "--coordination", NOBODY, group="broker") as process:
        assert "Connecting to 127.0.0.1" in process.stderr.readline()
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert time.monotonic() - begin < 12


@only_long("a cluster of its own")
def test_a_cluster_says_at_once_what_a_broker_of_it_waits_for(tmp_path):
    tree = f"sqlite:{tmp_path}/tree.db"
    with (
        running(1, tmp_path / "first", coordination=tree),
        starting("--brokers", 1, "--dir", tmp_path / "other", "--coordination", tree) as process,
    ):
        line = process.stderr.readline()
        assert "broker=1 is starting: " in line
        assert "a broker with id 1 is registered: waiting for that to end, up to 18 s" in line
        assert process.poll() is None


def test_a_broker_that_does_not_come_to_serve_is_not_waited_for_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("replication.local_cluster.process.READY_TIMEOUT_S", 0.5)
    cluster = LocalCluster(1, tmp_path, {"zookeeper.session.timeout.ms": 500}, coordination=NOBODY)
    with pytest.raises(LocalClusterError, match=r"broker 1 does not serve after 2 s; see .*/server\.log"):
        cluster.start()
    assert cluster.live == []


def test_a_second_cluster_in_the_same_directory_is_refused_and_writes_nothing(tmp_path):
    with starting("--brokers", 1, "--dir", tmp_path) as process:
        assert process.stdout.readline().startswith("bootstrap=")
        (tmp_path / "broker-1.stderr").write_text("said by the one that runs\n")
        before = texts(tmp_path)
        assert len(before) >= 3

        with starting("--brokers", 2, "--dir", tmp_path) as second:
            assert second.wait(TIMEOUT_S) == 1
            assert second.stdout.read() == ""
            (line,) = second.stderr.read().splitlines()

        assert line.startswith(f"pylog: {tmp_path}/broker-1 is open in another process")
        assert b"open in another process" not in b"".join(texts(tmp_path).values())
        assert {name: text[: len(before[name])] for name, text in texts(tmp_path).items()} == before
        assert not (tmp_path / "broker-2").exists()


@only_long("a cluster of its own")
def test_a_cluster_ends_when_its_last_broker_has(tmp_path):
    with starting("--brokers", 2, "--dir", tmp_path) as process:
        assert process.stdout.readline().startswith("bootstrap=")
        first, last = children(process)
        os.kill(first, signal.SIGKILL)
        assert "broker 1 has ended" in process.stderr.readline()
        assert process.poll() is None
        os.kill(last, signal.SIGKILL)
        assert process.wait(TIMEOUT_S) == 1
        said, why = process.stderr.read().splitlines()
        assert "broker 2 has ended" in said
        assert why == "pylog: no broker is left"


@only_long("two clusters")
def test_a_start_without_brokers_that_partitions_are_on_names_them(tmp_path):
    with running(3, tmp_path) as cluster:
        cluster.create((1, 2), (3, 1))
        assert cluster.running.missing() == []

    with starting("--brokers", 1, "--dir", tmp_path) as process:
        bootstrap = process.stdout.readline().strip().partition("=")[2]
        assert process.stderr.readline() == (
            "brokers 2, 3 have replicas and were not started; start them, or their partitions are under-replicated\n"
        )
        produce(bootstrap, "more", [b"x"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0


@only_long("a cluster of its own")
def test_a_broker_that_was_killed_is_missed_though_it_is_registered_for_a_while(tmp_path):
    with running(2, tmp_path, **{"zookeeper.session.timeout.ms": 60_000}) as cluster:
        cluster.create((1, 2))
        cluster.running.kill(2)
        alone = LocalCluster([1], tmp_path)
        assert 2 in cluster.running.describe().brokers
        assert alone.missing() == [2]
        cluster.running.kill(1)
