"""Consumers in a group for programs: the topics' records as Arrow, each partition read by one member of the group.

Heartbeats, joins (`members`) and fetches (`reading`) go on between polls; partitions come and go within `poll` only, so
a program that polls has finished what it was given. Laws: what is committed was handed out before; an offset that was
committed is where the partition's next reader begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Self, TypeVar

from logstore.errors import InvalidConfigError, InvalidRequestError, PylogError
from replication.client import groups, membership
from replication.client.attempts import reason_of
from replication.client.cluster import Cluster
from replication.client.heartbeats import pattern_of
from replication.client.members import ClassicMember, ConsumerMember
from replication.client.membership import Tps
from replication.client.metadata import NO_EPOCH
from replication.client.reading import PartitionReader, Position
from replication.client.security import PLAINTEXT, Security
from replication.client.settings import ConsumerSettings
from replication.errors import KafkaError
from replication.model.cluster import TopicPartition
from replication.network.loops import is_set_within
from replication.protocol.messages import Isolation

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsyncConsumer", "ConsumerSettings", "RebalanceListener", "apart"]

logger = logging.getLogger(__name__)

CLOSE_S, LEAVE_S = 10.0, 3.0  # for what a closing member still commits, and for its last word
Told = TypeVar("Told")
RebalanceListener = Callable[[Tps], Awaitable[None]]


class AsyncConsumer:
    """See the module. Belongs to one event loop and one task; ends with `close` or `async with`.

    `member` keeps it in the group. `on_assign` is called with partitions before their first record; `on_revoke` before
    another member gets them, and what was handed out is committed by then, unless they were lost.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Iterable[str],
        settings: ConsumerSettings,
        *,
        on_assign: RebalanceListener | None = None,
        on_revoke: RebalanceListener | None = None,
        security: Security = PLAINTEXT,
    ) -> None:
        self._settings = settings
        self._on_assign, self._on_revoke = on_assign or apart(None), on_revoke or apart(None)
        # A connection of its own: a join that waits must not hold up another member's.
        self._cluster = Cluster(
            bootstrap,
            metadata_max_age_ms=settings.metadata_max_age_ms,
            rack=settings.rack,
            security=security,
        )
        is_committed = settings.isolation_level == "read_committed"
        isolation = Isolation.READ_COMMITTED if is_committed else Isolation.READ_UNCOMMITTED
        self._changed = asyncio.Event()
        self._reader = PartitionReader(self._cluster, isolation, settings.auto_offset_reset, self._changed)
        kind = ConsumerMember if settings.group_protocol == "consumer" else ClassicMember
        self.member = kind(self._cluster, settings, subscription(topics, settings), self._changed)
        self._committed: dict[TopicPartition, int] = {}
        self._commit_s = float("inf")  # when to commit next; until the first poll: never

    def __repr__(self) -> str:
        assigned = sorted(map(str, self.assignment))
        return f"AsyncConsumer(group_id={self._settings.group_id!r}, assignment={assigned})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        """Batches without end, as `poll` gives them."""
        while True:
            if (rows := await self.poll()) is not None:
                yield rows

    async def poll(self, timeout_ms: int = 1000) -> pa.RecordBatch | None:
        """The next records of one partition; None: there were none in time.

        Columns: topic, partition, and those of `RECORD_SCHEMA`. Records that were handed out before count as done.

        Raises: OffsetOutOfRangeError (auto_offset_reset=none), CorruptLogError, KafkaError (it cannot be a member, a
        partition may not be read); InvalidRequestError: it is closed. TruncatedError: an unclean leader election, or
        the end of their topic, took records [start, end) of `tp` that were read; each poll raises it until `seek`.
        """
        loop = asyncio.get_running_loop()
        if self.member.error is None:
            self.member.begin()
        if self._commit_s == float("inf"):
            self._commit_s = loop.time() + self._settings.auto_commit_interval_ms / 1000
        self.member.polled_s = float("inf")  # while it polls, it is not late
        try:
            return await self._poll(loop.time() + timeout_ms / 1000)
        finally:
            self.member.polled_s = loop.time()

    async def _poll(self, deadline: float) -> pa.RecordBatch | None:
        while True:
            self._changed.clear()
            if self.member.error is not None:
                raise self.member.error
            await self._act()
            if (rows := self._reader.take()) is not None:
                return rows
            if not await is_set_within(self._changed, deadline - asyncio.get_running_loop().time()):
                return None

    @property
    def assignment(self) -> Tps:
        """The partitions that it reads."""
        return frozenset(self._reader.positions)

    def position(self, tp: TopicPartition) -> int:
        """The offset behind what was handed out. Raises: InvalidRequestError: it does not read the partition."""
        self._own([tp])
        return self._reader.positions[tp].offset

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Go on at this offset. Raises: InvalidRequestError."""
        self._own([tp])
        self._reader.seek(tp, Position(offset))

    def pause(self, tps: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`. Raises: InvalidRequestError."""
        self._reader.paused |= self._own(tps)

    def resume(self, tps: Iterable[TopicPartition]) -> None:
        """Hand these out again. Raises: InvalidRequestError."""
        self._reader.paused -= self._own(tps)
        self._changed.set()
        self._reader.look()

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store these offsets, by default the positions of all partitions: the group goes on there.

        Raises: KafkaError: the partitions were lost, or the group does not take them; InvalidRequestError.
        """
        positions = self._reader.positions
        wanted = {tp: each.offset for tp, each in positions.items()} if offsets is None else dict(offsets)
        self._own(wanted)
        found = {
            tp: groups.Committed(offset, NO_EPOCH if offset > positions[tp].offset else positions[tp].leader_epoch)
            for tp, offset in wanted.items()
            if self._committed.get(tp) != offset
        }
        if wanted:
            await self._commit(found)
        self._committed |= wanted

    async def _commit(self, offsets: Mapping[TopicPartition, groups.Committed]) -> None:
        while True:
            who = await self.member.commits_as()
            try:
                return await groups.commit(self._cluster, self._settings.group_id, offsets, member=who)
            except KafkaError as error:
                if not await self.member.may_repeat(who, error.code):
                    raise

    async def close(self) -> None:
        """Commit (enable_auto_commit), leave the group, end the connections."""
        if self.member.error is None:
            self.member.error = InvalidRequestError("the consumer is closed")
            self.member.closed()
        due = tuple(self.member.due)
        self.member.due.clear()
        # A commit may have to wait for a heartbeat; the group is left even where a commit has failed.
        leave = [each for each in due if isinstance(each, membership.Leave)]
        await self._finish([each for each in due if each not in leave], CLOSE_S, "has not committed all")
        await self.member.stop()
        await self._finish(leave, LEAVE_S, "left without a word")
        await self._reader.close()
        self._cluster.close()
        await asyncio.sleep(0)

    async def _finish(self, effects: Iterable[membership.Effect], within_s: float, lacking: str) -> None:
        try:
            async with asyncio.timeout(within_s):
                for effect in effects:
                    await self._perform(effect)
        except (PylogError, TimeoutError) as error:
            logger.warning("group=%s a member %s: %s", self._settings.group_id, lacking, reason_of(error))

    # ------------------------------------------------------------------ within a poll

    async def _act(self) -> None:
        due = self.member.due
        while True:
            while due:
                await self._perform(due[0])  # what fails is done again in the next poll
                due.popleft()
            self.member.polled()
            if not due:
                break
        now = asyncio.get_running_loop().time()
        if self._settings.enable_auto_commit and now >= self._commit_s and self.member.is_settled:
            self._commit_s = now + self._settings.auto_commit_interval_ms / 1000
            await self._commit_quietly()

    async def _perform(self, effect: membership.Effect) -> None:
        match effect:
            case membership.Revoke(tps) | membership.Lose(tps):
                held = tps & self.assignment
                if self._settings.enable_auto_commit and isinstance(effect, membership.Revoke):
                    await self._commit_quietly({tp: self.position(tp) for tp in held})
                await self._on_revoke(held)
                self._reader.drop(held)
                for tp in held:
                    self._committed.pop(tp, None)
            case membership.Assign(tps):
                if tps and (known := await self._known(tps)) is not None:
                    self._committed |= {tp: each.offset for tp, each in known.items()}
                    begin = {tp: Position(each.offset, each.leader_epoch) for tp, each in known.items()}
                    await self._reader.add({tp: begin.get(tp) for tp in sorted(tps)})
                    await self._on_assign(tps)
            case _:
                await self.member.perform(effect)

    async def _known(self, tps: Tps) -> dict[TopicPartition, groups.Committed] | None:
        """The committed offsets of these; None: they were lost meanwhile."""
        while not self.member.is_expelled:
            who = self.member.looks_as
            try:
                return await groups.committed(self._cluster, self._settings.group_id, tps, member=who)
            except KafkaError as error:
                if who is None or not (await self.member.may_repeat(who, error.code) or self.member.is_expelled):
                    raise
        return None

    async def _commit_quietly(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        try:
            await self.commit(offsets)
        except PylogError as error:
            logger.warning("group=%s offsets were not committed: %s", self._settings.group_id, error)

    def _own(self, tps: Iterable[TopicPartition]) -> Tps:
        asked = frozenset(tps)
        for tp in asked - self._reader.positions.keys():
            raise InvalidRequestError(f"{tp} is not assigned to this consumer")
        return asked


def subscription(topics: Iterable[str], settings: ConsumerSettings) -> tuple[str, ...]:
    """The topics of a member, or the one regular expression, which begins with ^. Raises: InvalidConfigError."""
    found = tuple(sorted(set(topics)))
    if (pattern := pattern_of(found)) is not None and (settings.group_protocol == "classic" or len(found) > 1):
        raise InvalidConfigError(
            f"topic {pattern!r}: a regular expression stands alone, and needs group_protocol='consumer'"
        )
    return found


def apart(listener: Callable[[Told], None] | None) -> Callable[[Told], Awaitable[None]]:
    """`listener` in a thread of its own, so that it may wait for the event loop."""

    async def call(told: Told) -> None:
        if listener is not None:
            await asyncio.to_thread(listener, told)

    return call
