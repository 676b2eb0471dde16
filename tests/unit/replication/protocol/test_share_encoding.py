"""The response to ShareFetch, held against kio's own writer."""

import uuid

import pytest
from kio.schema.types import BrokerId

from replication.network import steps
from replication.protocol import apis
from replication.protocol.apis import ApiKey
from replication.protocol.messages import CurrentLeader, NodeEndpoint
from replication.protocol.share_encoding import ShareFetched, ShareFetchResponse, share_fetch_steps

TOPIC = uuid.UUID(int=5)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("size", [0, 7, 100_000])
def test_what_is_encoded_is_what_kio_reads(version, size):
    rows = (
        ShareFetched(0, records=b"r" * size, acquired=((3, 9, 1), (11, 11, 4))),
        ShareFetched(1, 6, "moved", 121, "not yours", CurrentLeader(2, 8)),
    )
    endpoints = (NodeEndpoint(2, "there", 9092, None), NodeEndpoint(3, "here", 9093, "rack"))
    made = ShareFetchResponse(((TOPIC, rows), (None, (ShareFetched(4),))), 35, "no", 30_000, endpoints)
    parts = apis.encode_response(
        ApiKey.SHARE_FETCH, version, 9, apis.EncodedBody(steps.advance(share_fetch_steps(made))[1])
    )
    frame = b"".join(map(bytes, parts))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    correlation_id, found = apis.decode_response(ApiKey.SHARE_FETCH, version, memoryview(frame)[4:])
    assert (correlation_id, found.error_code, found.error_message) == (9, 35, "no")
    assert found.acquisition_lock_timeout.total_seconds() == 30
    assert [topic.topic_id for topic in found.responses] == [TOPIC, None]
    first, second = found.responses[0].partitions
    assert bytes(first.records) == b"r" * size
    assert [(a.first_offset, a.last_offset, a.delivery_count) for a in first.acquired_records] == [
        (3, 9, 1),
        (11, 11, 4),
    ]
    assert (first.error_code, first.acknowledge_error_code, first.current_leader.leader_id) == (0, 0, -1)
    assert (second.error_code, second.error_message) == (6, "moved")
    assert (second.acknowledge_error_code, second.acknowledge_error_message) == (121, "not yours")
    assert (second.current_leader.leader_id, second.current_leader.leader_epoch) == (2, 8)
    assert [(n.node_id, n.host, n.port, n.rack) for n in found.node_endpoints] == [
        (BrokerId(2), "there", 9092, None),
        (BrokerId(3), "here", 9093, "rack"),
    ]
