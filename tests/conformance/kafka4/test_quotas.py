"""Quotas beside a Kafka 4.4: its own arithmetic, the same requests at both, its tool at both, and clients held back."""

import random
import subprocess
import time
from pathlib import Path

import confluent_kafka
import pytest

from replication.protocol.apis import ApiKey
from replication.security import rates
from replication.security.rates import NOTHING_TAKEN, Tokens, Window
from tests.integration.broker import test_quotas as own
from tests.support.asker import Asker, until
from tests.support.in_process import brokers_in_process
from tests.support.kafka4 import Kafka4, java_program, run_tool
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]

JAVA = Path(__file__).parent / "java" / "Waits.java"
EXACT, DEFAULT, SPECIFIED = range(3)
TOOL = "org.apache.kafka.tools.ConfigCommand"


# ------------------------------------------------------------------ arithmetic


def cases(rng):
    """Lines for the Java program, and what it is to answer, by `rates`."""
    for _ in range(150):
        window = Window(rng.randint(1, 12), rng.choice([100, 1000, 3000]))
        limit, now_ms, rate = rng.choice([1, 7.5, 1000, 123_457, 10**6]), 10**12, NOTHING_TAKEN
        yield f"rate {window.samples} {window.sample_ms} {limit}", None
        for _ in range(rng.randint(1, 60)):
            now_ms += rng.choice([0, 1, rng.randint(0, 500), rng.randint(0, 15_000)])
            value = rng.randint(0, 4) * limit * rng.random() if rng.random() < 0.5 else rng.randint(0, 10**6)
            value = round(value)
            is_back = value > 0 and rng.random() < 0.1
            rate = rates.take(rate, -value if is_back else value, now_ms, window)
            waits_ms = 0 if is_back else rates.wait_ms(rate, limit, now_ms, window)
            yield f"{now_ms} {-value if is_back else value}", waits_ms
    for _ in range(50):
        window = Window(rng.randint(1, 12), 1000)
        limit, now_ms, tokens = rng.choice([0.3, 1, 5, 50]), 10**12, None
        yield f"tokens {window.samples} {window.sample_ms} {limit}", None
        for _ in range(rng.randint(1, 40)):
            now_ms += rng.randint(0, 3000)
            tokens = rates.refill(tokens, limit, now_ms, window)
            amount, wait_ms = rng.randint(1, 30), rates.refill_ms(tokens, limit)
            if tokens.left >= 0:
                tokens = Tokens(tokens.left - amount, now_ms)
            yield f"{now_ms} {amount}", wait_ms


def test_a_client_waits_as_long_as_kafkas_own_classes_say(tmp_path):
    lines, expected = zip(*cases(random.Random(44)), strict=True)
    command = java_program(JAVA, tmp_path / "classes")
    ran = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    theirs = [min(int(text), 2**31 - 1) for text in ran.stdout.split()]
    ours = [wait_ms for wait_ms in expected if wait_ms is not None]
    assert theirs == ours
    assert sum(wait_ms > 0 for wait_ms in ours) > len(ours) / 10


# ------------------------------------------------------------------ the same at both


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    directory = tmp_path_factory.mktemp("quotas")
    few = {"quota.window.num": 2, "controller.quota.window.num": 2, "offsets.topic.num.partitions": 1}
    ours = {key.replace(".", "_"): value for key, value in few.items()}
    with (
        brokers_in_process(directory / "ours", (1,), group_initial_rebalance_delay_ms=0, **ours) as running,
        Kafka4(directory / "theirs", settings=few) as kafka,
        Asker(running.bootstrap) as here,
        Asker(kafka.bootstrap) as there,
    ):
        here.where, there.where = running.bootstrap, kafka.bootstrap
        yield here, there


@pytest.fixture
def empty(sides):
    yield sides
    for asker in sides:
        own.clear(asker)
        until(lambda asker=asker: own.describe(asker) == {})


CHANGES = [
    own.row({"user": "a"}, producer_byte_rate=1000.0, request_percentage=50.5),
    own.row({"user": None, "client-id": None}, consumer_byte_rate=10.0),
    own.row({"user": "a/b ~*%", "client-id": "Ü∞"}, controller_mutation_rate=0.25),
    own.row({"client-id": None}, producer_byte_rate=2.0**40),
    own.row({"ip": "127.9.9.9"}, connection_creation_rate=5.0),
    own.row({"ip": None}, connection_creation_rate=5000.0),
    own.row({"user": "nothing"}),
    own.row({"user": "never"}, producer_byte_rate=None),
]
WRONG = [
    own.row({}),
    own.row({"group": "a"}, producer_byte_rate=1.0),
    own.row({"user": ""}, producer_byte_rate=1.0),
    own.row({"user": "w1"}, connection_creation_rate=1.0),
    own.row({"ip": "127.9.9.8"}, producer_byte_rate=1.0),
    own.row({"user": "w2"}, producer_byte_rate=0.0),
    own.row({"user": "w3"}, producer_byte_rate=-1.0),
    own.row({"user": "w4"}, producer_byte_rate=1.5),
    own.row({"user": "w5"}, producer_byte_rate=1e30),
    own.row({"user": "w6"}, nonsense=1.0),
    own.row({"ip": "127.9.9.7"}, connection_creation_rate=2.0**31),
    own.row({"ip": "127.9.9.6", "user": "w7"}, connection_creation_rate=1.0),
]
FILTERS = [
    ([], False), ([], True), ([("user", EXACT, "a")], False), ([("user", EXACT, "a")], True),
    ([("user", DEFAULT, None)], False), ([("user", SPECIFIED, None)], False), ([("user", SPECIFIED, None)], True),
    ([("client-id", SPECIFIED, None), ("user", EXACT, "a/b ~*%")], True), ([("ip", SPECIFIED, None)], True),
    ([("client-id", DEFAULT, None)], False), ([("user", EXACT, "nobody")], False), ([("user", EXACT, "")], False),
    ([("", EXACT, "a")], False), ([("user", EXACT, "a"), ("user", DEFAULT, None)], False),
    ([("group", EXACT, "a")], False),
    ([("user", EXACT, None)], False), ([("user", DEFAULT, "a")], False), ([("user", SPECIFIED, "a")], False),
    ([("user", 3, "a")], False), ([("user", EXACT, "a"), ("ip", DEFAULT, None)], False),
]  # fmt: skip


