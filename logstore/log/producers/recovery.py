"""Repair of producer snapshots and transaction indexes after a crash: both must agree with the batches.

Batches are the truth. Snapshots and indexes that were fsynced with them are trusted if their checksum is right;
above the recovery point both are compared with the batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from logstore.errors import CorruptLogError
from logstore.log.producers.tracker import ProducerTracker
from logstore.log.segments import lookup
from logstore.log.segments.directory import DirectoryView, PartitionDirectory
from logstore.log.segments.index import AbortedTransaction


class Mended(NamedTuple):
    removed: tuple[str, ...]
    rebuilt: tuple[str, ...]


class _Segment(NamedTuple):
    is_transactional: bool
    aborted: list[AbortedTransaction]


def mend(files: PartitionDirectory, recovery_point: int, *, has_producers: bool) -> Mended:
    """Make the files right, under the log's lock, when its end is known; `has_producers`: a batch said so.

    Reads headers from the segment of the recovery point on; all, if every snapshot was damaged.
    """
    view, log, removed, rebuilt = files.refresh(), ProducerTracker(files), list[str](), list[str]()
    if not (view.snapshots or view.transactional or has_producers):
        return Mended((), ())
    first = view.bases[lookup.number_of(view, recovery_point)] if view.bases else view.end
    damaged = [offset for offset in view.snapshots if offset <= view.end and log.snapshots.load(offset) is None]
    good = [offset for offset in view.snapshots if offset <= view.end and offset not in damaged]
    announced = None
    if damaged and min(damaged) < min(good, default=view.end + 1):
        announced = view.local_start  # the first one is lost, and with it from where on there were producers
    elif not good:
        announced = first  # had there been any below the recovery point, so would be the snapshot before them
    if announced is not None:
        log.snapshots.write_empty(announced)
        rebuilt.append(log.snapshots.path(announced))
    for offset in view.snapshots:
        if offset not in good and offset != announced:
            files.env.files.unlink(log.snapshots.path(offset))
            removed.append(log.snapshots.path(offset))
    view = files.reread()
    for base, what in _wrong_indexes(files, view, log, first):
        files.segment(base).transactions.rewrite(what)
        rebuilt.append(files.segment(base).transactions.paths[0])
    return Mended(tuple(removed), tuple(rebuilt))


def wrong_files(files: PartitionDirectory, view: DirectoryView, *, has_producers: bool) -> Iterator[tuple[str, str]]:
    """Yield (path, reason) of snapshots and transaction indexes that are not what the batches say."""
    log = ProducerTracker(files)
    if has_producers and not view.snapshots:
        yield (
            log.snapshots.path(view.local_start),
            "there is no snapshot, but batches of producers; run `pylog recover`",
        )
    for offset in view.snapshots:
        if log.snapshots.load(offset) is None:
            yield log.snapshots.path(offset), "is no snapshot: an older one is used, or the log"
    if has_producers or view.transactional:
        with suppress(CorruptLogError):  # of a marker, which `verify` has named: then no index can be judged
            for base, _ in _wrong_indexes(files, view, log, view.local_start):
                yield files.segment(base).transactions.paths[0], "does not fit its log; run `pylog recover`"


def _wrong_indexes(
    files: PartitionDirectory, view: DirectoryView, log: ProducerTracker, first: int
) -> Iterator[tuple[int, list[AbortedTransaction]]]:
    """(base, what it should say) of the transaction indexes that are wrong; batches are read from `first` on.

    Compaction removes batches of transactions and keeps the entry, so an index may say more than the batches do.
    """
    said = _said_by_batches(view, log, first)
    for base in view.bases:
        index = files.segment(base).transactions
        found = index.transactions() if base in view.transactional else []
        if base not in said:
            if found is None:
                yield base, log.aborted_of(view, base)
            continue
        wanted = said[base]
        is_there = base in view.transactional or not wanted.is_transactional
        if not is_there or found is None or index.last_marker() >= view.end or not _covers(found, wanted.aborted):
            yield base, wanted.aborted


def _covers(found: Iterable[AbortedTransaction], wanted: Iterable[AbortedTransaction]) -> bool:
    """Does an index of these entries say what the batches do, and maybe what they said before a compaction?

    A transaction that lost its first batches begins later by what is left; one that lost all holds up no other.
    """
    known = {(entry.producer_id, entry.last_offset): entry for entry in found}
    return all(
        (entry := known.get((ended.producer_id, ended.last_offset))) is not None
        and entry.first_offset <= ended.first_offset
        and entry.last_stable_offset <= ended.last_stable_offset
        for ended in wanted
    )


def _said_by_batches(view: DirectoryView, log: ProducerTracker, first: int) -> dict[int, _Segment]:
    """For each segment from the one with `first` on, what its batches say."""
    said = {base: _Segment(False, []) for base in view.bases if base >= first}
    if not said:
        return {}
    for segment, batch, ended in log.history(view, min(said)):
        base = segment.base_offset
        if base in said:
            if batch.is_transactional and not said[base].is_transactional:
                said[base] = _Segment(True, said[base].aborted)
            if ended is not None:
                said[base].aborted.append(ended)
    return said
