"""TopicPatterns: the topics of the cluster that a regular expression matches, as RE2 has it, like Kafka.

RE2 takes a time that grows with the length of the names, whatever the expression. Belongs to the event loop; the
expression is evaluated in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from replication.coordinators.groups.pieces import Topic
from replication.coordinators.patterns import matching
from replication.errors import KafkaError
from replication.model.metadata import Metadata

KEPT_MAX = 1000  # expressions whose topics, or faults, are kept


class ClusterTopics(Mapping[str, Topic]):
    """The topics with an id, as assignors see them, while nothing else is awaited."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self.known_at = 0  # counts changes
        metadata.listen(self._note)

    def _note(self) -> None:
        self.known_at += 1

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
        self._matched: dict[str, asyncio.Future[tuple[str, ...] | KafkaError]] = {}
        metadata.listen(self._note)

    def _note(self) -> None:
        self._may_differ = True

    async def matched(self, pattern: str) -> tuple[str, ...]:
        """Return the names that the whole expression matches, sorted: found once, while names are the same.

        Raises: KafkaError: INVALID_REGULAR_EXPRESSION.
        """
        if self._may_differ:
            names = frozenset(self._metadata.topics())
            self._may_differ = False
            if names != self._names:
                self._names, self._matched = names, {}
        search = self._matched.get(pattern)
        if search is None:
            if len(self._matched) >= KEPT_MAX:
                self._matched.clear()
            search = self._matched[pattern] = asyncio.ensure_future(asyncio.to_thread(_found, pattern, self._names))
        found = await asyncio.shield(search)  # of all who ask; one who goes away does not end it
        if isinstance(found, KafkaError):
            message = f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {found.message}."
            raise KafkaError(found.code, message)
        return found


def _found(pattern: str, names: frozenset[str]) -> tuple[str, ...] | KafkaError:
    try:
        return matching(pattern, sorted(names))
    except KafkaError as error:
        return error
