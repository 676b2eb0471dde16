"""BrokerProcess: one broker of a LocalCluster, as a child of this process."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from logstore.env import SYSTEM
from logstore.errors import PylogError
from logstore.store.log_dir import BROKER, CLEAN_MARKER, SERVER_LOG
from logstore.store.meta_properties import META
from replication.config.broker import BrokerConfig
from replication.coordination import is_blocked
from replication.coordination.own_file import check_directory
from replication.model.cluster import BrokerId

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 30
MENDING_TIMEOUT_S = 600  # after an unclean end: the broker recovers its logs first
STOP_TIMEOUT_S = 30
LOOK_MS = 200  # between two looks at a starting broker
PAUSES_MAX = 50

Address = tuple[str, int]


class LocalClusterError(PylogError):
    """A broker did not start, does not exist, or is not in a state for that."""


class BrokerProcess:
    """The process of one broker, while it runs, and all that is needed to restart it.

    Lines of stdin tell it which addresses it cannot reach; it answers each by a line of stdout.
    """

    def __init__(self, broker: BrokerId, settings: Mapping[str, str]) -> None:
        self.broker = broker
        self.settings = dict(settings)
        self.said = Path(settings["log.dirs"]).with_suffix(".stderr")
        self.said_bytes = 0  # the output of former runs
        self.address: Address | None = None
        self.process: subprocess.Popen[str] | None = None
        self.is_serving = False
        self.is_paused = False
        self.unreachable: frozenset[Address] = frozenset()
        self._start_timeout_s = 0.0
        self._log = Path(settings["log.dirs"]) / BROKER / SERVER_LOG
        self._log_bytes = 0  # the log of former runs

    @property
    def config(self) -> BrokerConfig:
        return BrokerConfig.from_properties(self.settings)

    def check(self) -> None:
        """Raises: NotAStoreError, StoreLockedError: the directory belongs to another broker, or is in use."""
        if not self.is_up:
            config = self.config
            check_directory(config.log_dirs, config.broker_id, config.coordination)

    def start(self) -> None:
        self.is_serving = self.is_paused = False
        self.unreachable = frozenset()
        self._start_timeout_s = self._time_to_start_s()
        log = SYSTEM.files.stat(self._log)
        self._log_bytes = log.size if log is not None else 0
        host, port = self.address or ("127.0.0.1", 0)
        settings = {"listeners": f"PLAINTEXT://{host}:{port}", **self.settings, "parent": str(os.getpid())}
        arguments = [f"{key}={value}" for key, value in settings.items()]
        SYSTEM.files.create(self.said)
        with self.said.open("ab") as said:
            self.said_bytes = said.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "replication.broker.process", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def _time_to_start_s(self) -> float:
        """Return the start timeout: a former registration may have to expire first, or logs need recovery."""
        directory = Path(self.settings["log.dirs"])
        is_new = SYSTEM.files.stat(directory / META) is None
        is_clean = is_new or SYSTEM.files.stat(directory / CLEAN_MARKER) is not None
        waits_s = 3 * self.config.zookeeper_session_timeout_ms / 1000
        return (READY_TIMEOUT_S if is_clean else MENDING_TIMEOUT_S) + waits_s

    def wait_until_up(self, is_over: threading.Event) -> None:
        """Raises: LocalClusterError: it ended instead, did not serve in time, or `is_over` was set."""
        process = self.process
        assert process is not None, f"broker {self.broker} was not started"
        assert process.stdout is not None, "it is piped"
        self._wait_for_word(process.stdout.fileno(), is_over)
        line = process.stdout.readline()
        name, _, address = line.strip().partition("=")
        if name != "bootstrap":
            process.communicate()
            said = SYSTEM.files.read_all(self.said)[self.said_bytes :].decode(errors="replace").strip()
            raise LocalClusterError(f"broker {self.broker} did not start: {said[-2000:] or line!r}")
        host, _, port = address.rpartition(":")
        self.address = host, int(port)
        self.is_serving = True

    def _wait_for_word(self, stdout: int, is_over: threading.Event) -> None:
        end_ms = SYSTEM.clock.monotonic_ms() + self._start_timeout_s * 1000
        poller = select.poll()
        poller.register(stdout, select.POLLIN)
        logged = ""
        while not poller.poll(LOOK_MS):
            warning = self._latest_warning()
            if warning not in ("", logged):
                logger.warning("broker=%d is starting: %s", self.broker, warning)
                logged = warning
            if is_over.is_set():
                raise LocalClusterError(f"stopped while broker {self.broker} was starting")
            if SYSTEM.clock.monotonic_ms() >= end_ms:
                raise LocalClusterError(
                    f"broker {self.broker} does not serve after {self._start_timeout_s:g} s; see {self._log}"
                )

    def _latest_warning(self) -> str:
        stat = SYSTEM.files.stat(self._log)
        if stat is None or stat.size <= self._log_bytes:
            return ""
        with self._log.open("rb") as file:
            file.seek(self._log_bytes)
            lines = file.read().decode(errors="replace").splitlines()
        return next((line.partition("] ")[2] for line in reversed(lines) if "] WARNING " in line), "")

    def pause(self, coordination: str) -> None:
        """Raises: LocalClusterError: it is not up."""
        if self.process is None or not self.is_up:
            raise LocalClusterError(f"broker {self.broker} is not up")
        pause(self.process, coordination)
        self.is_paused = True

    def resume(self) -> None:
        self.send(signal.SIGCONT)
        self.is_paused = False

    def cut_off(self, addresses: Iterable[Address]) -> None:
        """Let it reach all others but these, from now on.

        Raises: LocalClusterError: it is paused, or does not answer.
        """
        process = self.process
        if self.is_paused:
            raise LocalClusterError(f"broker {self.broker} is paused: resume it first")
        self.unreachable = frozenset(addresses)
        assert process is not None, f"broker {self.broker} is not up"
        assert process.stdin is not None, "it is piped"
        assert process.stdout is not None, "it is piped"
        line = f"unreachable={','.join(f'{host} {port}' for host, port in sorted(self.unreachable))}\n"
        try:
            process.stdin.write(line)
            process.stdin.flush()
            poller = select.poll()
            poller.register(process.stdout, select.POLLIN)
            answer = process.stdout.readline() if poller.poll(READY_TIMEOUT_S * 1000) else ""
        except BrokenPipeError:
            answer = ""
        if answer != line:
            raise LocalClusterError(f"broker {self.broker} does not answer; see {self._log}")

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.is_up:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end, and kill it after the timeout. Returns the exit code."""
        process = self.process
        if process is None:
            return None
        try:
            process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            logger.warning("broker=%d did not stop within %g s: killed", self.broker, timeout_s)
            process.kill()
            process.communicate()
        self.process = None
        return process.returncode


def pause(process: subprocess.Popen[str], coordination: str) -> None:
    """Stop a child of this process where it stands, but not while it holds the lock of the coordination file.

    Nobody could decide anything until it goes on. Raises: LocalClusterError: it has ended.
    """
    for _ in range(PAUSES_MAX):
        process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(process.pid, os.WUNTRACED)  # until every thread of it stands still
        if not os.WIFSTOPPED(status):
            process.returncode = os.waitstatus_to_exitcode(status)
            raise LocalClusterError(f"process {process.pid} has ended")
        if not is_blocked(coordination):
            return
        process.send_signal(signal.SIGCONT)
        is_blocked(coordination)  # waits until it is not: else the next signal would find it there again
    raise LocalClusterError(f"process {process.pid} held the lock of {coordination} whenever it was stopped")
