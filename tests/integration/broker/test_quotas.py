"""Quotas at brokers: described and altered by whichever broker is asked, kept in the tree, and what they do."""

import json
import time
from datetime import timedelta

import confluent_kafka
import pytest

from logstore.records.batch import Record, build
from replication.broker import quota_nodes
from replication.coordination import nodes
from replication.coordination.tree import Create
from replication.errors import ErrorCode
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from replication.security.quotas import ANY, Entity, Quota
from tests.conformance.clients.tools import Kcat
from tests.support.asker import CLOSED, Asker, until
from tests.support.in_process import brokers_in_process
from tests.support.repeats import only_long

EXACT, DEFAULT, SPECIFIED = range(3)
ME = "ANONYMOUS"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    few = {"quota_window_num": 2, "controller_quota_window_num": 2}
    with brokers_in_process(tmp_path_factory.mktemp("quotas"), (1, 2), **few) as running:
        yield running


@pytest.fixture
def askers(brokers):
    with Asker(str(brokers.brokers[1].endpoint)) as one, Asker(str(brokers.brokers[2].endpoint)) as other:
        yield one, other
        clear(one)
        for broker in brokers.brokers.values():
            until(lambda broker=broker: not broker.throttle.limits.entities())


def row(named, **values):
    """A change of the quotas of an entity; None removes one."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in named.items()],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()
        ],
    }  # fmt: skip


def alter(asker, *changes, version=1, validate_only=False):
    found = asker.ask(ApiKey.ALTER_CLIENT_QUOTAS, version, {"entries": changes, "validate_only": validate_only})
    assert len(found.entries) == len(changes)
    return [(each.error_code.value, each.error_message) for each in found.entries]


def describe(asker, *parts, strict=False, version=1):
    components = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in parts]
    found = asker.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, {"components": components, "strict": strict})
    if found.error_code.value:
        assert found.entries is None
        return found.error_code.value, found.error_message
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in each.entity)): {
            value.key: value.value for value in each.values
        }
        for each in found.entries
    }


def clear(asker):
    found = describe(asker)
    changes = [row(dict(entity), **dict.fromkeys(values)) for entity, values in found.items()]
    if changes:
        assert {code for code, _ in alter(asker, *changes)} == {0}


@pytest.mark.parametrize("version", [0, 1])
def test_quotas_are_set_described_and_removed_at_any_broker(askers, version):
    one, other = askers
    changes = [
        row({"user": "ada", "client-id": "etl"}, producer_byte_rate=1000.0, request_percentage=12.5),
        row({"user": None}, consumer_byte_rate=5000.0),
        row({"client-id": "x/y ~*"}, controller_mutation_rate=0.5),
        row({"ip": "127.9.9.9"}, connection_creation_rate=7.0),
        row({"ip": None}, connection_creation_rate=9.0),
    ]
    assert alter(one, *changes, version=version) == [(0, None)] * 5
    expected = {
        (("client-id", "etl"), ("user", "ada")): {"producer_byte_rate": 1000.0, "request_percentage": 12.5},
        (("user", None),): {"consumer_byte_rate": 5000.0},
        (("client-id", "x/y ~*"),): {"controller_mutation_rate": 0.5},
        (("ip", "127.9.9.9"),): {"connection_creation_rate": 7.0},
        (("ip", None),): {"connection_creation_rate": 9.0},
    }
    assert describe(one, version=version) == expected
    until(lambda: describe(other, version=version) == expected)
    removed = row({"user": "ada", "client-id": "etl"}, producer_byte_rate=None, consumer_byte_rate=None)
    assert alter(other, removed, version=version) == [(0, None)]
    assert describe(other, ("user", EXACT, "ada"), version=version) == {
        (("client-id", "etl"), ("user", "ada")): {"request_percentage": 12.5}
    }
    until(lambda: describe(one, version=version) == describe(other, version=version))


def test_a_filter_selects_as_kafkas(askers):
    one, _ = askers
    entities = [
        {"user": "a"}, {"user": "b"}, {"user": None}, {"user": "a", "client-id": "c"}, {"user": "a", "client-id": None},
        {"client-id": "c"}, {"ip": "127.9.9.9"},
    ]  # fmt: skip
    keys = {True: "connection_creation_rate", False: "producer_byte_rate"}
    alter(one, *(row(named, **{keys["ip" in named]: 10.0**6}) for named in entities))

    def found(*parts, strict=False):
        return {frozenset(each) for each in describe(one, *parts, strict=strict)}

    def expected(*numbers):
        return {frozenset(entities[number].items()) for number in numbers}

    assert found() == expected(*range(7))
    assert found(strict=True) == set()
    assert found(("user", EXACT, "a")) == expected(0, 3, 4)
    assert found(("user", EXACT, "a"), strict=True) == expected(0)
    assert found(("user", DEFAULT, None)) == expected(2)
    assert found(("user", SPECIFIED, None)) == expected(0, 1, 2, 3, 4)
    assert found(("user", SPECIFIED, None), strict=True) == expected(0, 1, 2)
    assert found(("user", SPECIFIED, None), ("client-id", DEFAULT, None)) == expected(4)
    assert found(("client-id", EXACT, "c")) == expected(3, 5)
    assert found(("ip", SPECIFIED, None)) == expected(6)
    assert found(("user", EXACT, "")) == set()


@pytest.mark.parametrize(
    ("parts", "code", "says"),
    [
        ([("", EXACT, "a")], 42, "Invalid empty entity type."),
        ([("user", EXACT, "a"), ("user", DEFAULT, None)], 42, "cannot appear more than once"),
        ([("group", EXACT, "a")], 35, "Unsupported entity type group"),
        ([("user", EXACT, None)], 42, "set match string to null"),
        ([("user", DEFAULT, "a")], 42, "also specified a match string"),
        ([("user", SPECIFIED, "a")], 42, "also specified a match string"),
        ([("user", 3, "a")], 42, "Unknown match type 3"),
        ([("user", EXACT, "a"), ("ip", DEFAULT, None)], 42, "should not be used with"),
    ],
)
def test_a_filter_that_is_none_is_refused_in_kafkas_words(askers, parts, code, says):
    found, said = describe(askers[0], *parts)
    assert found == code
    assert says in said


def test_changes_that_are_none_are_refused_and_the_others_are_made(askers):
    one, _ = askers
    wrong = [
        (row({}), "Invalid empty client quota entity"),
        (row({"group": "a"}), "Unhandled client quota entity type: group"),
        (row({"user": ""}, producer_byte_rate=1.0), "Empty user not supported"),
        (row({"user": "a"}, connection_creation_rate=1.0), "Invalid configuration key connection_creation_rate"),
        (row({"user": "a", "client-id": "w"}, producer_byte_rate=0.0), "must be greater than 0"),
        (row({"user": "a", "client-id": "v"}, producer_byte_rate=1.5), "cannot be a fractional value"),
        (row({"ip": "nobody.example"}, connection_creation_rate=1.0), "is not a valid IP"),
        (row({"ip": "127.0.0.1", "user": "a"}, connection_creation_rate=1.0), "should not be combined"),
    ]
    twice = row({"user": "twice"}, producer_byte_rate=5.0)
    twice["ops"] *= 2
    same = row({"user": "same"}, producer_byte_rate=5.0)
    good = row({"user": "good"}, producer_byte_rate=5.0)
    half = row({"user": "half"}, producer_byte_rate=5.0, consumer_byte_rate=-1.0)
    found = alter(one, *(each for each, _ in wrong), twice, same, same, good, half)
    for (code, said), (_, expected) in zip(found, wrong, strict=False):
        assert code == ErrorCode.INVALID_REQUEST
        assert expected in said
    assert [code for code, _ in found[len(wrong) :]] == [42, 42, 42, 0, 42]
    assert describe(one) == {(("user", "good"),): {"producer_byte_rate": 5.0}}


def test_what_is_only_validated_is_not_done(askers):
    one, _ = askers
    assert alter(one, row({"user": "a"}, producer_byte_rate=5.0), validate_only=True) == [(0, None)]
    assert alter(one, row({"user": "a"}, producer_byte_rate=-5.0), validate_only=True)[0][0] == 42
    assert describe(one) == {}


@pytest.mark.parametrize("version", [1, 2])
def test_a_change_by_a_tool_of_kafka_is_heard_by_all_brokers(brokers, askers, version):
    path = "/config/users/eve/clients/%3Cdefault%3E" if version == 1 else "/config/users/eve/clients/<default>"
    entity = Entity("eve", "<default>" if version == 1 else ANY)
    notice = {"version": 2, "entity_path": path.removeprefix("/config/")}
    if version == 1:
        notice = {"version": 1, "entity_type": "users", "entity_name": path.removeprefix("/config/users/")}

    async def change():
        tree = brokers.brokers[1].lifecycle.tree
        await quota_nodes.ensure_path(tree, path.rpartition("/")[0])
        data = b'{"version":1,"config":{"producer_byte_rate":"77"}}'
        await tree.multi(
            [Create(path, data), Create(nodes.CONFIG_CHANGE_PREFIX, json.dumps(notice).encode(), sequence=True)]
        )

    brokers.do(change())
    for broker in brokers.brokers.values():
        until(lambda broker=broker: broker.throttle.limits.given(entity) == {Quota.PRODUCED: 77.0})


def test_other_settings_of_a_user_stay_and_are_not_told(brokers, askers):
    path = "/config/users/scram"

    async def make():
        await brokers.brokers[1].lifecycle.tree.create(path, b'{"version":1,"config":{"SCRAM-SHA-256":"salt=x"}}')

    async def node():
        return (await brokers.brokers[1].lifecycle.tree.get(path)).data

    brokers.do(make())
    alter(askers[0], row({"user": "scram"}, producer_byte_rate=9.0))
    assert describe(askers[0]) == {(("user", "scram"),): {"producer_byte_rate": 9.0}}
    assert json.loads(brokers.do(node()))["config"] == {"SCRAM-SHA-256": "salt=x", "producer_byte_rate": "9"}
    alter(askers[0], row({"user": "scram"}, producer_byte_rate=None))
    assert json.loads(brokers.do(node()))["config"] == {"SCRAM-SHA-256": "salt=x"}


def test_a_broker_that_missed_notices_reads_all_again(brokers, askers):
    """Here they are deleted under its hands, as those of a broker that was away for a thousand of them."""
    tree, entity = brokers.brokers[1].lifecycle.tree, Entity("gone")
    alter(askers[0], row({"user": "gone"}, producer_byte_rate=9.0))
    for broker in brokers.brokers.values():
        until(lambda broker=broker: broker.throttle.limits.given(entity))
    brokers.do(tree.delete("/config/users/gone"))
    for name in brokers.do(tree.children(nodes.CONFIG_CHANGES)):
        brokers.do(tree.delete(f"{nodes.CONFIG_CHANGES}/{name}"))
    told = quota_nodes.encode_notice("/config/users/other")
    brokers.do(tree.create(nodes.CONFIG_CHANGE_PREFIX, told, sequence=True))
    for broker in brokers.brokers.values():
        until(lambda broker=broker: not broker.throttle.limits.given(entity))


def test_quotas_are_there_after_a_restart(tmp_path):
    for begin in (True, False):
        with brokers_in_process(tmp_path, (1,)) as running, Asker(running.bootstrap) as asker:
            if begin:
                alter(
                    asker,
                    row({"client-id": "asker"}, producer_byte_rate=123.0),
                    row({"ip": None}, connection_creation_rate=500.0),
                )
            else:
                assert running.brokers[1].throttle.is_on
            assert describe(asker) == {
                (("client-id", "asker"),): {"producer_byte_rate": 123.0},
                (("ip", None),): {"connection_creation_rate": 500.0},
            }


# ----------------------------------------------------------------- what they do


def topic_of(name, partitions):
    return {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}


def created(asker, name, partitions=1, version=7):
    body = {"topics": [topic_of(name, partitions)], "timeout": 20_000, "validate_only": False}
    found = asker.ask(ApiKey.CREATE_TOPICS, version, body)
    return found.topics[0].error_code.value, found.throttle_time


def led_by(brokers, name):
    """An address of the broker that leads partition 0."""
    leader = until(lambda: brokers.brokers[1].replicas.metadata.leader(name, 0))
    return str(brokers.brokers[leader].endpoint)


def records(size):
    return bytes(build([Record(0, 1_000, b"k", b"x" * size)]))


def producing(name, size, acks=1):
    return ApiKey.PRODUCE, 7, ProduceRequest(acks, 5000, (ProduceTopic(name, (ProducePartition(0, records(size)),)),))


def test_a_producer_is_told_to_wait_and_waits(brokers, askers):
    assert created(askers[0], "slow-in")[0] == 0
    alter(askers[0], row({"user": ME}, producer_byte_rate=10_000.0))
    for broker in brokers.brokers.values():
        until(lambda broker=broker: broker.throttle.is_on)
    with Asker(led_by(brokers, "slow-in")) as asker:
        assert asker.ask(*producing("slow-in", 9_000)).throttle_time_ms == 0
        answer = asker.ask(*producing("slow-in", 6_000))
        begin_s = time.monotonic()
        assert 300 <= answer.throttle_time_ms <= 700
        assert answer.topics[0].partitions[0].error_code == 0
        assert asker.ask(ApiKey.LIST_GROUPS, 0, {}) != CLOSED
        assert time.monotonic() - begin_s >= answer.throttle_time_ms / 1000 - 0.01


def test_partitions_are_created_and_deleted_as_fast_as_may_be(brokers, askers):
    """A bucket of 20. Both rows of a request are charged at once, so that it does not matter how long they take."""
    one, _ = askers
    alter(one, row({"client-id": "asker"}, controller_mutation_rate=10.0))
    body = {"topics": [topic_of("mutated", 28), topic_of("refused", 1)], "timeout": 20_000, "validate_only": False}
    found = one.ask(ApiKey.CREATE_TOPICS, 7, body)  # the last that is allowed may be larger
    assert [each.error_code.value for each in found.topics] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert timedelta(seconds=0.7) < found.throttle_time <= timedelta(seconds=0.8)
    code, wait = created(one, "waits", 30, version=5)  # a client that does not know the error is served, and waits
    assert code == 0
    assert wait >= timedelta(seconds=1)
    begin_s = time.monotonic()
    gone = {"topics": [{"name": name, "topic_id": None} for name in ("waits", "mutated")], "timeout": 20_000}
    deleted = one.ask(ApiKey.DELETE_TOPICS, 6, gone)
    assert time.monotonic() - begin_s > wait.total_seconds() - 0.1
    codes = {each.name: each.error_code.value for each in deleted.responses}
    assert codes == {"waits": 0, "mutated": ErrorCode.THROTTLING_QUOTA_EXCEEDED}
    grow = {
        "topics": [{"name": "mutated", "count": 29, "assignments": None}],
        "timeout": 20_000,
        "validate_only": False,
    }
    assert one.ask(ApiKey.CREATE_PARTITIONS, 3, grow).results[0].error_code.value == 0  # behind the wait


def test_the_time_of_requests_has_a_limit(brokers, askers):
    one, other = askers
    alter(one, row({"client-id": "asker"}, request_percentage=0.001))
    until(lambda: brokers.brokers[2].throttle.is_on)
    waits = [other.ask(ApiKey.LIST_GROUPS, 4, {"states_filter": ()}).throttle_time for _ in range(4)]
    assert max(waits) > timedelta(0)
    assert max(waits) <= timedelta(seconds=1)


@only_long("seconds of waiting")
def test_kcat_and_librdkafka_move_no_more_than_their_quotas(brokers, askers):
    """The window is a second long, so that a second's worth is free. Answers come at once: only the next one waits."""
    values = "\n".join("x" * 1000 for _ in range(400))
    small = ["-X", "batch.size=20000", "-X", "max.in.flight.requests.per.connection=1", "-X", "linger.ms=50"]
    assert created(askers[0], "rated")[0] == 0
    with Kcat(brokers.bootstrap) as kcat:
        begin_s = time.monotonic()
        kcat.run("-P", "-t", "rated", "-p", "0", *small, given=values)
        free_s = time.monotonic() - begin_s
        limits = {"producer_byte_rate": 100_000.0, "consumer_byte_rate": 100_000.0}
        alter(askers[0], row({"user": ME, "client-id": None}, **limits))
        for broker in brokers.brokers.values():
            until(lambda broker=broker: broker.throttle.is_on)
        begin_s = time.monotonic()
        kcat.run("-P", "-t", "rated", "-p", "0", *small, given=values)
        assert time.monotonic() - begin_s > max(1.5, 2 * free_s)
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": brokers.bootstrap, "group.id": "none", "client.id": "reader", "fetch.wait.max.ms": 50}
    )
    begin_s = time.monotonic()
    try:
        consumer.assign([confluent_kafka.TopicPartition("rated", 0, 0)])
        for number in range(400):
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            assert message.offset() == number
    finally:
        consumer.close()
    assert time.monotonic() - begin_s > 1.5
    assert sum(broker.server.admission.throttled for broker in brokers.brokers.values()) > 3


