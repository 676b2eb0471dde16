"""DeletedTopics: committed offsets do not outlive their topics. Belongs to the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

from replication.coordination.topics import find_missing
from replication.coordination.tree import CoordinationError
from replication.coordinators.groups.offsets.events import ForgetTopics
from replication.coordinators.groups.slot import Slot
from replication.coordinators.partitioning import PartitionMapping
from replication.coordinators.terms import Term, Terms

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 5.0  # for a topic of loaded offsets that is missing from the metadata, though it exists
Tell: TypeAlias = Callable[[Term[Slot], ForgetTopics], None]


class DeletedTopics:
    """`tell` posts an event to all groups of a term."""

    def __init__(self, mapping: PartitionMapping, terms: Terms[Slot], tell: Tell) -> None:
        self._metadata = mapping.metadata
        self._tree = mapping.tree
        self._terms = terms
        self._tell = tell
        self._topic_ids: dict[str, str | None] = {}
        self._searches: dict[int, asyncio.Task[None]] = {}  # by partitions

    def begin(self) -> None:
        self._metadata.listen(self._metadata_changed)

    def _metadata_changed(self) -> None:
        """Forget the offsets of topics that are gone."""
        before, topics = self._topic_ids, self._metadata.topics()
        self._topic_ids = {name: topic.id for name, topic in topics.items()}
        gone = frozenset(
            name for name, topic_id in before.items() if name not in topics or topic_id not in (None, topics[name].id)
        )
        if gone:
            for term in self._terms.all():
                tell = partial(self._tell, term, ForgetTopics(gone))
                if term.loading is None:
                    tell()
                else:
                    term.missed.append(tell)

    def begin_search(self, term: Term[Slot], topics: Collection[str], end: int) -> None:
        """Forget the loaded offsets, before `end`, of topics whose deletion no coordinator saw, or could store."""
        search = self._forget_missing(term, topics, end)
        self._searches[term.partition] = asyncio.get_running_loop().create_task(search)

    def end_search(self, term: Term[Slot]) -> None:
        if (search := self._searches.pop(term.partition, None)) is not None:
            search.cancel()

    async def _forget_missing(self, term: Term[Slot], topics: Collection[str], end: int) -> None:
        """Ask the tree which topics there are: the metadata of this broker may lack a new one."""
        while topics := [name for name in topics if self._metadata.topic(name) is None]:
            if self._metadata.is_initialized and (tree := self._tree()) is not None:
                try:
                    gone = await find_missing(tree, topics)
                except CoordinationError as error:
                    logger.warning("whether topics of committed offsets are gone is asked again: %s", error)
                else:
                    if gone:
                        self._tell(term, ForgetTopics(gone, end))
                    topics = [name for name in topics if name not in gone]
            await asyncio.sleep(LOOK_AGAIN_S)
