"""ConfigChanges: changes of settings in the tree, of topics, groups and brokers, reported to this broker.

At the begin of a session it reads all settings; from then on, notices in the tree name what to read again: a topic, a
group, a user, or brokers, whose settings are the defaults of all topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from logstore.errors import InvalidConfigError
from replication.broker.users import Users
from replication.config.group import GroupConfigs
from replication.config.live import Given, LiveSettings
from replication.coordination import cluster, nodes, topics
from replication.coordination.node_json import MalformedNodeError
from replication.coordination.tree import Tree, Watch
from replication.coordination.tree_watch import TreeWatch

logger = logging.getLogger(__name__)

NOTICES_KEPT = 100


class ConfigChanges:
    """`changed` takes a topic and its settings; it may raise InvalidConfigError. `brokers_changed` follows brokers'."""

    def __init__(
        self,
        live: LiveSettings,
        groups: GroupConfigs,
        users: Users,
        changed: Callable[[str, Mapping[str, str]], None],
        brokers_changed: Callable[[], None],
    ) -> None:
        self._live = live
        self._groups = groups
        self._users = users
        self._changed = changed
        self._brokers_changed = brokers_changed
        self._seen = ""  # the last notice that was read
        self._watch = TreeWatch(self._look, "settings of topics")
        self.end, self.look_again = self._watch.end, self._watch.look_again

    async def begin(self, tree: Tree) -> None:
        """Read all settings in this session, and watch for changes."""
        await self.end()
        self._seen = ""
        await self._watch.begin(tree)

    async def _look(self, tree: Tree, watch: Watch) -> None:
        """Read the changes since the last notice; the first time, everything."""
        names = await tree.children(nodes.CONFIG_CHANGES, watch)
        if not self._seen:
            await self._tell_all(tree)
        else:
            paths = [f"{nodes.CONFIG_CHANGES}/{name}" for name in names if name > self._seen]
            found = await tree.read_batch(paths)
            changed: set[str | None] = set()
            for path, node in zip(paths, found, strict=True):
                if node is not None:
                    with cluster.log_if_malformed():
                        changed.add(nodes.decode_config_change(path, node.data))
            known = [path for path in changed if path is not None]
            await self._tell_groups(tree, [path for path in known if path.startswith(nodes.GROUP_CONFIGS)])
            await self._tell_users(tree, [path for path in known if path.startswith(nodes.USER_CONFIGS)])
            if any(path.startswith(nodes.BROKER_CONFIGS) for path in known):
                await self._tell_topics(tree)
            else:
                named = (nodes.topic_of_config(path) for path in known)
                await self._tell(tree, sorted(name for name in named if name is not None))
        self._seen = names[-1] if names else self._seen or "-"
        if len(names) > 2 * NOTICES_KEPT:
            await topics.forget_old_notices(tree, NOTICES_KEPT)

    async def learn(self, tree: Tree) -> None:
        """Read what brokers were given. A node that cannot be understood changes nothing."""
        mine, all_brokers = nodes.broker_config_path(str(self._live.config.broker_id)), nodes.broker_config_path("")
        own, common = await tree.read_batch([mine, all_brokers])
        try:
            given = Given(nodes.settings_at(mine, own), nodes.settings_at(all_brokers, common))
            if self._live.change(given):
                logger.info("settings of this broker=%s of all brokers=%s", dict(given.broker), dict(given.cluster))
                self._brokers_changed()
        except (InvalidConfigError, MalformedNodeError) as error:
            logger.error("this broker keeps its former settings: %s", error)

    async def _tell_all(self, tree: Tree) -> None:
        paths = [f"{nodes.GROUP_CONFIGS}/{name}" for name in await tree.children(nodes.GROUP_CONFIGS)]
        self._groups.keep([nodes.group_of_config(path) for path in paths])
        await self._tell_groups(tree, paths)
        await self.learn_users(tree)
        await self._tell_topics(tree)

    async def learn_users(self, tree: Tree) -> None:
        """Know all users that may log in."""
        paths = [f"{nodes.USER_CONFIGS}/{name}" for name in await tree.children(nodes.USER_CONFIGS)]
        self._users.keep([nodes.user_of_config(path) for path in paths])
        await self._tell_users(tree, paths)

    async def _tell_users(self, tree: Tree, paths: Sequence[str]) -> None:
        for path, node in zip(paths, await tree.read_batch(paths), strict=True):
            name = nodes.user_of_config(path)
            try:
                self._users.change(name, nodes.settings_at(path, node))
            except MalformedNodeError as error:
                logger.error("user=%r keeps its former credentials: %s", name, error)

    async def _tell_topics(self, tree: Tree) -> None:
        await self.learn(tree)
        await self._tell(tree, await tree.children(nodes.TOPICS))

    async def _tell_groups(self, tree: Tree, paths: Sequence[str]) -> None:
        for path, node in zip(paths, await tree.read_batch(paths), strict=True):
            name = nodes.group_of_config(path)
            try:
                self._groups.change(name, nodes.settings_at(path, node))
            except (InvalidConfigError, MalformedNodeError) as error:
                logger.error("group=%s keeps its former settings: %s", name, error)

    async def _tell(self, tree: Tree, names: Sequence[str]) -> None:
        found = await tree.read_batch([nodes.topic_config_path(name) for name in names])
        for name, node in zip(names, found, strict=True):
            try:
                self._changed(name, nodes.settings_at(nodes.topic_config_path(name), node))
            except (InvalidConfigError, MalformedNodeError) as error:
                logger.error("topic=%s keeps its former settings: %s", name, error)
