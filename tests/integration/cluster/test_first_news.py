"""A broker whom no controller has told of the cluster says that of nothing there is none."""

import asyncio
import contextlib
import threading
import time

import pytest

from logstore.env import SYSTEM
from replication.broker import first_news
from replication.broker.broker import Broker
from replication.config.broker import BrokerConfig
from replication.coordination import cluster, nodes
from replication.coordination.sqlite_tree import SqliteTree
from replication.errors import ErrorCode
from replication.model.cluster import topic_uuid
from replication.protocol.apis import ApiKey
from replication.protocol.messages import ProducePartition, ProduceRequest, ProduceTopic
from replication.security.access import BROKER, NOTHING
from tests.integration.cluster.conftest import SESSION_TIMEOUT_MS, running
from tests.support.asker import CLOSED, SILENT, Asker, fetch_request
from tests.support.commands import run_pylog
from tests.support.kafka_answers.topics import create
from tests.support.repeats import only_long
from tests.support.site import batch, on_loop, until
from tests.support.waits import stays

NEITHER = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
OF_ALL = {"topics": None, "allow_auto_topic_creation": False, **NEITHER}
OF_ONE = {**OF_ALL, "topics": [{"topic_id": None, "name": "orders"}]}
OF_CLUSTER = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
ABOUT = {
    "all topics": (ApiKey.METADATA, 9, OF_ALL),
    "a topic": (ApiKey.METADATA, 9, OF_ONE),
    "no topic": (ApiKey.METADATA, 9, {**OF_ALL, "topics": []}),
    "the cluster": (ApiKey.DESCRIBE_CLUSTER, 1, OF_CLUSTER),
    "a deletion": (ApiKey.DELETE_TOPICS, 5, {"topic_names": ["orders"], "timeout": 1000}),
    "settings": (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        {
            "resources": [{"resource_type": 2, "resource_name": "orders", "configuration_keys": None}],
            "include_synonyms": False,
            "include_documentation": False,
        },
    ),
}
OFFSET = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
OFFSETS = [{"name": "orders", "partitions": [OFFSET]}]
COMMIT = {"group_id": "g", "generation_id": -1, "member_id": "", "group_instance_id": None, "topics": OFFSETS}
COORDINATED = [
    (ApiKey.FIND_COORDINATOR, 3, {"key": "g", "key_type": 0}, lambda answer: answer.error_code),
    (ApiKey.FIND_COORDINATOR, 3, {"key": "t", "key_type": 1}, lambda answer: answer.error_code),
    (ApiKey.LIST_GROUPS, 4, {"states_filter": []}, lambda answer: answer.error_code),
    (
        ApiKey.LIST_TRANSACTIONS,
        0,
        {"state_filters": [], "producer_id_filters": []},
        lambda answer: answer.error_code,
    ),
    (ApiKey.HEARTBEAT, 3, {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None},
     lambda answer: answer.error_code),
    (ApiKey.DESCRIBE_GROUPS, 4, {"groups": ["g"], "include_authorized_operations": False},
     lambda answer: answer.groups[0].error_code),
    (ApiKey.OFFSET_COMMIT, 8, COMMIT, lambda answer: answer.topics[0].partitions[0].error_code),
    (ApiKey.END_TXN, 3, {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "committed": True},
     lambda answer: answer.error_code),
]  # fmt: skip


def broker_of(directory):
    given = {
        "broker.id": 1,
        "log.dirs": str(directory / "broker-1"),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "coordination": f"sqlite:{directory / 'tree.db'}",
    }
    return Broker(BrokerConfig.from_properties(given))


@contextlib.asynccontextmanager
async def untold(directory):
    """A broker of a cluster whose controller says nothing; and the tree's session that is this controller."""
    tree = await SqliteTree.open(directory / "tree.db", on_session=lambda event: None)
    await cluster.prepare(tree)
    await tree.create(nodes.CONTROLLER, nodes.encode_controller(7, SYSTEM.clock.now_ms()), ephemeral=True)
    broker = broker_of(directory)
    starting = asyncio.create_task(broker.start())
    try:
        await until(lambda: not str(broker.endpoint).endswith(":0"))
        yield broker, tree
    finally:
        await tree.close()
        await starting
        await broker.stop()


def of(broker, **options):
    return Asker(str(broker.endpoint), **options)


async def ask(asker, *question):
    return await asyncio.to_thread(asker.ask, *question)


async def ask_each(broker):
    """The answers to all of ABOUT, each asked on a connection of its own."""

    async def alone(question):
        with of(broker) as asker:
            return await ask(asker, *question)

    return await asyncio.gather(*map(alone, ABOUT.values()))


