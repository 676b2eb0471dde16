"""`pylog configs` for quotas, on brokers; and quotas as programs ask for them."""

import pytest

from replication.client.kafka_client import KafkaClient
from replication.client.quotas import ANY_NAME, alter_quotas, describe_quotas, entity
from replication.errors import ErrorCode, KafkaError
from tests.integration.broker.test_quotas import clear
from tests.support.asker import Asker
from tests.support.commands import run_pylog
from tests.support.in_process import brokers_in_process


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    with brokers_in_process(tmp_path_factory.mktemp("quotas"), (1,)) as running:
        yield running


@pytest.fixture
def pylog(brokers):
    def run(*arguments):
        return run_pylog("configs", *arguments, "--output", "json", "--bootstrap-server", brokers.bootstrap)

    yield run
    with Asker(brokers.bootstrap) as asker:
        clear(asker)


def shown(ran):
    return {f"{row['entity']}: {row['name']}={row['value']}" for row in ran.ok().json}


OF_ADA = "--entity-type", "users", "--entity-name", "ada"


def test_quotas_of_users_and_of_their_client_ids(pylog):
    altered = pylog("alter", *OF_ADA, "--add-config", "producer_byte_rate=1000,request_percentage=12.5")
    assert shown(altered) == {"user ada: producer_byte_rate=1000", "user ada: request_percentage=12.5"}
    assert "altered user ada" in altered.err
    pylog("alter", *OF_ADA, "--client", "etl", "--add-config", "producer_byte_rate=2000").ok()
    pylog("alter", *OF_ADA, "--client-defaults", "--add-config", "producer_byte_rate=3000").ok()
    pylog("alter", "--entity-type", "users", "--entity-default", "--add-config", "consumer_byte_rate=5").ok()
    assert shown(pylog("describe", *OF_ADA)) == {
        "user ada: producer_byte_rate=1000", "user ada: request_percentage=12.5"
    }  # fmt: skip
    assert shown(pylog("describe", *OF_ADA, "--client", "etl")) == {"user ada, client-id etl: producer_byte_rate=2000"}
    assert shown(pylog("describe", *OF_ADA, "--client-defaults")) == {
        "user ada, client-id <default>: producer_byte_rate=3000"
    }
    assert shown(pylog("describe", "--entity-type", "users")) == {
        "user ada: producer_byte_rate=1000", "user ada: request_percentage=12.5",
        "user <default>: consumer_byte_rate=5",
        "user ada, client-id etl: producer_byte_rate=2000", "user ada, client-id <default>: producer_byte_rate=3000",
    }  # fmt: skip
    pylog("alter", *OF_ADA, "--delete-config", "producer_byte_rate", "--add-config", "consumer_byte_rate=7").ok()
    assert shown(pylog("describe", *OF_ADA)) == {"user ada: request_percentage=12.5", "user ada: consumer_byte_rate=7"}


def test_quotas_of_client_ids_and_of_addresses(pylog):
    pylog(
        "alter", "--entity-type", "clients", "--entity-name", "a/b", "--add-config", "controller_mutation_rate=0.5"
    ).ok()
    pylog(
        "alter", "--entity-type", "ips", "--entity-name", "127.9.9.9", "--add-config", "connection_creation_rate=5"
    ).ok()
    assert shown(pylog("describe", "--entity-type", "clients")) == {"client-id a/b: controller_mutation_rate=0.5"}
    assert shown(pylog("describe", "--entity-type", "ips")) == {"ip 127.9.9.9: connection_creation_rate=5"}


def test_a_dry_run_changes_nothing(pylog):
    ran = pylog("alter", *OF_ADA, "--add-config", "producer_byte_rate=1000", "--dry-run")
    assert shown(ran) == set()
    assert "could alter" in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["alter", "--entity-type", "users", "--add-config", "producer_byte_rate=1"],
            "--entity-name or --entity-default",
        ),
        (["alter", *OF_ADA], "nothing to change"),
        (["alter", *OF_ADA, "--add-config", "producer_byte_rate=much"], "a quota is a number"),
        (["alter", *OF_ADA, "--add-config", "producer_byte_rate=0"], "must be greater than 0"),
        (["alter", *OF_ADA, "--add-config", "retention.ms=5"], "Invalid configuration key retention.ms"),
        (["alter", *OF_ADA, "--entity-default", "--add-config", "producer_byte_rate=1"], "and not both"),
        (
            ["alter", "--entity-type", "clients", "--client", "a", "--entity-default", "--add-config", "x=1"],
            "goes with",
        ),
        (["describe", *OF_ADA, "--client", "a", "--client-defaults"], "one of them"),
        (["describe", "--entity-type", "users", "--client", "a"], "--entity-name or --entity-default"),
        (["describe", "--entity-type", "topics", "--entity-name", "t", "--client", "a"], "goes with"),
        (
            ["alter", "--entity-type", "ips", "--entity-name", "here", "--add-config", "connection_creation_rate=1"],
            "IP",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_line(pylog, words, says):
    ran = pylog(*words)
    assert ran.code != 0
    assert says in ran.err


def test_programs_ask_for_quotas(brokers, pylog):
    both, default = entity({"client-id": "c", "user": "u"}), entity({"client-id": None})
    with KafkaClient(brokers.bootstrap) as client:
        changes = {
            both: {"producer_byte_rate": 5.0},
            default: {"consumer_byte_rate": 6.0},
            (): {"request_percentage": 1.0},
        }
        done = client.run(alter_quotas, changes)
        assert [done[each] for each in (both, default)] == [None, None]
        assert done[()].code is ErrorCode.INVALID_REQUEST
        assert client.run(describe_quotas) == {both: {"producer_byte_rate": 5.0}, default: {"consumer_byte_rate": 6.0}}
        assert client.run(describe_quotas, {"client-id": ANY_NAME}, strict=True) == {
            default: {"consumer_byte_rate": 6.0}
        }
        assert set(client.run(describe_quotas, {"client-id": ANY_NAME}, strict=False)) == {both, default}
        with pytest.raises(KafkaError, match="should not be used"):
            client.run(describe_quotas, {"ip": None, "user": "u"})
        assert client.run(alter_quotas, {both: {"producer_byte_rate": None}}) == {both: None}
        assert set(client.run(describe_quotas)) == {default}