def test_connections_from_an_address_have_a_rate(brokers, askers):
    one, _ = askers
    alter(one, row({"ip": "127.0.0.1"}, connection_creation_rate=3.0))
    made = [Asker(str(brokers.brokers[1].endpoint)) for _ in range(8)]
    try:
        found = [asker.ask(ApiKey.LIST_GROUPS, 0, {}) for asker in made]
    finally:
        for asker in made:
            asker.close()
    assert found.count(CLOSED) >= 2
    assert found[0] != CLOSED


def test_quotas_of_a_client_id_concern_no_user_of_that_name(brokers, askers):
    """/config/users/U/clients/ada is no node of the user ada, who still logs in."""
    salted = {"name": "ada", "mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32}
    body = {"deletions": (), "upsertions": [salted]}
    made = askers[0].ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body)
    assert [each.error_code.value for each in made.results] == [0]
    users = [broker.inter_broker.users for broker in brokers.brokers.values()]
    for each in users:
        until(lambda each=each: each.credentials("ada"))
    alter(askers[0], row({"user": "u", "client-id": "ada"}, producer_byte_rate=1e9))
    for broker in brokers.brokers.values():
        until(lambda broker=broker: broker.throttle.limits.given(Entity("u", "ada")))
    alter(askers[0], row({"user": "ada"}, producer_byte_rate=1e9))
    for broker in brokers.brokers.values():
        until(lambda broker=broker: broker.throttle.limits.given(Entity("ada")))
    assert all(each.credentials("ada") for each in users)
