"""Marks: one offset per file, beside the segments of a partition, that every process sees at its next look.

::

    log-start-offset   records below it are deleted, whatever segments are still there
    cleaner-offset     compaction has seen everything below it
    tiered-offset      everything below it is in remote storage, too

A mark is replaced whole, and durable when `write` returns: the replacement changes the directory, on whose stat every
`DirectoryView` rests. It carries a checksum, since nothing else could tell a flipped digit. A missing or damaged mark
counts as 0: what it stood for is done again, or waits. Only a damaged log start is an error: deleted records must not
come back unnoticed.
"""

from __future__ import annotations

import logging
import zlib

from logstore.checkpoint import CheckpointError, marking_failure, read_checkpoint, write_checkpoint
from logstore.env import Env
from logstore.errors import CorruptLogError

logger = logging.getLogger(__name__)

LOG_START = "log-start-offset"
CLEANED = "cleaner-offset"
TIERED = "tiered-offset"
NAMES = frozenset({LOG_START, CLEANED, TIERED})
REMEDY = "restore it; or remove it, and delete the records again that will be back then"


def read(env: Env, directory: str, name: str) -> int:
    """The offset of this mark; 0 if there is none, or what is there is damaged (which is logged).

    Raises: CorruptLogError: the log start is damaged.
    """
    try:
        ((text, check),) = read_checkpoint(env, f"{directory}/{name}")
        if int(check, 16) != zlib.crc32(text.encode()):
            raise ValueError(f"{text} has another checksum than {check}")
        return int(text)
    except FileNotFoundError:
        return 0
    except (CheckpointError, ValueError) as error:
        if name == LOG_START:
            raise CorruptLogError(f"{directory}/{name}", 0, str(error.__cause__ or error), REMEDY) from error
        logger.warning("path=%s/%s ignored, it is damaged: %s", directory, name, error)
        return 0


def write(env: Env, directory: str, name: str, offset: int) -> None:
    check = zlib.crc32(str(offset).encode())
    write_checkpoint(env, f"{directory}/{name}", [(offset, f"{check:08x}")])


def withdraw(env: Env, directory: str, name: str) -> None:
    """Take the mark away: what it stood for is true no more. Needs no lock, as no mark is always a safe one."""
    env.files.unlink(f"{directory}/{name}")
    env.files.fsync(directory)


def lower(env: Env, directory: str, offset: int) -> None:
    """Before the log is cut at `offset`: nobody has seen, or put elsewhere, what will be there then."""
    for name in (CLEANED, TIERED):
        if read(env, directory, name) > offset:
            with marking_failure(env, directory.rpartition("/")[0]):
                write(env, directory, name, offset)
