"""An answer written item by item has the bytes of kio; the limits of items are kept."""

import pytest

from replication.errors import ProtocolError
from replication.protocol import apis, bounds, kio_pieces
from replication.protocol.apis import ApiKey
from replication.protocol.kio_pieces import Rows
from tests.support.giants import giant


@pytest.fixture(autouse=True)
def few(monkeypatch):
    small = {key: bound._replace(items_max=100, bytes_max=100_000) for key, bound in bounds.BOUNDS.items()}
    monkeypatch.setattr(bounds, "BOUNDS", small)


def test_one_item_more_than_there_may_be_is_refused(monkeypatch):
    frame = memoryview(giant("METADATA-names").frame)
    monkeypatch.setitem(bounds.BOUNDS, ApiKey.METADATA, bounds.Bound(100_000, 20))
    with pytest.raises(ProtocolError, match="more than 20 items"):
        bounds.decode(frame)


def response(version, rows):
    partition = {
        "error_code": 0,
        "partition_index": 1,
        "leader_id": 1,
        "leader_epoch": 2,
        "replica_nodes": (1, 2),
        "isr_nodes": (1,),
        "offline_replicas": (),
    }
    topic = {
        "error_code": 3,
        "name": "t",
        "topic_id": None,
        "is_internal": False,
        "topic_authorized_operations": 0,
    }
    return {
        "brokers": [{"node_id": 1, "host": "h", "port": 9, "rack": None}],
        "cluster_id": "c",
        "controller_id": 1,
        "cluster_authorized_operations": 0,
        "topics": rows([{**topic, "partitions": rows([partition] * 3)} for _ in range(200)]),
    }


@pytest.mark.parametrize("version", range(13))
@pytest.mark.parametrize("rows", [list, iter, lambda items: Rows(len(items), iter(items))])
def test_a_response_is_written_the_same_in_pieces(version, rows):
    steps, count = apis.response_steps(ApiKey.METADATA, version, 7, response(version, rows)), 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            made = b"".join(map(bytes, end.value))
            break
    assert made == b"".join(map(bytes, apis.encode_response(ApiKey.METADATA, version, 7, response(version, list))))
    assert count == 1 + 200 * 4


def test_an_answer_that_would_be_too_large_is_not_made(monkeypatch):
    monkeypatch.setattr(kio_pieces, "ANSWER_BYTES_MAX", 1000)
    with pytest.raises(ProtocolError, match="more than 1000 bytes"):
        list(apis.response_steps(ApiKey.METADATA, 12, 7, response(12, list)))
