import contextlib
import gzip
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidConfigError
from logstore.records.compression import Codec, CompressionError, compress, decompress

PACKED = [codec for codec in Codec if codec is not Codec.NONE]


@given(st.sampled_from(Codec), st.binary(max_size=2000), st.integers(1, 100))
def test_data_comes_back(codec, data, times):
    data *= times
    assert bytes(decompress(codec, compress(codec, data), limit_bytes=len(data))) == data


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_does_not_go_off(codec):
    bomb = bytes(compress(codec, bytes(50_000_000)))
    tracemalloc.start()
    with pytest.raises(CompressionError):
        decompress(codec, bomb, limit_bytes=1_000_000)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.binary(min_size=1, max_size=200))
def test_other_bytes_are_refused_or_small(codec, data):
    with contextlib.suppress(CompressionError):
        assert len(decompress(codec, data, limit_bytes=1000)) <= 1000


@pytest.mark.parametrize("codec", PACKED)
def test_a_cut_is_noticed(codec):
    packed = bytes(compress(codec, bytes(range(256)) * 300))
    for cut in (1, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CompressionError):
            decompress(codec, packed[:cut], limit_bytes=100_000)


def test_snappy_is_written_for_java_and_read_raw_too():
    data = b"snappy" * 20_000
    packed = bytes(compress(Codec.SNAPPY, data))
    assert packed.startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert bytes(decompress(Codec.SNAPPY, raw, limit_bytes=len(data))) == data


def test_lz4_blocks_are_independent():
    frame = bytes(compress(Codec.LZ4, b"lz4" * 100_000))
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] >> 6 == 1  # version
    assert frame[4] & 0x20  # block independence


def test_gzip_may_have_several_members():
    packed = gzip.compress(b"one") + gzip.compress(b"two")
    assert bytes(decompress(Codec.GZIP, packed, limit_bytes=6)) == b"onetwo"
    with pytest.raises(CompressionError):
        decompress(Codec.GZIP, packed, limit_bytes=5)


@pytest.mark.parametrize(("name", "codec"), [(None, 0), ("none", 0), ("uncompressed", 0), ("LZ4", 3), ("zstd", 4)])
def test_codecs_have_names(name, codec):
    assert Codec.from_name(name) == codec


def test_an_unknown_codec_lists_the_known():
    with pytest.raises(InvalidConfigError, match="one of none, gzip, snappy, lz4, zstd"):
        Codec.from_name("brotli")
