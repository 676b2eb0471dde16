"""Files that left the log but stay for `file.delete.delay.ms`, for those who still read them.

A segment leaves by renames. Its indexes go before its .log, which does without, and the transaction indexes after it:
as long as the log is there, it is read rightly. Retention removes the files when their delay is over, recovery at once.
A time stamp from the future, by a clock that was wrong, counts by its distance.
"""

from __future__ import annotations

from collections.abc import Iterable

from logstore.env import Env
from logstore.log.segments.names import DELETED_FILE, deleted_file
from logstore.log.segments.segment import Segment

_KINDS_IN_ORDER = ("index", "timeindex", "log", "txnindex", "txncheck", "snapshot")


def delete_later(env: Env, segment: Segment, now_ms: int) -> None:
    """Take a segment out of the log; its files stay under other names. May be repeated after a crash."""
    stem = segment.path.removesuffix(".log")
    for kind in _KINDS_IN_ORDER:
        path = f"{stem}.{kind}"
        if env.files.stat(path) is not None:
            env.files.rename(path, deleted_file(path, now_ms))
            env.files.unlink(path)  # a torn rename had left both names: then this one did nothing


def remove_overdue(env: Env, directory: str, names: Iterable[str], *, now_ms: int, delay_ms: int) -> int:
    """Remove the deleted files among `names` whose time is over; return how many."""
    removed = 0
    for name in names:
        match = DELETED_FILE.fullmatch(name)
        if match and abs(now_ms - int(match[1])) >= delay_ms:
            env.files.unlink(f"{directory}/{name}")
            removed += 1
    return removed
