"""The partitions in a controller's requests, encoded by hand: the bytes are kio's."""

from hypothesis import given, settings
from hypothesis import strategies as st

from replication.protocol import apis, told_partitions
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey
from replication.protocol.kio_entities import encode_entity
from tests.support.messages import int32, names, topic_ids, tuples
from tests.support.repeats import times

int64 = st.integers(-(2**63), 2**63 - 1)
ids = tuples(int32) | st.just(tuple(range(130)))
state = {
    "partition_index": int32,
    "controller_epoch": int32,
    "leader": int32,
    "leader_epoch": int32,
    "isr": ids,
    "zk_version": int32,
    "replicas": ids,
}
head = {"controller_id": int32, "controller_epoch": int32, "broker_epoch": int64}


def topics(kind, partition):
    return tuples(st.builds(kind, topic_name=names, topic_id=topic_ids, partition_states=tuples(partition)))


led = st.builds(ib.LeaderAndIsrPartition, **state, adding_replicas=ids, removing_replicas=ids, is_new=st.booleans())
told = st.builds(ib.UpdateMetadataPartition, **state, offline_replicas=ids)
endpoint = st.builds(ib.UpdateMetadataEndpoint, port=int32, host=names, listener=names)
requests = st.builds(
    ib.LeaderAndIsrRequest,
    **head,
    type=st.sampled_from((ib.FULL, ib.INCREMENTAL)),
    topic_states=topics(ib.LeaderAndIsrTopic, led),
    live_leaders=tuples(st.builds(ib.LiveLeader, broker_id=int32, host_name=names, port=int32)),
) | st.builds(
    ib.UpdateMetadataRequest,
    **head,
    topic_states=topics(ib.UpdateMetadataTopic, told),
    live_brokers=tuples(
        st.builds(ib.UpdateMetadataBroker, id=int32, endpoints=tuples(endpoint), rack=st.none() | names)
    ),
)


@given(requests)
@settings(max_examples=times(40, 100), deadline=None)
def test_bytes_are_those_of_kio(request):
    raw = encode_entity(request)
    assert told_partitions.request(request) == raw
    key = ApiKey.LEADER_AND_ISR if isinstance(request, ib.LeaderAndIsrRequest) else ApiKey.UPDATE_METADATA
    assert b"".join(apis.encode_request(key, apis.SERVED[key].last, 7, "broker-1", request)).endswith(raw)
