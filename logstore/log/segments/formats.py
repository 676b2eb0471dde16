"""Formats: whether what stands in a segment, and is no batch, is something that another program wrote on purpose.

Such a thing is never cut, however the log was closed: only what fails its own CRC, or is short, is left of a crash.
"""

from __future__ import annotations

from typing import Final

from logstore.env import Env
from logstore.errors import CorruptLogError, UnsupportedFormatError
from logstore.records.foreign import OLD_BYTES_MIN, ForeignMessage, foreign_message, message_head

# Behind a failing message old ones are looked for, by the lengths that lead on.
_MESSAGES_MAX: Final = 1000


def find_foreign(env: Env, path: str, position: int) -> tuple[int, ForeignMessage] | None:
    """A whole message at `position` that pylog does not read; one of format 0 or 1 counts behind failing ones, too."""
    stat = env.files.stat(path)
    at, size_bytes = position, 0 if stat is None else stat.size
    for _ in range(_MESSAGES_MAX):
        head = message_head(env.files.read(path, at, OLD_BYTES_MIN)) if at < size_bytes else None
        if head is None or not head.is_possible or at + head.size_bytes > size_bytes:
            return None
        if at == position or head.is_old:
            found = foreign_message(env.files.read(path, at, head.size_bytes))
            if found is not None:
                return at, found
        at += head.size_bytes
    return None


def foreign_at(env: Env, path: str, position: int) -> CorruptLogError | None:
    """The error that names what `find_foreign` finds. UnsupportedFormatError: it is of format 0 or 1."""
    found = find_foreign(env, path, position)
    return None if found is None else refusal(path, *found)


def refusal(path: str, position: int, found: ForeignMessage) -> CorruptLogError:
    if found.head.is_old:
        return UnsupportedFormatError(path, position, found.reason)
    return CorruptLogError(path, position, found.reason, *(["the file was not changed"] if found.is_later else []))


def named(env: Env, error: CorruptLogError) -> CorruptLogError:
    """The error itself, or the one that names the message there which pylog does not read."""
    if isinstance(error, UnsupportedFormatError) or not error.path.endswith(".log"):
        return error
    return foreign_at(env, error.path, error.position) or error
