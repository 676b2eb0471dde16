"""Files that left the log but stay for a while, for those who still read them.

::

    <20 digits>.log.<milliseconds>.deleted    and the same for what belongs to it; the time is when it left

A segment leaves by renames. Its indexes go before its .log, which does without, and what says how
transactions ended goes after it: as long as the log is there, it is read rightly. Whoever keeps house removes
what has been there for `file.delete.delay.ms`; recovery removes it at once. A time stamp from the future, by a
clock that was wrong, counts by its distance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from logstore.env import Env
from logstore.log.segments.segment import Segment

DELETED_SUFFIX = ".deleted"
_NAME = re.compile(r"\d{20}\.\w+\.(\d+)\.deleted")
_KINDS_IN_ORDER = ("index", "timeindex", "log", "txnindex", "txncheck", "snapshot")


def delete_later(env: Env, segment: Segment, now_ms: int) -> None:
    """Take a segment out of the log; its files stay under other names. May be repeated after a crash."""
    stem = segment.path.removesuffix(".log")
    for kind in _KINDS_IN_ORDER:
        path = f"{stem}.{kind}"
        if env.files.stat(path) is not None:
            env.files.rename(path, retired_path(path, now_ms))
            env.files.unlink(path)  # a torn rename had left both names: then this one did nothing


def retired_path(path: str, now_ms: int) -> str:
    """What a file is called that left the log at this time."""
    return f"{path}.{now_ms}{DELETED_SUFFIX}"


def remove_overdue(env: Env, directory: str, names: Iterable[str], *, now_ms: int, delay_ms: int) -> int:
    """Remove the retired files among `names` whose time is over; return how many."""
    removed = 0
    for name in names:
        match = _NAME.fullmatch(name)
        if match and abs(now_ms - int(match[1])) >= delay_ms:
            env.files.unlink(f"{directory}/{name}")
            removed += 1
    return removed
