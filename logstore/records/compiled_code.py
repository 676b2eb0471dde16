"""Where the compiled kernels are kept, and whether they are there; to ask that needs no numba.

It is where NUMBA_CACHE_DIR says, or beside the sources, or in the user's cache directory, or, where none of these may
be written, in a private directory under the system's temporary directory; in a directory of its own for each state of
the sources, because numba looks only at the file of a kernel itself. One of several processes that need a kernel at
once compiles it, and the others wait for it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from logstore.env import SYSTEM, Lock
from logstore.errors import PylogError

WAIT_MS = 60_000  # for whoever compiles; then this process does, too
SOURCES = Path(__file__).parent / "kernels"
DONE = f"{sys.implementation.cache_tag}.done"  # written when all kernels that each process loads are there


def is_kept() -> bool:
    """Whether the kernels that each process loads are compiled: if not, one should do it before many start."""
    path = directory()
    return path is not None and (path / DONE).exists()


@contextmanager
def turn(path: Path | None, name: str) -> Iterator[None]:
    """Compile `name` into this directory inside, as the only process that does, or load what another one compiled.

    None: nothing is kept, each process compiles for itself.
    """
    if path is None or (done := path / f"{name}.{DONE}").exists():
        yield
        return
    lock = _only_one(path / f"{name}.compiling", done)
    try:
        yield
        note_done(path, f"{name}.{DONE}")
    finally:
        if lock is not None:
            lock.release()


def note_done(path: Path | None, name: str = DONE) -> None:
    """Note that this directory has all kernels, or what has this name; None: they are not kept."""
    if path is not None:
        (path / name).touch()


def _only_one(path: Path, done: Path) -> Lock | None:
    """The lock of whoever compiles; None: it is done, or whoever does it stands still, or there are no locks here."""
    begin_ms = SYSTEM.clock.monotonic_ms()
    while not done.exists() and SYSTEM.clock.monotonic_ms() - begin_ms < WAIT_MS:
        try:
            if (lock := SYSTEM.files.lock(path, wait=False)) is not None:
                return lock
        except PylogError:
            return None
        SYSTEM.clock.sleep_ms(50)
    return None


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
