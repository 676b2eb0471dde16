"""A listing of a segment's files, batch by batch and entry by entry: the reading half of `pylog dump-log`.

The files are read as they are, one at a time, without a store: a single file that somebody mailed will do. Damage is
data here: it comes out as a line, and reading goes on behind it where the next batch can be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from logstore.config import TIMESTAMP_TYPES
from logstore.env import SYSTEM, Env
from logstore.errors import InvalidRequestError
from logstore.log.segments.formats import find_foreign, refusal
from logstore.log.segments.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, offset_index, time_index
from logstore.log.segments.names import SEGMENT_FILE
from logstore.records.batch import HEADER_BYTES, BatchHeader, InvalidBatchError, Record, check, header_at, records
from logstore.records.compression import Codec
from logstore.records.marker import control_marker

CHUNK_BYTES = 1024 * 1024


class Line(NamedTuple):
    """A batch, a record of the batch before, an entry of an index, or damage at a position of the file.

    The names of the facts are those of Kafka's DumpLogSegments.
    """

    kind: Literal["batch", "record", "entry", "damage"]
    facts: dict[str, object]


def dump(path: Path, *, with_records: bool = False, verify: bool = False, env: Env = SYSTEM) -> Iterator[Line]:
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
            return _dump_offset_index(path, env, base_offset, verify=verify)
        case _:
            return _dump_time_index(path, env, base_offset, verify=verify)


def _files_in(directory: Path, env: Env) -> str:
    logs = sorted(directory / name for name in env.files.list(directory).names if name.endswith(".log"))
    if not logs:
        return "it holds no .log file: give one of a partition's directory"
    return f"give a file in it: {logs[0]}" + (f" (or one of {len(logs) - 1} more)" if logs[1:] else "")


def _dump_log(path: Path, env: Env, *, with_records: bool, verify: bool) -> Iterator[Line]:
    for found in _headers(path, env):
        if isinstance(found, Line):
            yield found
        elif with_records or verify:
            yield from _whole_batch(path, env, *found, with_records=with_records)
        else:
            yield _batch(*found)


def _whole_batch(path: Path, env: Env, position: int, header: BatchHeader, *, with_records: bool) -> Iterator[Line]:
    data = env.files.read(path, position, header.size_bytes)
    try:
        check(data, 0, header)
        found = list(records(data))
    except InvalidBatchError as error:
        yield _batch(position, header, isvalid=False)
        yield _damage(position, error.reason)
        return
    yield _batch(position, header, isvalid=True)
    if with_records:
        yield from (_record(record, header) for record in found)


def _batch(position: int, header: BatchHeader, **more: bool) -> Line:
    facts = {
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.count,
        "baseSequence": header.base_sequence,
        "producerId": header.producer_id,
        "producerEpoch": header.producer_epoch,
        "partitionLeaderEpoch": header.leader_epoch,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "position": position,
        TIMESTAMP_TYPES[header.timestamp_type]: header.max_timestamp,
        "size": header.size_bytes,
        "magic": header.magic,
        "compresscodec": header.codec.name.lower(),
        "crc": header.crc,
    }
    return Line("batch", facts | more)


def _record(record: Record, header: BatchHeader) -> Line:
    facts: dict[str, object] = {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "keySize": -1 if record.key is None else len(record.key),
        "valueSize": -1 if record.value is None else len(record.value),
    }
    if header.is_control:
        marker = control_marker(record)
        facts |= {"endTxnMarker": marker.kind, "coordinatorEpoch": marker.coordinator_epoch}
    else:
        facts["headerKeys"] = [key for key, _ in record.headers]
        facts |= {"key": _shown(record.key), "payload": _shown(record.value)}
    return Line("record", facts)


def _shown(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "backslashreplace")


def _damage(position: int, reason: str) -> Line:
    return Line("damage", {"position": position, "damage": reason})


def _headers(path: Path, env: Env) -> Iterator[tuple[int, BatchHeader] | Line]:
    """(position, header) of every batch, in reads of a MiB; ends where damage hides the next batch.

    A message of another format is a line.
    """
    found = env.files.stat(path)
    size = 0 if found is None else found.size
    position, chunk, chunk_at = 0, b"", 0
    while position < size:
        if position + HEADER_BYTES > chunk_at + len(chunk):
            chunk, chunk_at = env.files.read(path, position, CHUNK_BYTES), position
        try:
            header = header_at(chunk, position - chunk_at)
        except InvalidBatchError as error:
            foreign = _foreign(path, position, env)
            if foreign is None:
                yield _damage(position, error.reason)
                return
            yield foreign
            position += int(str(foreign.facts["size"]))
            continue
        if position + header.size_bytes > size:
            yield _damage(position, f"{size - position} bytes of a batch of {header.size_bytes}")
            return
        yield position, header
        position += header.size_bytes


def _foreign(path: Path, position: int, env: Env) -> Line | None:
    """A whole message of another format, of a right CRC: no damage, but nothing that pylog reads."""
    place, found = find_foreign(env, str(path), position) or (-1, None)
    if found is None or place != position or not (found.head.is_old or found.is_later):
        return None
    facts = {
        "offset": found.head.offset,
        "position": position,
        "size": found.head.size_bytes,
        "magic": found.head.magic,
        "compresscodec": Codec(found.codec).name.lower() if found.codec <= Codec.ZSTD else f"unknown {found.codec}",
        "crc": found.crc,
        "isvalid": True,
        "format": refusal(str(path), position, found).reason,
    }
    return Line("batch", facts)


def _dump_offset_index(path: Path, env: Env, base_offset: int, *, verify: bool) -> Iterator[Line]:
    batches = {p: h.last_offset for p, h in _batches_beside(path, env)} if verify else None
    last = -1
    for number, (relative, position) in enumerate(offset_index(env, str(path)).entries()):
        offset = base_offset + relative
        yield Line("entry", {"offset": offset, "position": position})
        if batches is not None and not (offset > last and batches.get(position) == offset):
            reason = f"no batch at byte {position} of the log ends with offset {offset}"
            yield _damage(number * OFFSET_ENTRY_BYTES, reason)
        last = offset


def _dump_time_index(path: Path, env: Env, base_offset: int, *, verify: bool) -> Iterator[Line]:
    newest_ms, newest = -1, dict[int, int]()  # last offset of each batch -> the largest timestamp up to there
    for _, header in _batches_beside(path, env) if verify else ():
        newest_ms = max(newest_ms, header.max_timestamp)
        newest[header.last_offset] = newest_ms
    for number, (timestamp, relative) in enumerate(time_index(env, str(path)).entries()):
        offset = base_offset + relative
        yield Line("entry", {"timestamp": timestamp, "offset": offset})
        if verify and newest.get(offset) != timestamp:
            reason = f"{timestamp} is not the largest timestamp up to offset {offset} of the log"
            yield _damage(number * TIME_ENTRY_BYTES, reason)


def _batches_beside(path: Path, env: Env) -> list[tuple[int, BatchHeader]]:
    """The batches of the `.log` file that this index belongs to."""
    log = path.with_name(path.name.replace(".timeindex", ".log").replace(".index", ".log"))
    if env.files.stat(log) is None:
        raise InvalidRequestError(f"{log}: no such file; an index is verified against the log beside it")
    return [found for found in _headers(log, env) if not isinstance(found, Line)]
