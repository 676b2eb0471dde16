"""The level of a running cluster: raised by command once all brokers support it, and told without a restart."""

import asyncio
import time

import pytest
from confluent_kafka import Producer

from replication.broker.broker import Broker
from replication.broker.feature_level import FeatureLevel
from replication.config.broker import BrokerConfig
from replication.coordination import cluster, features, nodes, open_tree
from replication.coordination.features import UnsupportedLevelError
from replication.coordination.tree import ensure_path
from replication.model.cluster import BrokerInfo, TopicPartition
from replication.model.features import SUPPORTED, Finalized, Levels
from replication.protocol.apis import ApiKey
from tests.support import kafka_answers
from tests.support.asker import Asker, until
from tests.support.commands import run_pylog
from tests.support.in_process import begun_by_an_earlier_release, brokers_in_process
from tests.support.kafka_answers import consumers

T0 = TopicPartition("given", 0)
LAST = SUPPORTED.last


class Site:
    """Two brokers, and what a test does beside them."""

    def __init__(self, running, directory):
        self.running, self.do, self.directory = running, running.do, directory

    def pylog(self, *arguments):
        return run_pylog("features", *arguments, "--bootstrap-server", self.running.bootstrap)

    def described(self):
        return [
            (row["broker"], row["supported_min"], row["supported_max"], row["finalized"], row["epoch"])
            for row in self.pylog("describe", "--output", "json").ok().json
        ]

    @property
    def tree(self):
        return self.running.brokers[1].lifecycle.tree

    def registered_by_hand(self, broker):
        """Return the session of a broker that tells no levels, as the release before."""

        async def register():
            tree = await open_tree(f"sqlite:{self.directory / 'tree.db'}", on_session=lambda event: None)
            await ensure_path(tree, nodes.incarnation_path(broker))
            info = BrokerInfo(broker, 5, "127.0.0.1", 1)
            await tree.create(nodes.broker_path(broker), nodes.encode_broker(info, 1), ephemeral=True)
            return tree

        return self.do(register())

    def state(self, tp):
        return self.do(cluster.read_states(self.tree, [tp]))[tp]

    def another(self, number, levels):
        config = BrokerConfig.from_properties(
            {
                "broker.id": number,
                "log.dirs": str(self.directory / f"broker-{number}"),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "coordination": f"sqlite:{self.directory / 'tree.db'}",
                "controlled.shutdown.enable": "false",
            }
        )
        return Broker(config, supported=levels)


@pytest.fixture
def site(tmp_path):
    asyncio.run(begun_by_an_earlier_release(f"sqlite:{tmp_path / 'tree.db'}"))
    with brokers_in_process(tmp_path, (1, 2)) as running:
        yield Site(running, tmp_path)


