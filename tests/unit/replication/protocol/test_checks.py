"""What kio is given: no length beyond the bytes, no tag that it does not know."""

import struct

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from replication.errors import ProtocolError
from replication.protocol.kio_checks import checked
from replication.protocol.wire import MALFORMED

HUGE = b"\xff\xff\xff\xff\x7f"


def test_a_compact_array_longer_than_its_bytes_is_refused_before_kio_sees_it():
    with pytest.raises(ProtocolError):
        checked(load_request_schema(3, 12), HUGE + bytes(4), 0)


def test_a_legacy_array_longer_than_its_bytes_is_refused_before_kio_sees_it():
    with pytest.raises(ProtocolError):
        checked(load_request_schema(3, 4), struct.pack(">i", 2**31 - 1) + bytes(4), 0)


def test_half_a_message_is_refused():
    raw = b"\x00\x01\x00\x00"  # Metadata v12: all topics, and three booleans of which one is missing
    assert checked(load_request_schema(3, 12), raw, 0) == raw
    with pytest.raises((ProtocolError, *MALFORMED)):
        checked(load_request_schema(3, 12), raw[:-1], 0)


def test_unknown_tags_are_taken_out_and_the_rest_is_as_it_was():
    cls = load_request_schema(3, 12)
    topic = bytes(16) + b"\x02t"
    unknown = b"\x02" + b"\x07\x03abc" + b"\x63\x00"
    raw = b"\x02" + topic + unknown + b"\x01\x00" + b"\x01\x05\x01z"
    plain = b"\x02" + topic + b"\x00" + b"\x01\x00" + b"\x00"
    assert checked(cls, raw, 0) == plain
    request, consumed = entity_reader(cls)(plain, 0)
    assert (request.topics[0].name, consumed) == ("t", len(plain))


def test_what_follows_the_message_is_left_out():
    assert checked(load_request_schema(12, 0), bytes(8) + b"more", 0) == bytes(8)


def test_null_is_refused_where_an_array_must_be():
    """kio would hand it on as None."""
    null_topics = bytes(4) + struct.pack(">i", -1)
    with pytest.raises(ProtocolError, match="null"):
        checked(load_request_schema(2, 1), null_topics, 0)
    assert checked(load_request_schema(3, 1), struct.pack(">i", -1), 0)  # Metadata of all topics
