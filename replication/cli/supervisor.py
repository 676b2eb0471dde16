"""The process of `pylog cluster start`: it watches its brokers, and stops or restarts one that a command asks for.

They meet at a socket in the cluster's directory: the command writes `stop 2`, and reads a line of JSON once it is done.
Only the user who runs the cluster can connect.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from logstore.cli.terminal import Failure, counted
from logstore.env import SYSTEM
from logstore.errors import PylogError

if TYPE_CHECKING:
    from replication.local_cluster import LocalCluster

Order = Literal["stop", "restart"]

SOCKET = "supervisor.sock"
LOOK_S = 0.2  # how often the brokers of a cluster, and its end, are looked at
ASKING_TIMEOUT_S = 5  # for a line of a few bytes
LINE_BYTES_MAX = 16_384
ADDRESS_BYTES_MAX = 103  # of macOS; Linux has four more
IN_SYNC_TIMEOUT_S = 30
_NOBODY = (errno.ENOENT, errno.ECONNREFUSED)


class Answer(NamedTuple):
    is_done: bool
    said: str


def ask(directory: Path, order: Order, broker: int) -> str:
    """Return what happened, once it has. Raises: Failure: it was not done, or no cluster runs in this directory."""
    with closing(socket.socket(socket.AF_UNIX)) as asking:
        try:
            with address_of(directory) as address:
                asking.connect(address)
            asking.sendall(f"{order} {broker}\n".encode())
            found = _line(asking)
        except OSError as error:
            if error.errno in _NOBODY:
                raise Failure(f"no `pylog cluster start` runs in {directory}") from None
            raise Failure(f"cannot reach the cluster in {directory}: {error.strerror}") from error
    if not found:
        raise Failure("the cluster ended before it answered")
    answer = Answer(*json.loads(found))
    if not answer.is_done:
        raise Failure(answer.said)
    return answer.said


def _line(connection: socket.socket) -> str:
    found = b""
    while len(found) < LINE_BYTES_MAX and not found.endswith(b"\n") and (more := connection.recv(LINE_BYTES_MAX)):
        found += more
    return found.decode()


@contextmanager
def address_of(directory: Path) -> Iterator[str]:
    """The address of the socket: of few bytes, as the system wants it, however long the directory's name is."""
    address = str(directory.absolute() / SOCKET)
    if len(os.fsencode(address)) <= ADDRESS_BYTES_MAX:
        yield address
        return
    with tempfile.TemporaryDirectory(prefix="pylog-") as link:
        Path(link, "d").symlink_to(directory.absolute())
        yield f"{link}/d/{SOCKET}"


class Supervisor:
    """Does one thing after the other; the end of the cluster is noticed within LOOK_S, or after what is being done."""

    def __init__(self, running: LocalCluster, is_over: threading.Event, say: Callable[[str], None]) -> None:
        self._running = running
        self._is_over = is_over
        self._say = say
        self._stopped: set[int] = set()  # by a command, and not restarted
        self._listener = _listen(running.directory)

    def close(self) -> None:
        SYSTEM.files.unlink(self._running.directory / SOCKET)
        self._listener.close()

    def watch(self, live: set[int]) -> None:
        """Return at the end of the cluster. Raises: Failure: all brokers have ended by themselves."""
        while not self._is_over.is_set():
            if select.select([self._listener], [], [], LOOK_S)[0]:
                self._serve()
            live = live | set(self._running.live)
            for broker in sorted(live - set(self._running.live) - self._stopped):
                log = self._running.log_dir(broker) / "broker" / "server.log"
                self._say(f"broker {broker} has ended; {log} says why")
            live = set(self._running.live)
            if not live and not self._stopped and not self._is_over.is_set():
                raise Failure("no broker is left")

    def _serve(self) -> None:
        asking = self._listener.accept()[0]
        with closing(asking):
            asking.settimeout(ASKING_TIMEOUT_S)
            try:
                order, broker = _line(asking).split()
                answer = self._perform(order, int(broker))
                asking.sendall(json.dumps(answer).encode() + b"\n")
            except (OSError, ValueError) as error:  # whoever asked is gone, or was no command of ours
                self._say(f"a command was not answered: {error}")
            else:
                self._say(answer.said)

    def _perform(self, order: str, broker: int) -> Answer:
        try:
            match order:
                case "stop":
                    return self._stop(broker)
                case "restart":
                    return self._restart(broker)
                case _:
                    raise ValueError(f"unknown command: {order!r}")
        except (PylogError, OSError) as error:
            return Answer(False, str(error))

    def _stop(self, broker: int) -> Answer:
        self._running.log_dir(broker)  # raises, where it is none of the cluster
        if broker not in self._running.live:
            return Answer(False, f"broker {broker} does not run")
        (code,) = self._running.stop(broker)
        self._stopped.add(broker)
        if code != 0:
            return Answer(False, f"broker {broker} did not stop cleanly: exit code {code}")
        left = self._running.leaderless(broker)
        lost = f"; no leader now: {counted(left, 'partition')} with a replica there" if left else ""
        return Answer(True, f"broker {broker} has stopped{lost}")

    def _restart(self, broker: int) -> Answer:
        self._running.log_dir(broker)  # raises, where it is none of the cluster
        code = None
        if broker in self._running.live:
            (code,) = self._running.stop(broker)
        self._stopped.add(broker)  # until it runs: what follows may fail
        self._running.restart(broker)
        self._stopped.discard(broker)
        end_ms = SYSTEM.clock.monotonic_ms() + IN_SYNC_TIMEOUT_S * 1000
        while (behind := self._running.not_in_sync(broker)) and SYSTEM.clock.monotonic_ms() < end_ms:
            if self._is_over.wait(LOOK_S):
                break
        killed = f"; it had not stopped cleanly: exit code {code}" if code else ""
        state = f"; not in sync yet: {counted(behind, 'partition')}" if behind else ", and in sync"
        return Answer(True, f"broker {broker} runs again{state}{killed}")


def _listen(directory: Path) -> socket.socket:
    """Return the socket; one that a killed cluster left is replaced. Raises: Failure: another cluster runs there."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        with address_of(directory) as address:
            if _is_served(address):
                raise Failure(
                    f"another `pylog cluster start` runs in {directory}: give each its own --dir, and both the same "
                    "--coordination"
                )
            SYSTEM.files.unlink(directory / SOCKET)
            listener.bind(address)
            os.chmod(address, 0o600)  # noqa: PTH101 - of the user alone, before anybody can connect
            listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def _is_served(address: str) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        try:
            probe.connect(address)
        except OSError:
            return False
        return True
