"""Where the compiled kernels are kept, and whether they are there; to ask that needs no numba.

It is where NUMBA_CACHE_DIR says, or beside the sources, or in the user's cache directory, or, where none of these may
be written, in a private directory under the system's temporary directory; in a directory of its own for each state of
the sources, because numba looks only at the file of a kernel itself. One of several processes that begin at once
compiles, and the others wait for it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from logstore.env import SYSTEM, Lock
from logstore.errors import PylogError

WAIT_MS = 60_000  # for whoever compiles; then this process does, too
SOURCES = Path(__file__).parent / "kernels"
DONE = f"{sys.implementation.cache_tag}.done"  # written when all kernels are there


def is_kept() -> bool:
    """Whether all kernels are compiled already: if not, one process should do it before many start."""
    path = directory()
    return path is not None and (path / DONE).exists()


def take_turn(path: Path | None) -> Lock | None:
    """Return once this process should compile into this directory, or all kernels are there; release the lock then."""
    begin_ms = SYSTEM.clock.monotonic_ms()
    while path is not None and not is_kept() and SYSTEM.clock.monotonic_ms() - begin_ms < WAIT_MS:
        try:
            if (lock := SYSTEM.files.lock(path / "compiling.lock", wait=False)) is not None:
                return lock
        except PylogError:  # no locks here
            return None
        SYSTEM.clock.sleep_ms(50)
    return None


def note_done(path: Path | None, turn: Lock | None) -> None:
    """Note that this directory has all kernels, and let others go on; None: they are not kept."""
    if path is not None:
        (path / DONE).touch()
    if turn is not None:
        turn.release()


def directory() -> Path | None:
    """The first place that can be written, for the sources as they are; None: nothing can be kept."""
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(SOURCES.glob("*.py"))]
    state = hashlib.sha256(repr(states).encode()).hexdigest()[:16]
    for place in _places():
        if place is not None:
            path = place / state
            try:
                path.mkdir(parents=True, exist_ok=True)
                tempfile.TemporaryFile(dir=path).close()
            except OSError:
                continue
            return path
    return None


def _places() -> Iterator[Path | None]:
    if directory := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(directory)
    yield SOURCES / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "pylog"  # noqa: PTH111 - never raises
    yield private_directory()


def private_directory() -> Path | None:
    """A directory of this user alone, or None: what is loaded from it is executed."""
    path = Path(tempfile.gettempdir()) / f"pylog-numba-{os.getuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError:
        return None
    mine = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return path if mine else None
