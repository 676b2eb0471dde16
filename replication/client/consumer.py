"""Consumers in a group for programs: the topics' records as Arrow, each partition read by one member of the group.

`AsyncConsumer` drives the machine of `membership`: heartbeats, joins and fetches go on between polls; partitions come
and go within `poll` only, so a program that polls has finished what it was given. Laws: what is committed was handed
out before; an offset that was committed is where the partition's next reader begins.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from logstore.errors import InvalidRequestError, PylogError
from replication.client import groups, membership
from replication.client.attempts import failure_of
from replication.client.cluster import Cluster
from replication.client.member_requests import REQUESTS, MemberRequests
from replication.client.membership import Membership, Phase, Tps
from replication.client.metadata import NO_EPOCH
from replication.client.reading import PartitionReader, Position
from replication.client.security import PLAINTEXT, Security
from replication.client.settings import ConsumerSettings
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from replication.network.loops import is_set_within
from replication.protocol.messages import Isolation

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsyncConsumer", "ConsumerSettings", "RebalanceListener", "apart"]

logger = logging.getLogger(__name__)

CLOSE_S = 10.0  # for what a closing member still says
RebalanceListener = Callable[[Tps], Awaitable[None]]


class AsyncConsumer:
    """See the module. Belongs to one event loop and one task; ends with `close` or `async with`.

    `on_assign` is called with partitions before their first record; `on_revoke` before another member gets them, and
    what was handed out is committed by then, unless they were lost.
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
        self._member = Membership(
            is_cooperative=settings.assignor == "cooperative-sticky",
            is_static=settings.group_instance_id is not None,
        )
        self._requests = MemberRequests(self._cluster, settings, tuple(sorted(set(topics))))
        self._due: deque[membership.Effect] = deque()
        self._joining: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._polled_s = self._commit_s = 0.0
        self._error: PylogError | None = None

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
        if self._beating is None and self._error is None:
            self._commit_s = loop.time() + self._settings.auto_commit_interval_ms / 1000
            self._beating = self._start(self._beat())
        self._polled_s = float("inf")  # while it polls, it is not late
        try:
            return await self._poll(loop.time() + timeout_ms / 1000)
        finally:
            self._polled_s = loop.time()

    async def _poll(self, deadline: float) -> pa.RecordBatch | None:
        while True:
            self._changed.clear()
            if self._error is not None:
                raise self._error
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
        if self._joining is not None:
            await asyncio.wait([self._joining])
        positions = self._reader.positions
        wanted = {tp: each.offset for tp, each in positions.items()} if offsets is None else dict(offsets)
        self._own(wanted)
        if self._member.phase is Phase.OUT and wanted and not self._member.owned:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, "the partitions were lost: another member may have them")
        who = groups.Member(self._member.generation, self._member.id, self._settings.group_instance_id)
        found = {
            tp: groups.Committed(offset, NO_EPOCH if offset > positions[tp].offset else positions[tp].leader_epoch)
            for tp, offset in wanted.items()
            if self._committed.get(tp) != offset
        }
        try:
            await groups.commit(self._cluster, self._settings.group_id, found, member=who)
        except KafkaError as error:
            self._step(membership.HeartbeatAnswered(who.generation, error.code))
            raise
        self._committed |= wanted

    async def close(self) -> None:
        """Commit (enable_auto_commit), leave the group, end the connections."""
        for task in (self._joining, self._beating):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._error is None:
            self._error = InvalidRequestError("the consumer is closed")
            self._step(membership.Closed())
        try:
            async with asyncio.timeout(CLOSE_S):
                while self._due:
                    await self._perform(self._due.popleft())
        except (PylogError, TimeoutError) as error:
            logger.warning("group=%s a member left without a word: %s", self._settings.group_id, error)
        await self._reader.close()
        self._cluster.close()
        await asyncio.sleep(0)

    # ------------------------------------------------------------------ within a poll

    async def _act(self) -> None:
        while True:
            while self._due:
                await self._perform(self._due[0])  # what fails is done again in the next poll
                self._due.popleft()
            self._step(membership.Polled())
            if not self._due:
                break
        now = asyncio.get_running_loop().time()
        if self._settings.enable_auto_commit and now >= self._commit_s and self._member.phase is Phase.STABLE:
            self._commit_s = now + self._settings.auto_commit_interval_ms / 1000
            await self._commit_quietly()

    async def _perform(self, effect: membership.Effect) -> None:
        match effect:
            case membership.Join():
                self._joining = self._start(self._join())
            case membership.Revoke(tps) | membership.Lose(tps):
                if self._settings.enable_auto_commit and isinstance(effect, membership.Revoke):
                    await self._commit_quietly({tp: self.position(tp) for tp in tps & self.assignment})
                await self._on_revoke(tps)
                self._reader.drop(tps)
                for tp in tps:
                    self._committed.pop(tp, None)
            case membership.Assign(tps) if tps:
                known = await groups.committed(self._cluster, self._settings.group_id, tps)
                self._committed |= {tp: each.offset for tp, each in known.items()}
                begin = {tp: Position(each.offset, each.leader_epoch) for tp, each in known.items()}
                await self._reader.add({tp: begin.get(tp) for tp in sorted(tps)})
                await self._on_assign(tps)
            case membership.Leave(member_id):
                await self._requests.leave(member_id)
            case membership.Fail(error):
                self._error = KafkaError(error, f"member of group {self._settings.group_id!r}")
                raise self._error

    async def _commit_quietly(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        try:
            await self.commit(offsets)
        except PylogError as error:
            logger.warning("group=%s offsets were not committed: %s", self._settings.group_id, error)

    def _step(self, event: membership.Event) -> None:
        self._member, effects = membership.step(self._member, event)
        self._due.extend(effects)
        self._changed.set() if effects else None

    def _own(self, tps: Iterable[TopicPartition]) -> Tps:
        asked = frozenset(tps)
        for tp in asked - self._reader.positions.keys():
            raise InvalidRequestError(f"{tp} is not assigned to this consumer")
        return asked

    # ---------------------------------------------------------------- between polls

    def _start(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(what)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The next poll raises what went wrong between polls."""
        self._changed.set()
        self._error = self._error or failure_of(task, "the consumer")

    async def _join(self) -> None:
        """Send joins and syncs until the member has its partitions, or has to wait for the next poll."""
        effects: tuple[membership.Effect, ...] = (membership.Join(),)
        while effects:
            try:
                event = await self._requests.answered(effects[0], self._member)
            except KafkaError as error:
                logger.warning("group=%s the member could not join: %s", self._settings.group_id, error)
                event = membership.Unanswered()
            self._member, effects = membership.step(self._member, event)
            if not effects or not isinstance(effects[0], REQUESTS):
                self._due.extend(effects)
                return

    async def _beat(self) -> None:
        """Keep the membership alive, as long as the program polls."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
            m = self._member
            if m.phase not in (Phase.SYNCING, Phase.STABLE):
                continue
            try:
                if (loop.time() - self._polled_s) * 1000 > self._settings.max_poll_interval_ms:
                    self._step(membership.PollLate())
                    await self._requests.leave(m.id)
                    continue
                error = await self._requests.heartbeat(m)
                self._step(membership.HeartbeatAnswered(m.generation, error))
                if m.is_leader and await self._requests.are_topics_changed():
                    self._step(membership.TopicsChanged())
            except PylogError as error:
                logger.warning("group=%s no heartbeat: %s", self._settings.group_id, error)
            if self._member.must_rejoin:
                self._changed.set()


def apart(listener: Callable[[Tps], None] | None) -> RebalanceListener:
    """`listener` in a thread of its own, so that it may wait for the event loop."""

    async def call(tps: Tps) -> None:
        if listener is not None:
            await asyncio.to_thread(listener, tps)

    return call
