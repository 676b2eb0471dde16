"""Formats: whether what stands in a segment, and is no batch, is something that another program wrote on purpose.

Such a thing is never cut, however the log was closed: only what fails its own CRC, or is short, is left of a crash.
"""

from __future__ import annotations

from typing import Final

from logstore.env import Env
from logstore.errors import CorruptLogError, UnsupportedFormatError
from logstore.records.foreign import OLD_BYTES_MIN, foreign_format, message_head

# Behind a failing message old ones are looked for, by the lengths that lead on.
_MESSAGES_MAX: Final = 1000


def foreign_at(env: Env, path: str, position: int) -> CorruptLogError | None:
    """The error that names a whole message at `position` that pylog does not read; None: there is none.

    UnsupportedFormatError: one of format 0 or 1, which counts behind failing ones, too.
    """
    stat = env.files.stat(path)
    at, size_bytes = position, 0 if stat is None else stat.size
    for _ in range(_MESSAGES_MAX):
        head = message_head(env.files.read(path, at, OLD_BYTES_MIN)) if at < size_bytes else None
        if head is None or not head.is_possible or at + head.size_bytes > size_bytes:
            return None
        if at == position or head.is_old:
            reason = foreign_format(env.files.read(path, at, head.size_bytes))
            if reason is not None:
                return (UnsupportedFormatError if head.is_old else CorruptLogError)(path, at, reason)
        at += head.size_bytes
    return None


def old_at(env: Env, path: str, position: int) -> UnsupportedFormatError | None:
    """As `foreign_at`, of format 0 or 1 only: no single bit turns one of ours into that."""
    found = foreign_at(env, path, position)
    return found if isinstance(found, UnsupportedFormatError) else None


def named(env: Env, error: CorruptLogError) -> CorruptLogError:
    """The error itself, or the one that names the old format of what is there."""
    if isinstance(error, UnsupportedFormatError) or not error.path.endswith(".log"):
        return error
    return old_at(env, error.path, error.position) or error
