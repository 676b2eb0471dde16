"""Soundness: where a log is damaged, and how the damage is put aside.

A damaged file stays beside the log under a name that ends in `.damaged`: readers do not see it, recovery reports it,
and only an operator removes it. Everything from the damage on leaves the log, so it must be safe elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from logstore.checkpoint import TEMPORARY_SUFFIX, fsync_or_mark, marking_failure
from logstore.errors import CorruptLogError
from logstore.log.log import Log
from logstore.log.reader import ReadResult
from logstore.log.recovery import CHUNK_BYTES, checked_batches, cut_short, end_reason
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.formats import named
from logstore.log.segments.lookup import Spot, discontinuity, number_of, place_of
from logstore.log.segments.names import damaged_file
from logstore.records.batch import InvalidBatchError, batches, check

Cutting = Callable[[int], AbstractContextManager[None]]
Pace = Callable[[int], None]  # gets the bytes that were read since the last call; may sleep


class Unsound(NamedTuple):
    """Damage: the log is sound below `offset`, that is, below byte `sound_bytes` of segment `number` of its view.

    `offset` is None if it is unknown where the log begins.
    """

    offset: int | None
    number: int
    sound_bytes: int
    path: str
    position: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: damaged at byte {self.position}: {self.reason}"


class SetAside(NamedTuple):
    """The log ends at `offset` now; the damaged file, if any, is at `path`."""

    offset: int
    path: str | None


def no_pause(size_bytes: int) -> None:
    """Read on."""


def check_segment(
    files: PartitionDirectory,
    view: DirectoryView,
    number: int,
    pace: Pace = no_pause,
    *,
    start: tuple[int, int] | None = None,
) -> Unsound | None:
    """Read one segment, and check every byte of it, and that the next one follows; None: all is well.

    `start` is (position, offset) of where to begin; None: at its first byte.

    Takes no lock: a change meanwhile may look like damage. Raises: FileNotFoundError.
    """
    segment, is_active = files.segment(view.bases[number]), number == len(view.bases) - 1
    size_bytes = view.tail.position if is_active else segment.size_bytes()
    sound, end = (0, segment.base_offset) if start is None else start
    paced, before = sound, (end, sound)
    try:
        for position, batch in checked_batches(segment, size_bytes, position=sound, next_offset=end):
            before = end, sound
            end, sound = batch.next_offset, position + batch.size_bytes
            if sound - paced >= CHUNK_BYTES:
                pace(sound - paced)
                paced = sound
    except CorruptLogError as error:
        odd = segment.header(error.position)
        # It, or the one before: base offsets are outside the CRC.
        if odd is not None and odd.base_offset < end:
            end, sound = before
        return Unsound(end, number, sound, segment.path, error.position, named(files.env, error).reason)
    pace(size_bytes - paced)
    reason = (
        end_reason(files.env, segment, view.tail) if is_active else discontinuity(files, end, view.bases[number + 1])
    )
    if reason is None:
        return None
    place = sound
    if not is_active and end > view.bases[number + 1]:
        end, sound = before
    return Unsound(end, number, sound, segment.path, place, reason)


def find(log: Log, path: str | None = None) -> Unsound | None:
    """The first damage in the segment file at `path`, or (None) in the log. Holds the log."""
    files = log.files
    with files.hold():
        try:
            view = settled(log)
        except CorruptLogError as error:
            return Unsound(None, 0, 0, error.path, error.position, error.reason)
        for number, base in enumerate(view.bases):
            if path in (None, files.segment(base).path):
                found = check_segment(files, view, number)
                if found is not None:
                    return found
        if (lost := _lost_end(log, view)) is not None:
            place = cut_short(files, view.bases, view.tail, log.point.offset)
            return Unsound(lost.offset, lost.number, lost.position, *place)
    return None


def find_from(log: Log, offset: int | None) -> Unsound | None:
    """The first damage in the segment of `offset`; None: in the log."""
    if offset is None:
        return find(log)
    with log.files.hold():
        view = settled(log)
        return check_segment(log.files, view, number_of(view, offset)) if view.bases else None


def checked(found: ReadResult) -> ReadResult:
    """The batches before the first one with a wrong CRC. Raises: CorruptLogError: there are none."""
    try:
        for position, batch in batches(found.data):
            try:
                check(found.data, position, batch)
            except InvalidBatchError:
                if position == 0:
                    raise
                return found._replace(data=found.data[:position], next_offset=batch.base_offset)
    except InvalidBatchError as error:
        raise CorruptLogError(found.path, found.position + error.position, error.reason) from error
    return found


def first_damage(log: Log, known: int | None) -> int:
    """The offset of the first damage, at most `known`; the log's end if all is sound, 0 if it is unknown.

    Reads everything below.
    """
    with log.files.hold():
        try:
            view = settled(log)
        except CorruptLogError:
            return 0
        found = _first(log.files, view, known)
        return found.offset if found is not None else view.end


def set_aside(log: Log, known: int, *, whole: bool, cutting: Cutting) -> SetAside:
    """Cut the log at `known`, where its `first_damage` is, or (`whole`) at its start.

    Reads everything below first. Keeps the damaged file, and nothing behind it. `cutting` lowers the checkpoints of
    recovery point and high watermark to an offset. May be repeated after a crash.

    Raises: CorruptLogError: there is damage below `known` by now, and nothing was changed.
    """
    files = log.files
    with files.hold(), marking_failure(files.env, log.directory.parent):
        aside = None
        try:
            view = settled(log)
        except CorruptLogError as error:  # what says where the log begins: all of it goes
            aside, whole = aside_path(files, error.path), True
            files.env.files.rename(error.path, aside)
            view = settled(log)
        found = _first(files, view, known) or _lost_end(log, view)
        if found is not None and found.offset < known and not whole:
            raise CorruptLogError(files.path, found.position, f"damaged below {known}, too: at {found.offset}")
        if found is not None and view.bases:  # before a recovery might cut it
            aside = _keep(files, found) or aside
            files.reread()
        if whole or (found is not None and (not view.bases or found.offset < view.local_start)):
            with cutting(0):
                log.cut_damage(view.start_mark, None)  # whatever a crash has left of it
        elif found is not None:
            with cutting(found.offset):
                log.cut_damage(found.offset, found)
        log.recover()
        return SetAside(log.log_end_offset, aside)


def settled(log: Log) -> DirectoryView:
    """The log as the disk shows it, with replacements finished."""
    view = log.files.reread()
    if view.is_swapping:
        log.finish_swaps()
        view = log.files.reread()
    return view


def _first(files: PartitionDirectory, view: DirectoryView, known: int | None) -> Spot | None:
    """Where the first damage is, at most at `known`: nothing above is read."""
    for number, base in enumerate(view.bases):
        if known is not None and base >= known:
            break
        damage = check_segment(files, view, number)
        if damage is not None and damage.offset is not None and (known is None or damage.offset <= known):
            return Spot(number, damage.sound_bytes, damage.offset)
    place = place_of(files, view, known) if known is not None else None
    return place and Spot(place.number, place.position, place.batch.base_offset)


def _lost_end(log: Log, view: DirectoryView) -> Spot | None:
    """Where a log ends that lacks flushed records behind that; half a batch may be there. None: it lacks none."""
    return Spot(len(view.bases) - 1, view.tail.position, view.end) if view.end < log.point.offset else None


def _keep(files: PartitionDirectory, spot: Spot) -> str | None:
    """Rename the damaged file, and leave a copy of its sound part in its place."""
    path = files.segment(files.view.bases[spot.number]).path
    stat = files.env.files.stat(path)
    if stat is None or stat.size <= spot.position:  # what is missing is damage, too: nothing to keep
        return None
    copy = path + TEMPORARY_SUFFIX
    files.env.files.create(copy)
    files.env.files.truncate(copy, 0)
    copy_bytes(files, path, copy, 0, spot.position)
    return replace_damaged(files, path, copy)


def replace_damaged(files: PartitionDirectory, path: str, copy: str) -> str:
    """Put `copy` in the place of a damaged file, durably; return where that is kept."""
    disk, root = files.env.files, files.path.rpartition("/")[0]
    try:
        fsync_or_mark(files.env, copy, root)
    except OSError:
        disk.unlink(copy)
        raise
    kept = aside_path(files, path)
    disk.link(path, kept)
    # Or else the second name might be lost, and the first go.
    fsync_or_mark(files.env, files.path, root)
    disk.rename(copy, path)
    fsync_or_mark(files.env, files.path, root)
    return kept


def copy_bytes(files: PartitionDirectory, source: str, target: str, start: int, end: int) -> None:
    """Put the bytes [start, end) of a file into the same place of another one, which goes if that fails."""
    disk, at = files.env.files, start
    try:
        while at < end and (data := disk.read(source, at, min(CHUNK_BYTES, end - at))):
            disk.write(target, at, data)
            at += len(data)
    except OSError:
        disk.unlink(target)
        raise


def aside_path(files: PartitionDirectory, path: str) -> str:
    return damaged_file(path, files.env.clock.now_ms())
