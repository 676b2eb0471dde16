"""Settings of topics come from the tree, whatever is in it, and no change of them is lost."""

import asyncio
from contextlib import asynccontextmanager

from logstore.errors import InvalidConfigError
from replication.broker.config_changes import ConfigChanges
from replication.broker.users import Users
from replication.config.broker import BrokerConfig
from replication.config.group import GroupConfigs
from replication.config.live import LiveSettings
from replication.coordination import cluster, nodes, open_tree, topics


@asynccontextmanager
async def prepared(tmp_path, *names):
    tree = await open_tree(f"sqlite:{tmp_path}/tree.db", on_session=lambda event: None)
    try:
        await cluster.prepare(tree)
        for name in names:
            await topics.create_topic(tree, name, name * 22, {0: (1,)}, {"retention.ms": name})
        yield tree
    finally:
        await tree.close()


async def until(holds):
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)


def test_settings_that_cannot_be_understood_keep_nobody_from_the_others(tmp_path):
    async def check():
        async with prepared(tmp_path, "t", "u", "v") as tree:
            await tree.set(nodes.topic_config_path("t"), b"{ not json")
            told = {}

            def changed(topic, overrides):
                if topic == "u":
                    raise InvalidConfigError("no")
                told[topic] = dict(overrides)

            changes = ConfigChanges(
                LiveSettings(BrokerConfig()), GroupConfigs(BrokerConfig()), Users(), changed, lambda: None
            )
            await changes.begin(tree)
            assert told == {"v": {"retention.ms": "v"}}
            await topics.change_config(tree, "/config/topics/v", lambda known: {**known, "segment.ms": "1"})
            await until(lambda: told == {"v": {"retention.ms": "v", "segment.ms": "1"}})
            await changes.end()

    asyncio.run(check())


def test_a_notice_that_nobody_understands_hides_no_change(tmp_path):
    async def check():
        async with prepared(tmp_path, "t") as tree:
            await topics.change_config(tree, "/config/topics/t", lambda known: {"retention.ms": "1"})
            told = {}
            changes = ConfigChanges(
                LiveSettings(BrokerConfig()),
                GroupConfigs(BrokerConfig()),
                Users(),
                lambda topic, its: told.update({topic: dict(its)}),
                lambda: None,
            )
            await changes.begin(tree)
            await tree.create(nodes.CONFIG_CHANGE_PREFIX, b"{ not json", sequence=True)
            await topics.change_config(tree, "/config/topics/t", lambda known: {"retention.ms": "2"})
            await until(lambda: told == {"t": {"retention.ms": "2"}})
            await changes.end()

    asyncio.run(check())


def test_two_who_change_settings_at_once_lose_nothing(tmp_path):
    async def check():
        async with prepared(tmp_path, "t") as tree:

            def add(number):
                return lambda known: {**known, f"key{number}": str(number)}

            await asyncio.gather(*(topics.change_config(tree, "/config/topics/t", add(number)) for number in range(8)))
            found = (await topics.read_configs(tree, ["t"]))["t"]
            assert found == {"retention.ms": "t", **{f"key{n}": str(n) for n in range(8)}}
            assert len(await tree.children(nodes.CONFIG_CHANGES)) == 8

    asyncio.run(check())


def test_what_brokers_are_given_changes_the_defaults_of_topics_and_what_is_wrong_changes_nothing(tmp_path):
    async def check():
        async with prepared(tmp_path, "5") as tree:
            live, told, heard = LiveSettings(BrokerConfig(broker_id=1)), [], []
            changes = ConfigChanges(
                live,
                GroupConfigs(live.config),
                Users(),
                lambda topic, its: told.append(live.config.log_config(its).segment_bytes),
                lambda: heard.append(1),
            )

            async def give(broker, **settings):
                path = nodes.broker_config_path(broker)
                given = {key.replace("_", "."): value for key, value in settings.items()}
                await topics.change_config(tree, path, lambda known: given)

            await give("", log_segment_bytes="1000")
            await changes.learn(tree)
            assert (live.config.log_segment_bytes, told, heard) == (1000, [], [1])  # before the topics
            await changes.begin(tree)
            assert (told, heard) == ([1000], [1])
            for broker, value, expected in (("1", "2000", 2000), ("2", "3000", 2000), ("1", "nonsense", 2000)):
                told.clear()
                await give(broker, log_segment_bytes=value)
                await until(lambda: told == [expected])  # noqa: B023
            await give("1")
            await until(lambda: told[-1] == 1000)
            await changes.end()

    asyncio.run(check())
