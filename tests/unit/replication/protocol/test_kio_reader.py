"""The reader reads the same as kio; but no length goes beyond the bytes, and no tag has to be known."""

import random
import struct

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from replication.errors import ProtocolError
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.kio_reader import read
from replication.protocol.wire import MALFORMED
from tests.support.fuzz import frame_head, frame_of

HUGE = b"\xff\xff\xff\xff\x7f"


@pytest.mark.parametrize("key", [key for key in apis.SERVED if key not in (ApiKey.PRODUCE, ApiKey.FETCH)])
def test_a_message_is_read_as_kio_reads_it(key):
    rng = random.Random(key)
    for version in range(apis.SERVED[key].first, apis.SERVED[key].last + 1):
        frame = frame_of(key, version, rng)
        body, cls = frame[len(frame_head(frame)) :], apis.request_class(key, version)
        assert read(cls, memoryview(body), 0) == entity_reader(cls)(body, 0)


def test_a_compact_array_longer_than_its_bytes_is_refused():
    with pytest.raises(ProtocolError):
        read(load_request_schema(3, 12), HUGE + bytes(4), 0)


def test_a_legacy_array_longer_than_its_bytes_is_refused():
    with pytest.raises(ProtocolError):
        read(load_request_schema(3, 4), struct.pack(">i", 2**31 - 1) + bytes(4), 0)


def test_half_a_message_is_refused():
    raw = b"\x00\x01\x00\x00"  # Metadata v12: all topics, and three booleans of which one is missing
    assert read(load_request_schema(3, 12), raw, 0)[1] == len(raw)
    with pytest.raises((ProtocolError, *MALFORMED)):
        read(load_request_schema(3, 12), raw[:-1], 0)


def test_unknown_tags_are_skipped_and_the_rest_is_as_it_was():
    cls = load_request_schema(3, 12)
    topic = bytes(16) + b"\x02t"
    unknown = b"\x02" + b"\x07\x03abc" + b"\x63\x00"
    raw = b"\x02" + topic + unknown + b"\x01\x00" + b"\x01\x05\x01z"
    plain = b"\x02" + topic + b"\x00" + b"\x01\x00" + b"\x00"
    request, end = read(cls, raw, 0)
    assert (request, end) == (entity_reader(cls)(plain, 0)[0], len(raw))
    assert request.topics[0].name == "t"


def test_a_known_tag_has_the_size_of_its_content():
    cls = apis.response_class(ApiKey.API_VERSIONS, 3)
    body = bytes(2) + b"\x01" + bytes(4)
    for size, is_right in ((8, True), (9, False)):
        raw = body + b"\x01" + b"\x01" + bytes([size]) + struct.pack(">q", 5) + bytes(size - 8)
        if is_right:
            assert read(cls, raw, 0)[0].finalized_features_epoch == 5
        else:
            with pytest.raises(ProtocolError, match="not of its type"):
                read(cls, raw, 0)


def test_what_follows_the_message_is_left_alone():
    assert read(load_request_schema(12, 0), bytes(8) + b"more", 0)[1] == 8


def test_null_is_refused_where_an_array_must_be():
    """kio would hand it on as None."""
    null_topics = bytes(4) + struct.pack(">i", -1)
    with pytest.raises(ProtocolError, match="null"):
        read(load_request_schema(2, 1), null_topics, 0)
    assert read(load_request_schema(3, 1), struct.pack(">i", -1), 0)[0].topics is None  # Metadata of all topics


@pytest.mark.parametrize("cursor", [b"\xff", b"\x01" + b"\x02t" + struct.pack(">i", 3) + b"\x00"])
def test_a_struct_may_be_null(cursor):
    cls = load_request_schema(75, 0)  # DescribeTopicPartitions, with a cursor or without
    raw = b"\x01" + struct.pack(">i", 10) + cursor + b"\x00"
    request, end = read(cls, raw, 0)
    assert (request, end) == (entity_reader(cls)(raw, 0)[0], len(raw))
    assert (request.cursor is None) == (cursor == b"\xff")
