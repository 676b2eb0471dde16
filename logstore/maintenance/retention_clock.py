"""The time that deletions go by: wall time, but for a day after the clock jumped.

A clock that is set wrongly must not delete everything, nor nothing. One file in the store's directory holds its
knowledge of time: wall time and monotonic time of one look, and the boot they belong to. While wall time and monotonic
time have gone on alike since, wall time is right. If they differ by more than `JUMP_MS`, the clock jumped, and
deletions go by the old time plus monotonic time; after `DOUBT_MS` the new time is believed (somebody wanted it so).
After a reboot there is no monotonic time to compare with: then only time that went back, or went on by more than
`ABSENCE_MS`, is doubted.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from logstore.checkpoint import CheckpointError, marking_failure, read_checkpoint, write_checkpoint
from logstore.env import Env, boot_id
from logstore.errors import DiskFullError

logger = logging.getLogger(__name__)

FILE_NAME = "house-clock"
JUMP_MS = 10 * 60_000
DOUBT_MS = 24 * 3_600_000
ABSENCE_MS = 30 * 24 * 3_600_000
# How old a note of the time may grow before it is written anew.
NOTE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Both clocks at one time; `doubted_ms` is the monotonic time since which they disagree, or -1."""

    wall_ms: int
    monotonic_ms: int
    boot: str
    doubted_ms: int = -1


def believe(known: ClockReading | None, seen: ClockReading) -> tuple[int, ClockReading]:
    """Return the time to go by, and what to remember. Decides, touches nothing."""
    if known is None:
        return seen.wall_ms, seen
    passed_ms = seen.wall_ms - known.wall_ms
    if known.boot == seen.boot:
        expected_ms = known.wall_ms + seen.monotonic_ms - known.monotonic_ms
        is_jump = abs(seen.wall_ms - expected_ms) > JUMP_MS
    else:
        expected_ms = known.wall_ms
        is_jump = not -JUMP_MS <= passed_ms <= ABSENCE_MS
    if not is_jump:
        is_old = known.boot != seen.boot or known.doubted_ms >= 0 or passed_ms >= NOTE_MS
        return seen.wall_ms, seen if is_old else known
    if known.doubted_ms < 0 or known.boot != seen.boot:
        return expected_ms, ClockReading(expected_ms, seen.monotonic_ms, seen.boot, seen.monotonic_ms)
    if seen.monotonic_ms - known.doubted_ms >= DOUBT_MS:
        return seen.wall_ms, seen
    return expected_ms, known


def now_ms(env: Env, root: str | Path, *, read_only: bool = False) -> int:
    """The time that deletions in this store go by; notes what it saw, unless `read_only`."""
    path = Path(root) / FILE_NAME
    known = _read(env, path)
    seen = ClockReading(env.clock.now_ms(), env.clock.monotonic_ms(), boot_id(env.files) or "unknown")
    believed_ms, clock = believe(known, seen)
    if clock.doubted_ms >= 0:
        logger.warning(
            "path=%s the clock jumped to %d; deletions go by %d for up to a day",
            root,
            seen.wall_ms,
            believed_ms,
        )
    if clock != known and not read_only:
        try:
            with marking_failure(env, root):
                entry = (clock.wall_ms, clock.monotonic_ms, clock.boot, clock.doubted_ms)
                write_checkpoint(env, path, [entry])
        except DiskFullError as error:
            logger.warning("the time is not stored: %s", error)
    return believed_ms


def _read(env: Env, path: Path) -> ClockReading | None:
    try:
        ((wall_ms, monotonic_ms, boot, doubted_ms),) = read_checkpoint(env, path)
        return ClockReading(int(wall_ms), int(monotonic_ms), boot, int(doubted_ms))
    except FileNotFoundError:
        return None
    except (CheckpointError, ValueError) as error:
        logger.warning("path=%s ignored, it is damaged: %s", path, error)
        return None
