"""A hash table from keys to the last offset of each, over memory that the caller gives.

Keys are kept and compared byte by byte: the hash only says where to look. An entry in the arena is::

    int64 offset    int32 size    uint32 hash    the key, filled up to a multiple of eight

and a slot of the table holds 16 bits of the hash and where the entry is (0: free). Linear probing.

Beside it there is a bitmap, `GONE`, of the records from offset `GONE_FROM` on that have a later one of their key (or
none that counts): the second pass need not look these up again.
"""

from __future__ import annotations

from logstore.records.kernels.native import I64, VOID, copy, i64, inner, kernel, prefetch, put8, put32, put64, u8, u32

ENTRY_BYTES = 16
SLOT_BYTES = 8

# The table's numbers, int64 each, at one address: kernels change `USED` and `KEYS`.
ARENA, ARENA_BYTES, USED, SLOTS, SLOT_COUNT, KEYS, KEYS_MAX, GONE, GONE_FROM, GONE_COUNT = range(10)
NUMBERS = 10

# The results of `put`.
STORED, NO_ROOM, NO_SLOT = range(3)

# So many keys are looked up together, and this is noted of each: hash, place in the table, address, size, offset; of a
# record that compaction may keep also its end, the size of its value, its timestamp.
WAITING_MAX = 32
NOTE_BYTES = 64
WAITING_BYTES = NOTE_BYTES * WAITING_MAX

_PLACE_BITS = 48
_PLACE_MASK = (1 << _PLACE_BITS) - 1
_K1, _K2 = 0x2545F4914F6CDD1D, -0x61C8864680B583EB


@inner
def hash_of(at: int, size: int) -> int:
    """Hash the `size` bytes at `at`, eight at a time."""
    h = size * _K1
    words_end = at + (size & ~7)
    for word in range(at, words_end, 8):
        h = (h ^ i64(word)) * _K2
        h ^= (h >> 32) & 0xFFFFFFFF
    tail = 0
    for i in range(size & 7):
        tail |= u8(words_end + i) << (8 * i)
    h = (h ^ tail) * _K2
    h ^= (h >> 29) & 0x7FFFFFFFF
    h *= _K1
    return h ^ ((h >> 32) & 0xFFFFFFFF)


@inner
def _equal(one: int, other: int, size: int) -> bool:
    words = size & ~7
    for i in range(0, words, 8):
        if i64(one + i) != i64(other + i):
            return False
    for i in range(words, size):  # noqa: SIM110 - numba knows no generators
        if u8(one + i) != u8(other + i):
            return False
    return True


@inner
def _mark(h: int) -> int:
    """The part of the hash that a slot holds."""
    return (h >> 40) & 0xFFFF


@inner
def _candidate(table: int, h: int, place: int) -> int:
    """The first slot from the one at `place` on that may be of this hash, or is free."""
    slots, bytes_mask = i64(table + 8 * SLOTS), SLOT_BYTES * i64(table + 8 * SLOT_COUNT) - 1
    while True:
        slot = i64(place)
        if slot == 0 or ((slot >> _PLACE_BITS) & 0xFFFF) == _mark(h):
            return place
        place = slots + ((place - slots + SLOT_BYTES) & bytes_mask)


@inner
def _slot_of(table: int, h: int, place: int, key: int, size: int) -> int:
    """Where the slot of this key is, its own or the free one where it would go: `place` or behind it."""
    slots, bytes_mask = i64(table + 8 * SLOTS), SLOT_BYTES * i64(table + 8 * SLOT_COUNT) - 1
    arena = i64(table + 8 * ARENA)
    while True:
        place = _candidate(table, h, place)
        slot = i64(place)
        if slot == 0:
            return place
        entry = arena + 8 * ((slot & _PLACE_MASK) - 1)
        if u32(entry + 8) == size and u32(entry + 12) == h & 0xFFFFFFFF and _equal(entry + ENTRY_BYTES, key, size):
            return place
        place = slots + ((place - slots + SLOT_BYTES) & bytes_mask)


@inner
def first_place(table: int, h: int) -> int:
    """Where a key of this hash is looked for first; it is on its way from memory then."""
    place = i64(table + 8 * SLOTS) + SLOT_BYTES * (h & (i64(table + 8 * SLOT_COUNT) - 1))
    prefetch(place)
    return place  # type: ignore[no-any-return]