def test_it_is_raised_by_command_once_all_support_it_and_told_without_a_restart(site):
    assert site.described() == [(1, *SUPPORTED, 0, 0), (2, *SUPPORTED, 0, 0)]
    old = site.registered_by_hand(7)
    refused = site.pylog("upgrade", "--level", 1).failed()
    assert "Broker 7 does not support this feature." in refused
    assert "Invalid update version 1 for feature pylog.version" in site.pylog("upgrade", "--level", 1, "--dry-run").err
    site.do(old.close())
    assert "can be raised to 1" in site.pylog("upgrade", "--level", 1, "--dry-run").ok().err
    until(lambda: site.described() == [(1, *SUPPORTED, 0, 0), (2, *SUPPORTED, 0, 0)])
    before = site.do(cluster.read_controller_epoch(site.tree))
    assert "was raised to 1" in site.pylog("upgrade", "--level", 1).ok().err
    until(lambda: site.described() == [(1, *SUPPORTED, 1, 1), (2, *SUPPORTED, 1, 1)])
    site.pylog("upgrade", "--level", 1).ok()
    assert site.described() == [(1, *SUPPORTED, 1, 1), (2, *SUPPORTED, 1, 1)]
    assert f"only supports versions 0-{LAST}" in site.pylog("upgrade", "--level", LAST + 1).failed()
    # The cluster goes on, under another term of a controller.
    until(lambda: site.do(cluster.read_controller_epoch(site.tree)) == before + 1)
    producer = Producer({"bootstrap.servers": site.running.bootstrap, "log_level": 0, "acks": "all"})
    producer.produce("made-then", b"v")
    assert producer.flush(40) == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_update_features_answers_as_kafka_4_4(site, version):
    whole = "The update failed for all features since the following feature had an error: Invalid update version"

    def ask(*updates, is_dry=False):
        rows = []
        for name, level, kind in updates:
            row = {"feature": name, "max_version_level": level}
            rows.append(row | ({"upgrade_type": kind} if version else {"allow_downgrade": kind == 2}))
        body = {"timeout": 1000, "feature_updates": rows} | ({"validate_only": is_dry} if version else {})
        answer = asker.ask(ApiKey.UPDATE_FEATURES, version, body)
        each = [(row.feature, row.error_code.value) for row in getattr(answer, "results", ())]
        return answer.error_code.value, answer.error_message, each

    def fine(*names):
        return 0, None, [(name, 0) for name in names] if version < 2 else []

    with Asker(str(site.running.brokers[2].endpoint)) as asker:
        assert ask() == fine()
        assert ask(("transaction.version", 2, 1)) == fine("transaction.version")
        assert ask(("nope", 1, 1), ("pylog.version", 1, 1)) == (
            95,
            f"{whole} 1 for feature nope. This broker does not support this feature.",
            [],
        )
        if version:
            assert ask(("pylog.version", 1, 1), is_dry=True) == fine("pylog.version")
            assert ask(("pylog.version", 1, 0))[:2] == (
                95,
                f"{whole} 1 for feature pylog.version. The controller does not support the given upgrade type.",
            )
        assert site.do(features.read_finalized(site.tree)) == Finalized(0, 0)
        assert ask(("pylog.version", 1, 1)) == fine("pylog.version")
        assert site.do(features.read_finalized(site.tree)) == Finalized(1, 1)
        assert ask(("pylog.version", 0, 2))[0] == 95
        told = asker.ask(ApiKey.API_VERSIONS, 4, {"client_software_name": "a", "client_software_version": "1"})
        assert {row.name: row.max_version_level for row in told.finalized_features} == {
            "transaction.version": 2,
            "pylog.version": 1,
        }
        assert told.finalized_features_epoch == 1


def test_a_registration_without_levels_is_left_out_once_it_is_raised(site, caplog):
    site.pylog("upgrade", "--level", 1).ok()
    old = site.registered_by_hand(7)
    until(lambda: "broker 7 supports pylog.version 0 to 0, and the cluster is at level 1" in caplog.text)

    async def create():
        await ensure_path(site.tree, nodes.topic_path("given"))
        await site.tree.set(nodes.topic_path("given"), nodes.encode_topic({0: (7, 2)}))

    site.do(create())
    until(lambda: site.state(T0))
    assert (site.state(T0).leader, site.state(T0).isr) == (2, (2,))
    assert set(site.running.brokers[1].replicas.metadata.brokers()) == {1, 2}
    site.do(old.close())
    assert caplog.text.count("broker 7 supports") == 1
    assert "broker=7" not in caplog.text  # nobody tried to tell it anything


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        (Levels(0, 0), "supports pylog.version 0 to 0, and the cluster is at level 1: install the release"),
        (Levels(2, 3), "supports pylog.version 2 to 3, and the cluster is at level 1: start an earlier release first"),
    ],
    ids=["too old", "too new"],
)
def test_a_broker_that_is_too_old_or_too_new_says_so_at_once_and_stays_out(site, levels, words):
    site.pylog("upgrade", "--level", 1).ok()
    broker = site.another(3, levels)
    begin = time.monotonic()
    with pytest.raises(UnsupportedLevelError, match=words):
        site.do(broker.start())
    assert time.monotonic() - begin < 20
    site.do(broker.stop())
    assert not (site.directory / "broker-3" / "meta.properties").exists()
    assert set(site.do(features.read_registered(site.tree))[0]) == {1, 2}


