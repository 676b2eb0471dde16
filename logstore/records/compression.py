"""The five codecs of a record batch, as Kafka frames them; decompression never exceeds a limit.

====== ====== ===========================================================================================
number name   framing
====== ====== ===========================================================================================
0      none   the bytes themselves
1      gzip   RFC 1952, one or more members
2      snappy xerial: a 16-byte header, then blocks of (int32 length, raw snappy); raw snappy is read as well
3      lz4    LZ4 frame; written with independent blocks, which Kafka's Java reader insists on
4      zstd   one or more zstd frames
====== ====== ===========================================================================================
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from logstore.errors import InvalidConfigError

Buffer = bytes | bytearray | memoryview

XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that reads it
_XERIAL_BLOCK_BYTES = 32 * 1024  # what snappy-java writes
_ZSTD_LEVEL = 3  # zstd's own default, and Kafka's
_FIRST_GUESS_BYTES = 64 * 1024


class CompressionError(ValueError):
    """The bytes are not what the codec writes, or expand beyond the limit."""


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_name(cls, name: str | None) -> Codec:
        """Return the codec of this name; None, 'none' and 'uncompressed' mean NONE.

        Raises: InvalidConfigError: no such codec.
        """
        key = "none" if name is None or name.lower() == "uncompressed" else name.lower()
        if key.upper() not in cls.__members__:
            known = ", ".join(codec.name.lower() for codec in cls)
            raise InvalidConfigError(f"unknown compression {name!r}: one of {known}", value=name)
        return cls[key.upper()]


def compress(codec: Codec, data: Buffer) -> Buffer:
    import cramjam

    compressed: Any
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            compressed = cramjam.gzip.compress(data)
        case Codec.SNAPPY:
            compressed = _xerial(data)
        case Codec.LZ4:
            stream = cramjam.lz4.Compressor(block_linked=False)
            stream.compress(bytes(data))
            compressed = stream.finish()
        case Codec.ZSTD:
            compressed = cramjam.zstd.compress(data, level=_ZSTD_LEVEL)
    return memoryview(compressed)


def decompress(codec: Codec, data: Buffer, *, limit_bytes: int) -> Buffer:
    """Return the decompressed data, at most `limit_bytes`; memory never exceeds about twice the limit.

    Raises: CompressionError: not this codec's bytes, or more than `limit_bytes`.
    """
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _gunzip(data, limit_bytes)
        case Codec.SNAPPY:
            return _unsnappy(data, limit_bytes)
        case Codec.LZ4 | Codec.ZSTD:
            import cramjam

            into = cramjam.lz4.decompress_into if codec is Codec.LZ4 else cramjam.zstd.decompress_into
            return _expand(into, data, limit_bytes, codec.name.lower())


def _xerial(data: Buffer) -> bytes:
    import cramjam

    view, parts = memoryview(data), [_XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK_BYTES]))
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _gunzip(data: Buffer, limit_bytes: int) -> Buffer:
    parts: list[bytes] = []
    room, rest = limit_bytes, bytes(data)
    try:
        while rest:
            member = zlib.decompressobj(wbits=31)
            parts.append(member.decompress(rest, room + 1))
            room -= len(parts[-1])
            if room < 0:
                raise CompressionError(f"gzip expands to more than {limit_bytes:,} bytes")
            if not member.eof:
                raise CompressionError("gzip ends early")
            rest = member.unused_data
    except zlib.error as exc:
        raise CompressionError(f"gzip: {exc}") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unsnappy(data: Buffer, limit_bytes: int) -> Buffer:
    view = memoryview(data)
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        return _unsnappy_raw(view, limit_bytes)
    parts: list[Buffer] = []
    at, room = len(_XERIAL_HEADER), limit_bytes
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big", signed=True)
        at += 4
        if not 0 < size <= len(view) - at:
            raise CompressionError(f"snappy block of {size} bytes where {len(view) - at} are left")
        parts.append(_unsnappy_raw(view[at : at + size], room))
        room -= len(parts[-1])
        at += size
    return b"".join(parts)


def _unsnappy_raw(view: memoryview, limit_bytes: int) -> Buffer:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(view)
        if size > limit_bytes:
            raise CompressionError(f"snappy expands to more than {limit_bytes:,} bytes")
        if not size:
            return b""
        out = bytearray(size)
        return memoryview(out)[: cramjam.snappy.decompress_raw_into(view, out)]
    except cramjam.DecompressionError as exc:
        raise CompressionError(f"snappy: {exc}") from None


def _expand(into: Callable[[Any, Any], int], data: Buffer, limit_bytes: int, name: str) -> Buffer:
    """Decompress into a guess of the size, four times as large each time it was too small."""
    import cramjam

    size = min(limit_bytes, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        out = bytearray(size)
        try:
            return memoryview(out)[: into(data, out)]
        except cramjam.DecompressionError as exc:
            if size == limit_bytes:
                raise CompressionError(f"{name}: {exc}, or more than {limit_bytes:,} bytes") from None
            size = min(limit_bytes, 4 * size)
