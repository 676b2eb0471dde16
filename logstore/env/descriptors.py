"""Descriptors: the open files of a process, a bounded number of them."""

from __future__ import annotations

import os
import threading
from typing import Any

from logstore.env.failures import mapped
from logstore.env.locks import reset_after_fork

PASSED = 8  # see `Descriptors.at`


class Descriptor:
    """An open file, closed when its last user lets go."""

    __slots__ = ("fd", "writable")

    def __init__(self, path: str, flags: int, *, writable: bool) -> None:
        self.fd = -1
        self.fd = os.open(path, flags, 0o644)
        self.writable = writable

    def __del__(self, close: Any = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)


class Descriptors:
    """A pool of at most `limit` descriptors, and one more. `syncing`: the threads that are in an fsync."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.open: dict[str, Descriptor] = {}  # least recently used first
        self.syncing: set[int] = set()
        self.open_in: dict[str, set[str]] = {}  # directory -> what is open of it
        self._passed = 0  # files that were opened while the pool was full
        self._last_passed: tuple[str, Descriptor] | None = None  # mostly it is used again at once
        self._mutex = threading.Lock()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self.syncing.clear()
        self._mutex = threading.Lock()

    def at(self, path: str, *, writable: bool = False) -> Descriptor:
        """The pooled descriptor of `path`, opened if need be.

        A full pool drops the least recently used for every eighth file that is opened, and of the others only the last
        is kept: where more files than there is room for are used in turn, most of those that are kept are used again.
        """
        with self._mutex:
            file = self.open.pop(path, None)
            is_new = file is None
            if is_new and self._last_passed is not None and self._last_passed[0] == path:
                file = self._last_passed[1]
                if file.writable or not writable:
                    return file
            if file is None or (writable and not file.writable):
                with mapped("open", path):
                    file = Descriptor(path, os.O_RDWR if writable else os.O_RDONLY, writable=writable)
            if is_new and len(self.open) >= self.limit:
                self._passed += 1
                if self._passed % PASSED:
                    self._last_passed = path, file
                    return file
                self._drop(next(iter(self.open)))
            self.open[path] = file
            if is_new:
                self.open_in.setdefault(os.path.dirname(path), set()).add(path)
        return file

    def forget(self, path: str) -> None:
        with self._mutex:
            self._last_passed = None
            for name in (path, *self.open_in.get(path, ())):
                if name in self.open:
                    self._drop(name)

    def _drop(self, path: str) -> None:
        """Under the mutex: close what is open at `path` once nobody uses it."""
        del self.open[path]
        directory = os.path.dirname(path)
        self.open_in[directory].discard(path)
        if not self.open_in[directory]:
            del self.open_in[directory]