@pytest.mark.parametrize("version", [0, 1])
def test_what_is_set_here_and_there_is_described_alike(empty, version):
    for asker in empty:
        assert {code for code, _ in own.alter(asker, *CHANGES, version=version)} == {0}
        until(lambda asker=asker: len(own.describe(asker)) == 6)
    here, there = empty
    for parts, strict in FILTERS:
        found = [own.describe(asker, *parts, strict=strict, version=version) for asker in (here, there)]
        if isinstance(found[1], tuple):
            assert (found[0][0], found[0][1].split(":")[0]) == (found[1][0], found[1][1].split(":")[0]), (parts, strict)
        else:
            assert found[0] == found[1], (parts, strict)


@pytest.mark.parametrize("change", WRONG, ids=str)
def test_what_is_refused_there_is_refused_here_in_the_same_words(empty, change):
    (here, said_here), (there, said_there) = (own.alter(asker, change)[0] for asker in empty)
    assert here == there != 0
    assert words(said_here) == words(said_there)


def words(text):
    """Kafka writes some of its words together."""
    return text.replace("shouldnot", "should not").rstrip(".")


def test_a_tool_of_kafka_sets_and_shows_quotas_of_both(empty):
    shown = []
    for asker in empty:
        where = ["--bootstrap-server", asker.where]
        named = ["--entity-type", "users", "--entity-name", "ada", "--entity-type", "clients", "--entity-default"]
        given = "producer_byte_rate=1024,request_percentage=12.5"
        run_tool(TOOL, *where, "--alter", "--add-config", given, *named)
        run_tool(TOOL, *where, "--alter", "--add-config", "connection_creation_rate=500", "--ip", "127.9.9.9")
        until(lambda asker=asker: len(own.describe(asker)) == 2)
        run_tool(TOOL, *where, "--alter", "--delete-config", "request_percentage", *named)
        until(lambda asker=asker: sum(map(len, own.describe(asker).values())) == 2)
        shown.append(
            sorted(run_tool(TOOL, *where, "--describe", "--user", "ada", "--client-defaults").stdout.splitlines())
        )
    assert shown[0] == shown[1]
    assert any("producer_byte_rate=1024" in line for line in shown[0])


# ------------------------------------------------------------------ held back


def timed(bootstrap, topic):
    """Seconds to write and to read 600 KB."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap, "client.id": "rated", "linger.ms": 20, "batch.size": 20_000,
            "max.in.flight.requests.per.connection": 1,
        }
    )  # fmt: skip
    begin_s = time.monotonic()
    for _ in range(600):
        producer.produce(topic, b"x" * 1000, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    wrote_s = time.monotonic() - begin_s
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap, "client.id": "rated", "group.id": "none",
            "max.partition.fetch.bytes": 40_000,
            "fetch.wait.max.ms": 50,
        }
    )  # fmt: skip
    begin_s = time.monotonic()
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    for _ in range(600):
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
    consumer.close()
    return wrote_s, time.monotonic() - begin_s


def test_a_client_takes_as_long_here_as_there(empty):
    found = []
    for asker in empty:
        assert own.created(asker, "held")[0] == 0
        own.alter(asker, own.row({"client-id": "rated"}, producer_byte_rate=150_000.0, consumer_byte_rate=150_000.0))
        until(lambda asker=asker: len(own.describe(asker)) == 1)
        found.append(timed(asker.where, "held"))
    (wrote_here, read_here), (wrote_there, read_there) = found
    print(f"wrote {wrote_here:.2f} here, {wrote_there:.2f} there; read {read_here:.2f} here, {read_there:.2f} there")
    for here, there in ((wrote_here, wrote_there), (read_here, read_there)):
        assert here >= 2
        assert 0.5 < here / there < 2


def test_mutations_are_refused_here_and_there(empty):
    found = []
    for asker in empty:
        own.alter(asker, own.row({"client-id": "asker"}, controller_mutation_rate=1.0))
        until(lambda asker=asker: len(own.describe(asker)) == 1)
        body = {"topics": [own.topic_of("few", 5), own.topic_of("none", 1)], "timeout": 20_000, "validate_only": False}
        answer = asker.ask(ApiKey.CREATE_TOPICS, 7, body)
        codes = {each.name: each.error_code.value for each in answer.topics}
        older = asker.ask(ApiKey.CREATE_TOPICS, 5, {**body, "topics": [own.topic_of("older", 6)]})
        waits = [each.throttle_time.total_seconds() for each in (answer, older)]
        found.append((codes, older.topics[0].error_code.value, [2 < wait <= 3 for wait in waits[:1]], waits[1] > 3))
    assert found[0] == found[1] == ({"few": 0, "none": 89}, 0, [True], True)
