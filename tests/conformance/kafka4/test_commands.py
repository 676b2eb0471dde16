"""Every command with --bootstrap-server on a real Kafka 4.4 of three brokers: what it answers, or why it refuses.

The commands are those of the command line itself: one that is new and is not walked here fails a test.
"""

import click
import pytest

from datasource import spark_session
from logstore.cli import cli
from replication.client.kafka_client import KafkaClient
from tests.conformance.kafka4.walks import WALKS, Place
from tests.conformance.kafka4.walks.place import READ_ONLY
from tests.spark.kills.query import QUICK
from tests.support.repeats import only_long

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), only_long("starts a Kafka")]

MAINTAINED = "is for a directory: the brokers of a cluster apply"
NO_SUBJECT = "subject 'none-value' is not in _schemas of the cluster at"
NO_AUTHORIZER = "No Authorizer is configured"
# A command that has nothing to do there: its exit code, and what its one line says.
REFUSED = {
    "acls add": (("--allow-principal", "User:ada", "--producer", "--topic", "t"), 1, NO_AUTHORIZER),
    "acls list": ((), 1, NO_AUTHORIZER),
    "acls remove": (("--topic", "t", "--yes"), 1, NO_AUTHORIZER),
    "compact": (("--topic", "t"), 2, MAINTAINED),
    "features upgrade": (("--level", "1"), 1, "does not support this feature"),
    "jobs compaction": (("--topic", "t"), 2, MAINTAINED),
    "jobs retention": (("--topic", "t"), 2, MAINTAINED),
    "retention": (("--topic", "t"), 2, MAINTAINED),
    "schemas delete": (("none-value", "--yes"), 1, NO_SUBJECT),
    "schemas get": (("none-value",), 1, NO_SUBJECT),
    "schemas register": (("none-value", "user string"), 1, READ_ONLY),
}


def commands(command=cli, words=()):
    """Every command with the option, by its words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*words, name))
    elif any("--bootstrap-server" in each.opts for each in command.params):
        yield " ".join(words)


def test_every_command_with_a_cluster_is_walked_or_refused():
    assert sorted([*WALKS, *REFUSED]) == sorted(commands())


@pytest.fixture(scope="module")
def place(three_brokers, tmp_path_factory):
    with KafkaClient(three_brokers.bootstrap) as client:
        yield Place(three_brokers, client, tmp_path_factory.mktemp("walked"))


@pytest.fixture(scope="module")
def spark():
    """The session that the jobs find."""
    session = spark_session(master="local[2]", **QUICK, **{"spark.ui.enabled": False})
    yield session
    session.stop()


@pytest.mark.parametrize("name", sorted(commands()))
def test_a_command_answers_on_a_real_kafka(place, name, request):
    if name in REFUSED:
        words, code, said = REFUSED[name]
        ran = place.run(*name.split(), *words)
        assert (ran.code, ran.out) == (code, "")
        assert said in ran.err.splitlines()[-1]
    else:
        if name.startswith("jobs "):
            request.getfixturevalue("spark")
        WALKS[name](place)
