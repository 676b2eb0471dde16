"""Members of groups between the polls of their programs: joins and heartbeats, each in a task of its own.

`ClassicMember` drives the machine of `membership`, `ConsumerMember` that of `consumer_membership`. Laws: `due` has what
the next poll performs, in this order; a member of either kind leaves its group when its program does not poll for
max_poll_interval_ms. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from logstore.env import SYSTEM
from logstore.errors import PylogError
from replication.client import consumer_membership, groups, membership
from replication.client.attempts import failure_of
from replication.client.cluster import Cluster, UnreachableError
from replication.client.consumer_membership import ConsumerMembership
from replication.client.heartbeats import Heartbeats, MemberSettings, ShareHeartbeats
from replication.client.member_requests import REQUESTS, MemberRequests
from replication.client.membership import Effect, Membership, Phase
from replication.client.settings import ConsumerSettings
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import topic_id_of
from replication.network.loops import is_set_within

logger = logging.getLogger(__name__)

RETRY_S = 1.0  # after a heartbeat that was not answered


class Member(ABC):
    """See the module. `changed` is set when a poll has something to do, or an error to raise.

    `polled_s` is when the program last polled, infinite while it does; `error` is why it cannot be a member.
    """

    def __init__(self, settings: MemberSettings, changed: asyncio.Event) -> None:
        self._settings, self._changed = settings, changed
        self.due: deque[Effect] = deque()
        self.error: PylogError | None = None
        self.polled_s = 0.0
        self._beating: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to be a member, unless it has begun."""
        if self._beating is None:
            self._beating = self._start(self._beat())

    async def stop(self) -> None:
        """End the tasks, without a word to the group."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])

    def polled(self) -> None:
        """The program polls, and all that was due is done."""
        self._step(membership.Polled())

    def closed(self) -> None:
        """The program is done: what it has still to do is due, and it is never late. `stop` follows."""
        self.polled_s = float("inf")
        self._step(membership.Closed())

    @abstractmethod
    def _step(self, event: membership.Polled | membership.Closed) -> None:
        """Tell the machine, and note what is due."""

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """It is in the group, and may commit."""

    @abstractmethod
    async def commits_as(self) -> groups.Member:
        """The member that commits. Raises: KafkaError: its partitions were lost."""

    @property
    def looks_as(self) -> groups.Member | None:
        """The member that asks for committed offsets; None: anybody may."""
        return None

    @property
    def is_expelled(self) -> bool:
        """Its partitions were lost, by what it knows: another member may have them, and their offsets."""
        return False

    @abstractmethod
    async def may_repeat(self, who: groups.Member, code: ErrorCode) -> bool:
        """The group has refused `who`: return whether `commits_as` is another one by now, that it may take."""

    async def perform(self, effect: Effect) -> None:
        """Do what concerns the group. Raises: KafkaError: it cannot be a member; and as `Coordinators.call`."""
        match effect:
            case membership.Leave(member_id):
                await self._leave(member_id)
            case membership.Fail(error, message):
                where = f"member of group {self._settings.group_id!r}"
                self.error = KafkaError(error, f"{where}: {message}" if message else where)
                raise self.error

    @abstractmethod
    async def _leave(self, member_id: str) -> None: ...

    @abstractmethod
    async def _beat(self) -> None:
        """Keep the membership alive, as long as the program polls."""

    @property
    def _beats(self) -> bool:
        return self._beating is not None and not self._beating.done()

    @property
    def _poll_by_s(self) -> float:
        return self.polled_s + self._settings.max_poll_interval_ms / 1000

    def _start(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(what)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The next poll raises what went wrong between polls."""
        self._changed.set()
        self.error = self.error or failure_of(task, "the consumer")

    def _add(self, effects: tuple[Effect, ...]) -> None:
        self.due.extend(effects)
        self._changed.set() if effects else None


def _lost() -> KafkaError:
    return KafkaError(ErrorCode.ILLEGAL_GENERATION, "the partitions were lost: another member may have them")


