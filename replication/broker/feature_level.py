"""FeatureLevel: the level of the cluster as this broker knows it, and the levels that it supports."""

from __future__ import annotations

import logging

from replication.coordination import features
from replication.coordination.tree import Tree, Watch
from replication.coordination.tree_watch import TreeWatch
from replication.model.features import PYLOG_VERSION, SUPPORTED, Finalized, Levels
from replication.protocol.features import SCHEMAS, TRANSACTION_VERSION, Feature, Features

logger = logging.getLogger(__name__)


class FeatureLevel(TreeWatch):
    """`finalized` is the level that the tree has, or had a moment ago."""

    def __init__(self, supported: Levels = SUPPORTED) -> None:
        super().__init__(self._read, "the feature level")
        self.supported = supported
        self.finalized = Finalized()

    async def _read(self, tree: Tree, watch: Watch) -> None:
        found = await features.read_finalized(tree, watch)
        if found != self.finalized:
            logger.info("feature=%s level=%d epoch=%d", PYLOG_VERSION, *found)
            self.finalized = found

    def features(self) -> Features:
        level, epoch = self.finalized
        return Features((TRANSACTION_VERSION, Feature(PYLOG_VERSION, *self.supported, level), SCHEMAS), epoch)
