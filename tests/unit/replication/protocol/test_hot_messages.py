"""Produce and Fetch by hand: the same bytes as kio's, in every version, both ways; and no bytes do harm."""

import uuid
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.errors import ProtocolError
from replication.protocol import apis, decoding, encoding
from replication.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    Isolation,
    PartitionFetched,
    PartitionProduced,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    TopicFetched,
    TopicProduced,
)
from replication.protocol.wire import MALFORMED
from tests.support import kio_twin, messages
from tests.support.repeats import times

PRODUCE, FETCH = range(3, 14), range(4, 19)
NOISE = st.sampled_from([b"", b"\xff\xff\xff\xff\x7f", b"\x7f\xff\xff\xff"]) | st.binary(max_size=5)
# name -> (versions, any message, what of it a version says)
MESSAGES = {
    "produce_request": (PRODUCE, messages.produce_requests, messages.as_version_says_produce_request),
    "produce_response": (PRODUCE, messages.produce_responses, messages.as_version_says_produce_response),
    "fetch_request": (FETCH, messages.fetch_requests, messages.as_version_says_fetch_request),
    "fetch_response": (FETCH, messages.fetch_responses, messages.as_version_says_fetch_response),
}


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_bytes_are_those_of_kio_both_ways(name, data):
    versions, strategy, as_version_says = MESSAGES[name]
    message = data.draw(strategy)
    for version in versions:
        raw = b"".join(getattr(encoding, name)(version, message))
        assert raw == kio_twin.written(getattr(kio_twin, name)(version, message))
        assert getattr(decoding, name)(version, memoryview(raw), 0) == as_version_says(version, message)


@given(messages.fetch_requests, st.none() | messages.names)
@settings(max_examples=20, deadline=None)
def test_what_nobody_here_asks_of_a_fetch_is_skipped(request, cluster):
    for version in FETCH:
        twin = kio_twin.fetch_request(
            version, request, cluster=cluster, replica_directory_id=uuid.UUID(int=5), high_watermark=7
        )
        found = decoding.fetch_request(version, memoryview(kio_twin.written(twin)), 0)
        assert found == messages.as_version_says_fetch_request(version, request)


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
@settings(max_examples=times(20, 40), deadline=None)
def test_mutated_bytes_are_refused_or_read(name, data):
    versions, strategy, _ = MESSAGES[name]
    message, noise, place = data.draw(strategy), data.draw(NOISE), data.draw(st.floats(0, 1))
    for version in versions:
        raw = bytearray(b"".join(getattr(encoding, name)(version, message)))
        at = int(place * len(raw))
        raw[at : at + len(noise)] = noise
        with suppress(ProtocolError, *MALFORMED):
            getattr(decoding, name)(version, memoryview(raw), 0)


def test_records_are_writable_views_of_the_frame():
    request = encoding.produce_request(9, ProduceRequest(1, 0, (ProduceTopic("t", (
        ProducePartition(0, b"batches"),)),)))  # fmt: skip
    frame = bytearray(b"".join(request))
    records = decoding.produce_request(9, memoryview(frame), 0).topics[0].partitions[0].records
    records[:1] = b"B"
    assert b"Batches" in frame


@pytest.mark.parametrize("version", PRODUCE)
@pytest.mark.parametrize("name", ["", "t", "é" * 20, "t" * 126, "t" * 127, "t" * 249])
def test_a_request_of_one_batch_is_read_as_any_other(version, name):
    """A request that is read in one piece is not, with a byte behind it."""
    for records in (b"", b"r", bytes(0x7E), bytes(0x7F), bytes(20_000)):
        rows = (ProducePartition(7, records),)
        request = ProduceRequest(-1, 30_000, (ProduceTopic(name, rows, uuid.UUID(int=1 << 100)),))
        raw = b"".join(encoding.produce_request(version, request))
        request = messages.as_version_says_produce_request(version, request)
        for bytes_behind in (b"", b"\x00"):
            found = decoding.produce_request(version, memoryview(bytearray(raw + bytes_behind)), 0)
            assert found == request
        for cut in range(len(raw)) if len(raw) < 100 else (len(raw) - 1, len(raw) - 2, len(raw) // 2):
            with pytest.raises((ProtocolError, *MALFORMED)):
                decoding.produce_request(version, memoryview(raw)[:cut], 0)
        if version >= decoding.PRODUCE_FLEXIBLE:
            with pytest.raises((ProtocolError, *MALFORMED)):  # tags are promised, and do not come
                decoding.produce_request(version, memoryview(raw[:-1] + b"\x01"), 0)


@pytest.mark.parametrize("version", PRODUCE)
def test_the_response_to_one_batch_is_written_as_any_other(version):
    row, topic_id = PartitionProduced(7, 0, 1 << 40, 1_700_000_000_000, 12), uuid.UUID(int=1 << 100)
    response = ProduceResponse([TopicProduced("té", [row], topic_id)])
    whole = apis.encode_response(apis.ApiKey.PRODUCE, version, 99, response)
    named = topic_id if version >= decoding.TOPIC_IDS else "té"
    assert encoding.produced_one(version, 99, (named, 7), *row[2:5]) == b"".join(whole)


@pytest.mark.parametrize("version", FETCH)
@pytest.mark.parametrize("name", ["", "t", "é" * 20, "t" * 126, "t" * 127, "t" * 249])
def test_a_fetch_of_one_partition_is_read_as_any_other(version, name):
    """A fetch that is read in two pieces is not, with a rack, with a byte behind it, or without its last ones."""
    asked = FetchPartition(7, 1 << 40, 1 << 20, 3, -1, -1)
    for topic_id, rack in ((uuid.UUID(int=1 << 100), ""), (None, ""), (None, "r")):
        topics = (FetchTopic(name, topic_id, (asked,)),)
        request = FetchRequest(500, 1, topics, 5000, Isolation.READ_COMMITTED, -1, -1, 9, -1, rack)
        raw = b"".join(encoding.fetch_request(version, request))
        expected = messages.as_version_says_fetch_request(version, request)
        for bytes_behind in (b"", b"\x00"):
            assert decoding.fetch_request(version, memoryview(raw + bytes_behind), 0) == expected
        for cut in range(len(raw)) if len(raw) < 130 else (len(raw) - 1, len(raw) - 2, len(raw) // 2):
            with pytest.raises((ProtocolError, *MALFORMED)):
                decoding.fetch_request(version, memoryview(raw)[:cut], 0)


@pytest.mark.parametrize("version", range(11, 19))
@pytest.mark.parametrize("size", [1, 126, 127, 4096, 4097, 20_000])
@pytest.mark.parametrize("is_committed", [False, True])
def test_the_response_of_one_partition_is_written_as_any_other(version, size, is_committed):
    topic = "té", uuid.UUID(int=1 << 100)
    row = PartitionFetched(7, 0, 1 << 40, 99, 12, () if is_committed else None, bytes(size))
    whole = apis.encode_response(apis.ApiKey.FETCH, version, 99, FetchResponse([TopicFetched(*topic, [row])]))
    one = encoding.fetched_one(version, 99, topic, (7, 1 << 40, 99, 12), bytes(size), is_committed=is_committed)
    assert b"".join(one) == b"".join(whole)
