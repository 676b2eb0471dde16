"""The protocol's primitive values in its two forms: legacy, and compact (the flexible versions).

A length from a peer is compared with the remaining bytes before anything is allocated for it, so that a message costs
no more memory than it has bytes. Readers take `(buffer, at)` and return `(value, end)`. Writers return bytes.

`struct.error` and `IndexError` may escape, for bytes that end too early: the caller of a whole message turns them into
ProtocolError (`MALFORMED` lists them).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

from replication.errors import ProtocolError, TooManyItemsError

Buffer: TypeAlias = bytes | bytearray | memoryview
Tags: TypeAlias = Mapping[int, Buffer]

MALFORMED = (struct.error, IndexError, ValueError)

NO_TAGS: Tags = MappingProxyType({})
# Items of all arrays of one message, since a value costs up to a hundred times its bytes. Limits of requests are lower,
# and differ per API: `bounds`.
ITEMS_MAX = 1_000_000
TAGS_MAX = 10_000  # of one struct, as at a Kafka
REPLACED_BYTES_MAX = 10_000  # a byte may become three, and answers name what was asked for
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")


def uvarint(buffer: Buffer, at: int) -> tuple[int, int]:
    """Read an unsigned number of up to 32 bits: seven bits per byte, the lowest first."""
    value = buffer[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        at += 1
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at + 1
    raise ProtocolError("a variable-length number has more than 5 bytes")


def put_uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes([value]) for value in range(0x80)]


def cut(buffer: Buffer, at: int, size: int) -> tuple[Buffer, int]:
    """Return the next `size` bytes, as a view if `buffer` is a memoryview."""
    end = at + size
    if size < 0 or end > len(buffer):
        raise ProtocolError(f"a length of {size} where {len(buffer) - at} bytes are left")
    return buffer[at:end], end


def text(data: Buffer) -> str:
    """Decode a string as Kafka's Java does: what is not UTF-8 becomes U+FFFD. Raises: ProtocolError: in a long one."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        if len(data) > REPLACED_BYTES_MAX:
            raise ProtocolError(f"a string of {len(data)} bytes that is not UTF-8") from None
        return str(data, "utf-8", "replace")


def check_count(buffer: Buffer, at: int, count: int, item_bytes: int) -> None:
    """Check that `count` items of at least `item_bytes` each fit into the remaining bytes. Raises: ProtocolError."""
    if count * item_bytes > len(buffer) - at:
        raise ProtocolError(f"an array of {count} items where {len(buffer) - at} bytes are left")
    check_items(count)


def check_items(count: int, limit: int = ITEMS_MAX) -> None:
    """Raise TooManyItemsError if a message has more items than `limit`."""
    if count > limit:
        raise TooManyItemsError(f"a message of more than {limit} items")


