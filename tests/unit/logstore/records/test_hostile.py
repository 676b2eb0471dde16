"""Bytes that nobody wrote: CorruptLogError or records, never anything else, whatever they are."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.errors import CorruptLogError
from logstore.records import batch
from logstore.records.arrow import decode, whole_bytes
from logstore.records.batch import build
from logstore.records.compression import Codec, compress
from tests.support.records import numbered, records_of
from tests.support.repeats import times

END = 2**63 - 1


def decoded(data):
    """The records of `data` by the kernels, or None if it is damaged; plain Python must agree."""
    try:
        fast = records_of(decode(data, start=0, end=END))
    except CorruptLogError:
        fast = None
    try:
        slow = []
        for position, header in batch.batches(data):
            found = list(batch.records(data, position))
            slow += [] if header.is_control else found
    except batch.InvalidBatchError:
        slow = None
    whole = batch.whole_bytes(data, len(data))[0] == len(data)
    if whole and fast is not None:
        assert fast == slow
    return fast


@pytest.mark.parametrize("codec", Codec)
def test_any_flipped_bit_is_damage_or_outside_the_crc(codec):
    original = numbered(3, size=5)
    data = bytearray(build(original, codec=codec))
    for at in range(len(data)):
        for bit in range(8):
            data[at] ^= 1 << bit
            found = decoded(data)
            data[at] ^= 1 << bit
            # A base offset and a leader epoch may be anything: an append stamps them.
            assert found is None or at < 8 or 12 <= at < 16


@given(data=st.data())
def test_the_kernel_finds_the_batches_that_plain_python_finds(data):
    log = bytearray().join(build(numbered(n, start=10 * i)) for i, n in enumerate((1, 1, 3, 1)))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(log) - 1))
        log[at] = data.draw(st.integers(0, 255))
    n = data.draw(st.integers(0, len(log)))
    start = data.draw(st.integers(0, n))
    upper = data.draw(st.none() | st.integers(-1, 50) | st.just(2**63 - 1))
    expected = batch.whole_bytes(log, n, start=start, upper=upper)
    assert whole_bytes(log, n, start=start, upper=upper) == expected


@given(st.binary(max_size=300))
def test_random_bytes_are_damage(data):
    found = decoded(data)
    assert found is None or (found == [] and not data)


@settings(max_examples=times(80, 600))
@given(
    st.sampled_from(Codec),
    st.binary(max_size=120),
    st.integers(0, 8),
    st.integers(0, 10),
)
def test_random_records_under_a_right_crc_are_damage_or_records(codec, section, count, last_delta):
    decoded(sealed(codec, section, count, last_delta))


@settings(max_examples=times(80, 600))
@given(st.sampled_from([Codec.NONE, Codec.LZ4]), st.data())
def test_damaged_records_under_a_right_crc_are_damage_or_records(codec, data):
    section = bytearray(build(numbered(6, size=3))[61:])
    for _ in range(data.draw(st.integers(1, 4))):
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
    decoded(sealed(codec, bytes(section), 6, 5))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_records_cut_anywhere_are_damage(codec):
    section = bytes(build(numbered(6, size=3))[61:])
    for cut in range(len(section)):
        with pytest.raises(CorruptLogError):
            decode(sealed(codec, section[:cut], 6, 5), start=0, end=END)


@pytest.mark.parametrize("number", [b"\xff" * 4 + b"\x0f", b"\xff" * 9 + b"\x01", b"\x80" * 12, b"\x01", b"\x7f"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_extreme_lengths_are_damage(codec, number):
    """Each number of a record in turn is the largest, the smallest, or never ends."""
    fields = [b"\x00", b"\x00", b"\x00", b"\x02k", b"\x02v", b"\x02", b"\x02h", b"\x02w"]
    for at in range(2, len(fields)):
        body = b"".join([*fields[:at], number, *fields[at + 1 :]])
        decoded(sealed(codec, struct.pack("B", 2 * len(body)) + body, 1, 0))
    with pytest.raises(CorruptLogError):
        decode(sealed(codec, number + bytes(20), 1, 0), start=0, end=END)


def padded(size):
    """A varint of `size` bytes that says 0."""
    return b"\x80" * (size - 1) + b"\x00"


def record_of(*, timestamp=b"\x00", delta=b"\x00", rest=b"\x01\x01\x00"):
    body = b"\x00" + timestamp + delta + rest
    return bytes([2 * len(body)]) + body


def test_a_number_may_be_as_long_as_its_type_and_no_longer():
    assert len(decoded(sealed(Codec.NONE, record_of(delta=padded(5)), 1, 0))) == 1
    assert decoded(sealed(Codec.NONE, record_of(delta=padded(6)), 1, 0)) is None
    assert len(decoded(sealed(Codec.NONE, record_of(timestamp=padded(10)), 1, 0))) == 1
    assert decoded(sealed(Codec.NONE, record_of(timestamp=padded(11)), 1, 0)) is None


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_record_ends_where_it_says(codec):
    with pytest.raises(CorruptLogError, match="does not end where it says"):
        decode(sealed(codec, record_of(rest=b"\x01\x01\x00\x00"), 1, 0), start=0, end=END)
    assert decoded(sealed(codec, record_of(rest=b"\x01\x01\x00\x00"), 1, 0)) is None


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_count_that_its_bytes_cannot_hold_allocates_nothing(codec):
    with pytest.raises(CorruptLogError, match="records"):
        decode(sealed(codec, bytes(40), 2**31 - 1, 2**31 - 2), start=0, end=END)


def sealed(codec, section, count, last_delta):
    """A batch with this section and a right CRC."""
    stored = bytes(compress(codec, section))
    data = bytearray(61) + stored
    header = batch.header_at(build(numbered(1), codec=codec))
    header = header._replace(length=len(data) - 12, count=count, last_offset_delta=last_delta)
    batch.write_header(data, 0, header)
    return data
