"""Compaction over stored batches: note the keys of records, and copy the records that stay.

Records are copied as they are stored: their offset deltas count from the base offset of the batch, which
stays, and so do the bytes of keys, values and headers. Only a batch that gets a delete horizon (Kafka's
KIP-534: its base timestamp then says when tombstones may go) has its timestamp deltas written anew.

Errors come back as in `decoding`, for the batch at `position`.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.batch import (
    ATTRIBUTES_AT,
    BASE_TIMESTAMP_AT,
    CODEC_MASK,
    CONTROL,
    COUNT_AT,
    CRC_AT,
    DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_AT,
    LENGTH_END,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP_AT,
    TRANSACTIONAL,
)
from logstore.records.kernels.crc import crc_of
from logstore.records.kernels.decoding import BAD_DELTA, LEFT_OVER
from logstore.records.kernels.native import I64, be16, be64, copy, i64, inner, is_among, kernel, numbers, put8, put64
from logstore.records.kernels.offset_map import (
    NOTE_BYTES,
    STORED,
    WAITING_MAX,
    bit_of,
    first_place,
    has_bit,
    hash_of,
    latest,
    near_place,
    put_waiting,
)
from logstore.records.kernels.stored import Entry, Section, batch_error, entry_at, section_at
from logstore.records.kernels.varints import put_varint, varint_bytes

# A record whose timestamp delta is written anew grows by this at most: the delta, and the length before it.
GROWTH_BYTES = 14

_SPECIAL = CODEC_MASK | TRANSACTIONAL | CONTROL


class Collected(NamedTuple):
    """`position`: of the batch that comes next; `full`: what `offset_map.put` said of the record at `offset`."""

    error: int
    position: int
    full: int
    offset: int


class Rules(NamedTuple):
    """The table of keys; what time it is; the horizon of tombstones that are met for the first time.

    `waiting` has room for `WAITING_BYTES`.
    """

    table: int
    waiting: int
    now_ms: int
    horizon_ms: int


class Kept(NamedTuple):
    """The kept part of one batch: its numbers of records and tombstones, its bytes, its largest timestamp.

    The records are copied only if others are removed.
    """

    error: int
    count: int  # type: ignore[assignment]  # hides the method of tuples
    tombstones: int
    size: int
    max_timestamp: int


class Retained(NamedTuple):
    """`position`: of the batch that comes next, one that `retain` does not do if `is_special`.

    `size`: bytes written; `before` and `after`: records read and kept. `is_same`: all stays, and is not copied.
    """

    error: int
    position: int
    size: int
    before: int
    after: int
    is_special: int
    is_same: int


@inner
def _collect(table: int, waiting: int, section: Section, start: int) -> Collected:
    """Note the keys of the records from offset `start` on, some at a time: memory is far away."""
    at, before, count = section.at, -1, 0
    for _ in range(section.count):
        entry = entry_at(at, section.end)
        if entry.error:
            return Collected(entry.error, 0, 0, 0)
        if entry.offset_delta <= before or entry.offset_delta > section.last_delta:
            return Collected(BAD_DELTA, 0, 0, 0)
        at, before = entry.end, entry.offset_delta
        offset = section.base_offset + entry.offset_delta
        if offset >= start and entry.key_size >= 0:
            h, place = hash_of(entry.key, entry.key_size), waiting + NOTE_BYTES * count
            put64(place, h)
            put64(place + 8, first_place(table, h))
            put64(place + 16, entry.key)
            put64(place + 24, entry.key_size)
            put64(place + 32, offset)
            count += 1
            if count == WAITING_MAX:
                said, offset = put_waiting(table, waiting, count)
                count = 0
                if said != STORED:
                    return Collected(0, 0, said, offset)
    said, offset = put_waiting(table, waiting, count)
    error = LEFT_OVER if at != section.end else 0
    return Collected(error, 0, said, offset)


@kernel(numbers(Collected)(I64, I64, numbers(Section), I64))
def collect_section(table: int, waiting: int, section: Section, start: int) -> Collected:
    """Note the keys of one batch, of its records from `start` on."""
    return _collect(table, waiting, section, start)


@kernel(numbers(Collected)(I64, I64, I64, I64, I64))
def collect(table: int, waiting: int, address: int, size: int, start: int) -> Collected:
    """Note the keys of the plain batches at `address`; stops at one that is compressed or transactional.

    `waiting` has room for `WAITING_BYTES`.
    """
    at = address
    while at < address + size:
        error = batch_error(at, address + size - at)
        if error:
            return Collected(error, at - address, 0, 0)
        if be16(at + ATTRIBUTES_AT) & _SPECIAL:
            break
        section = section_at(at)
        found = _collect(table, waiting, section, start)
        if found.error or found.full:
            return Collected(found.error, at - address, found.full, found.offset)
        at = section.end
    return Collected(0, at - address, STORED, 0)


@inner
def _note(rules: Rules, section: Section, entry: Entry, note: int) -> None:
    """Note a record, and what is needed to look up its key if it has no bit."""
    offset = section.base_offset + entry.offset_delta
    if entry.key_size >= 0 and not has_bit(rules.table, offset):
        h = hash_of(entry.key, entry.key_size)
        put64(note, h)
        put64(note + 8, first_place(rules.table, h))
    put64(note + 16, entry.key)
    put64(note + 24, entry.key_size)
    put64(note + 32, offset)
    put64(note + 40, entry.end)
    put64(note + 48, entry.value_size)
    put64(note + 56, section.base_timestamp + entry.timestamp_delta)


@inner
def _bring_near(rules: Rules, note: int) -> None:
    if i64(note + 24) >= 0 and not has_bit(rules.table, i64(note + 32)):
        put64(note + 8, near_place(rules.table, i64(note), i64(note + 8)))


@inner
def _is_superseded(rules: Rules, note: int) -> bool:
    """Is there a later record of this key?"""
    offset = i64(note + 32)
    if has_bit(rules.table, offset):
        return bit_of(rules.table, offset)
    return offset < latest(rules.table, i64(note), i64(note + 8), i64(note + 16), i64(note + 24))  # type: ignore[no-any-return]


@inner
def _stays(rules: Rules, section: Section, note: int) -> bool:
    if i64(note + 24) < 0 or _is_superseded(rules, note):
        return False
    is_expired = section.has_horizon and rules.now_ms >= section.base_timestamp
    return i64(note + 48) >= 0 or not is_expired


@inner
def _keep(rules: Rules, section: Section, to: int) -> Kept:
    """Copy the records that stay to `to`, whole runs of them at a time, unless all stay; look up some at a time."""
    at, before, out, run, left = section.at, -1, to, section.at, section.count
    count = tombstones = 0
    newest = -0x7FFFFFFFFFFFFFFF
    while left > 0:
        start, some = at, min(left, WAITING_MAX)
        for i in range(some):
            entry = entry_at(at, section.end)
            if entry.error:
                return Kept(entry.error, 0, 0, 0, 0)
            if entry.offset_delta <= before or entry.offset_delta > section.last_delta:
                return Kept(BAD_DELTA, 0, 0, 0, 0)
            _note(rules, section, entry, rules.waiting + NOTE_BYTES * i)
            at, before = entry.end, entry.offset_delta
        for i in range(some):
            _bring_near(rules, rules.waiting + NOTE_BYTES * i)
        for i in range(some):
            note = rules.waiting + NOTE_BYTES * i
            if _stays(rules, section, note):
                count += 1
                tombstones += i64(note + 48) < 0
                newest = max(newest, i64(note + 56))
            else:
                copy(out, run, start - run)
                out += start - run
                run = i64(note + 40)
            start = i64(note + 40)
        left -= some
    if count < section.count:
        copy(out, run, at - run)
    return Kept(LEFT_OVER if at != section.end else 0, count, tombstones, out + at - run - to, newest)


@inner
def _keep_later(rules: Rules, section: Section, to: int) -> int:
    """The same, with timestamps counted from the horizon; return the size. The records were looked at."""
    at, out, shift = section.at, to, section.base_timestamp - rules.horizon_ms
    for _ in range(section.count):
        entry = entry_at(at, section.end)
        _note(rules, section, entry, rules.waiting)
        if _stays(rules, section, rules.waiting):
            delta, left = entry.timestamp_delta + shift, entry.end - entry.rest
            out = put_varint(out, 1 + varint_bytes(delta) + left)
            put8(out, 0)
            out = put_varint(out + 1, delta)
            copy(out, entry.rest, left)
            out += left
        at = entry.end
    return out - to


@kernel(numbers(Kept)(numbers(Rules), numbers(Section), I64, I64))
def keep_section(rules: Rules, section: Section, to: int, with_horizon: int) -> Kept:
    """Copy the records that stay; `with_horizon` after a look that found tombstones without one."""
    kept = _keep(rules, section, to)
    if with_horizon and not kept.error:
        size = _keep_later(rules, section, to)
        return Kept(0, kept.count, kept.tombstones, size, kept.max_timestamp)
    return kept


@inner
def _put_be(at: int, size: int, number: int) -> None:
    for i in range(size):
        put8(at + i, number >> (8 * (size - 1 - i)))


@inner
def _write(rules: Rules, section: Section, kept: Kept, to: int) -> int:
    """Write the header before what was kept at `to` + 61; return the batch's size."""
    source, size = section.at - HEADER_BYTES, kept.size
    attributes, base_timestamp = be16(source + ATTRIBUTES_AT), section.base_timestamp
    if kept.tombstones and not section.has_horizon:
        size = _keep_later(rules, section, to + HEADER_BYTES)
        attributes, base_timestamp = attributes | DELETE_HORIZON, rules.horizon_ms
    max_timestamp = be64(source + MAX_TIMESTAMP_AT) if attributes & LOG_APPEND_TIME else kept.max_timestamp
    if not kept.count:
        attributes, base_timestamp = attributes & ~DELETE_HORIZON, be64(source + MAX_TIMESTAMP_AT)
        max_timestamp = base_timestamp
    size += HEADER_BYTES
    copy(to, source, HEADER_BYTES)
    _put_be(to + LENGTH_AT, 4, size - LENGTH_END)
    _put_be(to + ATTRIBUTES_AT, 2, attributes)
    _put_be(to + BASE_TIMESTAMP_AT, 8, base_timestamp)
    _put_be(to + MAX_TIMESTAMP_AT, 8, max_timestamp)
    _put_be(to + COUNT_AT, 4, kept.count)
    _put_be(to + CRC_AT, 4, crc_of(to + ATTRIBUTES_AT, size - ATTRIBUTES_AT))
    return size