class ClassicMember(Member):
    """A member of a group whose members divide the partitions."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, topics: tuple[str, ...], changed: asyncio.Event
    ) -> None:
        super().__init__(settings, changed)
        self._requests = MemberRequests(cluster, settings, topics)
        self._heartbeat_s = settings.classic.heartbeat_interval_ms / 1000
        is_cooperative = settings.classic.assignor == "cooperative-sticky"
        self._member = Membership(is_cooperative=is_cooperative, is_static=settings.group_instance_id is not None)
        self._joining: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.wait([self._joining])
        await super().stop()

    def closed(self) -> None:
        if self._joining is not None:
            self._joining.cancel()  # it may take as long as the slowest member
        super().closed()

    @property
    def is_settled(self) -> bool:
        return self._member.phase is Phase.STABLE

    async def commits_as(self) -> groups.Member:
        if self._joining is not None:
            await asyncio.wait([self._joining])
        if self._member.phase is Phase.OUT and not self._member.owned:
            raise _lost()
        return groups.Member(self._member.generation, self._member.id, self._settings.group_instance_id)

    async def may_repeat(self, who: groups.Member, code: ErrorCode) -> bool:
        self._step(membership.HeartbeatAnswered(who.generation, code))
        return False

    async def perform(self, effect: Effect) -> None:
        if isinstance(effect, membership.Join):
            self._joining = self._start(self._join())
        else:
            await super().perform(effect)

    async def _leave(self, member_id: str) -> None:
        await self._requests.leave(member_id)

    def _step(self, event: membership.Event) -> None:
        self._member, effects = membership.step(self._member, event)
        self._add(effects)

    async def _join(self) -> None:
        """Send joins and syncs until the member has its partitions, or has to wait for the next poll."""
        effects: tuple[Effect, ...] = (membership.Join(),)
        while effects:
            try:
                event = await self._requests.answered(effects[0], self._member)
            except KafkaError as error:
                logger.warning("group=%s the member could not join: %s", self._settings.group_id, error)
                event = membership.Unanswered()
            self._member, effects = membership.step(self._member, event)
            if not effects or not isinstance(effects[0], REQUESTS):
                self.due.extend(effects)
                return

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._heartbeat_s)
            m = self._member
            if m.phase not in (Phase.SYNCING, Phase.STABLE):
                continue
            try:
                if loop.time() > self._poll_by_s:
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


class ConsumerMember(Member):
    """A member of a group whose coordinator assigns the partitions."""

    _heartbeats = Heartbeats

    def __init__(
        self, cluster: Cluster, settings: MemberSettings, topics: tuple[str, ...], changed: asyncio.Event
    ) -> None:
        super().__init__(settings, changed)
        self._cluster = cluster
        self._requests = self._heartbeats(cluster, settings, topics)
        member_id = topic_id_of(UUID(int=SYSTEM.random.getrandbits(128), version=4))
        self._member = ConsumerMembership(id=member_id, is_static=settings.group_instance_id is not None)
        self._news = asyncio.Event()  # a heartbeat should not wait

    @property
    def is_settled(self) -> bool:
        return self._member.phase is consumer_membership.Phase.IN

    @property
    def is_expelled(self) -> bool:
        return self._member.phase is consumer_membership.Phase.OUT

    @property
    def looks_as(self) -> groups.Member:
        return groups.Member(self._member.epoch, self._member.id, self._settings.group_instance_id)

    async def commits_as(self) -> groups.Member:
        if not self.is_settled:
            raise _lost()
        return self.looks_as

    async def may_repeat(self, who: groups.Member, code: ErrorCode) -> bool:
        """Return whether the member has learned of its next epoch, which a heartbeat tells it."""
        self._step(consumer_membership.Refused(who.generation, code))
        if code is not ErrorCode.STALE_MEMBER_EPOCH:
            return False
        backoff = self._cluster.backoff()
        while self._beats and self.is_settled and self._member.epoch == who.generation and not backoff.is_over:
            self._news.set()
            await backoff.wait()
        return self.is_settled and self._member.epoch != who.generation

    async def _leave(self, member_id: str) -> None:
        await self._requests.leave(member_id, for_a_while=self._member.is_static)

    def _step(self, event: consumer_membership.Event) -> None:
        self._member, effects = consumer_membership.step(self._member, event)
        self._add(effects)
        if self._member.needs_poll:
            self._changed.set()
        if self._member.has_news:
            self._news.set()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait_s = min(self._requests.interval_ms / 1000, self._poll_by_s - loop.time())
            await is_set_within(self._news, None if self.is_expelled else wait_s)
            self._news.clear()
            try:
                if loop.time() > self._poll_by_s and not self.is_expelled:
                    self._step(membership.PollLate())
                    await self._leave(self._member.id)
                elif beat := consumer_membership.heartbeat_of(self._member):
                    self._step(await self._requests.ask(self._member.id, beat))
            except (KafkaError, UnreachableError) as error:
                if isinstance(error, KafkaError) and not error.code.is_retriable:
                    raise
                logger.warning("group=%s no heartbeat: %s", self._settings.group_id, error)
                self._step(consumer_membership.Unanswered())
                await asyncio.sleep(RETRY_S)
                self._news.set()


class ShareMember(ConsumerMember):
    """A member of a share group, whose coordinator assigns partitions to several members at once."""

    _heartbeats = ShareHeartbeats

    def _step(self, event: consumer_membership.Event) -> None:
        before = self._member
        super()._step(event)
        if before.phase is not consumer_membership.Phase.IN or not self.is_expelled:
            return
        is_late = isinstance(event, membership.PollLate)
        why = "its program polls too late" if is_late else "the group does not know it any more"
        logger.warning(
            "group=%s member %s of epoch %d is out, %s: it joins again with the next poll",
            self._settings.group_id, before.id, before.epoch, why,
        )  # fmt: skip
