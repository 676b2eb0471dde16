"""Builders: small batches, one partition on some files, everything that is in it."""

from pathlib import Path

from logstore.config import LogConfig
from logstore.env import Env
from logstore.log.log import Log
from logstore.log.segments.directory import create
from logstore.log.validation import result_of
from logstore.records.batch import Record, batches, build
from logstore.records.batch import records as decoded
from logstore.records.marker import Marker

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def batch(*values: bytes, first: int = 0, timestamp: int = 1000, epoch: int = -1) -> bytearray:
    """One batch with these values, at offsets from `first` on, one millisecond apart."""
    rows = [Record(first + i, timestamp + i, None, value) for i, value in enumerate(values)]
    return build(rows, leader_epoch=epoch)


def make(root: Path, env: Env, *, topic_id: str = TOPIC_ID, name: str = "t-0", **settings) -> Log:
    """A new partition `root/name`, open."""
    create(root / name, topic_id=topic_id, env=env)
    return reopen(root / name, env, topic_id=topic_id, **settings)


def reopen(directory: Path, env: Env, *, topic_id=TOPIC_ID, recovery_point=0, read_only=False, **settings) -> Log:
    return Log.open(
        directory,
        topic_id=topic_id,
        config=LogConfig(**settings),
        env=env,
        recovery_point=recovery_point,
        read_only=read_only,
    )


def contents(log: Log, start: int | None = None, *, max_bytes: int = 1 << 20, upper=None) -> list[tuple[int, bytes]]:
    """(offset, value) of every record from `start` on, by one read after another."""
    offset = log.log_start_offset if start is None else start
    found = []
    while True:
        result = log.read(offset, max_bytes=max_bytes, upper=upper)
        if not result.data and result.next_offset == offset:
            return [row for row in found if start is None or row[0] >= start]
        for position, _ in batches(result.data):
            found += [(record.offset, record.value) for record in decoded(result.data, position)]
        offset = result.next_offset


def names(log: Log) -> tuple:
    """The names that the log expects in its directory."""
    view = log.files.refresh()
    return [*view.bases], view.start_mark, view.snapshots, view.transactional, view.was_compacted, sorted(view.aside)


def appended(log, data, **how):
    """Append batches as a leader does; return their AppendInfo, or raise the error."""
    return result_of(log.append_as_leader((data,), **how))


def append(log, data, *, as_owner=False):
    """Append as its leader does; as who owns the directory, and knows what others did."""
    if as_owner:
        with log.lock():
            pass
    return appended(log, data, is_owner=as_owner)


def ended(log, producer_id, producer_epoch, *, commit):
    """End a transaction; return the offset of the marker, or None if there was nothing to end."""
    found = appended(log, Marker(producer_id, producer_epoch, commit, 0, is_above=False))
    return None if found.is_duplicate else found.first_offset


SMALL = {"segment_bytes": 400, "index_interval_bytes": 100, "max_message_bytes": 400}


def filled(root, env, count=12, **settings):
    """A log of `count` one-record batches in several segments, flushed."""
    log = make(root, env, **(SMALL | settings))
    for number in range(count):
        appended(log, batch(b"value %d" % number, timestamp=1000 * number))
    log.flush()
    return log


def rows(count, start=0):
    return [(number, b"value %d" % number) for number in range(start, count)]


def recovered(log, env, recovery_point):
    return reopen(log.directory, env, recovery_point=recovery_point, **SMALL)


def flip(disk, path, position, bit=0x10):
    disk.names[str(path)].data[position] ^= bit


def append_bytes(disk, path, data):
    disk.write(path, len(disk.names[str(path)].data), data)
