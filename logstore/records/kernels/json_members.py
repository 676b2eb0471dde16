"""Members and items of plain JSON values, cut out of their documents; and base64."""

from __future__ import annotations

from typing import NamedTuple

from logstore.records.kernels.documents import Members, member_of, no_space, string_end, value_end
from logstore.records.kernels.json_values import BACKSLASH, COMMA, QUOTE, byte_at
from logstore.records.kernels.native import I64, VOID, copy, i64, inner, kernel, numbers, put8, put32, put64, u8

HIDDEN = -2  # the size of a member that may be there under a name with an escape

_SMALL_N, _CLOSE_OBJECT, _PAD = 0x6E, 0x7D, 0x3D
_ANY = 1 << 40


class Pieces(NamedTuple):
    """Values to cut into documents of one item each: `before` the item, `between` a key and its value, and a brace.

    A value of size -1 has no items. `counts` has a place for each value, `offsets` one more than there are items;
    `data` is 0 as long as only the counts are asked for.
    """

    values: int
    sizes: int
    rows: int
    is_map: int
    before: int
    before_size: int
    between: int
    between_size: int
    counts: int
    offsets: int
    data: int


class Cut(NamedTuple):
    """How many items there are, and how many bytes they have as documents."""

    items: int
    size: int


@inner
def _find(members: Members, at: int, end: int, addresses: int, sizes: int) -> None:
    """Write where the values of these members are; the last one counts, and null is none."""
    for number in range(members.total):
        put64(sizes + 8 * number, -1)
    at = no_space(at + 1, end)
    while byte_at(at, end) == QUOTE:
        name, at = at + 1, string_end(at, end)
        for i in range(name, at):
            if u8(i) == BACKSLASH:
                put64(sizes, HIDDEN)
                return
        number = member_of(members, name, at - name)
        at = no_space(no_space(at + 1, end) + 1, end)
        stop = value_end(at, end, members.depth_max, members.digits_max)
        if number >= 0:
            put64(addresses + 8 * number, at)
            put64(sizes + 8 * number, -1 if u8(at) == _SMALL_N else stop - at)
        at = no_space(stop, end)
        if byte_at(at, end) != COMMA:
            return
        at = no_space(at + 1, end)


@kernel(VOID(I64, I64, I64, numbers(Members), I64, I64))
def find_members(values: int, sizes: int, rows: int, members: Members, addresses: int, to: int) -> None:
    """Write the address and the size of each member of each of these plain objects; -1: missing, or null.

    The size of the first is HIDDEN if one of the names has an escape. Only the names of the members are used.
    """
    for row in range(rows):
        at = i64(values + 8 * row)
        first = 8 * row * members.total
        _find(members, at, at + i64(sizes + 8 * row), addresses + first, to + first)


@inner
def _put(p: Pieces, to: int, key: int, key_size: int, value: int, value_size: int) -> int:
    """Write the document of an item; return where it ends, which is all if there is no data."""
    if p.data:
        copy(p.data + to, p.before, p.before_size)
    to += p.before_size
    if p.is_map:
        if p.data:
            copy(p.data + to, key, key_size)
            copy(p.data + to + key_size, p.between, p.between_size)
        to += key_size + p.between_size
    if p.data:
        copy(p.data + to, value, value_size)
        put8(p.data + to + value_size, _CLOSE_OBJECT)
    return to + value_size + 1


@kernel(numbers(Cut)(numbers(Pieces)))
def cut_items(p: Pieces) -> Cut:
    """Write each item of these plain objects or arrays as a document of its own, `{"key": …, "value": …}` or so."""
    items = size = 0
    for row in range(p.rows):
        at, end = i64(p.values + 8 * row), i64(p.values + 8 * row) + i64(p.sizes + 8 * row)
        first = items
        if end > at:
            at = no_space(at + 1, end)
            while at < end - 1:
                key = at
                key_size = string_end(at, end) + 1 - at if p.is_map else 0
                if p.is_map:
                    at = no_space(no_space(at + key_size, end) + 1, end)
                stop = value_end(at, end, _ANY, _ANY)
                size = _put(p, size, key, key_size, at, stop - at)
                items += 1
                if p.data:
                    put32(p.offsets + 4 * items, size)
                at = no_space(stop, end)
                if byte_at(at, end) != COMMA:
                    break
                at = no_space(at + 1, end)
        put64(p.counts + 8 * row, items - first)
    return Cut(items, size)


@kernel(VOID(I64, I64, I64, I64))
def join(values: int, sizes: int, rows: int, to: int) -> None:
    """Copy these values, one after the other; one of size -1 has no bytes."""
    for row in range(rows):
        size = i64(sizes + 8 * row)
        if size > 0:
            copy(to, i64(values + 8 * row), size)
            to += size


@inner
def _sextet(byte: int) -> int:
    """The six bits of a letter; -1: it is none."""
    if 0x41 <= byte <= 0x5A:
        return byte - 0x41
    if 0x61 <= byte <= 0x7A:
        return byte - 0x61 + 26
    if 0x30 <= byte <= 0x39:
        return byte - 0x30 + 52
    if byte == 0x2B:
        return 62
    return 63 if byte == 0x2F else -1


@inner
def _decoded(at: int, end: int, to: int) -> int:
    """Write the bytes of a text in base64; return how many there are, or -1."""
    if (end - at) & 3:
        return -1
    size = 0
    while at < end:
        word = padding = 0
        for i in range(4):
            bits = _sextet(u8(at + i))
            if bits < 0:
                if u8(at + i) != _PAD or i < 2 or at + 4 != end:
                    return -1
                padding += 1
                bits = 0
            elif padding:
                return -1
            word = word << 6 | bits
        for i in range(3 - padding):
            put8(to + size, word >> (16 - 8 * i))
            size += 1
        at += 4
    return size


@kernel(I64(I64, I64, I64, I64, I64))
def decode_base64(values: int, sizes: int, rows: int, offsets: int, data: int) -> int:
    """Write the bytes of these texts, one after the other, and where each ends; return how many rows are none.

    A text of size -1 has no bytes. The data must have room for three bytes for every four.
    """
    bad = until = 0
    for row in range(rows):
        at, size = i64(values + 8 * row), i64(sizes + 8 * row)
        found = _decoded(at, at + size, data + until) if size > 0 else 0
        if found < 0:
            bad += 1
            found = 0
        until += found
        put32(offsets + 4 * (row + 1), until)
    return bad