def count_of_tags(buffer: Buffer, at: int) -> tuple[int, int]:
    count, at = uvarint(buffer, at)
    if count > TAGS_MAX:
        raise ProtocolError(f"{count} tagged fields")
    return count, at


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The readers and writers of strings, bytes, arrays and tags in one of the two forms."""

    nullable_string: Callable[[Buffer, int], tuple[str | None, int]]
    nullable_bytes: Callable[[Buffer, int], tuple[Buffer | None, int]]
    nullable_count: Callable[[Buffer, int, int], tuple[int | None, int]]  # buffer, at, least bytes of an item
    tags: Callable[[Buffer, int], tuple[Tags, int]]
    put_string: Callable[[str | None], bytes]
    put_size: Callable[[int | None], bytes]  # of bytes
    put_count: Callable[[int | None], bytes]  # of an array
    put_tags: Callable[[Sequence[tuple[int, bytes]]], bytes]

    def string(self, buffer: Buffer, at: int) -> tuple[str, int]:
        value, at = self.nullable_string(buffer, at)
        if value is None:
            raise ProtocolError("null where a string must be")
        return value, at

    def count(self, buffer: Buffer, at: int, item_bytes: int) -> tuple[int, int]:
        value, at = self.nullable_count(buffer, at, item_bytes)
        if value is None:
            raise ProtocolError("null where an array must be")
        return value, at

    def counted_tags(self, buffer: Buffer, at: int, items: int, items_max: int) -> tuple[int, int]:
        """Read tags of which none is known here; return the items of the message, which they are, too, and their end.

        Raises: TooManyItemsError: more than `items_max`.
        """
        tags, at = self.tags(buffer, at)
        if tags:
            items += len(tags)
            check_items(items, items_max)
        return items, at


def _legacy_string(buffer: Buffer, at: int) -> tuple[str | None, int]:
    (size,) = INT16.unpack_from(buffer, at)
    if size == -1:
        return None, at + 2
    found, at = cut(buffer, at + 2, size)
    return text(found), at


def _legacy_bytes(buffer: Buffer, at: int) -> tuple[Buffer | None, int]:
    (size,) = INT32.unpack_from(buffer, at)
    return (None, at + 4) if size == -1 else cut(buffer, at + 4, size)


def _legacy_count(buffer: Buffer, at: int, item_bytes: int) -> tuple[int | None, int]:
    (count,) = INT32.unpack_from(buffer, at)
    at += 4
    if count < 0:
        if count == -1:
            return None, at
        raise ProtocolError(f"an array of {count} items")
    check_count(buffer, at, count, item_bytes)
    return count, at


def _no_tags(buffer: Buffer, at: int) -> tuple[Tags, int]:
    return NO_TAGS, at


def _put_legacy_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return INT16.pack(len(encoded)) + encoded


def _put_legacy_size(size: int | None) -> bytes:
    return INT32.pack(-1 if size is None else size)


def _put_no_tags(tags: Sequence[tuple[int, bytes]]) -> bytes:
    return b""


def _compact_string(buffer: Buffer, at: int) -> tuple[str | None, int]:
    size, at = uvarint(buffer, at)
    if size == 0:
        return None, at
    found, at = cut(buffer, at, size - 1)
    return text(found), at


def _compact_bytes(buffer: Buffer, at: int) -> tuple[Buffer | None, int]:
    size, at = uvarint(buffer, at)
    return (None, at) if size == 0 else cut(buffer, at, size - 1)


def _compact_count(buffer: Buffer, at: int, item_bytes: int) -> tuple[int | None, int]:
    count, at = uvarint(buffer, at)
    if count == 0:
        return None, at
    check_count(buffer, at, count - 1, item_bytes)
    return count - 1, at


def _tags(buffer: Buffer, at: int) -> tuple[Tags, int]:
    count, at = count_of_tags(buffer, at)
    if count == 0:
        return NO_TAGS, at
    found = {}
    for _ in range(count):
        tag, at = uvarint(buffer, at)
        size, at = uvarint(buffer, at)
        found[tag], at = cut(buffer, at, size)
    if len(found) < count:
        raise ProtocolError("a tagged field comes twice")
    return found, at


def _put_compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    encoded = text.encode()
    return put_uvarint(len(encoded) + 1) + encoded


def _put_compact_size(size: int | None) -> bytes:
    return b"\x00" if size is None else put_uvarint(size + 1)


def _put_tags(tags: Sequence[tuple[int, bytes]]) -> bytes:
    parts = [put_uvarint(len(tags))]
    for tag, content in sorted(tags):
        parts += (put_uvarint(tag), put_uvarint(len(content)), content)
    return b"".join(parts)


LEGACY = Form(
    nullable_string=_legacy_string,
    nullable_bytes=_legacy_bytes,
    nullable_count=_legacy_count,
    tags=_no_tags,
    put_string=_put_legacy_string,
    put_size=_put_legacy_size,
    put_count=_put_legacy_size,
    put_tags=_put_no_tags,
)
COMPACT = Form(
    nullable_string=_compact_string,
    nullable_bytes=_compact_bytes,
    nullable_count=_compact_count,
    tags=_tags,
    put_string=_put_compact_string,
    put_size=_put_compact_size,
    put_count=_put_compact_size,
    put_tags=_put_tags,
)
