"""`pylog cluster stop-broker` and `restart-broker`: one broker of a cluster that another process runs."""

import os
import signal
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from replication.cli import supervisor
from tests.integration.cluster.test_commands import consume, produce, pylog
from tests.integration.cluster.test_starting import until
from tests.support.commands import run_pylog
from tests.support.repeats import only_long

pytestmark = pytest.mark.slow


@pytest.fixture
def directory(tmp_path):
    """Deeper than the name of a socket may be long."""
    made = tmp_path / ("deep" * 25)
    made.mkdir()
    return made


def ask(directory, order, broker):
    return run_pylog("cluster", f"{order}-broker", broker, "--dir", directory)


def pids(process):
    """The brokers' processes, by their numbers."""
    found = {}
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        found |= {int(word.removeprefix("broker.id=")): int(pid) for word in words if word.startswith("broker.id=")}
    return found


def logs(directory, broker):
    return (directory / f"broker-{broker}" / "broker" / "server.log").read_text()


@only_long("a cluster of its own")
def test_one_broker_of_a_running_cluster_is_stopped_and_restarted_by_a_command(directory):
    settings = "--set", "default.replication.factor=3", "--set", "min.insync.replicas=2"
    with pylog("cluster", "start", "--node-id-start", 0, "--dir", directory, *settings) as (process, line):
        assert sorted(path.name for path in directory.glob("broker-?")) == ["broker-0", "broker-1", "broker-2"]
        bootstrap = line.partition("=")[2]
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for name, replicas in (("shared", [0, 1, 2]), ("alone", [0])):
            admin.create_topics([NewTopic(name, 1, replica_assignment=[replicas])])[name].result(20)
        produce(bootstrap, "shared", [b"before"])

        stopped = ask(directory, "stop", 0)
        assert (stopped.code, stopped.out) == (0, "")
        assert stopped.err == "broker 0 has stopped; no leader now: 1 partition with a replica there\n"
        assert "Controlled shutdown" in logs(directory, 0)
        assert (directory / "broker-0" / ".kafka_cleanshutdown").exists()
        produce(bootstrap, "shared", [b"meanwhile"])
        assert ask(directory, "stop", 0).failed() == "pylog: broker 0 does not run\n"

        again = ask(directory, "restart", 0)
        assert (again.code, again.err) == (0, "broker 0 runs again, and in sync\n")
        until(lambda: run_pylog("cluster", "status", "--bootstrap-server", bootstrap).code == 0)  # they are told by now
        assert consume(bootstrap, "shared", 2) == [b"before", b"meanwhile"]

        assert "there are [0, 1, 2]" in ask(directory, "restart", 3).failed()
        before = pids(process)
        os.kill(before[2], signal.SIGKILL)  # what was killed comes back by the same command, what runs is stopped first
        assert any("broker 2 has ended" in said for said in process.stderr)
        for broker in (2, 1):
            assert ask(directory, "restart", broker).ok().err == f"broker {broker} runs again, and in sync\n"
        after = pids(process)
        assert [broker for broker in after if after[broker] == before[broker]] == [0]
        assert "Controlled shutdown" in logs(directory, 1)

        for broker in (0, 1, 2):  # and nobody is left, for the next to come back
            ask(directory, "stop", broker).ok()
        assert ask(directory, "restart", 1).code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert not (directory / supervisor.SOCKET).exists()
    assert ask(directory, "stop", 1).failed() == f"pylog: no `pylog cluster start` runs in {directory}\n"


@only_long("clusters that are killed")
def test_one_cluster_runs_in_a_directory_and_what_a_killed_one_left_is_no_hindrance(directory):
    with pylog("cluster", "start", "--brokers", 1, "--dir", directory) as (process, line):
        with pylog("cluster", "start", "--brokers", 1, "--dir", directory, "--node-id-start", 7) as (other, said):
            assert (other.wait(60), said) == (1, "")
            assert "another `pylog cluster start` runs in" in other.stderr.read()
        with socket.socket(socket.AF_UNIX) as odd:  # which no command of ours would say
            with supervisor.address_of(directory) as address:
                odd.connect(address)
            odd.sendall(b"dance now\n")
            assert odd.recv(1) == b""
        assert consume(line.partition("=")[2], "none", 0) == []
        assert "there are [1]" in ask(directory, "stop", 2).failed()
        (pid,) = pids(process).values()
        process.kill()
        process.wait()
    until(lambda: not Path(f"/proc/{pid}").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())
    assert (directory / supervisor.SOCKET).exists()
    assert ask(directory, "stop", 1).failed().startswith("pylog: no `pylog cluster start` runs in")
    with pylog("cluster", "start", "--brokers", 1, "--dir", directory) as (_, line):
        assert line.startswith("bootstrap=")
        assert ask(directory, "restart", 1).ok().err == "broker 1 runs again, and in sync\n"


def test_a_restart_waits_until_the_broker_is_in_sync(tmp_path):
    class Slow:
        """A cluster with a broker that has much to copy."""

        directory, live = tmp_path, ()

        def log_dir(self, broker):
            return tmp_path / "broker-1"

        def restart(self, broker):
            pass

        def not_in_sync(self, broker):
            return missing.pop(0)

    missing = [3, 1, 0]
    with closing(supervisor.Supervisor(Slow(), threading.Event(), str)) as waiting:
        assert waiting._restart(1) == (True, "broker 1 runs again, and in sync")
    assert missing == []
