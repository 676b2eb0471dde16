"""Producers and transactions."""

from replication.protocol.apis import ApiKey
from tests.support.asker import until
from tests.support.kafka_answers.case import case, code, codes


@case("DescribeProducers: a partition twice", [0], [0, 0])
def describe_producers_twice(asker):
    body = {"topics": [{"name": asker.named("t"), "partition_indexes": (0, 0)}]}
    return codes(asker.ask(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics[0].partitions)


@case("DescribeTransactions: an id twice", [105], [105, 105])
def describe_transactions_twice(asker):
    body = {"transactional_ids": ("nobody", "nobody")}
    return codes(asker.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, body).transaction_states)


def listed_transactions(asker, pattern):
    body = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1, "transactional_id_pattern": pattern}
    found = asker.ask(ApiKey.LIST_TRANSACTIONS, 2, body)
    word = f"-{asker.word}"
    return code(found), sorted(
        row.transactional_id.removesuffix(word)
        for row in found.transaction_states
        if row.transactional_id.endswith(word)
    )


@case(
    "ListTransactions by a pattern",
    [(0, ["listed", "listed2"]), (0, ["listed", "listed2"]), (0, []), (0, ["listed2"]), (128, []), (128, []), (0, [])],
)
def list_by_pattern(asker):
    for name in ("listed", "listed2"):
        until(lambda name=name: code(init(asker, -1, -1, transactional_id=asker.named(name))) == 0)
    rest = "-.*"
    patterns = "listed.*", f"(?i)LISTED2?{rest}", "listed", f"l[a-z]+2{rest}", "a)(b", "(", "(a|aa)+b"
    return [listed_transactions(asker, pattern) for pattern in patterns]


@case("InitProducerId: an id without an epoch, an epoch without an id", [42, 42])
def half_a_producer(asker):
    return [code(init(asker, *half)) for half in ((7, -1), (-1, 0))]


@case("InitProducerId: a producer without a transactional id", (0, 0))
def producer_of_no_transaction(asker):
    found = init(asker, 7, 0, transactional_id=None)
    return code(found), found.producer_epoch


def init(asker, producer_id, producer_epoch, **more):
    body = {
        "transactional_id": asker.named("init"),
        "transaction_timeout": 10_000,
        "producer_id": producer_id,
        "producer_epoch": producer_epoch,
        **more,
    }
    return asker.ask(ApiKey.INIT_PRODUCER_ID, 4, body)
