"""Cases about the records of share groups: ShareFetch and ShareAcknowledge, with their sessions."""

from logstore.records.batch import Record, build
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.support.asker import until
from tests.support.kafka_answers.case import AN_ID, case, code
from tests.support.kafka_answers.shares import Sharer
from tests.support.kafka_answers.topics import create, topic_id
from tests.support.sharing import ACCEPT, REJECT, RELEASE, RENEW, ShareMember, codes

NOTHING = {"max_wait": 0, "min_bytes": 0, "max_bytes": 0, "max_records": 0}


def shared(asker, group):
    """Return a member of a new group, whose topic has records 0 to 9, in batches of five."""
    name = asker.named(group)
    create(asker, name, configs=[{"name": "retention.ms", "value": "-1"}])
    setting = {"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}
    resource = {"resource_type": 32, "resource_name": name, "configs": [setting]}
    asker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    for first in (0, 5):
        batch = bytes(build([Record(n, 1_000, None, b"v%d" % (first + n)) for n in range(5)]))
        request = ProduceRequest(-1, 5000, (ProduceTopic(name, (ProducePartition(0, batch),)),))
        until(lambda request=request: code(asker.ask(ApiKey.PRODUCE, 9, request).topics[0].partitions[0]) == 0)
    member = Sharer(asker, group, "m1", group)
    until(lambda: member.hear()[0] == 0)
    until(member.reads)
    return ShareMember(asker, name, "m1", topic_id(asker, name))


def acquired(member, **options):
    """Fetch until something comes; return its ranges."""

    def ranges():
        answer = member.fetch(wait_ms=500, **options)
        return [
            (each.first_offset, each.last_offset, each.delivery_count)
            for topic in answer.responses
            for row in topic.partitions
            for each in row.acquired_records
        ]

    return until(ranges)


def told(member, *parts, **fields):
    """Acknowledge; return the error of the partition, or of all."""
    answer = member.acknowledge({0: list(parts)}, **fields)
    return codes(answer, "error_code").get(0, code(answer))


@case(
    "ShareFetch and ShareAcknowledge: sessions that are not there",
    [123, 42, 122, 122, 122, 122, 0, 123, 123, 42, 42, 42, 42],
)
def share_sessions(asker):
    member = shared(asker, "sessions")
    found = [code(member.acknowledge({})), code(member.fetch({0: [(0, 0, ACCEPT)]}))]
    for member.epoch in (7, -1):
        found += [code(member.fetch()), code(member.acknowledge({}))]
    member.epoch = 0
    found.append(code(member.fetch()))
    member.epoch = 7
    found += [code(member.fetch()), code(member.acknowledge({}))]
    for wrong in ({"group_id": None}, {"member_id": ""}):
        found += [code(member.fetch(**wrong)), code(member.acknowledge({}, **wrong))]
    member.epoch = -1
    member.acknowledge({})
    return found


@case(
    "a share group: what a member gets",
    [[(0, 4, 1)], [(5, 7, 1)], 0, [(3, 4, 2)], [(8, 9, 1)], 0, [(3, 4, 3), (8, 8, 2)]],
)
def share_given(asker):
    member = shared(asker, "given")
    found = [acquired(member, records_max=1), acquired(member, records_max=3, is_exact=True)]
    found.append(told(member, (0, 2, ACCEPT), (3, 4, RELEASE), (5, 7, (ACCEPT, REJECT, ACCEPT))))
    found += [acquired(member, records_max=2, is_exact=True), acquired(member)]
    found.append(told(member, (3, 4, RELEASE), (8, 8, RELEASE)))
    return [*found, acquired(member)]


@case("ShareAcknowledge: what is done with already, at the start of the partition and behind it", [0, 0, 0, 121])
def share_done(asker):
    member = shared(asker, "done")
    acquired(member)
    done = told(member, (0, 1, ACCEPT)), told(member, (0, 1, ACCEPT))
    return [*done, told(member, (3, 3, ACCEPT)), told(member, (3, 3, ACCEPT))]


@case(
    "ShareAcknowledge: what may not be acknowledged",
    [42, 121, 42, 42, 42, 42, 42, 0, 121, 42, 0, 42, 42, 0],
)
def share_wrong(asker):
    member = shared(asker, "wrong")
    acquired(member, records_max=5, is_exact=True)
    found = [
        told(member, (0, 99, ACCEPT)),
        told(member, (0, 0, ACCEPT), (0, 1, ACCEPT)),
        told(member, (3, 2, ACCEPT)),
        told(member, (2, 3, ACCEPT), (0, 1, ACCEPT)),
        told(member, (0, 1, (ACCEPT,) * 3)),
        told(member, (0, 1, ())),
        told(member, (0, 1, 9)),
        told(member, (0, 1, ACCEPT)),
        told(member, (2, 2, ACCEPT), (2, 3, ACCEPT)),
        told(member, (2, 2, RENEW)),
        told(member, (2, 2, RENEW), is_renew_ack=True),
        code(member.fetch({0: [(2, 2, RENEW)]}, is_renew_ack=True)),
    ]
    member.epoch += 0
    found.append(code(member.fetch({0: [(2, 2, RENEW)]}, is_renew_ack=True, **(NOTHING | {"max_wait": 1}))))
    return [*found, codes(member.fetch({0: [(2, 2, RENEW)]}, is_renew_ack=True, **NOTHING))[0]]


@case("ShareFetch and ShareAcknowledge: partitions that are not there", [{0: 0, 9: 3}, {0: 100}, {9: 3}, {0: 100}])
def share_unknown(asker):
    member = shared(asker, "unknown")
    member.partitions = 0, 9
    acquired(member)
    member.epoch = 0
    found = [codes(member.fetch(), "error_code")]
    found.append(codes(ShareMember(asker, member.group, "m2", AN_ID).fetch(), "error_code"))
    found.append(codes(member.acknowledge({9: [(0, 0, ACCEPT)]}), "error_code"))
    member.topic_id = AN_ID
    return [*found, codes(member.acknowledge({0: [(0, 0, ACCEPT)]}), "error_code")]