def test_a_broker_whose_session_ends_registers_again_only_if_it_supports_the_level(site, caplog):
    late = site.another(3, Levels(0, 0))
    site.do(late.start())

    async def raise_all_the_same():
        # Beside the command: the broker cannot be registered while it is raised.
        await features.raise_level(site.tree, 1, lambda finalized, brokers: None)
        await site.tree.end_session(late.lifecycle.tree.token)

    site.do(raise_all_the_same())
    until(lambda: "broker=3 is not registered: broker 3 supports pylog.version 0 to 0" in caplog.text)
    assert set(site.do(features.read_registered(site.tree))[0]) == {1, 2}
    site.do(late.stop())


def test_a_session_that_begins_later_knows_the_level(site):
    site.pylog("upgrade", "--level", 1).ok()

    async def end():
        await site.tree.end_session(site.running.brokers[2].lifecycle.tree.token)

    site.do(end())
    until(lambda: set(site.do(features.read_registered(site.tree))[0]) == {1, 2})
    until(lambda: site.described() == [(1, *SUPPORTED, 1, 1), (2, *SUPPORTED, 1, 1)])


def test_a_new_cluster_begins_at_the_level_of_its_first_broker(tmp_path, monkeypatch):
    begin, known = FeatureLevel.begin, []

    async def begun(level, tree):
        known.append(level.finalized.level)
        await begin(level, tree)

    monkeypatch.setattr(FeatureLevel, "begin", begun)
    with brokers_in_process(tmp_path, (1, 2)) as running:
        assert known == [LAST, LAST]  # nobody is refused what there is while a broker starts
        site = Site(running, tmp_path)
        assert site.described() == [(1, *SUPPORTED, LAST, 1), (2, *SUPPORTED, LAST, 1)]
        with pytest.raises(UnsupportedLevelError, match=f"the cluster is at level {LAST}"):
            site.do(site.another(3, Levels(0, 1)).start())


def test_groups_of_the_consumer_protocol_wait_for_their_level_and_need_no_restart(tmp_path):
    asyncio.run(begun_by_an_earlier_release(f"sqlite:{tmp_path / 'tree.db'}"))
    with brokers_in_process(tmp_path, (1,)) as running, Asker(running.bootstrap, "x") as asker:
        site = Site(running, tmp_path)
        kafka_answers.prepare(asker)
        member = consumers.Member(asker, "level")
        assert (member.hear()[0], member.described()[0]) == (35, 35)
        refused = site.pylog("upgrade", "--level", LAST + 1).failed()
        assert f"only supports versions 0-{LAST}" in refused
        update = [{"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}]
        body = {"timeout": 1000, "feature_updates": update, "validate_only": False}
        answer = asker.ask(ApiKey.UPDATE_FEATURES, 1, body)
        assert "comes with pylog.version 2: raise that" in answer.error_message
        told_only = {
            **body,
            "feature_updates": [{"feature": "pylog.schemas", "max_version_level": 1, "upgrade_type": 1}],
        }
        answer = asker.ask(ApiKey.UPDATE_FEATURES, 1, told_only)
        assert (answer.error_code, "is not raised" in answer.error_message) == (95, True)
        site.pylog("upgrade", "--level", 2).ok()
        until(lambda: member.hear(0)[0] == 0)
        told = asker.ask(ApiKey.API_VERSIONS, 4, {"client_software_name": "a", "client_software_version": "1"})
        assert {row.name: row.max_version_level for row in told.finalized_features}["group.version"] == 1
