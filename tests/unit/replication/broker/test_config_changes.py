"""Settings of topics come from the tree, whatever is in it, and no change of them is lost."""

import asyncio
from contextlib import asynccontextmanager

from logstore.errors import InvalidConfigError
from replication.broker.config_changes import ConfigChanges
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

            changes = ConfigChanges(changed)
            await changes.begin(tree)
            assert told == {"v": {"retention.ms": "v"}}
            await topics.change_config(tree, "v", lambda known: {**known, "segment.ms": "1"})
            await until(lambda: told == {"v": {"retention.ms": "v", "segment.ms": "1"}})
            await changes.end()

    asyncio.run(check())


def test_a_notice_that_nobody_understands_hides_no_change(tmp_path):
    async def check():
        async with prepared(tmp_path, "t") as tree:
            await topics.change_config(tree, "t", lambda known: {"retention.ms": "1"})
            told = {}
            changes = ConfigChanges(lambda topic, overrides: told.update({topic: dict(overrides)}))
            await changes.begin(tree)
            await tree.create(nodes.CONFIG_CHANGE_PREFIX, b"{ not json", sequence=True)
            await topics.change_config(tree, "t", lambda known: {"retention.ms": "2"})
            await until(lambda: told == {"t": {"retention.ms": "2"}})
            await changes.end()

    asyncio.run(check())


def test_two_who_change_settings_at_once_lose_nothing(tmp_path):
    async def check():
        async with prepared(tmp_path, "t") as tree:

            def add(number):
                return lambda known: {**known, f"key{number}": str(number)}

            await asyncio.gather(*(topics.change_config(tree, "t", add(number)) for number in range(8)))
            found = (await topics.read_configs(tree, ["t"]))["t"]
            assert found == {"retention.ms": "t", **{f"key{n}": str(n) for n in range(8)}}
            assert len(await tree.children(nodes.CONFIG_CHANGES)) == 8

    asyncio.run(check())
