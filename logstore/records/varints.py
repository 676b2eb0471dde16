"""Varints: the numbers of records and the bytes behind them, read and written in plain Python."""

from __future__ import annotations


class BadRecordError(ValueError):
    """The bytes are no records; says why."""


class Cursor:
    """A place in the uncompressed records of one batch; every read is checked against the end."""

    __slots__ = ("_view", "end", "position")

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self.position = 0
        self.end = len(view)

    def varint(self, bits: int = 32) -> int:
        """Return a zigzag varint of at most 5 (32 bits) or 10 bytes (64 bits)."""
        result = 0
        for shift in range(0, bits + 6, 7):
            at = self.position
            if at >= self.end:
                raise BadRecordError("the records end within a number")
            byte = self._view[at]
            self.position = at + 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                result &= (1 << bits) - 1
                return (result >> 1) ^ -(result & 1)
        raise BadRecordError("a number is too long")

    def skip(self) -> int:
        """Go behind bytes; return how many they are, -1: null."""
        size = self.varint()
        if not -1 <= size <= self.end - self.position:
            raise BadRecordError(f"{size} bytes where {self.end - self.position} are left")
        self.position += max(size, 0)
        return size

    def sized(self) -> bytes | None:
        """Return the bytes whose number comes first; None: null."""
        size = self.varint()
        if size == -1:
            return None
        begin = self.position
        if not 0 <= size <= self.end - begin:
            raise BadRecordError(f"{size} bytes where {self.end - begin} are left")
        self.position = end = begin + size
        return bytes(self._view[begin:end])

    def pairs(self) -> int:
        """Return how many headers follow."""
        count = self.varint()
        if not 0 <= count <= (self.end - self.position) // 2:
            raise BadRecordError(f"{count} headers")
        return count

    def check_end(self) -> None:
        if self.position != self.end:
            raise BadRecordError(f"{self.end - self.position} bytes after the last record")


def varint(number: int) -> bytes:
    """Return a zigzag varint, as a record's sizes and deltas are."""
    rest = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data
