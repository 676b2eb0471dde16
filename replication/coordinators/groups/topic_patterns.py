"""TopicPatterns: the topics of the cluster that a regular expression matches, as RE2 has it, like Kafka.

RE2 takes a time that grows with the length of the names, whatever the expression. Belongs to the event loop; the
expression is evaluated in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from replication.coordinators.groups.consumer.state import Topic
from replication.coordinators.patterns import matching
from replication.errors import KafkaError
from replication.model.metadata import Metadata

KEPT_MAX = 1000  # expressions whose topics are kept


class ClusterTopics(Mapping[str, Topic]):
    """The topics with an id, as assignors see them, while nothing else is awaited."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def __getitem__(self, name: str) -> Topic:
        found = self._metadata.topic(name)
        if found is None or found.id is None:
            raise KeyError(name)
        return Topic(found.id, len(found.partitions))

    def __iter__(self) -> Iterator[str]:
        return iter(self._metadata.topics())

    def __len__(self) -> int:
        return len(self._metadata.topics())


class TopicPatterns:
    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._names: frozenset[str] = frozenset()
        self._may_differ = True
        self._matched: dict[str, tuple[str, ...]] = {}
        metadata.listen(self._note)

    def _note(self) -> None:
        self._may_differ = True

    async def matched(self, pattern: str) -> tuple[str, ...]:
        """Return the names that the whole expression matches, sorted.

        Raises: KafkaError: INVALID_REGULAR_EXPRESSION.
        """
        if self._may_differ:
            names = frozenset(self._metadata.topics())
            self._may_differ = False
            if names != self._names:
                self._names, self._matched = names, {}
        found = self._matched.get(pattern)
        if found is None:
            names = self._names
            try:
                found = await asyncio.to_thread(matching, pattern, sorted(names))
            except KafkaError as error:
                message = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error.message}."
                raise KafkaError(error.code, message) from None
            if names is self._names:
                if len(self._matched) >= KEPT_MAX:
                    self._matched.clear()
                self._matched[pattern] = found
        return found
