"""Brokers of the last release, whose commit LAST_RELEASE names, beside those of this tree.

Its wheel is built from the history of this clone. Tests are skipped, with the reason, where that is not there.
"""

import asyncio
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from replication.local_cluster.process import pause
from tests.support.in_process import begun_by_an_earlier_release

ROOT = Path(__file__).parents[2]
COMMIT = Path(__file__).with_name("LAST_RELEASE").read_text().split()[0]
READY_WITHIN_S, ENDS_WITHIN_S = 90, 60
SETTINGS = {
    "zookeeper.session.timeout.ms": 3000,
    "group.initial.rebalance.delay.ms": 0,
    "default.replication.factor": 3,
    "offsets.topic.num.partitions": 6,
    "transaction.state.log.num.partitions": 6,
    "auto.leader.rebalance.enable": "false",
    "replica.fetch.backoff.ms": 200,
}


def installed(directory):
    """Return a directory with the packages of the last release; skips the test where there is no history of it."""
    try:
        packed = subprocess.run(["git", "archive", COMMIT], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"").decode().strip() or error
        pytest.skip(f"no history of the last release ({COMMIT[:7]}): {said}")
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11 has it from 3.11.4 on
        archive.extractall(directory / "source")
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", directory, directory / "source"])
    (wheel,) = directory.glob("*.whl")
    run([*pip, "install", "--no-deps", "--target", directory / "installed", wheel])
    return directory / "installed"


def run(command):
    ran = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


class Mixed:
    """Brokers that are processes of this release or of the last one, each with a directory and a port of its own.

    A context manager; what still runs at its end is killed.
    """

    def __init__(self, directory, last, coordination=None, **settings):
        self.directory = directory
        self.coordination = coordination or f"sqlite:{directory / 'tree.db'}"
        self._packages = {"last": last, "this": ROOT}
        self._settings = {**SETTINGS, **{key.replace("_", "."): value for key, value in settings.items()}}
        self._processes, self._addresses, self.releases = {}, {}, {}

    def __enter__(self):
        asyncio.run(begun_by_an_earlier_release(self.coordination))
        return self

    def __exit__(self, *error):
        for process in self._processes.values():
            process.kill()
            process.wait()
            process.stdout.close()

    @property
    def bootstrap(self):
        return ",".join(self._addresses[broker] for broker in sorted(self.releases))

    def address(self, broker):
        return self._addresses[broker]

    def begin(self, broker, release):
        """Start a process, and do not wait for it."""
        settings = {
            **self._settings,
            "broker.id": broker,
            "log.dirs": self.directory / f"broker-{broker}",
            "coordination": self.coordination,
            "listeners": f"PLAINTEXT://{self._addresses.get(broker, '127.0.0.1:0')}",
            "parent": os.getpid(),
        }
        words = [f"{key}={value}" for key, value in settings.items()]
        with (self.directory / f"stderr-{broker}").open("wb") as said:
            # From a directory without packages: `-m` puts it before all others.
            process = subprocess.Popen(
                [sys.executable, "-m", "replication.broker.process", *words],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**os.environ, "PYTHONPATH": str(self._packages[release])},
            )
        if broker in self._processes:
            self._processes[broker].stdout.close()
        self._processes[broker] = process
        return process

    def start(self, broker, release):
        """Start a broker; return once it serves."""
        line = self.begin(broker, release).stdout.readline()
        assert line.startswith("bootstrap="), self.said(broker)
        self._addresses[broker] = line.strip().partition("=")[2]
        self.releases[broker] = release

    def refused(self, broker, release):
        """Start a broker that does not come in; return what it says, and after how many seconds it ended."""
        begin = time.monotonic()
        process = self.begin(broker, release)
        assert process.wait(READY_WITHIN_S) == 1
        return self.said(broker), time.monotonic() - begin

    def stop(self, broker):
        self._processes[broker].terminate()
        assert self._processes[broker].wait(ENDS_WITHIN_S) == 0, self.said(broker)
        del self.releases[broker]

    def kill(self, broker):
        self._processes[broker].kill()
        self._processes[broker].wait()
        self.releases.pop(broker, None)

    def pause(self, broker):
        pause(self._processes[broker], self.coordination)

    def resume(self, broker):
        self._processes[broker].send_signal(signal.SIGCONT)

    def said(self, broker):
        """Return what the broker printed as its error."""
        return (self.directory / f"stderr-{broker}").read_text()

    def log(self, broker):
        """Return all of its logs: of the server, the controller, and the changes of states."""
        logs = (self.directory / f"broker-{broker}" / "broker").glob("*.log")
        return "\n".join(log.read_text() for log in sorted(logs))
