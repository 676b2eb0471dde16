"""TLS and SASL: our client, and clients of others, through a listener with both before a broker."""

import asyncio
import json
import time
import warnings

import pyarrow as pa
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

import logstore
from logstore.cli import cli as pylog
from logstore.errors import InvalidConfigError
from replication.client.cluster import UnreachableError, metadata_request
from replication.client.kafka_client import KafkaClient
from replication.client.security import security_of
from replication.network import client as network_client
from replication.network.authentication import AuthenticationError
from replication.network.client import Client
from replication.protocol.apis import ApiKey
from tests.support.commands import run_pylog
from tests.support.secured import MECHANISMS, PASSWORD, USER, lines_of, secured_broker, settings_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own way to read its files
    import kafka

pytestmark = pytest.mark.slow
TIMEOUT_MS = 20_000


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    with secured_broker(tmp_path_factory.mktemp("secured")) as made:
        yield made


@pytest.fixture
def listener(secured):
    secured[0].seen.clear()
    return secured[0]


@pytest.fixture(scope="module")
def certificates(secured):
    return secured[1]


def opened(listener, settings, timeout_ms=TIMEOUT_MS):
    return KafkaClient(listener.address, timeout_ms=timeout_ms, security=settings)


def written_and_read(client, topic, count=500):
    client.create_topic(topic, partitions=2)
    client.append(topic, pa.table({"value": [f"v{n}" for n in range(count)]}))
    found = [
        value.decode()
        for partition, extent in client.extents(topic).items()
        for rows in client.read(topic, partition, extent.start, extent.end, columns=["value"])
        for value in rows["value"].to_pylist()
    ]
    return sorted(found) == sorted(f"v{n}" for n in range(count))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_writes_and_reads_over_tls_by_each_mechanism(listener, certificates, mechanism):
    with opened(listener, settings_of(certificates, mechanism)) as client:
        assert written_and_read(client, f"ours-{mechanism}")
    assert set(listener.seen) == {f"{mechanism} {USER}"}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_one_who_knows_the_brokers_versions_logs_in_with_the_same_settings(listener, certificates, mechanism):
    """So a broker will log in to another one: its calls ask for no versions."""

    async def ask():
        host, _, port = listener.address.rpartition(":")
        security = security_of(settings_of(certificates, mechanism))
        client = Client(host, int(port), "other-broker", timeout_ms=TIMEOUT_MS, security=security)
        answer = await client.call(ApiKey.METADATA, metadata_request([]))
        client.close()
        return answer

    assert len(asyncio.run(ask()).brokers) == 1
    assert listener.seen == [f"{mechanism} {USER}"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_strangers_are_let_in_as_we_are(listener, certificates, mechanism):
    """So the listener's TLS and SCRAM are not our own idea."""
    topic = f"strangers-{mechanism}"
    settings = settings_of(certificates, mechanism)
    theirs = {**settings, "bootstrap.servers": listener.address, "log_level": 0}
    with opened(listener, settings) as client:
        client.create_topic(topic)
        producer = Producer(theirs)
        producer.produce(topic, b"rdkafka")
        assert producer.flush(20) == 0
        other = kafka.KafkaProducer(
            bootstrap_servers=listener.address,
            security_protocol="SASL_SSL",
            ssl_cafile=certificates / "ca.pem",
            sasl_mechanism=mechanism,
            sasl_plain_username=USER,
            sasl_plain_password=PASSWORD,
        )
        other.send(topic, b"kafka-python").get(20)
        other.close()
        (rows,) = client.read(topic, 0, 0, 2)
        assert rows["value"].to_pylist() == [b"rdkafka", b"kafka-python"]
        client.append(topic, pa.table({"value": ["ours"]}))
    consumer = Consumer({**theirs, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert [consumer.poll(20).value() for _ in range(3)] == [b"rdkafka", b"kafka-python", b"ours"]
    consumer.close()


def test_a_producer_and_a_group_work_over_a_secured_listener(listener, certificates):
    jaas = (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username=ada password="pä=,ss \\"word\\\\";'
    )
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates / "ca.pem",
    }
    with opened(listener, settings) as client:
        client.create_topic("grouped")
        with client.producer() as producer:
            producer.send("grouped", pa.table({"value": ["a", "b"]})).result(20)
        with client.consumer("grouped", "g2", auto_offset_reset="earliest") as consumer:
            assert consumer.poll(20_000)["value"].to_pylist() == [b"a", b"b"]
            consumer.commit()
    assert len(listener.seen) >= 3  # for records, for the group, and for its coordinator


@pytest.mark.parametrize(
    ("manner", "settings", "line"),
    [
        ({}, {"ssl_ca_location": "other.pem"}, "is not believed: .*the authority that signed it by ssl.ca.location"),
        ({"tls": "elsewhere"}, {}, "Hostname mismatch.*name the broker as its certificate does"),
        ({"tls": "expired"}, {}, "certificate has expired; the broker needs a new one"),
        ({"tls": None}, {}, "speaks no TLS: set security.protocol=SASL_PLAINTEXT"),
        ({}, {"security_protocol": "SASL_PLAINTEXT"}, "speaks TLS: set security.protocol=SASL_SSL"),
        ({}, {"sasl_password": "wrong"}, "refuses user 'ada' by SCRAM-SHA-256: user or password is wrong"),
        ({}, {"sasl_password": "wrong", "sasl_mechanism": "PLAIN"}, "by PLAIN: user or password is wrong"),
        (
            {"mechanisms": ("PLAIN", "SCRAM-SHA-512")},
            {},
            "does not offer SCRAM-SHA-256: set sasl.mechanism to one of its own, PLAIN, SCRAM-SHA-512",
        ),
        ({"mechanisms": ()}, {}, "asks nobody for a name: set security.protocol=SSL"),
        ({"is_impostor": True}, {}, "is not to be believed: its signature is wrong"),
        ({"iterations": 4095}, {}, "is not to be believed: it asks for '4095' iterations"),
    ],
)  # fmt: skip
def test_what_no_repetition_mends_is_one_line_at_once(listener, certificates, manner, settings, line):
    if isinstance(manner.get("tls"), str):
        manner = {**manner, "tls": certificates.context(manner["tls"])}
    settings = settings_of(certificates) | {name.replace("_", "."): value for name, value in settings.items()}
    settings["ssl.ca.location"] = certificates / settings["ssl.ca.location"]
    if settings["security.protocol"] == "SASL_PLAINTEXT":
        del settings["ssl.ca.location"]
    begin = time.monotonic()
    with (
        listener.treating(**manner),
        opened(listener, settings, 120_000) as client,
        pytest.raises(AuthenticationError, match=line) as caught,
    ):
        client.topics()
    assert time.monotonic() - begin < 60  # not until the deadline
    assert "\n" not in str(caught.value)
    assert "wrong" not in str(caught.value).replace("is wrong", "")  # no password


def test_a_client_without_a_name_is_told_that_it_needs_one(listener, certificates):
    settings = {"security.protocol": "SSL", "ssl.ca.location": certificates / "ca.pem"}
    for tls, given, protocol in ((listener.manner.tls, settings, "SASL_SSL"), (None, {}, "SASL_PLAINTEXT")):
        line = f"asks for a name: set security.protocol={protocol} and sasl.mechanism to one of PLAIN, SCRAM-SHA-256, "
        with (
            listener.treating(tls=tls),
            opened(listener, given) as client,
            pytest.raises(AuthenticationError, match=line),
        ):
            client.topics()


def test_a_plain_client_is_told_that_the_port_speaks_tls(listener):
    with (
        opened(listener, {}) as client,
        pytest.raises(AuthenticationError, match=r"speaks TLS: set security.protocol=SSL"),
    ):
        client.topics()


def test_a_host_name_is_not_checked_where_that_is_asked_for(listener, certificates):
    with listener.treating(tls=certificates.context("elsewhere")):
        more = {"ssl.endpoint.identification.algorithm": ""}
        with opened(listener, settings_of(certificates) | more) as client:
            assert client.cluster_id()


def test_a_client_shows_its_certificate(listener, certificates):
    with listener.treating(tls=certificates.context(asks_client=True)):
        store = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": certificates / "keystore.pem",
            "ssl.key.password": PASSWORD,
        }
        pair = {
            "ssl.certificate.location": certificates / "client.pem",
            "ssl.key.location": certificates / "client.key",
            "ssl.key.password": PASSWORD,
        }
        for own in (store, pair):
            with opened(listener, settings_of(certificates) | own) as client:
                assert client.cluster_id()
        del pair["ssl.key.password"]
        for own, error, line in (
            (pair, InvalidConfigError, r"client.pem: certificate and key cannot be read"),
            ({}, (UnreachableError, AuthenticationError), r"for a client's certificate: ssl.cert"),
        ):
            with (
                opened(listener, settings_of(certificates) | own, timeout_ms=1000) as client,
                pytest.raises(error, match=line),
            ):
                client.topics()


def test_a_file_that_is_not_there_is_told_at_once(listener, certificates):
    with (
        opened(listener, settings_of(certificates) | {"ssl.ca.location": "/nowhere/ca.pem"}) as client,
        pytest.raises(InvalidConfigError, match=r"ssl.ca.location=/nowhere/ca.pem: No such file"),
    ):
        client.topics()


def test_a_client_proves_itself_again_before_that_ends(listener, certificates, monkeypatch):
    """The listener ends a connection at its first request after its time."""
    monkeypatch.setattr(network_client, "RENEWED_AFTER", (0.2, 0.3))  # a busy machine may be late
    sent, begin = [], time.monotonic()
    with listener.treating(lifetime_ms=1500), opened(listener, settings_of(certificates)) as client:
        client.create_topic("again")
        with client.producer(linger_ms=0) as producer:
            while time.monotonic() < begin + 2:
                sent.append(producer.send("again", pa.table({"value": [f"v{len(sent)}"]})))
                time.sleep(0.01)
        (rows,) = client.read("again", 0, 0, len(sent))
        assert rows["value"].to_pylist() == [b"v%d" % n for n in range(len(sent))]
    assert len(listener.seen) >= 4
    assert not listener.late


def test_mirror_copies_from_a_secured_cluster(listener, certificates, tmp_path):
    with opened(listener, settings_of(certificates)) as client:
        client.create_topic("mirrored")
        client.append("mirrored", pa.table({"value": ["a", "b", "c"]}))
    lines = settings_of(certificates, "SCRAM-SHA-512")
    del lines["sasl.mechanism"]
    file = tmp_path / "client.properties"
    file.write_text(lines_of(lines))
    arguments = [
        "mirror", "--from", listener.address, "--topics", "mirrored", "--to", str(tmp_path / "copy"),
        "--consumer-config", str(file), "--consumer-property", "sasl.mechanism=SCRAM-SHA-512", "--output", "json",
    ]  # fmt: skip
    done = CliRunner().invoke(pylog, arguments)
    assert done.exit_code == 0, done.output
    assert [row["records"] for row in json.loads(done.stdout)] == [3]
    with logstore.open(tmp_path / "copy", mode="r") as store:
        assert store.read("mirrored", partition=0).read_all()["value"].to_pylist() == [b"a", b"b", b"c"]
    file.write_text(lines_of(lines | {"sasl.password": "secret"}))
    refused = CliRunner().invoke(pylog, arguments)
    assert refused.exit_code == 1
    assert "user or password is wrong" in refused.output
    assert "secret" not in refused.output


def test_operators_commands_are_let_in_by_their_command_config(listener, certificates, tmp_path):
    settings = tmp_path / "client.properties"
    settings.write_text(lines_of(settings_of(certificates)))
    where = ("--bootstrap-server", listener.address, "--command-config", settings)
    run_pylog("topics", "create", "commanded", "--partitions", 2, *where).ok()
    run_pylog("produce", "commanded", *where, input="a\nb\n").ok()
    assert sorted(run_pylog("consume", "commanded", *where).ok().lines) == ["a", "b"]
    told = run_pylog("verify-replicas", "--topics-include", "commanded", "--output", "json", *where).ok()
    assert [row["findings"] for row in told.json] == [[], []]
    assert set(listener.seen) == {f"SCRAM-SHA-256 {USER}"}
    settings.write_text("default.api.timeout.ms=500\n")
    assert run_pylog("topics", "list", *where).code == 1
