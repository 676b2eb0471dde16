"""The brokers of a LocalCluster, as processes: started, stopped, killed and paused."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from logstore.checkpoint import make_directory
from logstore.env import SYSTEM
from replication.client.cluster import brokers_known_at
from replication.local_cluster import process
from replication.local_cluster.description import in_thread
from replication.local_cluster.process import BrokerProcess, LocalClusterError
from replication.local_cluster.settings import DEFAULTS, check_replicas, settings_of_each
from replication.model.cluster import BrokerId

POLL_MS = 50
GIVE_UP_TIMEOUT_S = 5  # for serving brokers, when a start is broken off


class Brokers:
    """The brokers of one cluster on this machine. `with` starts and stops them."""

    def __init__(
        self,
        brokers: int | Iterable[BrokerId] = 3,
        directory: str | Path | None = None,
        settings: Mapping[str, Any] | None = None,
        *,
        coordination: str | None = None,
    ) -> None:
        ids = list(range(1, brokers + 1) if isinstance(brokers, int) else brokers)
        given = settings_of_each(settings or {}, ids)
        if coordination is None:  # otherwise other brokers may take part
            check_replicas(given)
        self._temporary = tempfile.TemporaryDirectory(prefix="pylog-cluster-") if directory is None else None
        self.directory = Path(self._temporary.name if self._temporary else str(directory))
        self.coordination = coordination or f"sqlite:{self.directory / 'coordination.db'}"
        self._is_over = threading.Event()
        self._brokers = {
            broker: BrokerProcess(
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
        return f"{type(self).__name__}({self.bootstrap!r}, live={self.live}{f', down={down}' if down else ''})"

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
        return [each.wait(process.STOP_TIMEOUT_S) for each in chosen]

    def kill(self, *brokers: BrokerId) -> None:
        for each in self._chosen(brokers):
            each.send(signal.SIGKILL)
            each.wait(process.STOP_TIMEOUT_S)

    def pause(self, *brokers: BrokerId) -> ExitStack:
        """Stop these where they stand (SIGSTOP), at once. The result, as a context manager, resumes them at its end.

        After its session timeout (zookeeper.session.timeout.ms) a paused broker counts as dead.
        """
        for each in self._chosen(brokers):
            if not each.is_paused:
                each.pause(self.coordination)
        resumed = ExitStack()
        resumed.callback(self.resume, *brokers)
        return resumed

    def resume(self, *brokers: BrokerId) -> None:
        """Let these go on (SIGCONT); those that are not paused do so anyway."""
        for each in self._chosen(brokers):
            each.resume()

    def _chosen(self, brokers: Iterable[BrokerId]) -> list[BrokerProcess]:
        return [self._of(broker) for broker in brokers]

    def _of(self, broker: BrokerId) -> BrokerProcess:
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
        found = self._of(broker).process
        assert found is not None, f"broker {broker} is not up"
        return found.pid

    def log_dir(self, broker: BrokerId) -> Path:
        return Path(self._of(broker).settings["log.dirs"])

    @property
    def live(self) -> list[BrokerId]:
        return [broker for broker, each in self._brokers.items() if each.is_up]

    def wait_until_known(self) -> None:
        """Return when all running brokers know each other, but for those that are paused."""
        in_thread(self._wait_until_known())

    async def _wait_until_known(self) -> None:
        live = {broker: each.address for broker, each in self._brokers.items() if each.is_up and not each.is_paused}
        try:
            async with asyncio.timeout(process.READY_TIMEOUT_S):
                for address in live.values():
                    assert address is not None, "it is up"
                    while not live.keys() <= await brokers_known_at(*address):
                        if self._is_over.is_set():
                            raise LocalClusterError("stopped while the brokers were getting to know each other")
                        await asyncio.sleep(POLL_MS / 1000)
        except TimeoutError:
            raise LocalClusterError(f"brokers {sorted(live)} do not all know each other") from None
