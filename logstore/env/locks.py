"""File locks, and what a fork does to locks of any kind: the child shares none with its parent."""

from __future__ import annotations

import errno
import fcntl
import os
import weakref
from typing import Protocol

from logstore.env.failures import StrPath, failure, mapped


class _HasLocks(Protocol):
    def after_fork(self) -> None: ...


_has_locks: weakref.WeakSet[_HasLocks] = weakref.WeakSet()


def reset_after_fork(owner: _HasLocks) -> None:
    """Call `owner.after_fork()` in every forked child for as long as `owner` lives.

    A lock that another thread of the parent holds at the fork would never be released in the child.
    """
    _has_locks.add(owner)


def _reset_all() -> None:
    for owner in list(_has_locks):
        owner.after_fork()


os.register_at_fork(after_in_child=_reset_all)


class Lock:
    """A flock on a descriptor of its own, so that neither a fork nor another thread shares it."""

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        reset_after_fork(self)

    def release(self) -> None:
        """Let others in; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            # Unlock before closing: a child that is just being forked may hold a copy of the descriptor.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def after_fork(self) -> None:
        """Close the child's copy without unlocking: the lock belongs to the parent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def flock(path: StrPath, *, shared: bool, wait: bool) -> Lock | None:
    """Return the lock of this file; None: it is taken, and `wait` is false. See `OsFiles.lock`."""
    mode = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    with mapped("lock", path):
        fd = _open_to_lock(path, shared=shared)
    try:
        fcntl.flock(fd, mode)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise failure("lock", path, error) from error
        raise
    return Lock(fd)


def _open_to_lock(path: StrPath, *, shared: bool) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if shared and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return os.open(path, os.O_RDONLY)
        raise
