"""SharePartitions: all partitions that this broker leads for share groups, and the sessions of the groups' members.

A share partition is loaded when a member first asks for it, and dropped once the group has no session here, another
broker leads, or its state was fenced. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import partial

from logstore.env import Env
from replication.broker.share.letter_writer import LetterWriter
from replication.broker.share.partition import Shared, SharePartition
from replication.broker.share.sessions import SessionKey, ShareSession, ShareSessions
from replication.broker.share_states import ShareStateCalls
from replication.config.group import GroupConfig
from replication.coordinators.share_state.machine.state import SharePartitionKey
from replication.coordinators.share_state.states import IdPartition
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from replication.network.steps import all_of
from replication.replica.leader.leader import Leader
from replication.replica.manager import ReplicaManager


class SharePartitions:
    """`config` returns the settings of a group."""

    def __init__(
        self,
        replicas: ReplicaManager,
        states: ShareStateCalls,
        letters: LetterWriter,
        config: Callable[[str], GroupConfig],
        env: Env,
    ) -> None:
        self.config = config
        self.sessions = ShareSessions(replicas.config.group_share_max_share_sessions)
        self._replicas = replicas
        self._shared = Shared(replicas, states, letters, env.clock)
        self._partitions: dict[SharePartitionKey, SharePartition] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        for found in self._partitions.values():
            found.end()
        self._partitions.clear()

    def leader(self, at: IdPartition) -> Leader:
        """Return the leader's role. Raises: KafkaError: UNKNOWN_TOPIC_ID; as `ReplicaManager.leader`."""
        name = self._replicas.metadata.name_of(at.topic_id)
        if name is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        return self._replicas.leader(TopicPartition(name, at.partition))

    def open(self, group_id: str, at: IdPartition) -> SharePartition:
        """Return the share partition, which may be about to be loaded. Raises: KafkaError: as `leader`."""
        leader = self.leader(at)
        found = self.known(group_id, at)
        if found is not None and found.leader is leader:
            return found
        if found is not None:
            found.end()
        key = SharePartitionKey(group_id, *at)
        config = partial(self.config, group_id)
        made = self._partitions[key] = SharePartition(key, leader, self._shared, config)
        return made

    def known(self, group_id: str, at: IdPartition) -> SharePartition | None:
        key = SharePartitionKey(group_id, *at)
        found = self._partitions.get(key)
        if found is not None and found.is_over:
            del self._partitions[key]
            found.end()
            return None
        return found

    def connection_closed(self, connection_id: int) -> None:
        """Have others get the records of the members whose connection it was."""
        for session in self.sessions.connection_closed(connection_id):
            self._do(self.release(session))

    async def close(self, key: SessionKey) -> None:
        """End the member's session; return once its records are let go."""
        session = self.sessions.close(key)
        if session is not None:
            await self.release(session)

    async def release(self, session: ShareSession) -> None:
        group_id, member_id = session.key
        held = [found for at in session.partitions if (found := self.known(group_id, at)) is not None]

        async def release(found: SharePartition) -> None:
            await found.release(member_id)

        await all_of(release, held)
        if group_id not in self.sessions.of_groups:
            self._drop(group_id)

    def _drop(self, group_id: str) -> None:
        """Drop what the group has no session for; where its dead letters are on their way, after these."""
        for key, found in [row for row in self._partitions.items() if row[0].group_id == group_id]:
            if found.is_sending:
                self._do(self._drop_later(key, found))
            else:
                self._partitions.pop(key).end()

    async def _drop_later(self, key: SharePartitionKey, found: SharePartition) -> None:
        await found.sent()
        if key.group_id not in self.sessions.of_groups and self._partitions.get(key) is found:
            self._partitions.pop(key).end()

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def held(self) -> Iterable[SharePartition]:
        return self._partitions.values()
