"""FeatureLevel: the level of the cluster as this broker knows it, and the levels that it supports."""

from __future__ import annotations

import logging

from replication.coordination import features
from replication.coordination.tree import Tree, Watch
from replication.coordination.tree_watch import TreeWatch
from replication.model.features import CONSUMER_GROUPS, PYLOG_VERSION, SUPPORTED, Finalized, Levels
from replication.protocol.features import GROUP_VERSION, SCHEMAS, TRANSACTION_VERSION, Feature, Features

logger = logging.getLogger(__name__)


class FeatureLevel(TreeWatch):
    """`finalized` is the level that the tree has, or had a moment ago."""

    def __init__(self, supported: Levels = SUPPORTED) -> None:
        super().__init__(self._read, "the feature level")
        self.supported = supported
        self.finalized = Finalized()

    async def learn(self, tree: Tree) -> None:
        """Know the level before requests are served: groups of a level that is not known are refused."""
        self.finalized = await features.read_finalized(tree)

    async def _read(self, tree: Tree, watch: Watch) -> None:
        found = await features.read_finalized(tree, watch)
        if found != self.finalized:
            logger.info("feature=%s level=%d epoch=%d", PYLOG_VERSION, *found)
            self.finalized = found

    def features(self) -> Features:
        level, epoch = self.finalized
        known = TRANSACTION_VERSION, self.group_version, Feature(PYLOG_VERSION, *self.supported, level), SCHEMAS
        return Features(known, epoch)

    @property
    def group_version(self) -> Feature:
        """Kafka's name for the consumer protocol of groups, which comes with a level."""
        last, now = (int(level >= CONSUMER_GROUPS) for level in (self.supported.last, self.finalized.level))
        return Feature(GROUP_VERSION, 0, last, now)
