"""The library, brokers and Spark where a Unix has no more than macOS (tests/support/plain_unix)."""

import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

import pytest

from logstore.env import SYSTEM, machine
from replication.client.kafka_client import KafkaClient
from tests.spark import smoke
from tests.spark.test_smoke import check
from tests.support.repeats import only_long

ROOT = Path(__file__).parents[2]
LINUX_ONLY = r"/proc/|posix_fa|F_FULLFSYNC|RWF_|MADV_|preadv\(|pwritev\(|sys\.platform|os\.uname|mallopt\b"
HOMES = ("logstore/env/machine.py", "logstore/__init__.py")  # the latter refuses Windows
PYLOG = "from logstore.cli import main; main()"


@pytest.fixture
def plain(monkeypatch):
    """The children's system; this process keeps its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "support" / "plain_unix"), prepend=os.pathsep)
    run("import os; assert not hasattr(os, 'preadv')")


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_what_not_every_unix_has_is_called_in_one_module():
    found = {}
    for package in ("logstore", "replication", "datasource", "pyspark_pylog", "pytest_pylog"):
        for path in (ROOT / package).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name not in HOMES and (words := re.findall(LINUX_ONLY, path.read_text())):
                found[name] = sorted(set(words))
    assert not found, "it belongs into logstore/env/machine.py"


LIBRARY = """
import os, signal, sys
import logstore
from logstore.env import SYSTEM, machine

assert not hasattr(os, "preadv") and machine.mounts(SYSTEM.files) == ""
with logstore.open(sys.argv[1]) as store:
    store.create_topic("t", config={"segment.bytes": 65536, "flush.messages": 1, "cleanup.policy": "compact"})
    for _ in range(20):
        store.append("t", {"key": [f"k{n}" for n in range(100)], "value": [f"{n:0100d}" for n in range(100)]})
    store.append("t", {"key": ["k"], "value": ["never"]}, transaction=store.transaction("dies", batch_id=1))
    assert store.read("t").read_all().num_rows == 2000
    os.kill(os.getpid(), signal.SIGKILL)
"""


@only_long("interpreters of their own")
def test_a_store_appends_fsyncs_and_survives_kill_9(plain, tmp_path):
    killed = subprocess.run([sys.executable, "-c", LIBRARY, tmp_path], capture_output=True, text=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    run(PYLOG, "verify", "--path", tmp_path)  # exit code 0: no damage
    run(PYLOG, "compact", "--path", tmp_path)
    shown = run(PYLOG, "consume", "t", "--path", tmp_path).split()
    assert (len(set(shown)), len(shown) < 2000, "never" in shown) == (100, True, False)


@only_long("a cluster")
@pytest.mark.slow
def test_a_cluster_serves_and_does_what_commands_say(plain, tmp_path):
    directory = tmp_path / ("deep" * 25)  # deeper than the name of a socket may be long
    directory.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    start = ["cluster", "start", "--brokers", "1", "--dir", directory, "--set", f"metrics.port={port}"]
    with subprocess.Popen([sys.executable, "-c", PYLOG, *start], stdout=subprocess.PIPE, text=True) as cluster:
        try:
            bootstrap = cluster.stdout.readline().strip().partition("=")[2]
            with KafkaClient(bootstrap) as client:
                client.create_topic("t")
                client.append("t", [{"value": "x" * 1_000_000}, {"value": "x" * 1_000_000}])
                for order in ("stop-broker", "restart-broker"):
                    run(PYLOG, "cluster", order, "1", "--dir", directory)
                client.append("t", [{"value": "y"}])
                assert client.extents("t")[0].end == 3
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
                told = page.read().decode()
            assert "process_open_fds" in told
            assert "process_resident_memory_bytes" not in told, "this was no plain Unix"
        finally:
            cluster.send_signal(signal.SIGINT)


@only_long("a JVM")
@pytest.mark.slow
def test_spark_writes_reads_streams_and_runs_jobs(plain, tmp_path):
    check(json.loads(run(Path(smoke.__file__).read_text(), tmp_path).splitlines()[-1]))


# --- each call by itself


@pytest.fixture
def without(monkeypatch):
    """Take calls away from this process."""
    return lambda module, *names: [monkeypatch.delattr(module, name) for name in names]


class NoProc:
    """Files of a system without /proc."""

    def read_all(self, path):
        raise FileNotFoundError(path)

    def stat(self, path):
        return None


def test_a_file_gets_room_and_is_read_without_the_calls_of_linux(without):
    without(os, "posix_fallocate", "posix_fadvise", "preadv")
    with tempfile.TemporaryFile() as file:
        file.write(b"abc")
        file.flush()
        machine.allocate(file.fileno(), (1 << 20) + 5)
        found = os.fstat(file.fileno())
        assert (found.st_size, found.st_blocks * 512 >= found.st_size) == ((1 << 20) + 5, True)
        space = bytearray(5)
        assert machine.read_into(file.fileno(), memoryview(space), 1) == 5
        assert space == b"bc\0\0\0"
        machine.allocate(file.fileno(), 1)
        assert os.fstat(file.fileno()).st_size == found.st_size
        machine.drop_cache(file.fileno())


@pytest.mark.parametrize(
    ("number", "fsyncs", "fails"), [(0, 0, False), (errno.ENOTSUP, 1, False), (errno.EIO, 0, True)]
)
def test_the_cache_of_the_disk_is_emptied_where_fsync_leaves_it(monkeypatch, number, fsyncs, fails):
    """And an fsync is enough on file systems that have no more."""
    calls = []

    def full_sync(fd, command):
        assert (fd, command) == (7, 51)
        if number:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(machine, "FULL_SYNC", 51)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", calls.append)
    if fails:
        with pytest.raises(OSError, match="Input/output"):
            machine.sync(7)
    else:
        machine.sync(7)
    assert calls == [7] * fsyncs


def test_a_process_is_known_again_by_ps_where_there_is_no_proc():
    mine = machine.process(NoProc(), os.getpid())
    if mine is None:
        pytest.skip("no ps here")
    assert mine.parent == os.getppid()
    assert mine.command == machine.process(SYSTEM.files, os.getpid()).command
    with subprocess.Popen(["sleep", "60"]) as child:
        alive = machine.process(NoProc(), child.pid)
        assert (alive.command, alive.parent) == ("sleep", os.getpid())
        assert alive == machine.process(NoProc(), child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert machine.process(NoProc(), child.pid) is None, "a zombie"


def test_a_boot_is_known_by_sysctl_where_there_is_no_proc(plain, monkeypatch, tmp_path):
    tool = tmp_path / "sysctl"
    tool.write_text('#!/bin/sh\n[ "$*" = "-n kern.bootsessionuuid" ] && echo 1F-2A\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    code = "from logstore.env import SYSTEM, machine; print(machine.boot_id(SYSTEM.files))"
    assert run(code) == "1F-2A\n"
    assert (machine.process_space(NoProc()), machine.mounts(NoProc())) == ("", "")


def test_windows_is_told_of_wsl():
    code = "import sys; sys.platform = 'win32'; import logstore"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: pylog does not run on Windows itself: ")
    assert "WSL" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("lacking", [(), ("memfd_create",)], ids=["linux", "plain"])
def test_a_secret_is_in_a_file_of_its_owner_for_as_long_as_it_is_read(without, lacking):
    without(os, *lacking)
    with machine.secret_file("ü") as name:
        assert Path(name).read_text("utf-8") == "ü"
        assert name.startswith("/proc/") or not Path(name).stat().st_mode & 0o077
        assert name.startswith("/proc/") != bool(lacking)
    assert not Path(name).exists()
