"""FeatureLevel: the level of the cluster as this broker knows it, and the levels that it supports."""

from __future__ import annotations

import logging

from replication.coordination import features
from replication.coordination.tree import Tree, Watch
from replication.coordination.tree_watch import TreeWatch
from replication.errors import ErrorCode, KafkaError
from replication.model.features import COMES_WITH, PYLOG_VERSION, SUPPORTED, Finalized, Levels
from replication.protocol.features import SCHEMAS, TRANSACTION_VERSION, Feature, Features

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
        known = TRANSACTION_VERSION, *self.kafkas(), Feature(PYLOG_VERSION, *self.supported, level), SCHEMAS
        return Features(known, epoch)

    def kafkas(self) -> list[Feature]:
        """Return Kafka's features that come with a level."""
        last, now = self.supported.last, self.finalized.level
        return [Feature(name, 0, int(last >= level), int(now >= level)) for name, level in COMES_WITH.items()]

    def need(self, level: int) -> None:
        """Raises: KafkaError: UNSUPPORTED_VERSION: the cluster is not at this level yet."""
        if self.finalized.level < level:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the cluster is at {PYLOG_VERSION} {self.finalized.level}, and this comes with {level}: raise it with "
                f"`pylog features upgrade --level {level}`",
            )
