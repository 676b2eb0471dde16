"""Produce and Fetch messages of any shape, as hypothesis strategies; and what of them a version can say."""

from hypothesis import strategies as st

from replication.protocol import messages as m

int16, int32, int64 = (st.integers(-(2 ** (b - 1)), 2 ** (b - 1) - 1) for b in (16, 32, 64))
# Offsets and ids that are not "none", so that every field shows.
positive32, positive64 = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
names = st.sampled_from(["", "t", "orders", "ünïcödé-€", "x" * 130])
blobs = st.sampled_from([b"", b"\x00", b"batch" * 20, b"large" * 1000])
codes = st.integers(-1, 100)
topic_ids = st.uuids(version=4)


def tuples(items, **sizes):
    return st.lists(items, max_size=3, **sizes).map(tuple)


leaders = st.builds(m.CurrentLeader, positive32, positive32)
endpoints = tuples(st.builds(m.NodeEndpoint, int32, names, int32, st.none() | names))

produce_requests = st.builds(
    m.ProduceRequest,
    int16,
    int32,
    tuples(
        st.builds(m.ProduceTopic, names, tuples(st.builds(m.ProducePartition, int32, st.none() | blobs)), topic_ids)
    ),
    st.none() | names,
)
produce_responses = st.builds(
    m.ProduceResponse,
    tuples(st.builds(m.TopicProduced, names, tuples(st.builds(
        m.PartitionProduced, int32, codes, int64, st.just(-1) | st.integers(0, 2**40), int64,
        tuples(st.builds(m.RecordError, int32, st.none() | names)), st.none() | names, st.none() | leaders,
    )), topic_ids)),
    int32,
    endpoints,
)  # fmt: skip
fetch_requests = st.builds(
    m.FetchRequest,
    int32,
    int32,
    tuples(st.builds(m.FetchTopic, names, topic_ids, tuples(
        st.builds(m.FetchPartition, int32, int64, int32, int32, int32, int64)))),
    int32,
    st.sampled_from(m.Isolation),
    positive32,
    positive64,
    int32,
    int32,
    names,
    tuples(st.builds(m.ForgottenTopic, names, topic_ids, tuples(int32))),
)  # fmt: skip
fetch_responses = st.builds(
    m.FetchResponse,
    tuples(st.builds(m.TopicFetched, names, topic_ids, tuples(st.builds(
        m.PartitionFetched, int32, codes, int64, int64, int64,
        st.none() | tuples(st.builds(m.Aborted, int64, int64)), blobs, st.none() | leaders, int32,
    )))),
    int32,
    codes,
    int32,
    endpoints,
)  # fmt: skip


def _keyed(version, topic):
    return topic._replace(name=None) if version >= 13 else topic._replace(topic_id=None)


def _produced(version, topic):
    return topic._replace(name="") if version >= 13 else topic._replace(topic_id=None)


def as_version_says_produce_request(version, request):
    return request._replace(topics=tuple(_produced(version, topic) for topic in request.topics))


def as_version_says_fetch_request(version, request):
    """The request without what this version has no field for."""
    partitions = {
        "current_leader_epoch": 9,
        "last_fetched_epoch": 12,
        "log_start_offset": 5,
    }
    top = {
        "session_id": 7,
        "session_epoch": 7,
        "replica_epoch": 15,
        "rack": 11,
        "forgotten": 7,
    }
    topics = tuple(
        _keyed(version, t)._replace(partitions=tuple(_without(version, p, partitions) for p in t.partitions))
        for t in request.topics
    )
    gone = tuple(_keyed(version, t) for t in request.forgotten)
    return _without(version, request._replace(topics=topics, forgotten=gone), top)


def as_version_says_fetch_response(version, response):
    partitions = {
        "log_start_offset": 5,
        "current_leader": 12,
        "preferred_read_replica": 11,
    }
    topics = tuple(
        _keyed(version, t)._replace(partitions=tuple(_without(version, p, partitions) for p in t.partitions))
        for t in response.topics
    )
    top = {"error_code": 7, "session_id": 7, "node_endpoints": 16}
    return _without(version, response._replace(topics=topics), top)


def as_version_says_produce_response(version, response):
    partitions = {"log_start_offset": 5, "record_errors": 8, "error_message": 8, "current_leader": 10}
    topics = tuple(
        _produced(version, t)._replace(partitions=tuple(_without(version, p, partitions) for p in t.partitions))
        for t in response.topics
    )
    return _without(version, response._replace(topics=topics), {"node_endpoints": 10})


def _without(version, value, since):
    """`value` with the defaults of those fields that came with a later version."""
    late = [name for name, first in since.items() if version < first]
    return value._replace(**{name: value._field_defaults[name] for name in late})