@inner
def near_place(table: int, h: int, place: int) -> int:
    """The same, when that slot is near: where to look first for an entry, which is on its way then."""
    place = _candidate(table, h, place)
    slot = i64(place)
    if slot:
        prefetch(i64(table + 8 * ARENA) + 8 * ((slot & _PLACE_MASK) - 1))
    return place


@inner
def has_bit(table: int, offset: int) -> bool:
    """Does the bitmap tell about this record?"""
    return 0 <= offset - i64(table + 8 * GONE_FROM) < i64(table + 8 * GONE_COUNT)  # type: ignore[no-any-return]


@inner
def note_gone(table: int, offset: int) -> None:
    """Mark the record in the bitmap, if the bitmap tells about it."""
    if has_bit(table, offset):
        bit = offset - i64(table + 8 * GONE_FROM)
        at = i64(table + 8 * GONE) + (bit >> 3)
        put8(at, u8(at) | (1 << (bit & 7)))


@inner
def bit_of(table: int, offset: int) -> bool:
    """Does the bitmap say that there is a later record?"""
    bit = offset - i64(table + 8 * GONE_FROM)
    return (u8(i64(table + 8 * GONE) + (bit >> 3)) >> (bit & 7)) & 1 != 0  # type: ignore[no-any-return]


@inner
def put(table: int, h: int, place: int, key: int, size: int, offset: int) -> int:
    """Note that there is a record of this key at `offset`; NO_ROOM or NO_SLOT if it does not fit."""
    place = _slot_of(table, h, place, key, size)
    slot, arena = i64(place), i64(table + 8 * ARENA)
    if slot:
        entry = arena + 8 * ((slot & _PLACE_MASK) - 1)
        if i64(entry) < offset:
            note_gone(table, i64(entry))
            put64(entry, offset)
        elif i64(entry) > offset:
            note_gone(table, offset)
        return STORED
    used, keys = i64(table + 8 * USED), i64(table + 8 * KEYS)
    needed = ENTRY_BYTES + ((size + 7) & ~7)
    if used + needed > i64(table + 8 * ARENA_BYTES):
        return NO_ROOM
    if keys >= i64(table + 8 * KEYS_MAX):
        return NO_SLOT
    entry = arena + used
    put64(entry, offset)
    put32(entry + 8, size)
    put32(entry + 12, h)
    copy(entry + ENTRY_BYTES, key, size)
    put64(place, (_mark(h) << _PLACE_BITS) | (used // 8 + 1))
    put64(table + 8 * USED, used + needed)
    put64(table + 8 * KEYS, keys + 1)
    return STORED


@inner
def put_waiting(table: int, waiting: int, count: int) -> tuple[int, int]:
    """Note the keys that wait; (what `put` said of the first that has no room, its offset)."""
    for i in range(count):
        at = waiting + NOTE_BYTES * i
        put64(at + 8, near_place(table, i64(at), i64(at + 8)))
    for i in range(count):
        at = waiting + NOTE_BYTES * i
        said = put(table, i64(at), i64(at + 8), i64(at + 16), i64(at + 24), i64(at + 32))
        if said != STORED:
            return said, i64(at + 32)
    return STORED, 0


@inner
def latest(table: int, h: int, place: int, key: int, size: int) -> int:
    """The offset stored for this key; -1 if there is none."""
    slot = i64(_slot_of(table, h, place, key, size))
    return i64(i64(table + 8 * ARENA) + 8 * ((slot & _PLACE_MASK) - 1)) if slot else -1


@kernel(VOID(I64))
def refill(table: int) -> None:
    """Fill the slots, which are all free, from the entries in the arena: after the table has grown."""
    arena, used = i64(table + 8 * ARENA), i64(table + 8 * USED)
    slots, mask = i64(table + 8 * SLOTS), i64(table + 8 * SLOT_COUNT) - 1
    at = 0
    while at < used:
        size = u32(arena + at + 8)
        h = hash_of(arena + at + ENTRY_BYTES, size)
        slot = h & mask
        while i64(slots + SLOT_BYTES * slot):
            slot = (slot + 1) & mask
        put64(slots + SLOT_BYTES * slot, (_mark(h) << _PLACE_BITS) | (at // 8 + 1))
        at += ENTRY_BYTES + ((size + 7) & ~7)
