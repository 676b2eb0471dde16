"""Clients at listeners with TLS and logins: of two brokers that meet over TLS, and trust each other alone."""

import asyncio
import contextlib
import json
import ssl
import subprocess
import time

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest
from joserfc import jwk, jwt

from logstore.errors import InvalidConfigError, InvalidRequestError
from replication.broker.broker import Broker
from replication.client.kafka_client import KafkaClient
from replication.config.broker import BrokerConfig
from replication.errors import ErrorCode
from replication.network.authentication import AuthenticationError
from replication.network.client import Client
from replication.protocol import interbroker as ib
from replication.protocol.apis import ApiKey
from replication.tools import configs
from tests.support.in_process import begun_by_an_earlier_release, brokers_in_process
from tests.support.repeats import only_long
from tests.support.secured import PASSWORD as KEY_PASSWORD
from tests.support.secured import Certificates

ADA, PASSWORD, SHOULD_BE_S = "ada", 'pä=,ss "word\\', 20
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_ada="pä=,ss \\"word\\\\";'
PROTOCOLS = {name: name for name in ("SASL_SSL", "PLAINTEXT", "SSL", "SASL_PLAINTEXT")} | {"MUTUAL": "SSL"}
LISTENERS = {
    "listeners": ",".join(f"{name}://127.0.0.1:0" for name in PROTOCOLS),
    "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
    "inter.broker.listener.name": "MUTUAL",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    "listener.name.sasl_ssl.sasl.oauthbearer.expected.audience": "pylog",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": JAAS,
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": JAAS,
    "listener.name.mutual.ssl.client.auth": "required",
    "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
WAYS = [
    ("SSL", ""), ("MUTUAL", ""),
    *(("SASL_SSL", each) for each in MECHANISMS), *(("SASL_PLAINTEXT", each) for each in MECHANISMS),
]  # fmt: skip


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    made = Certificates.make(tmp_path_factory.mktemp("certificates"))
    both = [(made.directory / f"server.{kind}").read_text() for kind in ("key", "pem")]
    (made.directory / "server.both.pem").write_text("".join(both))
    return made


def tls_of(certificates):
    locations = {"ssl.keystore.location": "server.both.pem", "ssl.truststore.location": "ca.pem"}
    return {key: certificates / name for key, name in locations.items()}


@pytest.fixture(scope="module")
def key():
    """That signs tokens."""
    return jwk.RSAKey.generate_key(2048, {"kid": "one"})


@pytest.fixture(scope="module")
def brokers(certificates, key, tmp_path_factory):
    settings = {**LISTENERS, **tls_of(certificates), "default.replication.factor": 2, "num.partitions": 2}
    keys = tmp_path_factory.mktemp("keys") / "jwks.json"
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    settings |= {"listener.name.sasl_ssl.sasl.oauthbearer.jwks.endpoint.url": keys.as_uri()}
    settings |= {"group.initial.rebalance.delay.ms": 0, "ssl.endpoint.identification.algorithm": "https"}
    with brokers_in_process(tmp_path_factory.mktemp("brokers"), (1, 2), **settings) as running:
        admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": at(running, "PLAINTEXT")})
        set_passwords(admin)
        yield running


def at(running, listener, broker=1):
    return next(str(each.endpoint) for each in running.brokers[broker].told if each.name == listener)


def set_passwords(admin):
    kinds = confluent_kafka.admin.ScramMechanism.SCRAM_SHA_256, confluent_kafka.admin.ScramMechanism.SCRAM_SHA_512
    wanted = [
        confluent_kafka.admin.UserScramCredentialUpsertion(
            ADA, confluent_kafka.admin.ScramCredentialInfo(kind, 4096), PASSWORD.encode()
        )
        for kind in kinds
    ]
    for each in admin.alter_user_scram_credentials(wanted).values():
        each.result(SHOULD_BE_S)


def settings_for(running, certificates, listener, mechanism, password=PASSWORD):
    """The settings of a client, as librdkafka and ours take them."""
    protocol = "SSL" if listener == "MUTUAL" else listener
    found = {"bootstrap.servers": at(running, listener), "security.protocol": protocol}
    if protocol.endswith("SSL"):
        found["ssl.ca.location"] = certificates / "ca.pem"
    if mechanism:
        found |= {"sasl.mechanism": mechanism, "sasl.username": ADA, "sasl.password": password}
    if listener == "MUTUAL":
        found |= {"ssl.certificate.location": certificates / "client.pem"}
        found |= {"ssl.key.location": certificates / "client.key", "ssl.key.password": KEY_PASSWORD}
    return found


def by_confluent(given, topic):
    producer = confluent_kafka.Producer(given)
    producer.produce(topic, b"v", partition=0)
    assert producer.flush(SHOULD_BE_S) == 0
    consumer = confluent_kafka.Consumer({**given, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    end = time.monotonic() + SHOULD_BE_S
    found = None
    while time.monotonic() < end and found is None:
        found = consumer.poll(0.1)
    consumer.close()
    return found.value()


def of_python(given):
    found = {"bootstrap_servers": given["bootstrap.servers"], "security_protocol": given["security.protocol"]}
    if "sasl.mechanism" in given:
        found |= {"sasl_mechanism": given["sasl.mechanism"], "sasl_plain_username": given["sasl.username"]}
        found |= {"sasl_plain_password": given["sasl.password"]}
    return found


def context_of(given):
    if "ssl.ca.location" not in given:
        return None
    context = ssl.create_default_context(cafile=given["ssl.ca.location"])
    if "ssl.certificate.location" in given:
        files = given["ssl.certificate.location"], given["ssl.key.location"]
        context.load_cert_chain(*files, given["ssl.key.password"])
    return context


def by_kafka_python(given, topic):
    producer = kafka.KafkaProducer(**of_python(given), ssl_context=context_of(given))
    producer.send(topic, b"v", partition=0).get(SHOULD_BE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **of_python(given), ssl_context=context_of(given), auto_offset_reset="earliest", group_id=topic
    )
    found = next(iter(consumer)).value
    consumer.close()
    return found


def by_aiokafka(given, topic):
    async def work():
        options = {**of_python(given), "ssl_context": context_of(given)}
        async with aiokafka.AIOKafkaProducer(**options) as producer:
            await producer.send_and_wait(topic, b"v", partition=0)
        consumer = aiokafka.AIOKafkaConsumer(topic, **options, group_id=topic, auto_offset_reset="earliest")
        async with consumer:
            return (await consumer.getone()).value

    return asyncio.run(work())


def by_kcat(given, topic):
    options = [part for key, value in given.items() if key != "bootstrap.servers" for part in ("-X", f"{key}={value}")]
    command = ["kcat", "-b", given["bootstrap.servers"], "-t", topic, "-p", "0", *options]
    subprocess.run([*command, "-P"], input=b"v", check=True, timeout=SHOULD_BE_S)
    return subprocess.run(
        [*command, "-C", "-e", "-q", "-o", "beginning"], check=True, capture_output=True, timeout=SHOULD_BE_S
    ).stdout.strip()


def by_ours(given, topic):
    security = {key: value for key, value in given.items() if key != "bootstrap.servers"}
    with KafkaClient(given["bootstrap.servers"], security=security) as client:
        client.create_topic(topic, partitions=1)
        return b"v" if topic in client.topics() else b""


CLIENTS = {each.__name__: each for each in (by_confluent, by_kafka_python, by_aiokafka, by_kcat, by_ours)}
QUICK = {
    ("by_confluent", "MUTUAL", ""), ("by_confluent", "SASL_SSL", "SCRAM-SHA-512"), ("by_ours", "SASL_SSL", "PLAIN"),
    ("by_kafka_python", "SASL_PLAINTEXT", "SCRAM-SHA-256"), ("by_aiokafka", "SSL", ""),
    ("by_kcat", "SASL_SSL", "SCRAM-SHA-256"),
}  # fmt: skip
ALL = [
    pytest.param(*row, marks=() if row in QUICK else only_long("every client"), id="-".join(filter(None, row)))
    for row in ((client, *way) for client in CLIENTS for way in WAYS)
]


@pytest.mark.parametrize(("client", "listener", "mechanism"), ALL)
def test_clients_write_and_read(brokers, certificates, client, listener, mechanism):
    given = settings_for(brokers, certificates, listener, mechanism)
    topic = f"{client}-{listener}-{mechanism}".lower()
    assert CLIENTS[client](given, topic) == b"v"


def token_of(key, **claims):
    usual = {"sub": "oscar", "aud": "pylog", "exp": time.time() + 60}
    return jwt.encode({"alg": "RS256", "kid": "one"}, usual | claims, key)


def test_the_bearer_of_a_token_logs_in(brokers, certificates, key):
    given = settings_for(brokers, certificates, "SASL_SSL", "OAUTHBEARER")
    for name in ("sasl.username", "sasl.password"):
        del given[name]
    given["oauth_cb"] = lambda config: (token_of(key), time.time() + 60)
    assert by_confluent(given, "by-bearer") == b"v"


def test_the_bearer_of_another_token_does_not(brokers, certificates, key):
    given = settings_for(brokers, certificates, "SASL_SSL", "OAUTHBEARER")
    for name in ("sasl.username", "sasl.password"):
        del given[name]
    for wrong in ({"aud": "other"}, {"exp": time.time() - 100}):
        errors = []
        token = token_of(key, **wrong)
        admin = confluent_kafka.admin.AdminClient(
            {**given, "oauth_cb": lambda config, token=token: (token, time.time() + 60), "error_cb": errors.append}
        )
        end = time.monotonic() + SHOULD_BE_S
        while not any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors):
            admin.poll(0.1)
            assert time.monotonic() < end, errors


def test_passwords_are_set_and_shown_on_the_command_line(brokers):
    with KafkaClient(at(brokers, "PLAINTEXT")) as client:
        asked = []
        configs.alter_user(client, "carl", {"SCRAM-SHA-512": "iterations=8192"}, (), lambda m: asked.append(m) or "pw")
        assert asked == ["SCRAM-SHA-512"]
        (row,) = configs.users_of(client, "carl")
        assert (row["entity"], row["name"], row["value"]) == ("carl", "SCRAM-SHA-512", "iterations=8192")
        security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512"}
        security |= {"sasl.username": "carl", "sasl.password": "pw"}
        with KafkaClient(at(brokers, "SASL_PLAINTEXT", 1), security=security) as own:
            assert own.topics() is not None
        configs.alter_user(client, "carl", {}, ("SCRAM-SHA-512",), asked.append)
        assert configs.users_of(client, "carl") == []
        for wrong in ("iterations=many", "iterations=4096,salt=x"):
            with pytest.raises(InvalidRequestError, match="password=TEXT"):
                configs.alter_user(client, "carl", {"SCRAM-SHA-512": wrong}, (), asked.append)
        for wrong in (4095, 16_385):
            with pytest.raises(InvalidRequestError, match="iterations: 4096 to 16384"):
                configs.alter_user(
                    client, "carl", {"SCRAM-SHA-512": f"iterations={wrong},password=x"}, (), asked.append
                )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_told_at_once(brokers, certificates, mechanism):
    given = settings_for(brokers, certificates, "SASL_SSL", mechanism, "wrong")
    with (
        pytest.raises(AuthenticationError, match="user or password is wrong"),
        KafkaClient(given.pop("bootstrap.servers"), security=given) as client,
    ):
        client.topics()


def test_each_listener_tells_of_its_own_addresses(brokers):
    for listener in ("PLAINTEXT", "SASL_PLAINTEXT"):
        given = {"bootstrap.servers": at(brokers, listener), "security.protocol": listener}
        if "SASL" in listener:
            given |= {"sasl.mechanism": "PLAIN", "sasl.username": ADA, "sasl.password": PASSWORD}
        admin = confluent_kafka.admin.AdminClient(given)
        told = admin.list_topics(timeout=SHOULD_BE_S).brokers
        described = admin.describe_cluster().result(SHOULD_BE_S).nodes
        wanted = {number: at(brokers, listener, number) for number in (1, 2)}
        assert {b.id: f"{b.host}:{b.port}" for b in told.values()} == wanted
        assert {b.id: f"{b.host}:{b.port}" for b in described} == wanted


def test_passwords_of_scram_are_described_changed_and_deleted_while_brokers_run(brokers):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": at(brokers, "PLAINTEXT")})
    kind = confluent_kafka.admin.ScramMechanism.SCRAM_SHA_256
    info = confluent_kafka.admin.ScramCredentialInfo(kind, 8192)

    def alter(*changes):
        return [each.exception(SHOULD_BE_S) for each in admin.alter_user_scram_credentials(list(changes)).values()]

    def can_log_in(password, broker):
        security = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        security |= {"sasl.username": "bob", "sasl.password": password}
        where = at(brokers, "SASL_PLAINTEXT", broker)
        with contextlib.suppress(AuthenticationError), KafkaClient(where, security=security) as client:
            client.topics()
            return True
        return False

    def soon(wanted, password):
        end = time.monotonic() + SHOULD_BE_S
        while any(can_log_in(password, broker) != wanted for broker in (1, 2)):
            assert time.monotonic() < end

    assert alter(confluent_kafka.admin.UserScramCredentialUpsertion("bob", info, b"one")) == [None]
    soon(True, "one")
    assert alter(confluent_kafka.admin.UserScramCredentialUpsertion("bob", info, b"two")) == [None]
    soon(False, "one")
    soon(True, "two")
    described = admin.describe_user_scram_credentials(["bob"])["bob"].result(SHOULD_BE_S)
    assert [(row.mechanism, row.iterations) for row in described.scram_credential_infos] == [(kind, 8192)]
    assert alter(confluent_kafka.admin.UserScramCredentialDeletion("bob", kind)) == [None]
    soon(False, "two")
    (error,) = alter(confluent_kafka.admin.UserScramCredentialDeletion("bob", kind))
    assert error.args[0].code() == ErrorCode.RESOURCE_NOT_FOUND


async def order(address, security=None):
    """Ask for a controlled shutdown, as only a broker may; return the code of the answer."""
    host, _, port = address.rpartition(":")
    client = Client(host, int(port), "me", timeout_ms=5000, **({"security": security} if security else {}))
    request = ib.ControlledShutdownRequest(broker_id=1, broker_epoch=5)
    try:
        return (await client.call(ApiKey.CONTROLLED_SHUTDOWN, request)).error_code
    finally:
        client.close()


def test_only_brokers_are_obeyed(brokers):
    assert asyncio.run(order(at(brokers, "PLAINTEXT"))) == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    proved = brokers.brokers[2].inter_broker.security()
    assert brokers.do(order(at(brokers, "MUTUAL"), proved)) != ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_replicas_are_copied_over_tls(brokers):
    producer = confluent_kafka.Producer({"bootstrap.servers": at(brokers, "PLAINTEXT"), "acks": "all"})
    producer.produce("copied", b"v", partition=0)
    assert producer.flush(SHOULD_BE_S) == 0
    (state,) = {brokers.brokers[1].replicas.metadata.topic("copied").partitions[0].state.isr}
    assert sorted(state) == [1, 2]


def test_no_answer_shows_a_secret(brokers):
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": at(brokers, "PLAINTEXT")})
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.BROKER, "1")
    (found,) = admin.describe_configs([resource]).values()
    rows = found.result(SHOULD_BE_S)
    assert {name for name, row in rows.items() if row.is_sensitive} == {
        *(f"{mechanism}.sasl.jaas.config" for mechanism in ("plain", "scram-sha-256", "scram-sha-512")),
        *("ssl.key.password", "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates"),
    }
    assert all(row.value is None for row in rows.values() if row.is_sensitive)
    assert not any("PlainLoginModule" in str(row.value) for row in rows.values())


def test_below_the_level_of_listeners_a_broker_has_one(tmp_path, certificates):
    coordination = f"sqlite:{tmp_path / 'tree.db'}"
    asyncio.run(begun_by_an_earlier_release(coordination))
    given = {"log.dirs": str(tmp_path / "broker"), "coordination": coordination, "listeners": "SSL://127.0.0.1:0"}
    broker = Broker(BrokerConfig.from_properties({**given, **tls_of(certificates)}))

    async def main():
        try:
            await broker.start()
        finally:
            await broker.stop()

    with pytest.raises(InvalidConfigError, match="upgrade --level 4` first"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"listeners": "SSL://127.0.0.1:0"}, "ssl.keystore.location: TLS needs a certificate"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}, None),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "PLAIN"}, "PLAIN needs org.apache"),
        (
            {
                "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
                "sasl.enabled.mechanisms": "PLAIN",
                "plain.sasl.jaas.config": 'x.ScramLoginModule required username="s3cret";',
            },
            "listener.name.sasl_plaintext.plain.sasl.jaas.config: PLAIN needs",
        ),
        ({"sasl.mechanism.inter.broker.protocol": "PLAIN"}, "where nobody logs in"),
        (
            {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.mechanism.inter.broker.protocol": "PLAIN"},
            "not among sasl.enabled.mechanisms",
        ),
    ],
)
def test_settings_that_cannot_be_stop_a_broker_with_one_line(tmp_path, given, says):
    config = BrokerConfig.from_properties({"log.dirs": str(tmp_path), **given})
    if says is None:  # for brokers alone
        assert Broker(config)
        return
    with pytest.raises(InvalidConfigError, match=r"^[^\n]*$") as caught:
        Broker(config)
    assert says in str(caught.value)
    assert "s3cret" not in str(caught.value)