class Kernel(NamedTuple):
    """Where `retain` reads and writes; `needed`: the last offsets of batches that stay, if empty, sorted."""

    address: int
    size: int
    to: int
    room: int
    needed: int
    needed_count: int


@kernel(numbers(Retained)(numbers(Rules), numbers(Kernel)))
def retain(rules: Rules, work: Kernel) -> Retained:
    """Copy what stays of the plain batches; stops at a special one, and where the room might end.

    Whole batches are copied when one comes that is not, so that nothing is copied if all stay.
    """
    at, stop, out, before, after = work.address, work.address + work.size, work.to, 0, 0
    error = is_special = 0
    run = at  # from here on batches stay as they are
    while at < stop:
        error = batch_error(at, stop - at)
        is_special = 0 if error else be16(at + ATTRIBUTES_AT) & _SPECIAL
        if error or is_special:
            break
        section = section_at(at)
        if out + section.end - run + GROWTH_BYTES * section.count > work.to + work.room:
            break
        kept = _keep(rules, section, out + at - run + HEADER_BYTES)
        error = kept.error
        if error:
            break
        is_whole = kept.count == section.count and (kept.tombstones == 0 or section.has_horizon)
        is_needed = kept.count > 0 or is_among(work.needed, work.needed_count, section.base_offset + section.last_delta)
        if not (is_whole and is_needed):
            copy(out, run, at - run)
            out += at - run
            if is_needed:
                out += _write(rules, section, kept, out)
            run = section.end
        before += section.count
        after += kept.count
        at = section.end
    is_same = 1 if run == work.address else 0
    if not is_same:
        copy(out, run, at - run)
        out += at - run
    return Retained(error, at - work.address, out - work.to, before, after, is_special, is_same)
