"""Small files that are old or new and never half written: settings, checkpoints, the mark of a failed disk.

A Kafka checkpoint is text: a line with the version (0), a line with the number of entries, one line per entry. After a
crash a file may still be garbage (an older writer, a broken disk): `read_checkpoint` then raises CheckpointError, and
the caller goes back to the log itself, which is the truth.

The mark `.fsync-failed` in a store's directory says that an fsync failed there. The kernel then forgets which pages
were never written and reports success at the next try, so no process may trust the directory until it was checked.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from logstore.env import Env, StrPath
from logstore.errors import FailedStoreError, StorageError, StoreError

VERSION = "0"
TEMPORARY_SUFFIX = ".tmp"
FSYNC_FAILED = ".fsync-failed"
# A last entry, with the CRC-32 of the others, where a flipped digit would pass for something else. No topic has this
# name, so a version that does not know it reads past it.
CHECKSUM = "#crc32"


class CheckpointError(StoreError):
    """The file is no checkpoint: fall back to its source."""


def write_atomic(env: Env, path: StrPath, data: bytes, *, durable: bool = True) -> None:
    """Put `data` at `path`, durably: readers and crashes see the old content or the new one.

    If not `durable`, a loss of power may leave anything there: for content with a checksum.
    """
    path = Path(path)
    # A name of its own length: that of a topic may leave no room for a suffix.
    temporary = path.with_name(f".{os.getpid()}-{threading.get_ident()}{TEMPORARY_SUFFIX}")
    try:
        env.files.create(temporary)
        env.files.truncate(temporary, 0)
        env.files.write(temporary, 0, data)
        if durable:
            env.files.fsync(temporary)
        env.files.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            env.files.unlink(temporary)
        raise
    if durable:
        env.files.fsync(path.parent)


def make_directory(env: Env, path: StrPath) -> None:
    """Make a directory, and those above it; durable on return, also where a process that died had just made it.

    fsync makes durable what is in a directory, and not the directory's own name, which is in its parent.
    """
    path = Path(path).absolute()
    made = [each for each in (path, *path.parents) if env.files.stat(each) is None]
    env.files.mkdir(path)
    for parent in dict.fromkeys(each.parent for each in (path, *made)):
        if made or env.files.is_writable(parent):  # else whoever could make something there did so long ago
            env.files.fsync(parent)


def read_checkpoint(env: Env, path: StrPath, *, needs_checksum: bool = False) -> list[list[str]]:
    """Return the entries, each split at its blanks, without the checksum.

    Raises: FileNotFoundError; CheckpointError: version, count, text or checksum are not those of a checkpoint.
    """
    raw = env.files.read_all(path)
    try:
        version, count, *lines = raw.decode().splitlines()
        entries = [line.split() for line in lines if line.strip()]
        if version != VERSION or int(count) != len(entries):
            raise ValueError(f"version {version}, {count} entries announced, {len(entries)} found")
        if entries and (needs_checksum or entries[-1][0] == CHECKSUM):
            *entries, (*_, check) = entries
            if int(check) != _checksum(entries):
                raise ValueError("its checksum is another one")
    except ValueError as error:
        raise CheckpointError(f"{path}: not a checkpoint: {error}; it is rebuilt from the log") from error
    return entries


def _checksum(entries: Iterable[Iterable[object]]) -> int:
    return zlib.crc32("\n".join(" ".join(map(str, entry)) for entry in entries).encode())


def write_checkpoint(
    env: Env, path: StrPath, entries: Iterable[Iterable[object]], *, checksum: Sequence[object] = ()
) -> None:
    """Write the entries, durably and atomically, as Kafka does.

    `checksum`: the first fields of a last entry, which has the CRC-32 of the others behind them.
    """
    entries = list(entries)
    if checksum:
        entries.append([*checksum, _checksum(entries)])
    lines = [" ".join(map(str, entry)) for entry in entries]
    write_atomic(env, path, "\n".join([VERSION, str(len(lines)), *lines, ""]).encode())


def fsync_or_mark(env: Env, path: StrPath, root: StrPath) -> None:
    """Make `path` durable, or leave the mark in `root` for every process and raise FailedStoreError."""
    with marking_failure(env, root):
        env.files.fsync(path)


@contextlib.contextmanager
def marking_failure(env: Env, root: StrPath) -> Iterator[None]:
    """Leave the mark in `root` if an fsync fails inside."""
    try:
        yield
    except FailedStoreError as error:
        # Best effort: the disk is failing, so it is not asked to sync this. Where the power takes the mark, it takes
        # the cache as well, and what is read then is what is on disk.
        with contextlib.suppress(StorageError):
            said = f"{env.clock.now_ms()} {error}\n".encode()
            write_atomic(env, Path(root) / FSYNC_FAILED, said, durable=False)
        raise


def check_mark(env: Env, root: StrPath) -> None:
    """Raise FailedStoreError if an fsync failed in this store, in any process. One stat."""
    mark = os.path.join(root, FSYNC_FAILED)  # noqa: PTH118  once per append
    if env.files.stat(mark) is None:
        return
    said = env.files.read_all(mark).decode(errors="replace").strip()
    raise FailedStoreError(
        f"{root}: an fsync failed here ({said}); run `pylog recover`: nothing is written until then",
        path=str(root),
        reason=said,
    )


def is_marked(env: Env, root: StrPath) -> bool:
    """True if an fsync failed in this store, in any process."""
    return env.files.stat(Path(root) / FSYNC_FAILED) is not None


def clear_mark(env: Env, root: StrPath) -> None:
    """Remove the mark: the store was checked. For `pylog recover`."""
    env.files.unlink(Path(root) / FSYNC_FAILED)
    fsync_or_mark(env, root, root)
