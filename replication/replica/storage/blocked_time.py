"""BlockedTime: how long a thread has waited for something else than a CPU: the disk, a lock, a client.

A thread that others keep from the CPU stands as long as one that waits for a disk. Linux tells them apart.
"""

from __future__ import annotations

import contextlib
import os
import time

from logstore.env import machine


class BlockedTime:
    """For the thread that makes it. `close` it, or let go of it."""

    def __init__(self) -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(machine.SCHEDSTAT, os.O_RDONLY)

    def ms(self) -> float:
        """Milliseconds so far, since an arbitrary time.

        Where the system does not tell how long the thread was ready to run, that counts too.
        """
        ready_ns = int(os.pread(self._fd, 64, 0).split()[1]) if self._fd >= 0 else 0
        return (time.monotonic_ns() - time.thread_time_ns() - ready_ns) / 1e6

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()
