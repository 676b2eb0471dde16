"""Produce and Fetch messages between our values and kio's classes: the reference that our bytes are held against."""

import datetime
import io
from dataclasses import fields

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from replication.protocol import messages as m


def written(entity) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def read(cls, data: bytes):
    entity, consumed = entity_reader(cls)(data, 0)
    assert consumed == len(data)
    return entity


def ms(value: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=value)


def made(cls, **values):
    """An entity with those of the values that its version has."""
    return cls(**{f.name: values[f.name] for f in fields(cls) if f.name in values})


def nested(cls, name):
    """The class of the items of an array field."""
    kind = {f.name: f.type for f in fields(cls)}[name]
    for candidate in (kind, *getattr(kind, "__args__", ())):
        for deeper in (candidate, *getattr(candidate, "__args__", ())):
            if hasattr(deeper, "__dataclass_fields__"):
                return deeper
    raise AssertionError((cls, name))


def records(data):
    return None if data is None else bytes(data)


def produce_request(version: int, request: m.ProduceRequest):
    cls = load_request_schema(0, version)
    topic_cls = nested(cls, "topic_data")
    partition_cls = nested(topic_cls, "partition_data")
    return made(
        cls,
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout=ms(request.timeout_ms),
        topic_data=tuple(
            made(topic_cls, name=t.name, topic_id=t.topic_id, partition_data=tuple(
                made(partition_cls, index=p.partition, records=records(p.records)) for p in t.partitions
            )) for t in request.topics
        ),
    )  # fmt: skip


def fetch_request(version: int, request: m.FetchRequest, *, cluster=None, **replica):
    """The last ones are what other clients say, and nobody here reads: `replica` tags each partition."""
    cls = load_request_schema(1, version)
    topic_cls = nested(cls, "topics")
    partition_cls = nested(topic_cls, "partitions")
    tags = {f.name for f in fields(partition_cls)} & replica.keys()
    replica_tags = {name: replica[name] for name in tags}
    values = {
        "cluster_id": cluster,
        "replica_id": request.replica_id,
        "max_wait": ms(request.max_wait_ms),
        "min_bytes": request.min_bytes,
        "max_bytes": request.max_bytes,
        "isolation_level": request.isolation,
        "session_id": request.session_id,
        "session_epoch": request.session_epoch,
        "rack_id": request.rack,
        "topics": tuple(
            made(topic_cls, topic=t.name, topic_id=t.topic_id, partitions=tuple(
                made(
                    partition_cls, partition=p.partition, current_leader_epoch=p.current_leader_epoch,
                    fetch_offset=p.fetch_offset, last_fetched_epoch=p.last_fetched_epoch,
                    log_start_offset=p.log_start_offset, partition_max_bytes=p.max_bytes, **replica_tags,
                ) for p in t.partitions
            )) for t in request.topics
        ),
    }  # fmt: skip
    if version >= 7:
        gone_cls = nested(cls, "forgotten_topics_data")
        values["forgotten_topics_data"] = tuple(
            made(gone_cls, topic=name, topic_id=topic_id, partitions=partitions)
            for name, topic_id, partitions in request.forgotten
        )
    if version >= 15:
        state = nested(cls, "replica_state")
        values["replica_state"] = state(replica_id=request.replica_id, replica_epoch=request.replica_epoch)
    return made(cls, **values)


def endpoints(cls, nodes):
    node_cls = nested(cls, "node_endpoints")
    return tuple(made(node_cls, node_id=n.node_id, host=n.host, port=n.port, rack=n.rack) for n in nodes)


def produce_response(version: int, response: m.ProduceResponse):
    cls = load_response_schema(0, version)
    topic_cls = nested(cls, "responses")
    partition_cls = nested(topic_cls, "partition_responses")

    def partition(p):
        values = {
            "index": p.partition, "error_code": ErrorCode(p.error_code), "base_offset": p.base_offset,
            "log_append_time": None if p.log_append_time_ms == -1 else datetime.datetime.fromtimestamp(
                p.log_append_time_ms / 1000, datetime.UTC),
            "log_start_offset": p.log_start_offset, "error_message": p.error_message,
        }  # fmt: skip
        if version >= 8:
            error_cls = nested(partition_cls, "record_errors")
            values["record_errors"] = tuple(
                error_cls(batch_index=e.batch_index, batch_index_error_message=e.message) for e in p.record_errors
            )
        if version >= 10 and p.current_leader:
            values["current_leader"] = nested(partition_cls, "current_leader")(**p.current_leader._asdict())
        return made(partition_cls, **values)

    values = {
        "throttle_time": ms(response.throttle_time_ms),
        "responses": tuple(
            made(topic_cls, name=t.name, topic_id=t.topic_id, partition_responses=tuple(map(partition, t.partitions)))
            for t in response.topics
        ),
    }
    if version >= 10:
        values["node_endpoints"] = endpoints(cls, response.node_endpoints)
    return made(cls, **values)


def fetch_response(version: int, response: m.FetchResponse):
    cls = load_response_schema(1, version)
    topic_cls = nested(cls, "responses")
    partition_cls = nested(topic_cls, "partitions")
    aborted_cls = nested(partition_cls, "aborted_transactions")

    def partition(p):
        values = {
            "partition_index": p.partition, "error_code": ErrorCode(p.error_code),
            "high_watermark": p.high_watermark, "last_stable_offset": p.last_stable_offset,
            "log_start_offset": p.log_start_offset, "preferred_read_replica": p.preferred_read_replica,
            "aborted_transactions": None if p.aborted is None else tuple(
                aborted_cls(producer_id=a.producer_id, first_offset=a.first_offset) for a in p.aborted),
            "records": bytes(p.records),
        }  # fmt: skip
        if version >= 12 and p.current_leader:
            values["current_leader"] = nested(partition_cls, "current_leader")(**p.current_leader._asdict())
        return made(partition_cls, **values)

    values = {
        "throttle_time": ms(response.throttle_time_ms),
        "error_code": ErrorCode(response.error_code),
        "session_id": response.session_id,
        "responses": tuple(
            made(topic_cls, topic=t.name, topic_id=t.topic_id, partitions=tuple(map(partition, t.partitions)))
            for t in response.topics
        ),
    }
    if version >= 16:
        values["node_endpoints"] = endpoints(cls, response.node_endpoints)
    return made(cls, **values)
