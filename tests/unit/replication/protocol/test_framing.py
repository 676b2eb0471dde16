"""Frames: however the stream is cut, the same requests come out; and a size is no claim on memory."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.errors import ProtocolError
from replication.protocol.framing import LARGE_BYTES, FrameReader

MAX = 4 << 20


def framed(payload):
    return struct.pack(">i", len(payload)) + payload


def received(reader, stream, cuts):
    """The frames, when the bytes come in pieces of these sizes, in turn, into the reader's room where it has one."""
    frames, at, turn = [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        turn += 1
        room = reader.room()
        if room is None:
            piece = stream[at : at + size]
            frames += reader.take(memoryview(piece))
        else:
            piece = stream[at : at + min(size, len(room))]
            room[: len(piece)] = piece
            room.release()
            frames += reader.filled(len(piece))
        at += len(piece)
    return frames


@given(
    st.lists(st.integers(8, 40) | st.sampled_from([LARGE_BYTES, LARGE_BYTES + 1, 300_000, 1_100_000]), max_size=4),
    st.lists(st.integers(1, 9) | st.integers(1, 400_000), min_size=1, max_size=4),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_the_same_frames_come_out_however_the_stream_is_cut(sizes, cuts, are_answers):
    if sum(sizes) > 1000 and max(cuts) < 1000:
        cuts = [*cuts, 50_000]
    payloads = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    reader = FrameReader(MAX, are_answers=are_answers)
    assert received(reader, b"".join(map(framed, payloads)), cuts) == payloads


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 7, MAX + 1, 2**31 - 1, 0x16030100, 0x47455420])
def test_a_size_that_may_not_be_is_refused(size):
    with pytest.raises(ProtocolError, match="bytes"):
        FrameReader(MAX).take(memoryview(struct.pack(">i", size)))


def test_memory_follows_what_came_and_not_what_was_promised():
    reader = FrameReader(100 << 20)
    assert reader.take(memoryview(struct.pack(">i", 100 << 20) + bytes(10))) == []
    assert len(reader.room()) + 10 == LARGE_BYTES
    reader.filled(LARGE_BYTES - 10)
    assert len(reader.room()) == 3 * LARGE_BYTES
