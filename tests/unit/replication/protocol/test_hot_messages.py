"""Produce and Fetch by hand: the same bytes as kio's, in every version, both ways; and no bytes do harm."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.errors import ProtocolError
from replication.protocol import encoders, walkers
from replication.protocol.wire import MALFORMED
from tests.unit.replication.protocol import kio_twin, samples

PRODUCE, FETCH = range(3, 13), range(4, 17)
NOISE = st.sampled_from([b"", b"\xff\xff\xff\xff\x7f", b"\x7f\xff\xff\xff"]) | st.binary(max_size=5)
# name -> (versions, any message, what of it a version says)
MESSAGES = {
    "produce_request": (PRODUCE, samples.produce_requests, lambda version, request: request),
    "produce_response": (PRODUCE, samples.produce_responses, samples.as_version_says_produce_response),
    "fetch_request": (FETCH, samples.fetch_requests, samples.as_version_says_fetch_request),
    "fetch_response": (FETCH, samples.fetch_responses, samples.as_version_says_fetch_response),
}


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_bytes_are_those_of_kio_both_ways(name, data):
    versions, strategy, as_version_says = MESSAGES[name]
    message = data.draw(strategy)
    for version in versions:
        raw = b"".join(getattr(encoders, name)(version, message))
        assert raw == kio_twin.written(getattr(kio_twin, name)(version, message))
        assert getattr(walkers, name)(version, memoryview(raw), 0) == as_version_says(version, message)


@pytest.mark.parametrize("name", MESSAGES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_mutated_bytes_are_refused_or_read(name, data):
    versions, strategy, _ = MESSAGES[name]
    message, noise, place = data.draw(strategy), data.draw(NOISE), data.draw(st.floats(0, 1))
    for version in versions:
        raw = bytearray(b"".join(getattr(encoders, name)(version, message)))
        at = int(place * len(raw))
        raw[at : at + len(noise)] = noise
        with suppress(ProtocolError, *MALFORMED):
            getattr(walkers, name)(version, memoryview(raw), 0)


def test_records_are_writable_views_of_the_frame():
    request = encoders.produce_request(9, walkers.ProduceRequest(1, 0, (walkers.ProduceTopic("t", (
        walkers.ProducePartition(0, b"batches"),)),)))  # fmt: skip
    frame = bytearray(b"".join(request))
    records = walkers.produce_request(9, memoryview(frame), 0).topics[0].partitions[0].records
    records[:1] = b"B"
    assert b"Batches" in frame
