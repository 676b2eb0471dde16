"""Single requests, and what a broker says to them: ours, and a real Kafka 4.4 where that is something else.

The cases that differ are the rows of a table in docs/protocol.md, under the same names. Each case has a topic `t` of
one partition with three records, and names of its own.

`case` has what a case is; `topics`, `cluster`, `transactions`, `settings`, `groups`, `consumers`, `shares` and
`records` have the cases.
"""

from logstore.records.batch import Record, build
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from tests.support.asker import until
from tests.support.kafka_answers import cluster, consumers, records, settings, share_records, shares  # noqa: F401 - their cases
from tests.support.kafka_answers.case import CASES, code
from tests.support.kafka_answers.groups import join
from tests.support.kafka_answers.topics import create
from tests.support.kafka_answers.transactions import init


def cases():
    return list(CASES)


def prepare(asker):
    """Make the topic `t`, and a coordinator for groups and transactions."""
    keep = {"name": "retention.ms", "value": "-1"}  # the records are of 1970
    create(asker, asker.named("t"), configs=[keep])
    for kind in (0, 1):
        body = {"key_type": kind, "coordinator_keys": [asker.named("g")]}
        until(lambda body=body: code(asker.ask(ApiKey.FIND_COORDINATOR, 4, body).coordinators[0]) == 0)
    for value in (b"v0", b"v1", b"v2"):
        batch = build([Record(0, 1_000, None, value)])
        rows = (ProduceTopic(asker.named("t"), (ProducePartition(0, bytes(batch)),)),)
        request = ProduceRequest(-1, 5000, rows)
        until(lambda request=request: code(asker.ask(ApiKey.PRODUCE, 9, request).topics[0].partitions[0]) == 0)
    until(lambda: code(join(asker, asker.named("first"))) == 0)  # its partition was to be loaded
    until(lambda: code(init(asker, -1, -1, transactional_id=None)) == 0)  # a Kafka fetches numbers first