@on_loop
async def test_what_is_asked_of_the_cluster_waits_for_the_first_news_of_it(tmp_path):
    async with untold(tmp_path) as (broker, tree):
        waiting = asyncio.create_task(ask_each(broker))
        with of(broker) as other:
            served = await ask(
                other, ApiKey.API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"}
            )
            assert served.error_code == ErrorCode.NONE
        await stays(lambda: not waiting.done(), 0.3)
        assert broker.server.admission.in_work == 0, "who waits takes nobody's place"

        await tree.delete(nodes.CONTROLLER)  # this broker becomes the controller, and tells itself

        everything, one, none, described, deleted, settings = await waiting
        for answer in (everything, one, none, described):
            assert [each.node_id if hasattr(each, "node_id") else each.broker_id for each in answer.brokers] == [1]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert one.topics[0].error_code == deleted.responses[0].error_code == settings.results[0].error_code == unknown


@on_loop
async def test_the_connection_is_closed_when_the_news_do_not_come(tmp_path, monkeypatch):
    monkeypatch.setattr(first_news, "WAIT_S", 0.5)
    async with untold(tmp_path) as (broker, _):
        assert await ask_each(broker) == [CLOSED] * len(ABOUT)
        assert broker.server.admission.misused == 0, "the client did nothing wrong"


@on_loop
async def test_leaders_and_coordinators_have_who_asks_come_again(tmp_path):
    async with untold(tmp_path) as (broker, _):
        with of(broker, patience_s=5) as asker:
            for key, version, body, code_of in COORDINATED:
                answer = await ask(asker, key, version, body)
                assert answer not in (CLOSED, SILENT), key
                assert code_of(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE, key
            sent = ProduceRequest(-1, 1000, (ProduceTopic("orders", (ProducePartition(0, bytes(batch(b"v"))),)),))
            produced = await ask(asker, ApiKey.PRODUCE, 9, sent)
            assert produced.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


class SecretIsRefused:
    """An authorizer that refuses clients all rights to the topic `secret`."""

    has_rights = True

    def refused(self, context, needs, request):
        if context.principal is BROKER:
            return NOTHING
        return frozenset(need for need in needs(request) if need.name == "secret") or NOTHING


@on_loop
async def test_topic_ids_are_authorized_again_once_the_metadata_is_there(tmp_path):
    former = broker_of(tmp_path)
    await former.start()
    with of(former) as asker:
        assert await asyncio.to_thread(create, asker, "secret", "open") == [0, 0]
        await ask(asker, ApiKey.DELETE_TOPICS, 6, {"topics": [], "timeout": 0})  # no later one is decoded in a task
    secret, shared = (topic_uuid(former.replicas.metadata.topic(name).id) for name in ("secret", "open"))
    await former.stop()

    by_id = [{"topic_id": topic_id, "name": None} for topic_id in (secret, shared)]
    async with untold(tmp_path) as (broker, tree), contextlib.AsyncExitStack() as askers:
        broker.server.pipeline.authorizer = SecretIsRefused()
        described, deleted, mixed = (askers.enter_context(of(broker)) for _ in range(3))
        fetched = await ask(described, ApiKey.FETCH, 13, fetch_request(None, topic_id=secret))
        ((row,),) = (topic.partitions for topic in fetched.topics)
        assert (row.error_code, bytes(row.records or b"")) == (ErrorCode.UNKNOWN_TOPIC_ID, b""), "it does not wait"

        mixture = [{"topic_id": None, "name": "secret"}, *by_id]
        waiting = asyncio.gather(
            ask(described, ApiKey.METADATA, 12, {**OF_ALL, "topics": by_id}),
            ask(deleted, ApiKey.DELETE_TOPICS, 6, {"topics": by_id[:1], "timeout": 20_000}),
            ask(mixed, ApiKey.DELETE_TOPICS, 6, {"topics": mixture, "timeout": 20_000}),
        )
        await until(lambda: sum(w.is_parked for c in broker.server.admission.connections for w in c.works()) == 3)
        await tree.delete(nodes.CONTROLLER)

        shown, refused, partly = await waiting
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert {row.topic_id: row.error_code for row in shown.topics} == {secret: denied, shared: ErrorCode.NONE}
        assert [(row.name, row.topic_id, row.error_code) for row in refused.responses] == [(None, secret, denied)]
        assert {(row.name, row.topic_id): row.error_code for row in partly.responses} == {
            ("secret", None): denied, (None, secret): denied, ("open", shared): ErrorCode.NONE
        }  # fmt: skip
        assert broker.replicas.metadata.topic("secret") is not None


@pytest.mark.slow
@only_long("brokers that restart")
def test_nobody_finds_topics_missing_while_a_cluster_comes_back(tmp_path):
    """All are killed; the one that was not the controller starts first, while the dead controller's session lasts."""
    with running(2, tmp_path) as tested:
        topic = tested.create((1, 2))
        first = next(number for number in (1, 2) if number != tested.until(tested.running.controller)[1])
        tested.running.kill(1, 2)
        time.sleep(SESSION_TIMEOUT_MS / 1000 + 1)
        restarting = threading.Thread(target=tested.running.restart, args=(first,))
        restarting.start()
        looks = []
        while restarting.is_alive() or not looks:
            looks.append(run_pylog("topics", "list", "--bootstrap-server", tested.running.address(first)))
        restarting.join()
        assert [look.out for look in looks if topic not in look.out] == []
        assert {look.code for look in looks} == {0}
