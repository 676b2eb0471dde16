"""Guard: what a client's batch must be before a leader appends it, as Kafka's LogValidator has it.

Consumers, compaction and followers read whatever a leader has acknowledged: a batch whose header and CRC are right and
whose records are not would stop all of them. So the header is judged first, then the records behind it. Batches that a
broker made itself, and those that followers copy from a leader, are not looked into again.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from logstore.config import INT64_MAX, LogConfig
from logstore.errors import InvalidRecordError
from logstore.log.validation import limits_of, valid_batches
from logstore.records.batch import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAGIC,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    InvalidBatchError,
    WrongChecksumError,
    header_at,
    keyless_rows,
    stamp_max_timestamp,
)
from logstore.records.batch import records as records_of
from logstore.records.compression import Codec, CompressionError, decompress
from logstore.schemas.strategies import Demand
from replication.errors import ErrorCode, InvalidRecordsError
from replication.protocol.wire import Buffer
from replication.replica.leader.strange_ids import StrangeIdsError, refuse, strange_in, strange_slowly

PRODUCE_ZSTD = 7  # the first version of Produce whose clients know zstd

# The records of a batch may take this much when they are decompressed, beside four times their size on the wire.
EXPANDED_BYTES_MAX = 64 * 1024 * 1024
EXPANDED_TIMES_MAX = 4

LOOKS_BEFORE = 50_000  # records: to look into them costs as much as to load the kernels
LOOKED_AT_ONCE = 16  # records of a batch, in the event loop: otherwise a thread does it

_HEAD = struct.Struct(">qi4xb4xh")  # of a batch: base offset, length behind that field, format, attributes
_SEQUENCE = struct.Struct(">53xi")
_REASON_MASK = 0xFF
_address_of, _Byte = ctypes.addressof, ctypes.c_char

Refusal = tuple[ErrorCode, str]
OTHER_OFFSET: Refusal = (ErrorCode.INVALID_RECORD, "a batch that is produced begins at offset 0")
ANY_VERSION = frozenset((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4))  # attributes that all requests may bring
Kernel = Callable[..., int]


class Accepts(NamedTuple):
    """The batches that a Produce request may bring, by its version; `transactional`: those of its transaction."""

    version: int
    transactional: bool


def refuse_header(accepts: Accepts, records: Buffer) -> Refusal | None:
    """Why these bytes cannot be appended, as far as the header of the batch tells. The log checks the CRC."""
    if (size := len(records)) < _HEAD.size:
        return ErrorCode.INVALID_RECORD, "exactly one batch per partition is needed, and there is none"
    base_offset, length, magic, attributes = _HEAD.unpack_from(records)
    if magic != MAGIC:
        code = ErrorCode.INVALID_RECORD if 0 <= magic < MAGIC else ErrorCode.CORRUPT_MESSAGE
        return code, f"message format {magic}; only {MAGIC} is taken"
    size_bytes = length + LENGTH_END
    if size_bytes != size or size_bytes < HEADER_BYTES:
        more = HEADER_BYTES <= size_bytes < size
        said = "exactly one batch per partition is taken, and there are more"
        return ErrorCode.INVALID_RECORD, said if more else f"a batch of {size_bytes} bytes in {size}"
    if attributes not in ANY_VERSION and (refusal := _refuse_attributes(accepts, attributes, records)) is not None:
        return refusal
    return OTHER_OFFSET if base_offset else None


def _refuse_attributes(accepts: Accepts, attributes: int, records: Buffer) -> Refusal | None:
    codec = attributes & CODEC_MASK
    if attributes & CONTROL:
        return ErrorCode.INVALID_RECORD, "a control batch: only coordinators write markers"
    if attributes & LOG_APPEND_TIME:
        return ErrorCode.INVALID_TIMESTAMP, "LogAppendTime: only the broker gives records the time of their append"
    if attributes & DELETE_HORIZON:
        return ErrorCode.INVALID_RECORD, "a delete horizon: only compaction sets it"
    if attributes & TRANSACTIONAL and not (accepts.transactional and _SEQUENCE.unpack_from(records)[0] >= 0):
        return ErrorCode.INVALID_TXN_STATE, "a batch of a transaction that the request does not name"
    if codec > Codec.ZSTD or (codec == Codec.ZSTD and accepts.version < PRODUCE_ZSTD):
        return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec} in Produce version {accepts.version}"
    return None


def base_offset_of(records: Buffer) -> int:
    """Return the offset that a batch claims."""
    return int(_HEAD.unpack_from(records)[0])


class _Loaded:
    """The compiled check, once it is loaded: that takes seconds of a slow processor, and 120 MB.

    A broker that is sent little does without: it looks into `LOOKS_BEFORE` records by Python first, some microseconds
    each. Where the kernels are not compiled yet, that takes half a minute: meanwhile it looks so, too.
    """

    def __init__(self) -> None:
        self.check: Kernel | None = None
        self.good_batches: Kernel | None = None
        self.strange_ids: Kernel | None = None
        self.thread: threading.Thread | None = None
        self.looks = 0


_loaded = _Loaded()


def load() -> None:
    """Load the compiled check; from any thread."""
    from logstore.records.kernels import check_records, good_batches, strange_ids

    _loaded.strange_ids = _entry_point(strange_ids)
    _loaded.check, _loaded.good_batches = _entry_point(check_records), _entry_point(good_batches)


def _entry_point(kernel: Kernel) -> Kernel:
    """Return the compiled code: half the time of a call that looks for the types of its arguments."""
    (compiled,) = kernel.overloads.values()  # type: ignore[attr-defined]  # (it is a function of numba's)
    entry_point: Kernel = compiled.entry_point
    return entry_point


def _kernel(records: int) -> Kernel | None:
    """Return the compiled check for this many records more; None: it is not loaded yet."""
    if _loaded.check is not None:
        return _loaded.check
    _loaded.looks += records
    # Never here: where another thread is loading them, an import waits until it has compiled all of them.
    if _loaded.looks > LOOKS_BEFORE and _loaded.thread is None:
        _loaded.thread = threading.Thread(target=load, name="kernels", daemon=True)
        _loaded.thread.start()
    return _loaded.check


class Terms(NamedTuple):
    """The demands of a topic on each record: a key (1) or none (0), and a timestamp of -1 or in [oldest, newest]."""

    needs_keys: int
    oldest_ms: int
    newest_ms: int


ANY_TIME = Terms(0, -INT64_MAX, INT64_MAX), Terms(1, -INT64_MAX, INT64_MAX)


def terms_of(config: LogConfig, now_ms: int) -> Terms:
    allowed = config.timestamps_at(now_ms)
    if allowed is None:
        return ANY_TIME[config.is_compacted]
    return Terms(config.is_compacted, max(allowed.start, -INT64_MAX), min(allowed.stop - 1, INT64_MAX))


def passing(batches: Sequence[bytearray | memoryview], terms: Terms) -> int:
    """Return how many of these, from the first on, are known to be good at once; `check` is to say of the next.

    Each is one batch, and there is one at least. Compressed ones are not: a thread decompresses those. The log checks
    CRC and header.
    """
    if (good_batches := _loaded.good_batches) is not None:
        data = batches[0] if len(batches) == 1 else bytearray().join(batches)
        return good_batches(_address_of(_Byte.from_buffer(data)), len(data), *terms)
    for number, records in enumerate(batches):
        if not _passes_slowly(records, terms):
            return number
    return len(batches)


def _passes_slowly(records: bytearray | memoryview, terms: Terms) -> bool:
    """Whether a batch is small, and known to be good; the kernels are loaded for the next ones if these are many."""
    try:
        header = header_at(records)
        if header.codec or not 0 < header.count <= LOOKED_AT_ONCE:
            return False
        _kernel(header.count)
        return look_slowly(records, terms) is None
    except (InvalidBatchError, CompressionError):
        return False


def bearing(batches: Sequence[bytearray | memoryview], demands: Sequence[Demand]) -> int:
    """Return how many of these, from the first on, bear registered ids; all are `passing`, and so uncompressed."""
    kernel = _loaded.strange_ids
    for number, records in enumerate(batches):
        for demand in demands:
            if kernel is None:
                found = strange_slowly(records, demand, limit_bytes=bound_of(records))
            else:
                at = _address_of(_Byte.from_buffer(records)) + HEADER_BYTES
                found = strange_in(kernel, at, len(records) - HEADER_BYTES, demand)
            if found:
                return number
    return len(batches)


def check(records: bytearray | memoryview, config: LogConfig, now_ms: int, demands: Sequence[Demand] = ()) -> None:
    """Look into the records of a client's one batch; correct the largest timestamp in its header, as Kafka does.

    Raises: InvalidRecordsError, InvalidRecordError: they are not what the header says, expand beyond all reason, or are
    of no use to the topic; StrangeIdsError: they are good, and bear other ids than the `demands`; as `valid_batches`.
    """
    terms = terms_of(config, now_ms)
    try:
        kernel = _kernel(header_at(records).count)
        if kernel is None:
            found = look_slowly(records, terms)
            if demands and (found is None or found.reason == OTHER_MAX):
                refuse(demands, partial(strange_slowly, records, limit_bytes=bound_of(records)))
        else:
            found = _look(kernel, records, terms, demands)
    except StrangeIdsError:
        valid_batches(records, limits_of(config, None))
        raise
    except (InvalidBatchError, CompressionError) as error:
        valid_batches(records, limits_of(config, None))  # damage on the way here is another error
        raise InvalidRecordError(f"nothing was appended: {error}") from error
    if found is not None:
        valid_batches(records, limits_of(config, None))
        _settle(records, found)


class Finding(NamedTuple):
    """The fault of a record of a batch; OTHER_MAX: that of the header, whose largest timestamp is `max_ms`."""

    reason: str
    row: int
    max_ms: int = NO_TIMESTAMP


NO_KEY = "no key, and cleanup.policy=compact needs keys"
BAD_TIME = "a timestamp further from now than message.timestamp.before.max.ms and message.timestamp.after.max.ms allow"
OTHER_MAX = "another largest timestamp"


def bound_of(records: Buffer) -> int:
    """Return how many bytes the records of a batch may have when they are decompressed."""
    return EXPANDED_BYTES_MAX + EXPANDED_TIMES_MAX * len(records)


def _look(kernel: Kernel, records: Buffer, terms: Terms, demands: Sequence[Demand] = ()) -> Finding | None:
    from logstore.records import kernels

    header = header_at(records)
    stored = memoryview(records)[HEADER_BYTES : header.size_bytes]
    expanded = decompress(header.codec, stored, limit_bytes=bound_of(records))
    where = _address(records), _address(expanded), len(expanded)
    found = kernel(*where, *terms)
    reason, row = found & _REASON_MASK, found >> kernels.ROW_SHIFT
    if demands and reason in (0, kernels.OTHER_MAX):
        assert _loaded.strange_ids is not None, "it is loaded before the other one"
        refuse(demands, partial(strange_in, _loaded.strange_ids, *where[1:]))
    if reason == kernels.OTHER_MAX:
        return Finding(OTHER_MAX, 0, kernels.max_timestamp(*where))
    said = {kernels.NO_KEY: NO_KEY, kernels.BAD_TIME: BAD_TIME}
    return Finding(said.get(reason) or kernels.REASONS[reason], row) if reason else None


def look_slowly(records: Buffer, terms: Terms) -> Finding | None:
    """Return what `_look` returns, without the kernel: some microseconds a record."""
    header, max_ms, row = header_at(records), NO_TIMESTAMP, -1
    try:
        for row, record in enumerate(records_of(records, limit_bytes=bound_of(records))):
            if record.offset != header.base_offset + row:
                return Finding(f"offset {record.offset - header.base_offset} of the batch", row)
            if terms.needs_keys and record.key is None:
                return Finding(NO_KEY, row)
            if record.timestamp != NO_TIMESTAMP and not terms.oldest_ms <= record.timestamp <= terms.newest_ms:
                return Finding(BAD_TIME, row)
            max_ms = max(max_ms, record.timestamp)
    except WrongChecksumError:
        raise
    except InvalidBatchError as error:
        return Finding(error.reason, row + 1)
    return None if max_ms == header.max_timestamp else Finding(OTHER_MAX, 0, max_ms)


def _settle(records: bytearray | memoryview, found: Finding) -> None:
    """Correct or refuse what was found."""
    if found.reason == OTHER_MAX:
        stamp_max_timestamp(records, 0, found.max_ms)
    elif found.reason == NO_KEY:
        rows = keyless_rows(records, 0, limit_bytes=EXPANDED_BYTES_MAX + 4 * len(records))
        said = f"{len(rows)} records have {NO_KEY}"
        raise InvalidRecordsError(ErrorCode.INVALID_RECORD, rows, said)
    else:
        code = ErrorCode.INVALID_TIMESTAMP if found.reason == BAD_TIME else ErrorCode.INVALID_RECORD
        raise InvalidRecordsError(code, (found.row,), f"record {found.row} of the batch: {found.reason}")


def _address(data: Buffer) -> int:
    """Return where the bytes are; the caller keeps them."""
    import numpy as np

    return int(np.frombuffer(data, dtype=np.uint8).ctypes.data) if len(data) else 0
