"""Replacement: a rewritten segment takes the place of one or more old ones, all or nothing, while others read.

1. The new files are written and fsynced under `.cleaned` names. A crash before 2 leaves nothing else.
2. The `.swap` file, which names the size of the new segment and the old ones, is written durably. From here on the
   replacement happens: the next holder of the partition's lock finishes it, or recovery.
3. The new files get the names of the first old segment (whose log gets a second name, `.deleted`, and is replaced in
   one rename) and keep their own; the other old segments become `.deleted`. All of this may be repeated.
4. The directory is fsynced, then the `.cleaned` names go, and the `.swap` file.

A reader, who holds no lock, misses no record: until the last rename every offset is in an old segment or in the new
one, which holds every record that must be there. An index of the other version does not agree with the batches it leads
to, and is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from logstore.checkpoint import TEMPORARY_SUFFIX, CheckpointError, read_checkpoint, write_checkpoint
from logstore.env import Env
from logstore.errors import CorruptLogError
from logstore.log.segments.names import CLEANED_SUFFIX, SWAP_SUFFIX, deleted_file
from logstore.log.segments.segment import Segment

# Indexes go before their .log, which does without, and the transaction indexes after it: as long as the log is there,
# it is read rightly.
_KINDS_IN_ORDER = ("index", "timeindex", "log", "txnindex", "txncheck", "snapshot")


def new_segment(env: Env, directory: str, base_offset: int) -> Segment:
    """An empty segment under `.cleaned` names, whatever an earlier attempt left."""
    segment = Segment(env, directory, base_offset, CLEANED_SUFFIX)
    segment.remove()
    segment.create()
    return segment


def make_durable(env: Env, directory: str, cleaned: Segment) -> None:
    """Step 1, the slow one: needs no lock."""
    for path in (*cleaned.paths, *cleaned.transactions.paths):
        if env.files.stat(path) is not None:
            env.files.fsync(path)
    env.files.fsync(directory)


def commit(env: Env, directory: str, cleaned: Segment, old_bases: Sequence[int]) -> None:
    """Step 2: from now on `cleaned` stands for the segments of these bases. Under the lock."""
    entries = [("size", cleaned.size_bytes()), *(("base", base) for base in old_bases)]
    write_checkpoint(env, f"{directory}/{cleaned.base_offset:020d}{SWAP_SUFFIX}", entries)


def finish(env: Env, directory: str, names: Iterable[str], now_ms: int) -> list[str]:
    """Steps 3 and 4 of every swap among these names; return the paths of the segments. Under the lock.

    Raises: CorruptLogError: a `.swap` file, or the segment that it speaks of, is not what was written.
    """
    finished = []
    for name in sorted(name for name in names if name.endswith(SWAP_SUFFIX)):
        journal = f"{directory}/{name}"
        size_bytes, first, *others = _decision(env, journal)
        new, live = Segment(env, directory, first, CLEANED_SUFFIX), Segment(env, directory, first)
        sources = new.index.path, new.time_index.path, *new.transactions.paths, new.path
        targets = live.index.path, live.time_index.path, *live.transactions.paths, live.path
        for source, target in zip(sources, targets, strict=True):
            if env.files.stat(source) is not None:
                if source == new.path and env.files.stat(target) is not None:
                    # Nobody waits, under the lock, for the blocks of a gigabyte to be freed.
                    env.files.link(target, deleted_file(target, now_ms))
                _put_copy(env, source, target)
        found = env.files.stat(live.path)
        found_bytes = found.size if found else 0
        if found_bytes != size_bytes:
            raise CorruptLogError(
                live.path,
                min(found_bytes, size_bytes),
                f"compaction wrote {size_bytes} bytes, there are {found_bytes}",
                "restore the partition from a copy",
            )
        for base in others:
            delete_later(env, Segment(env, directory, base), now_ms)
        env.files.fsync(directory)
        for source in sources:
            env.files.unlink(source)
        env.files.unlink(journal)
        finished.append(live.path)
    return finished


def delete_later(env: Env, segment: Segment, now_ms: int) -> None:
    """Take a segment out of the log; its files stay, under other names, for those who read them.

    May be repeated after a crash. Retention removes the files when `file.delete.delay.ms` is over, recovery at once.
    """
    stem = segment.path.removesuffix(".log")
    for kind in _KINDS_IN_ORDER:
        path = f"{stem}.{kind}"
        if env.files.stat(path) is not None:
            env.files.rename(path, deleted_file(path, now_ms))
            env.files.unlink(path)  # a torn rename had left both names: then this one did nothing


def _put_copy(env: Env, source: str, target: str) -> None:
    """Put the file in the place of `target`, and keep it: a rename that a power cut tears could lose both names."""
    copy = source + TEMPORARY_SUFFIX
    env.files.link(source, copy)
    env.files.rename(copy, target)
    env.files.unlink(copy)  # if both were the same file already, nothing was renamed


def _decision(env: Env, journal: str) -> list[int]:
    """Size, first base and further bases, as `commit` wrote them."""
    try:
        entries = read_checkpoint(env, journal)
        if len(entries) < 2 or [kind for kind, _ in entries] != ["size"] + ["base"] * (len(entries) - 1):
            raise ValueError("it does not name a size and segments")
        return [int(number) for _, number in entries]
    except (CheckpointError, ValueError) as error:
        raise CorruptLogError(journal, 0, str(error), "restore the partition from a copy") from error
