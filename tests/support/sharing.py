"""A member of a share group at one broker, request by request: a test says what it acquires and acknowledges."""

from contextlib import contextmanager

from logstore.records.batch import Record, batches, build, records
from replication.coordinators.share_state.states import IdPartition
from replication.model.cluster import topic_uuid
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.support.asker import Asker

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


class ShareMember:
    """`topic_id` as messages have it; the session is opened by the first fetch."""

    def __init__(self, asker, group, member, topic_id, partitions=(0,), version=2):
        self.asker = asker
        self.group, self.member, self.topic_id, self.partitions, self.version = (
            group, member, topic_id, partitions, version,
        )  # fmt: skip
        self.epoch = 0

    def close(self):
        """Cut the connection."""
        self.asker.close()

    def _body(self, parts, **fields):
        rows = [
            {
                "partition_index": number,
                "acknowledgement_batches": [
                    {
                        "first_offset": first,
                        "last_offset": last,
                        "acknowledge_types": kinds if isinstance(kinds, tuple) else (kinds,),
                    }
                    for first, last, kinds in parts.get(number, ())
                ],
            }
            for number in {*parts, *(self.partitions if not self.epoch else ())}
        ]
        topics = [{"topic_id": self.topic_id, "partitions": rows}] if rows else []
        return {
            "group_id": self.group,
            "member_id": self.member,
            "share_session_epoch": self.epoch,
            "topics": topics,
            "is_renew_ack": False,
            **fields,
        }

    def fetch(self, parts=None, **options):
        """Return the answer; the epoch goes on unless it is refused."""
        return self._went_on(self.asker.ask(ApiKey.SHARE_FETCH, self.version, self._fetch_body(parts, **options)))

    def fetch_and_go(self):
        """Ask for a session on a connection of its own, which is closed at once."""
        self.asker.ask_and_go(ApiKey.SHARE_FETCH, self.version, self._fetch_body())

    def _fetch_body(self, parts=None, *, wait_ms=0, records_max=500, batch_size=500, is_exact=False, **fields):
        return self._body(
            parts or {},
            **{
                "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": records_max,
                "batch_size": batch_size, "share_acquire_mode": int(is_exact), "forgotten_topics_data": (), **fields,
            },
        )  # fmt: skip

    def given(self, *, wait_ms=5000, **options):
        """Return {(partition, offset): (delivery count, value)} of a fetch."""
        answer = self.fetch(wait_ms=wait_ms, **options)
        assert answer.error_code == 0, answer
        return given(answer)

    def acknowledge(self, parts, **fields):
        return self._went_on(self.asker.ask(ApiKey.SHARE_ACKNOWLEDGE, self.version, self._body(parts, **fields)))

    def _went_on(self, answer):
        if answer.error_code == 0 and self.epoch >= 0:
            self.epoch += 1
        return answer


def given(answer):
    found = {}
    for topic in answer.responses:
        for row in topic.partitions:
            assert row.error_code == 0, row
            values = {
                record.offset: record.value
                for at, header in batches(row.records)
                if not header.is_control
                for record in records(row.records, at)
            }
            for each in row.acquired_records:
                for offset in range(each.first_offset, each.last_offset + 1):
                    found[row.partition_index, offset] = each.delivery_count, values.get(offset)
    return found


def codes(answer, name="acknowledge_error_code"):
    return {row.partition_index: int(getattr(row, name)) for topic in answer.responses for row in topic.partitions}


def produce(site, topic, *values, partition=0):
    """Have a batch of these values appended by the leader of the partition."""
    data = bytes(build([Record(n, 1_000 + n, None, value) for n, value in enumerate(values)]))
    request = ProduceRequest(-1, 5000, (ProduceTopic(topic, (ProducePartition(partition, data),)),))
    with Asker(address_of(site, leader_of(site, topic, partition))) as asker:
        answer = asker.ask(ApiKey.PRODUCE, 9, request)
    assert answer.topics[0].partitions[0].error_code == 0, answer


def leader_of(site, topic, partition=0):
    return next(iter(site.brokers.values())).replicas.metadata.leader(topic, partition)


def address_of(site, broker):
    return str(site.brokers[broker].endpoint)


def begin(site, group, topic, *, start=0, partitions=(0,), epoch=1):
    """Have the group share the partitions from this offset on, as the coordinator of the group does."""
    broker = next(iter(site.brokers.values()))
    topic_id = broker.replicas.metadata.topic(topic).id
    offsets = {IdPartition(topic_id, number): (epoch, start) for number in partitions}
    found = site.do(broker.coordinators.share_states.initialize(group, offsets))
    assert not any(found.values()), found
    return topic_id


@contextmanager
def member_of(site, group, member, topic, **options):
    topic_id = next(iter(site.brokers.values())).replicas.metadata.topic(topic).id
    asker = Asker(address_of(site, leader_of(site, topic)))
    made = ShareMember(asker, group, member, topic_uuid(topic_id), **options)
    try:
        yield made
    finally:
        made.close()
