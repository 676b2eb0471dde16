"""Records: produced, fetched, and their offsets."""

from logstore.records.batch import Record, build
from replication.protocol.apis import ApiKey
from replication.protocol.messages import FetchPartition, ProducePartition, ProduceRequest, ProduceTopic
from tests.support.asker import CLOSED, SILENT, fetch_request, until
from tests.support.kafka_answers.case import AN_ID, BATCH, EVERYTHING, case, code
from tests.support.kafka_answers.topics import create, metadata, topic_id

NONE, TOO_OLD = (0, -1, -1, -1), (35, -1, -1, -1)


@case("Produce: a topic whose name is not UTF-8", [3, 3])
def produce_not_utf8(asker):
    rows = (ProducePartition(0, bytes(build([Record(0, 1_000, None, b"v")]))),)
    request = ProduceRequest(-1, 1000, (ProduceTopic("no-utf-8-here", rows),))
    instead = (b"no-utf-8-here", b"\xff\xfe" + b"no-utf-8-he")
    found = [asker.ask(ApiKey.PRODUCE, version, request, instead=instead) for version in (8, 9)]
    return [each if each is CLOSED else code(each.topics[0].partitions[0]) for each in found]


def produce_by_ids(asker, *ids, version=13, acks=-1):
    rows = (ProducePartition(0, bytes(build([Record(0, 1_000, None, b"v")]))),)
    topics = tuple(ProduceTopic("", rows, number) for number in ids)
    found = asker.ask(ApiKey.PRODUCE, version, ProduceRequest(acks, 5000, topics))
    if found in (CLOSED, SILENT):
        return found
    return [(topic.topic_id, code(topic.partitions[0]), topic.partitions[0].base_offset) for topic in found.topics]


@case("Produce by ids: known, unknown, none, and two", [[(True, 0, 0)], [(True, 100, -1)], [(False, 100, -1)], 2])
def produce_ids(asker):
    create(asker, asker.named("ids"))
    number = until(lambda: topic_id(asker, asker.named("ids")))
    until(lambda: code(metadata(asker, 12, (asker.named("ids"), None))[0].partitions[0]) == 0)
    found = [produce_by_ids(asker, asked) for asked in (number, AN_ID, None)]
    told = [[(asked is not None and row[0] == asked, *row[1:]) for row in rows]
            for asked, rows in zip((number, AN_ID, None), found, strict=True)]  # fmt: skip
    both = {row[0]: row[1:] for row in produce_by_ids(asker, number, AN_ID)}
    return [*told, len(both) if both == {number: (0, 1), AN_ID: (100, -1)} else both]


@case("Produce by an unknown id with acks=0", CLOSED)
def produce_unknown_silently(asker):
    return produce_by_ids(asker, AN_ID, acks=0)


@case("Fetch by id in the newest version", (0, 3, BATCH * 3))
def fetch_by_id(asker):
    number = topic_id(asker, asker.named("t"))
    found = asker.ask(ApiKey.FETCH, 18, fetch_request(None, topic_id=number, max_wait_ms=100))
    (row,) = found.topics[0].partitions
    return row.error_code, row.high_watermark, len(row.records)


def list_offsets(asker, *times, isolation=0, version=7):
    rows = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": time} for time in times]
    topics = [{"name": asker.named("t"), "partitions": rows}]
    body = {"replica_id": -1, "isolation_level": isolation, "topics": topics, "timeout": 1000}
    return [(code(row), row.offset) for row in asker.ask(ApiKey.LIST_OFFSETS, version, body).topics[0].partitions]


@case("ListOffsets: a partition twice", [(42, -1), (42, -1)], [(42, -1)])
def list_twice(asker):
    return list_offsets(asker, -1, -2)


@case("ListOffsets: places, by version", {
    -1: [(0, 3, -1, 0)] * 5, -2: [(0, 0, -1, 0)] * 5, -3: [(0, 0, 1000, 0)] * 5, -4: [TOO_OLD, *[(0, 0, -1, 0)] * 4],
    -5: [TOO_OLD] * 2 + [NONE] * 3, -6: [TOO_OLD] * 4 + [NONE], -7: [TOO_OLD] * 5,
})  # fmt: skip
def list_places(asker):
    def row(place, version):
        asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": place}
        topics = [{"name": asker.named("t"), "partitions": [asked]}]
        body = {"replica_id": -1, "isolation_level": 0, "topics": topics, "timeout": 1000}
        (found,) = asker.ask(ApiKey.LIST_OFFSETS, version, body).topics[0].partitions
        return code(found), found.offset, found.timestamp, found.leader_epoch

    return {place: [row(place, version) for version in range(7, 12)] for place in range(-1, -8, -1)}


@case("ListOffsets: an unknown isolation level", [(42, -1)], [(-1, -1)])
def list_isolated(asker):
    return list_offsets(asker, -1, isolation=7)


def fetch(asker, offset=0, each_bytes=EVERYTHING, *, version=11, **options):
    """(error, error of the partition, high watermark, bytes of records)."""
    request = fetch_request(asker.named("t"), FetchPartition(0, offset, each_bytes), max_wait_ms=100, **options)
    found = asker.ask(ApiKey.FETCH, version, request)
    if found is CLOSED:
        return found
    (row,) = found.topics[0].partitions
    return found.error_code, row.error_code, row.high_watermark, len(row.records)


@case("Fetch: max_bytes that end within a batch", (0, 0, 3, BATCH), (0, 0, 3, 100))
def fetch_half(asker):
    return fetch(asker, max_bytes=100, min_bytes=1 << 24)


@case("Fetch: max_bytes and partition_max_bytes below 0", [(0, 0, 3, BATCH)] * 2, [(0, -1, -1, 0)] * 2)
def fetch_negative(asker):
    return [fetch(asker, max_bytes=-1, min_bytes=-1), fetch(asker, each_bytes=-1)]


@case("Fetch: outside of the log", [(0, 1, 3, 0)] * 2, [(0, 1, -1, 0)] * 2)
def fetch_outside(asker):
    return [fetch(asker, 4), fetch(asker, -5)]


@case("Fetch: an unknown isolation level", [(0, 42, -1, 0), (42, 42, -1, 0)], [(0, -1, -1, 0), (-1, -1, -1, 0)])
def fetch_isolated(asker):
    return [fetch(asker, version=version, isolation=7) for version in (6, 11)]


@case("Fetch as a follower that is none", (31, 31, -1, 0), (0, 6, -1, 0))
def fetch_as_a_follower(asker):
    return fetch(asker, replica_id=77)


@case("OffsetForLeaderEpoch: no epoch, the first, one that is yet to come", [(0, -1, -1), (0, 0, 3), (0, -1, -1)])
def ends_of_epochs(asker):
    found = []
    for epoch in (-1, 0, 99):
        asked = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": epoch}
        body = {"replica_id": -1, "topics": [{"topic": asker.named("t"), "partitions": [asked]}]}
        (row,) = asker.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, body).topics[0].partitions
        found.append((code(row), row.leader_epoch, row.end_offset))
    return found
