"""A running cluster goes from PLAINTEXT to SASL_SSL, broker by broker, as docs/security.md says: nobody waits long.

Clients write all the time. Their records are there at the end, once and in order.
"""

import itertools
import socket
import threading
import time

import confluent_kafka
import confluent_kafka.admin
import pytest

from replication.broker.broker import Broker
from replication.config.broker import BrokerConfig
from tests.support.in_process import brokers_in_process
from tests.support.repeats import only_long
from tests.support.secured import Certificates

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NUMBERS, TOPIC = (1, 2, 3), "orders"
USER, PASSWORD = "ada", "secret"
WAIT_S = 30
OUTAGE_S = 5.0  # between two acknowledgements: a leader hands over, and producers find the next


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


class Cluster:
    """Brokers that are restarted with other settings, one after the other."""

    def __init__(self, running, base):
        self.running, self.base = running, base

    def roll(self, settings):
        for number in NUMBERS:
            self.running.do(self.running.brokers[number].stop())
            own = {key: value(number) if callable(value) else value for key, value in settings.items()}
            broker = Broker(BrokerConfig.from_properties(self.base(number) | own))
            self.running.brokers[number] = broker
            self.running.do(broker.start())
            self.until_whole()

    def until_whole(self):
        end = time.monotonic() + WAIT_S
        while any(self.isr(number) != NUMBERS for number in NUMBERS):
            assert time.monotonic() < end, "replicas do not come back"
            time.sleep(0.05)

    def isr(self, number):
        topic = self.running.brokers[number].replicas.metadata.topic(TOPIC)
        return tuple(sorted(topic.partitions[0].state.isr)) if topic is not None else ()


class Writing:
    """A producer that writes numbers, one after the other, until it is stopped."""

    def __init__(self, settings, numbers):
        self.producer = confluent_kafka.Producer({**settings, "enable.idempotence": True, "linger.ms": 5})
        self.numbers, self.acked, self.errors, self.longest_s = numbers, [], [], 0.0
        self.is_over = threading.Event()
        self.last_s = time.monotonic()
        self.thread = threading.Thread(target=self.write)
        self.thread.start()

    def write(self):
        while not self.is_over.is_set():
            number = next(self.numbers)
            self.producer.produce(TOPIC, str(number).encode(), partition=0, on_delivery=self.done)
            self.producer.poll(0.005)
        self.producer.flush(WAIT_S)

    def done(self, error, message):
        if error is not None:
            self.errors.append(error)
            return
        now_s = time.monotonic()
        self.longest_s, self.last_s = max(self.longest_s, now_s - self.last_s), now_s
        self.acked.append(int(message.value()))

    def end(self):
        self.is_over.set()
        self.thread.join(2 * WAIT_S)
        assert self.errors == []
        assert self.longest_s < OUTAGE_S
        return self.acked


@only_long("nine restarts of brokers")
def test_a_running_cluster_is_secured_without_an_outage(tmp_path):
    certificates = Certificates.make(tmp_path)
    keystore = tmp_path / "server.both.pem"
    keystore.write_text("".join((tmp_path / f"server.{kind}").read_text() for kind in ("key", "pem")))
    ports = dict(zip(itertools.product(("PLAINTEXT", "SASL_SSL"), NUMBERS), free_ports(6), strict=True))

    def base(number):
        return {
            "broker.id": number, "log.dirs": str(tmp_path / f"broker-{number}"),
            "coordination": f"sqlite:{tmp_path / 'tree.db'}", "controlled.shutdown.retry.backoff.ms": 100,
            "offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1,
            "default.replication.factor": 3, "min.insync.replicas": 2,
        }  # fmt: skip

    def at(*names):
        return lambda number: ",".join(f"{name}://127.0.0.1:{ports[name, number]}" for name in names)

    def bootstrap(name):
        return ",".join(f"127.0.0.1:{ports[name, number]}" for number in NUMBERS)

    plain = {"bootstrap.servers": bootstrap("PLAINTEXT")}
    secure = {
        "bootstrap.servers": bootstrap("SASL_SSL"), "security.protocol": "SASL_SSL",
        "ssl.ca.location": certificates / "ca.pem", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER, "sasl.password": PASSWORD,
    }  # fmt: skip
    tls = {
        "ssl.keystore.location": str(keystore), "ssl.truststore.location": certificates / "ca.pem",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    }  # fmt: skip
    with brokers_in_process(tmp_path / "first", (), **{}) as running:
        cluster = Cluster(running, base)
        for number in NUMBERS:
            config = BrokerConfig.from_properties(base(number) | {"listeners": at("PLAINTEXT")(number)})
            running.brokers[number] = Broker(config)
            running.do(running.brokers[number].start())
        admin = confluent_kafka.admin.AdminClient(plain)
        admin.create_topics([confluent_kafka.admin.NewTopic(TOPIC, 1, 3)])[TOPIC].result(WAIT_S)
        numbers = itertools.count()
        former = Writing(plain, numbers)

        cluster.roll({"listeners": at("PLAINTEXT", "SASL_SSL"), **tls})
        info = confluent_kafka.admin.ScramCredentialInfo(confluent_kafka.admin.ScramMechanism.SCRAM_SHA_512, 4096)
        made = confluent_kafka.admin.UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        admin.alter_user_scram_credentials([made])[USER].result(WAIT_S)
        acked = former.end()
        latter = Writing(secure, numbers)
        cluster.roll({"listeners": at("PLAINTEXT", "SASL_SSL"), "inter.broker.listener.name": "SASL_SSL", **tls})
        cluster.roll({"listeners": at("SASL_SSL"), **tls})
        acked += latter.end()

        consumer = confluent_kafka.Consumer({**secure, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        found, end = [], time.monotonic() + WAIT_S
        while len(found) < len(acked) and time.monotonic() < end:
            found += [int(each.value()) for each in consumer.consume(10_000, 0.5) if not each.error()]
        consumer.close()
        assert found == acked == list(range(len(acked)))
        assert len(acked) > 500
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", ports["PLAINTEXT", 1]), 5).close()
