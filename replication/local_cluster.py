"""LocalCluster: brokers as processes of this machine, for tests, notebooks and `pylog cluster start`.

Every broker has a directory `broker-ID` below that of the cluster, keeps its port over restarts, and ends with this
process. The coordination store is a SQLite file, unless another store is named.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from logstore.checkpoint import make_directory
from logstore.env import SYSTEM
from logstore.errors import InvalidConfigError, PylogError
from logstore.store.log_dir import BROKER, CLEAN_MARKER
from logstore.store.meta_properties import META
from replication.client.cluster import brokers_known_at
from replication.config.broker import BrokerConfig
from replication.coordination import cluster, open_tree
from replication.coordination.tree import Tree
from replication.model.cluster import UNCLEAN, BrokerId, ClusterState, LeaderAndIsr
from replication.replica.storage.log_dir import SERVER_LOG, check_directory

logger = logging.getLogger(__name__)


_T = TypeVar("_T")

READY_TIMEOUT_S = 30
MENDING_TIMEOUT_S = 600  # after an unclean end: the broker recovers its logs first
POLL_MS = 50
LOOK_MS = 200  # between two looks at a starting broker
STOP_TIMEOUT_S = 30
GIVE_UP_TIMEOUT_S = 5  # for serving brokers, when a start is broken off
# Other defaults than a broker's: groups do not wait for more members, and the last broker that stops not for others.
DEFAULTS = {"group.initial.rebalance.delay.ms": "0", "controlled.shutdown.max.retries": "1"}
# Settings that a cluster sets for each of its brokers, and how to set them instead.
_OWN = {
    "broker.id": "the brokers of a cluster are numbered; --brokers says how many",
    "log.dirs": "each broker has a directory below that of the cluster: --dir",
    "log.dir": "each broker has a directory below that of the cluster: --dir",
    "listeners": "each broker has a port of its own on 127.0.0.1; for other addresses: pylog broker start",
    "advertised.listeners": "each broker has a port of its own on 127.0.0.1; for other addresses: pylog broker start",
    "coordination": "give it as --coordination STORE",
    "zookeeper.connect": "give it as --coordination zookeeper:HOST:PORT/CHROOT",
    "parent": "this is no setting: brokers end with the process that starts them",
}
METRICS_PORT = "metrics.port"


class DescribedTopic(NamedTuple):
    """One topic of a cluster. `partitions`: the replicas of each, the preferred one first; `id` None: not set yet."""

    partitions: Mapping[int, tuple[BrokerId, ...]]
    id: str | None
    unclean_leader_election: bool  # by a setting of its own


@dataclass(frozen=True, slots=True)
class ClusterDescription(ClusterState):
    """The content of the coordination store, its topics by the fields that people use."""

    topics: Mapping[str, DescribedTopic] = field(default_factory=dict)  # type: ignore[assignment]


class LocalClusterError(PylogError):
    """A broker did not start, or does not exist."""


class _Process:
    """The process of one broker, while it runs, and all that is needed to restart it."""

    def __init__(self, broker: BrokerId, settings: Mapping[str, str]) -> None:
        self.broker = broker
        self.settings = dict(settings)
        self.said = Path(settings["log.dirs"]).with_suffix(".stderr")
        self.said_bytes = 0  # the output of former runs
        self.address: tuple[str, int] | None = None
        self.process: subprocess.Popen[str] | None = None
        self.is_serving = False
        self._start_timeout_s = 0.0
        self._log = Path(settings["log.dirs"]) / BROKER / SERVER_LOG
        self._log_bytes = 0  # the log of former runs

    @property
    def config(self) -> BrokerConfig:
        return BrokerConfig.from_properties(self.settings)

    def check(self) -> None:
        """Raises: NotAStoreError, StoreLockedError: the directory belongs to another broker, or is in use."""
        if not self.is_up:
            check_directory(self.config)

    def start(self) -> None:
        self.is_serving = False
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
                stdin=subprocess.DEVNULL,
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


class LocalCluster:
    def __init__(
        self,
        brokers: int | Iterable[BrokerId] = 3,
        directory: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        coordination: str | None = None,
    ) -> None:
        ids = list(range(1, brokers + 1) if isinstance(brokers, int) else brokers)
        given = _settings_of_each(settings or {}, ids)
        if coordination is None:  # otherwise other brokers may take part
            _check_replicas(given)
        self._temporary = tempfile.TemporaryDirectory(prefix="pylog-cluster-") if directory is None else None
        self.directory = Path(self._temporary.name if self._temporary else str(directory))
        self.coordination = coordination or f"sqlite:{self.directory / 'coordination.db'}"
        self._is_over = threading.Event()
        self._brokers = {
            broker: _Process(
                broker,
                {
                    **DEFAULTS,
                    **given[broker],
                    "broker.id": str(broker),
                    "log.dirs": str(self.directory / f"broker-{broker}"),
                    "coordination": self.coordination,
                },
            )
            for broker in ids
        }

    def __repr__(self) -> str:
        down = [broker for broker, each in self._brokers.items() if not each.is_up]
        return f"LocalCluster({self.bootstrap!r}, live={self.live}{f', down={down}' if down else ''})"

    def start(self, is_over: threading.Event | None = None) -> Self:
        """Start all brokers; return when each of them knows all, or give up once `is_over` is set.

        Raises: LocalClusterError; NotAStoreError, StoreLockedError: a directory belongs to another broker, or is in
        use: nothing was started or written.
        """
        self._is_over = is_over or self._is_over
        make_directory(SYSTEM, self.directory)
        try:
            self.restart(*self._brokers)
        except BaseException:
            self._give_up()
            raise
        return self

    def _give_up(self) -> None:
        """Stop serving brokers in good order if that is quick; kill the others."""
        for each in self._brokers.values():
            each.send(signal.SIGTERM if each.is_serving else signal.SIGKILL)
        for each in self._brokers.values():
            each.wait(GIVE_UP_TIMEOUT_S)

    def restart(self, *brokers: BrokerId) -> None:
        """Start brokers that are not up; return when all running brokers know each other. Raises: as `start`."""
        chosen = self._chosen(brokers)
        for each in chosen:
            each.check()
        for each in chosen:
            each.start()
        for each in chosen:
            each.wait_until_up(self._is_over)
        self.wait_until_known()

    def stop(self, *brokers: BrokerId) -> list[int | None]:
        """Stop these in good order (default: all); return the exit codes."""
        chosen = self._chosen(brokers or self._brokers)
        for each in chosen:
            each.send(signal.SIGTERM)
            each.send(signal.SIGCONT)  # a paused one could not react
        return [each.wait(STOP_TIMEOUT_S) for each in chosen]

    def kill(self, *brokers: BrokerId) -> None:
        for each in self._chosen(brokers):
            each.send(signal.SIGKILL)
            each.wait(STOP_TIMEOUT_S)

    def _chosen(self, brokers: Iterable[BrokerId]) -> list[_Process]:
        return [self._of(broker) for broker in brokers]

    def _of(self, broker: BrokerId) -> _Process:
        if broker not in self._brokers:
            raise LocalClusterError(f"there is no broker {broker} in this cluster; there are {sorted(self._brokers)}")
        return self._brokers[broker]

    def close(self) -> None:
        """Stop everything; remove the directory if it was created for this cluster."""
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """host:port of all brokers that were ever up, separated by commas."""
        found = [each.address for each in self._brokers.values()]
        return ",".join(f"{address[0]}:{address[1]}" for address in found if address is not None)

    def pid(self, broker: BrokerId) -> int:
        process = self._of(broker).process
        assert process is not None, f"broker {broker} is not up"
        return process.pid

    def log_dir(self, broker: BrokerId) -> Path:
        return Path(self._of(broker).settings["log.dirs"])

    @property
    def live(self) -> list[BrokerId]:
        return [broker for broker, each in self._brokers.items() if each.is_up]

    def describe(self) -> ClusterDescription:
        found = _in_thread(self._read(cluster.read_cluster))
        topics = {
            name: DescribedTopic(
                each.replicas, each.topic_id or None, each.overrides.get(UNCLEAN, "").lower() == "true"
            )
            for name, each in found.topics.items()
        }
        known = {each.name: getattr(found, each.name) for each in fields(found)}
        return ClusterDescription(**known | {"topics": topics})

    def leaderless(self, broker: BrokerId) -> int:
        """Return how many partitions with a replica on this broker have no leader that is up, now that it is not."""
        found = self.describe()
        up = found.brokers.keys() - {broker}
        return sum(state.leader not in up for state in _states_on(found, broker))

    def not_in_sync(self, broker: BrokerId) -> int:
        """Return how many partitions this broker, which is up, will be in sync with: it has to copy, or to be elected.

        A partition that waits for another broker does not count.
        """
        found = self.describe()
        return sum((broker in state.isr) is not (state.leader in found.brokers) for state in _states_on(found, broker))

    def missing(self) -> list[BrokerId]:
        """Return the brokers with partitions that are neither in this cluster nor, started elsewhere, up."""
        return _in_thread(self._missing())

    def wait_until_known(self) -> None:
        _in_thread(self._wait_until_known())

    async def _read(self, read: Callable[[Tree], Awaitable[_T]]) -> _T:
        tree = await open_tree(self.coordination, on_session=lambda event: None, create=False)
        try:
            return await read(tree)
        finally:
            await tree.close()

    async def _missing(self) -> list[BrokerId]:
        found = await self._read(cluster.read_cluster)
        assigned = {
            broker for topic in found.topics.values() for replicas in topic.replicas.values() for broker in replicas
        }
        absent = assigned - self._brokers.keys()
        elsewhere = [found.brokers[broker] for broker in absent & found.brokers.keys()]
        # A killed broker stays registered for a while: ask each.
        up = {each.id for each in elsewhere if each.id in await brokers_known_at(each.host, each.port)}
        return sorted(absent - up)

    async def _wait_until_known(self) -> None:
        live = {broker: self._brokers[broker].address for broker in self.live}
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                for address in live.values():
                    assert address is not None, "it is up"
                    while not live.keys() <= await brokers_known_at(*address):
                        if self._is_over.is_set():
                            raise LocalClusterError("stopped while the brokers were getting to know each other")
                        await asyncio.sleep(POLL_MS / 1000)
        except TimeoutError:
            raise LocalClusterError(f"brokers {sorted(live)} do not all know each other") from None


def _states_on(found: ClusterDescription, broker: BrokerId) -> Iterator[LeaderAndIsr]:
    """The states of the partitions that have a replica there."""
    for tp, state in found.leadership.items():
        topic = found.topics.get(tp.topic)
        if topic is not None and broker in topic.partitions.get(tp.partition, ()):
            yield state


def _settings_of_each(given: Mapping[str, Any], brokers: Iterable[BrokerId]) -> dict[BrokerId, dict[str, str]]:
    """Return the settings of each broker. Raises: InvalidConfigError: one is wrong, or the cluster's own."""
    for key in sorted(given.keys() & _OWN.keys()):
        raise InvalidConfigError(f"{key}: {_OWN[key]}", key=key)
    settings = {key: str(value) for key, value in given.items()}
    port = BrokerConfig.from_properties(settings).metrics_port
    each: dict[BrokerId, dict[str, str]] = {}
    for number, broker in enumerate(brokers):
        each[broker] = {**settings, METRICS_PORT: str(port + number)} if port > 0 else settings
        BrokerConfig.from_properties(each[broker])
    return each


def _check_replicas(given: Mapping[BrokerId, Mapping[str, str]]) -> None:
    """Raises: InvalidConfigError: topics with the default number of replicas could not be created."""
    for settings in given.values():
        replicas = BrokerConfig.from_properties(settings).default_replication_factor
        if replicas > len(given):
            key = "default.replication.factor"
            raise InvalidConfigError(
                f"{key}={replicas}: more replicas than the cluster has brokers ({len(given)}), so no topic could be "
                "created automatically; use fewer replicas, or more --brokers",
                key=key,
            )


def _in_thread(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine, even where an event loop is already running (a notebook)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
