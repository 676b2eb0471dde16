"""LocalCluster: brokers as processes of this machine, for tests, notebooks and `pylog cluster start`.

Every broker has a directory `broker-ID` below that of the cluster, keeps its port when it is restarted, and ends with
this process. What the cluster agrees on is a SQLite file, unless another store is named.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from logstore.env import SYSTEM
from logstore.errors import PylogError
from replication.client import Client
from replication.coordination import cluster, nodes, open_tree
from replication.errors import ProtocolError
from replication.model import BrokerId, ClusterState
from replication.protocol.apis import ApiKey

logger = logging.getLogger(__name__)


_T = TypeVar("_T")

READY_TIMEOUT_S = 30
POLL_MS = 50
STOP_TIMEOUT_S = 30
# What differs from a broker's defaults: nobody waits for more members, and whoever stops last does not wait for others.
DEFAULTS = {"group.initial.rebalance.delay.ms": "0", "controlled.shutdown.max.retries": "1"}


class LocalClusterError(PylogError):
    """A broker did not start, or did not stop."""


class _Process:
    """One broker's process, while there is one, and what it needs to be started again."""

    def __init__(self, broker: BrokerId, settings: Mapping[str, str]) -> None:
        self.broker = broker
        self.settings = dict(settings)
        self.said = Path(settings["log.dirs"]).with_suffix(".stderr")
        self.address: tuple[str, int] | None = None
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        host, port = self.address or ("127.0.0.1", 0)
        settings = {"listeners": f"PLAINTEXT://{host}:{port}", **self.settings, "parent": str(os.getpid())}
        arguments = [f"{key}={value}" for key, value in settings.items()]
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "replication.broker_process", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def wait_until_up(self) -> None:
        """Raises: LocalClusterError: it ended instead."""
        process = self.process
        assert process is not None, f"broker {self.broker} was not started"
        assert process.stdout is not None, "it is piped"
        line = process.stdout.readline()
        name, _, address = line.strip().partition("=")
        if name != "bootstrap":
            process.communicate()
            said = SYSTEM.files.read_all(self.said).decode(errors="replace").strip()
            raise LocalClusterError(f"broker {self.broker} did not start: {said[-2000:] or line!r}")
        host, _, port = address.rpartition(":")
        self.address = host, int(port)

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.is_up:
            self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; kill it if that does not come. Returns what it ended with."""
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
    """See the module. A context manager: started on entry, stopped on exit, whatever happened."""

    def __init__(
        self,
        brokers: int | Iterable[BrokerId] = 3,
        directory: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        coordination: str | None = None,
    ) -> None:
        ids = range(1, brokers + 1) if isinstance(brokers, int) else brokers
        self._temporary = tempfile.TemporaryDirectory(prefix="pylog-cluster-") if directory is None else None
        self.directory = Path(self._temporary.name if self._temporary else str(directory))
        self.coordination = coordination or f"sqlite:{self.directory / 'coordination.db'}"
        given = {key: str(value) for key, value in (settings or {}).items()}
        self._brokers = {
            broker: _Process(
                broker,
                {
                    **DEFAULTS,
                    **given,
                    "broker.id": str(broker),
                    "log.dirs": str(self.directory / f"broker-{broker}"),
                    "coordination": self.coordination,
                },
            )
            for broker in ids
        }

    # --------------------------------------------------------------------- life

    def start(self) -> Self:
        """Start all brokers; return when each of them knows all. Raises: LocalClusterError."""
        SYSTEM.files.mkdir(self.directory)
        try:
            self.start_brokers(*self._brokers)
        except BaseException:
            self.kill(*self._brokers)
            raise
        return self

    def start_brokers(self, *brokers: BrokerId) -> None:
        """Start these; return when every broker that is up knows all that are up."""
        for broker in brokers:
            self._brokers[broker].start()
        for broker in brokers:
            self._brokers[broker].wait_until_up()
        self.wait_until_known()

    def restart(self, *brokers: BrokerId) -> None:
        """The same, for brokers that were stopped or killed."""
        self.start_brokers(*brokers)

    def stop(self, *brokers: BrokerId) -> list[int | None]:
        """Stop these in good order, or all if none are named; return what the processes ended with."""
        chosen = [self._brokers[broker] for broker in brokers or self._brokers]
        for each in chosen:
            each.send(signal.SIGTERM)
            each.send(signal.SIGCONT)  # one that is paused could not hear it
        return [each.wait(STOP_TIMEOUT_S) for each in chosen]

    def kill(self, *brokers: BrokerId) -> None:
        """End these at once, as a crash of the process does."""
        for broker in brokers:
            self._brokers[broker].send(signal.SIGKILL)
            self._brokers[broker].wait(STOP_TIMEOUT_S)

    def pause(self, broker: BrokerId) -> None:
        """Have the process stand still (SIGSTOP)."""
        self._brokers[broker].send(signal.SIGSTOP)

    def resume(self, broker: BrokerId) -> None:
        """Let it go on."""
        self._brokers[broker].send(signal.SIGCONT)

    def close(self) -> None:
        """Stop everything; remove the directory if it was made for this cluster."""
        self.stop()
        if self._temporary is not None:
            self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ looking

    @property
    def bootstrap(self) -> str:
        """host:port of all brokers that were ever up, separated by commas."""
        found = [each.address for each in self._brokers.values()]
        return ",".join(f"{address[0]}:{address[1]}" for address in found if address is not None)

    def address(self, broker: BrokerId) -> str:
        """host:port of one broker."""
        address = self._brokers[broker].address
        assert address is not None, f"broker {broker} was never up"
        return f"{address[0]}:{address[1]}"

    def pid(self, broker: BrokerId) -> int:
        """The process of a broker that is up."""
        process = self._brokers[broker].process
        assert process is not None, f"broker {broker} is not up"
        return process.pid

    def log_dir(self, broker: BrokerId) -> Path:
        """Where a broker keeps its logs."""
        return Path(self._brokers[broker].settings["log.dirs"])

    @property
    def live(self) -> list[BrokerId]:
        """The brokers whose processes are there."""
        return [broker for broker, each in self._brokers.items() if each.is_up]

    def describe(self) -> ClusterState:
        """What the coordination tree says now: brokers, topics, leaders, ISRs."""
        return _in_thread(self._describe())

    def controller(self) -> BrokerId | None:
        """Who is the controller."""
        return _in_thread(self._controller())

    def wait_until_known(self) -> None:
        """Return when every broker that is up knows all that are up. Raises: LocalClusterError."""
        _in_thread(self._wait_until_known())

    def remove_controller(self) -> None:
        """Remove the node that says who the controller is: its term is over, and another one begins."""
        _in_thread(self._remove_controller())

    async def _remove_controller(self) -> None:
        tree = await open_tree(self.coordination, on_session=lambda event: None)
        try:
            await tree.delete(nodes.CONTROLLER)
        finally:
            await tree.close()

    async def _describe(self) -> ClusterState:
        tree = await open_tree(self.coordination, on_session=lambda event: None)
        try:
            return await cluster.read_cluster(tree)
        finally:
            await tree.close()

    async def _controller(self) -> BrokerId | None:
        tree = await open_tree(self.coordination, on_session=lambda event: None)
        try:
            found = await tree.get(nodes.CONTROLLER)
            return None if found is None else nodes.decode_controller(found.data).broker
        finally:
            await tree.close()

    async def _wait_until_known(self) -> None:
        live = {broker: self._brokers[broker].address for broker in self.live}
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                for address in live.values():
                    assert address is not None, "it is up"
                    while not live.keys() <= await _known_at(*address):  # noqa: ASYNC110  others' processes
                        await asyncio.sleep(POLL_MS / 1000)
        except TimeoutError:
            raise LocalClusterError(f"brokers {sorted(live)} do not all know each other") from None


async def _known_at(host: str, port: int) -> set[BrokerId]:
    """The brokers that this one knows."""
    client = Client(host, port, "local-cluster", timeout_ms=5000)
    try:
        answer = await client.call(
            ApiKey.METADATA,
            {
                "topics": (),
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": False,
            },
        )
    except (OSError, TimeoutError, ProtocolError):
        return set()
    finally:
        client.close()
    return {broker.node_id for broker in answer.brokers}


def _in_thread(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine, also where an event loop is running already (a notebook)."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
