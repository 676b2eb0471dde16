"""What stands in a segment's files, batch by batch and entry by entry: the reading half of `pylog dump-log`.

The files are read as they are, one at a time, without a store: a single file that somebody mailed will do. Damage is
data here: it comes out as a `DamageLine`, and reading goes on behind it where the next batch can be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from logstore.env import SYSTEM, Env
from logstore.errors import InvalidRequestError
from logstore.log.segments.index import offset_index, time_index
from logstore.log.segments.names import SEGMENT_FILE
from logstore.records.batch import (
    HEADER_BYTES,
    BatchHeader,
    ControlMarker,
    InvalidBatchError,
    Record,
    check,
    control_marker,
    header_at,
    records,
)

CHUNK_BYTES = 1024 * 1024


class BatchLine(NamedTuple):
    """One batch; `is_valid` is None if its CRC was not checked."""

    position: int
    header: BatchHeader
    is_valid: bool | None


class RecordLine(NamedTuple):
    """One record of the batch before; `marker` if that is a control batch."""

    record: Record
    marker: ControlMarker | None


class OffsetEntryLine(NamedTuple):
    """One entry of an `.index` file."""

    offset: int
    position: int


class TimeEntryLine(NamedTuple):
    """One entry of a `.timeindex` file."""

    timestamp: int
    offset: int


class DamageLine(NamedTuple):
    """What is wrong, and where in the file."""

    position: int
    reason: str


Line = BatchLine | RecordLine | OffsetEntryLine | TimeEntryLine | DamageLine


def dump(
    path: Path, *, with_records: bool = False, verify: bool = False, env: Env = SYSTEM
) -> Iterator[Line]:
    """Yield the contents of a `.log`, `.index` or `.timeindex` file.

    `with_records` adds the records, `verify` the CRCs (an index: its agreement with the `.log` beside it).

    Raises: InvalidRequestError: no such file, a directory, or not the name of a segment file.
    """
    if env.files.stat(path) is None:
        raise InvalidRequestError(f"{path}: no such file")
    if path.is_dir():
        raise InvalidRequestError(f"{path} is a directory; {_files_in(path, env)}")
    named = SEGMENT_FILE.fullmatch(".".join(path.name.split(".")[:2]))
    if named is None or named["kind"] not in ("log", "index", "timeindex"):
        raise InvalidRequestError(
            f"{path} is not a segment file; those are called 00000000000000000000.log, .index or .timeindex"
        )
    base_offset = int(named["base_offset"])
    match named["kind"]:
        case "log":
            return _dump_log(path, env, with_records=with_records, verify=verify)
        case "index":
            return _dump_offset_index(path, base_offset, env, verify=verify)
        case _:
            return _dump_time_index(path, base_offset, env, verify=verify)


def _files_in(directory: Path, env: Env) -> str:
    logs = sorted(directory / name for name in env.files.list(directory).names if name.endswith(".log"))
    if not logs:
        return "it holds no .log file: give one of a partition's directory"
    return f"give a file in it: {logs[0]}" + (f" (or one of {len(logs) - 1} more)" if logs[1:] else "")


def _dump_log(path: Path, env: Env, *, with_records: bool, verify: bool) -> Iterator[Line]:
    for line in _headers(path, env):
        if isinstance(line, DamageLine):
            yield line
        elif with_records or verify:
            yield from _whole_batch(path, env, *line, with_records=with_records)
        else:
            yield BatchLine(*line, None)


def _whole_batch(
    path: Path, env: Env, position: int, header: BatchHeader, *, with_records: bool
) -> Iterator[Line]:
    data = env.files.read(path, position, header.size_bytes)
    try:
        check(data, 0, header)
        found = list(records(data))
    except InvalidBatchError as error:
        yield BatchLine(position, header, False)
        yield DamageLine(position, error.reason)
        return
    yield BatchLine(position, header, True)
    if with_records:
        for record in found:
            yield RecordLine(record, control_marker(record) if header.is_control else None)


def _headers(path: Path, env: Env) -> Iterator[tuple[int, BatchHeader] | DamageLine]:
    """(position, header) of every batch, in reads of a MiB; ends where damage hides the next batch."""
    found = env.files.stat(path)
    size = 0 if found is None else found.size
    position, chunk, chunk_at = 0, b"", 0
    while position < size:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = env.files.read(path, position, CHUNK_BYTES), position
        try:
            header = header_at(chunk, position - chunk_at)
        except InvalidBatchError as error:
            yield DamageLine(position, error.reason)
            return
        if position + header.size_bytes > size:
            yield DamageLine(position, f"{size - position} bytes of a batch of {header.size_bytes}")
            return
        yield position, header
        position += header.size_bytes


def _dump_offset_index(path: Path, base_offset: int, env: Env, *, verify: bool) -> Iterator[Line]:
    batches = {p: h.last_offset for p, h in _batches_beside(path, env)} if verify else None
    last = -1
    for number, (relative, position) in enumerate(offset_index(env, str(path)).entries()):
        offset = base_offset + relative
        yield OffsetEntryLine(offset, position)
        if batches is not None and not (offset > last and batches.get(position) == offset):
            yield DamageLine(number * 8, f"no batch at byte {position} of the log ends with offset {offset}")
        last = offset


def _dump_time_index(path: Path, base_offset: int, env: Env, *, verify: bool) -> Iterator[Line]:
    newest = _newest_by_offset(path, env) if verify else None
    for number, (timestamp, relative) in enumerate(time_index(env, str(path)).entries()):
        offset = base_offset + relative
        yield TimeEntryLine(timestamp, offset)
        if newest is not None and newest.get(offset) != timestamp:
            yield DamageLine(
                number * 12, f"{timestamp} is not the largest timestamp up to offset {offset} of the log"
            )


def _newest_by_offset(path: Path, env: Env) -> dict[int, int]:
    """Last offset of each batch -> the largest timestamp up to there."""
    newest, found = -1, {}
    for _, header in _batches_beside(path, env):
        newest = max(newest, header.max_timestamp)
        found[header.last_offset] = newest
    return found


def _batches_beside(path: Path, env: Env) -> Iterator[tuple[int, BatchHeader]]:
    """The batches of the `.log` file that this index belongs to."""
    log = path.with_name(path.name.replace(".timeindex", ".log").replace(".index", ".log"))
    if env.files.stat(log) is None:
        raise InvalidRequestError(f"{log}: no such file; an index is verified against the log beside it")
    return (line for line in _headers(log, env) if not isinstance(line, DamageLine))
