"""Session: the fetch session of one connection to a leader (see `replica.leader.sessions`), on the side of followers.

Requests *stand* at the leader until they are answered with records or an error. One that is given up before that is
named in the next request of the session, so that the leader forgets it.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from replication.config.broker import BrokerConfig
from replication.model.cluster import rows_by_topic
from replication.protocol.messages import (
    FIRST_REQUEST,
    ONE_REQUEST,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    next_session_epoch,
)
from replication.replica.follower.follower import Follower
from replication.replica.machine.follower import Fetch

Key: TypeAlias = tuple[uuid.UUID | None, int]  # a partition, as requests name it
Fetches: TypeAlias = Mapping[Follower, Fetch]


class SessionPartition(NamedTuple):
    """A partition of the fetch session at the leader; `start`: the log start offset that was sent for it."""

    role: Follower
    fetch: Fetch
    start: int


class Session:
    """`is_single`: each request is a session of its own, and no partition stays in it."""

    def __init__(self, config: BrokerConfig, *, is_single: bool) -> None:
        self.in_session: dict[Key, SessionPartition] = {}
        self.forgotten: set[Key] = set()  # in the leader's session still, and no more here
        self._config = config
        self._is_single = is_single
        self._number, self._epoch = 0, FIRST_REQUEST

    def request(self, fetches: Fetches, wait_ms: int, broker_epoch: int) -> FetchRequest:
        """Return the next request, which asks for these, too: from now on they are in the session."""
        config = self._config
        topics = []
        for name, group in rows_by_topic((role.replica.tp, role) for role in fetches).items():
            rows = tuple(
                FetchPartition(
                    role.replica.tp.partition,
                    fetches[role].offset,
                    config.replica_fetch_max_bytes,
                    fetches[role].leader_epoch,
                    log_start_offset=role.replica.start,
                )
                for role in group
            )
            topics.append(FetchTopic(name, group[0].replica.topic_uuid, rows))
        for role, fetch in fetches.items():
            key = _key_of(role)
            self.in_session[key] = SessionPartition(role, fetch, role.replica.start)
            self.forgotten.discard(key)
        gone: dict[uuid.UUID | None, list[int]] = {}
        for topic_id, partition in self.forgotten:
            gone.setdefault(topic_id, []).append(partition)
        self.forgotten.clear()
        return FetchRequest(
            wait_ms,
            config.replica_fetch_min_bytes,
            tuple(topics),
            max_bytes=config.replica_fetch_response_max_bytes,
            replica_id=config.broker_id,
            replica_epoch=broker_epoch,
            session_id=self._number,
            session_epoch=ONE_REQUEST if self._is_single else self._epoch,
            forgotten=tuple(ForgottenTopic(None, topic_id, tuple(partitions)) for topic_id, partitions in gone.items()),
        )

    def answered(self, request: FetchRequest, response: FetchResponse) -> Fetches:
        """Go on with the session of this answer; return the requests that do not stand, and must be sent again."""
        if response.session_id and not self._is_single:
            self._number, self._epoch = response.session_id, next_session_epoch(request.session_epoch)
            return {}
        return self.end()  # a leader of a former version keeps none

    def forget(self, role: Follower) -> None:
        key = _key_of(role)
        known = self.in_session.get(key)
        if known is not None and known.role is role:
            del self.in_session[key]
            self.forgotten.add(key)

    def end(self) -> Fetches:
        """Begin another one with the next request. Return the requests that stood at the leader, unanswered."""
        left = {role: fetch for role, fetch, _ in self.in_session.values()}
        self.in_session.clear()
        self.forgotten.clear()
        self._epoch = FIRST_REQUEST  # it names the former session, which ends with it
        return left


def _key_of(role: Follower) -> Key:
    return role.replica.topic_uuid, role.replica.tp.partition
