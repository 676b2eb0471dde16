"""Holes: damaged ranges of a segment, filled with the same batches from elsewhere.

A hole is filled in a copy of its segment, which then takes the segment's place in one rename. Only the bytes of holes
differ, and what fills one has the offsets, the leader epochs and the size of what was there: positions, indexes and
offsets stay right, and nothing that is sound is touched. The damaged file is kept, under a name that ends in
`.damaged`. A log that was compacted has other gaps than its other replicas, and is not filled.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.checkpoint import TEMPORARY_SUFFIX
from logstore.errors import InvalidRecordError
from logstore.log import soundness
from logstore.log.log import Log
from logstore.records.batch import InvalidBatchError, batches, check
from logstore.records.compression import Buffer


class Hole(NamedTuple):
    """Offsets [start, end) that are not sound, in bytes [position, stop) of the segment of `base`.

    `end` is None if nobody can tell where sound batches begin again. `is_open`: nothing sound is behind it in its file,
    and another segment follows, so that it may take more or fewer bytes than it has.
    """

    base: int
    start: int
    end: int | None
    position: int
    stop: int
    is_open: bool

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end if self.end is not None else 'the end'}"


def find(log: Log, base: int) -> list[Hole]:
    """The holes of the segment of this base, lowest first; nobody writes meanwhile.

    Raises: CorruptLogError: nobody can tell which segments there are.
    """
    files = log.files
    with files.hold():
        view = soundness.settled(log)
        if base not in view.bases:
            return []
        number, segment = view.bases.index(base), files.segment(base)
        is_active = number == len(view.bases) - 1
        size_bytes = view.tail.position if is_active else segment.size_bytes()
        end = view.end if is_active else view.bases[number + 1]
        found, place = list[Hole](), (0, base)
        while (damage := soundness.check_segment(files, view, number, start=place)) is not None:
            assert damage.offset is not None, "where a segment begins is known"
            behind = segment.resume_behind(damage.sound_bytes, size_bytes, end)
            if behind is None or behind[1] > end:
                stop = end if not is_active else None
                found.append(Hole(base, damage.offset, stop, damage.sound_bytes, size_bytes, not is_active))
                return found
            found.append(Hole(base, damage.offset, behind[1], damage.sound_bytes, behind[0], is_open=False))
            place = behind
        if is_active and view.end < log.point.offset:
            found.append(Hole(base, view.end, None, size_bytes, size_bytes, is_open=False))
        return found


class SegmentCopy:
    """A copy of the segment of this base, made when there is something to fill a hole; it counts once it was `put`.

    Owned by one repair, which calls one method at a time; writers of the log go on until `put`.
    """

    def __init__(self, log: Log, base: int) -> None:
        self._log = log
        self._segment = log.files.segment(base)
        self._path = self._segment.path + TEMPORARY_SUFFIX
        self._files = log.env.files
        self._size_bytes = -1  # so much of it was copied; -1: nothing yet

    def _begin(self) -> None:
        self._files.create(self._path)
        self._files.truncate(self._path, 0)
        view = self._log.files.view
        # Behind its known end an append may be at work.
        is_active = self._segment.base_offset == view.bases[-1]
        self._size_bytes = 0
        self._copy_up_to(view.tail.position if is_active else self._segment.size_bytes())

    def fill(self, hole: Hole, records: Buffer) -> Hole:
        """Write the batches in `records`, which begin where the hole does; return what is left of it.

        Batches behind the hole are passed over. Raises: InvalidRecordError: they are not those that were there.
        """
        epochs, count = self._log.epochs.starts, 0
        try:
            for position, batch in batches(records):
                check(records, position, batch)
                if hole.end is None or batch.next_offset > hole.end:
                    break
                epoch = max((s.epoch for s in epochs if s.start_offset <= batch.base_offset), default=-1)
                if (batch.base_offset, batch.leader_epoch) != (hole.start, epoch):
                    raise InvalidRecordError(
                        f"offset {batch.base_offset} of epoch {batch.leader_epoch} where offset {hole.start} of "
                        f"epoch {epoch} was"
                    )
                hole = hole._replace(start=batch.next_offset)
                count = position + batch.size_bytes
        except InvalidBatchError as error:
            raise InvalidRecordError(f"what follows offset {hole.start - 1} is not sound: {error.reason}") from error
        is_filled = hole.start == hole.end
        left = hole.stop - hole.position - count
        fits = left == 0 if is_filled else left > 0
        if not count or not (hole.is_open or fits):
            raise InvalidRecordError(f"{count} bytes do not fill {hole.stop - hole.position} bytes of {hole}")
        if self._size_bytes < 0:
            self._begin()
        self._files.write(self._path, hole.position, memoryview(records)[:count])
        hole = hole._replace(position=hole.position + count)
        if is_filled and hole.is_open:
            self._files.truncate(self._path, hole.position)
        return hole

    def put(self) -> str | None:
        """Take the segment's place; return where it is kept. None: nothing was filled, or the log was cut there.

        A crash before the rename leaves the damaged segment, and one after it the mended one.
        """
        kept, segment = None, self._segment
        if self._size_bytes >= 0:
            with self._log.changing_files():
                bases = soundness.settled(self._log).bases
                if segment.base_offset in bases and segment.size_bytes() >= self._size_bytes:
                    kept = self._replace()
            self.drop()
        return kept

    def _replace(self) -> str:
        stat = self._segment.source.extent()
        self._copy_up_to(stat.size)  # it may have grown
        self._files.set_time(self._path, stat.mtime_ns)
        return soundness.replace_damaged(self._log.files, self._segment.path, self._path)

    def drop(self) -> None:
        self._files.unlink(self._path)

    def _copy_up_to(self, size_bytes: int) -> None:
        soundness.copy_bytes(self._log.files, self._segment.path, self._path, self._size_bytes, size_bytes)
        self._size_bytes = size_bytes
