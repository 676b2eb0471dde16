"""Whether another process is alive: by a lock that it holds, or by its id and start time.

Locks tell on one host only, ids inside of one container only: where `host()` is equal. Elsewhere time decides.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

from logstore.env import Env, Lock, boot_id, machine, reset_after_fork
from logstore.errors import StorageError

HOLDER_PREFIX = ".holder-"
# Above the process that plans a write are Spark's daemon and the JVM that drives the query.
DRIVER_COMMAND = "java"
ANCESTORS_MAX = 16


class Holders:
    """The processes that have something open in a directory: each holds a lock file while it runs."""

    def __init__(self, directory: Path, env: Env) -> None:
        self._directory = directory
        self._env = env
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self._lock: Lock | None = None
        self._name = ""
        self._work, self._mutex = Counter[str](), threading.RLock()

    def name(self) -> str:
        """The name of this process's lock, held from now on."""
        with self._mutex:
            while self._lock is None:
                name = f"{HOLDER_PREFIX}{uuid.uuid4().hex}"
                self._env.files.mkdir(self._directory)
                lock = self._env.files.lock(self._directory / name, wait=False)
                if lock is None:
                    continue
                if self._env.files.stat(self._directory / name) is None:
                    lock.release()  # somebody took it for that of a dead process, between creating and locking
                    continue
                self._lock, self._name = lock, name
            return self._name

    @contextmanager
    def announced_as(self, what: str) -> Iterator[None]:
        """While the block runs this process says in its lock file that it does this, in one line."""
        self._announce(Counter([what]))
        try:
            yield
        finally:
            self._announce(Counter({what: -1}))

    def _announce(self, change: Counter[str]) -> None:
        with self._mutex, suppress(StorageError):  # a full disk, which the work itself will meet
            self._work += change
            lines = [*self._work, "", ""]  # an empty one ends them: a longer text may have been there
            self._env.files.write(self._directory / self.name(), 0, "\n".join(lines).encode())

    def announced(self) -> set[str]:
        """The announcements of the processes that are alive."""
        names = [name for name in self._env.files.list(self._directory).names if self.is_held(name)]
        texts = [_read(self._env, str(self._directory / name)) for name in names]
        return {line for text in texts for line in takewhile(bool, text.split("\n"))}

    def is_held(self, name: str) -> bool:
        """True if the process of this name is alive; else its lock file is removed."""
        if name == self._name:
            return True
        path = self._directory / name
        if not name.startswith(HOLDER_PREFIX) or self._env.files.stat(path) is None:
            return False
        try:
            lock = self._env.files.lock(path, shared=True, wait=False)
        except FileNotFoundError:
            return False
        if lock is None:
            return True
        if self._env.files.is_writable(self._directory):
            self._env.files.unlink(path)
        lock.release()
        return False

    def sweep(self) -> None:
        for name in self._env.files.list(self._directory).names:
            if name.startswith(HOLDER_PREFIX):
                self.is_held(name)

    def release(self) -> bool:
        """Release the lock; False if none was held."""
        lock, name = self._lock, self._name
        self._lock, self._name = None, ""
        if lock is not None:
            self._env.files.unlink(self._directory / name)
            lock.release()
        return lock is not None


def host(env: Env) -> str:
    """The boot of this machine and the container: equal where processes can see each other."""
    boot = boot_id(env.files)
    space = machine.process_space(env.files)
    return "" if not boot or space is None else f"{boot}/{space}"


def this(env: Env) -> str:
    """The identity of this process, as `is_alive` takes it; "unknown" where the system does not tell."""
    found = machine.process(env.files, os.getpid())
    return "unknown" if found is None else f"{host(env)} {os.getpid()} {found.started}"


def driver(env: Env) -> str:
    """The identity of the JVM above this process; "unknown" if there is none."""
    pid = os.getpid()
    for _ in range(ANCESTORS_MAX):
        found = machine.process(env.files, pid)
        if found is None:
            break
        if found.command == DRIVER_COMMAND:
            return f"{host(env)} {pid} {found.started}"
        pid = found.parent
    return "unknown"


def is_alive(env: Env, driver: str) -> bool | None:
    """True if this very process is alive; None if that cannot be seen from here."""
    where, _, process = driver.partition(" ")
    pid, _, started = process.partition(" ")
    if not pid or where != host(env):
        return None
    found = machine.process(env.files, int(pid))
    return found is not None and found.started == started


def _read(env: Env, path: str) -> str:
    try:
        return env.files.read_all(path).decode("utf-8", "replace")
    except (FileNotFoundError, StorageError):
        return ""
