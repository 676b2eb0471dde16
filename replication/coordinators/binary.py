"""Fields of the records in internal topics, big-endian, and which partition keeps a name.

A string is an int16 length and UTF-8; a compact one, an unsigned varint of its length plus one and UTF-8.
"""

from __future__ import annotations

import struct
from functools import lru_cache

SHORT, INT, LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")


class UnknownRecordError(ValueError):
    """A record that this release cannot read."""


class UnknownTypeError(UnknownRecordError):
    """A record of a type that this release does not know: its key has another version. The error names the type."""


@lru_cache(maxsize=4096)
def partition_of(name: str, partitions: int) -> int:
    """Return the partition of an internal topic that keeps this name: Java's hash of it, as in Kafka."""
    units = name.encode("utf-16-be", "surrogatepass")
    code = 0
    for at in range(0, len(units), 2):
        code = (31 * code + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    signed = code - 2**32 if code >= 2**31 else code
    return (0 if signed == -(2**31) else abs(signed)) % partitions


def string(text: str) -> bytes:
    data = text.encode()
    return SHORT.pack(len(data)) + data


def nullable(text: str | None) -> bytes:
    return SHORT.pack(-1) if text is None else string(text)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


class Cursor:
    """Reads one field after the other. Raises UnknownRecordError beyond the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise UnknownRecordError(f"{size} bytes at byte {self._at} of {len(self._data)}")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def take_key_version(self, *known: int) -> int:
        """Take the version of a key, which is the type of its record. Raises: UnknownTypeError: none of the known."""
        if len(self._data) < SHORT.size:
            raise UnknownTypeError("without a key version")
        version = self.take_short()
        if version not in known:
            raise UnknownTypeError(f"of key version {version}")
        return version

    def take_byte(self) -> int:
        return self.take(1)[0]

    def take_short(self) -> int:
        return int.from_bytes(self.take(2), "big", signed=True)

    def take_int(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def take_long(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

    def take_varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.take_byte()
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def take_bytes(self) -> bytes:
        return self.take(self.take_int())

    def take_string(self) -> str:
        text = self.take_nullable()
        if text is None:
            raise UnknownRecordError("a string is null")
        return text

    def take_nullable(self) -> str | None:
        size = self.take_short()
        return None if size == -1 else self.take_text(size)

    def take_tags(self) -> dict[int, bytes]:
        return {self.take_varint(): self.take(self.take_varint()) for _ in range(self.take_varint())}

    def take_text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as exc:
            raise UnknownRecordError("a string is not UTF-8") from exc
