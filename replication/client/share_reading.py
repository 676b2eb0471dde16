"""ShareReader: what a member of a share group acquires at the leaders of its partitions, and tells them of it.

Laws: a broker has one request of the member at a time, in one session. Records are acquired only for a poll, and handed
out only while their locks last. An acknowledgement is sent once, to the broker and in the session that acquired the
record; each has an outcome, also where no answer came. The outcome is good if the broker took it while the lock lasted:
later, brokers say so too where others have accepted the record meanwhile. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from logstore.errors import PylogError, UnknownPartitionError, UnknownTopicError
from replication.client.attempts import BACKOFF_MIN_S, LOST, failure_of, may_pass, reason_of
from replication.client.cluster import Cluster
from replication.client.deliveries import (
    Due,
    Lease,
)
from replication.client.metadata import NO_LEADER, PartitionLeader
from replication.client.share_ahead import AcquiredRecords
from replication.client.share_requests import ShareRequests
from replication.client.share_sessions import (
    Answered,
    Asked,
    Lost,
    SharePartition,
    ShareSession,
    acknowledgement_of,
    closing_of,
    fetch_of,
    step,
)
from replication.errors import ErrorCode, KafkaError, UnsupportedVersionError, code_in, error_of
from replication.model.cluster import TopicPartition, topic_id_of
from replication.model.metadata import BrokerAddress
from replication.network.loops import is_set_within

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

RETRY_S, RETRY_MAX_S = BACKOFF_MIN_S, 1.0
_MOVED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})
_NO_ANSWER = KafkaError(ErrorCode.NETWORK_EXCEPTION, "no answer came: they may be taken, or not")
_LATE = KafkaError(
    ErrorCode.REQUEST_TIMED_OUT, "the locks had ended by the time of the answer: they may be taken, or not"
)
_NOT_ANSWERED = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the answer does not name the partition")
_ENDED = KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND, "the session in which they were locked has ended")
_CLOSED = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the member was closed before they could be sent")
Share = Mapping[SharePartition, TopicPartition]  # of one broker


class Outcome(NamedTuple):
    """Acknowledgements of one partition with their fate; `error` None: the broker has taken them."""

    due: Due
    error: PylogError | None


@dataclass(slots=True, eq=False)
class _Broker:
    """A broker as the member sees it. `asking` is the request that is not answered yet, `told` what it acknowledges."""

    id: int
    session: ShareSession = field(default_factory=ShareSession)
    due: list[Due] = field(default_factory=list)
    told: list[Due] = field(default_factory=list)
    asking: asyncio.Task[None] | None = None
    asked_s: float = 0.0
    not_before_s: float = 0.0
    failures: int = 0

    @property
    def lease(self) -> Lease:
        return Lease(self.id, self.session.number)


class ShareReader:
    """See the module. `changed` is set when there may be something to take, an outcome, or an error to raise."""

    def __init__(self, cluster: Cluster, requests: ShareRequests, changed: asyncio.Event) -> None:
        self._cluster, self._requests, self._changed = cluster, requests, changed
        self.outcomes: list[Outcome] = []  # until somebody takes them
        self.lock_timeout_ms: int | None = None
        self.assigned: frozenset[TopicPartition] = frozenset()
        self._ahead = AcquiredRecords(cluster.where, self._owe)
        self.deliveries = self._ahead.deliveries
        self._brokers: dict[int, _Broker] = {}
        self._not_before: dict[TopicPartition, float] = {}
        self._error: PylogError | None = None
        self._wake = asyncio.Event()
        self._wants, self._has_begun, self._until_s = False, False, 0.0
        self._acting: asyncio.Task[None] | None = None

    def assign(self, tps: Collection[TopicPartition]) -> None:
        """Acquire records of these from now on, and of no others."""
        self.assigned = frozenset(tps)
        self._wake.set()

    # ------------------------------------------------------------------ handing out

    def want(self, until_s: float) -> None:
        """Begin to acquire records; each request waits for some until then at most."""
        self._wants, self._has_begun, self._until_s = True, False, until_s
        if self._acting is None or self._acting.done():
            self._acting = asyncio.get_running_loop().create_task(self._act())
            self._acting.add_done_callback(self._ended)
        self._wake.set()

    def unwant(self) -> None:
        """Begin no more requests that acquire records, but one at least."""
        self._wants = self._wants and not self._has_begun

    def take(self) -> pa.RecordBatch | None:
        """Return the next records that are acquired, all of one partition.

        Raises: why a fetch failed; CorruptLogError: these and the following records of the answer are released.
        """
        if (error := self._error) is not None:
            self._error = None
            raise error
        if (rows := self._ahead.take(asyncio.get_running_loop().time())) is None:
            self._wake.set()
        return rows

    # ------------------------------------------------------------------ acknowledging

    def settle(self) -> None:
        """Have sent what the program has decided, with the next requests."""
        self._owe(self.deliveries.take())
        self._wake.set()

    def _owe(self, due: Iterable[Due]) -> None:
        for each in due:
            broker = self._brokers[each.lease.broker]
            if broker.lease == each.lease:
                broker.due.append(each)
            else:
                self._told(each, _ENDED)

    def _told(self, due: Due, error: PylogError | None) -> None:
        self.outcomes.append(Outcome(due, error))
        self._changed.set()

    async def flush(self) -> None:
        """Send all that is due, and return when each of it has an outcome."""
        while True:
            for broker in self._brokers.values():
                if broker.due and broker.asking is None:
                    self._begin(broker, self._acknowledge(broker))
            asking = [each.asking for each in self._brokers.values() if each.asking and (each.due or each.told)]
            if not asking:
                return
            await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)

    async def close(self, within_s: float) -> None:
        """Send all that is due, and end the sessions: brokers release what is still acquired."""
        if self._acting is not None:
            self._acting.cancel()
        closing = [asyncio.create_task(self._close(broker)) for broker in self._brokers.values()]
        if closing:
            await asyncio.wait(closing, timeout=within_s)
        late = [*closing, *(each.asking for each in self._brokers.values() if each.asking is not None)]
        late += [self._acting] if self._acting is not None else []
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for broker in self._brokers.values():
            due, broker.due = broker.due, []
            for each in due:
                self._told(each, _CLOSED)

    async def _close(self, broker: _Broker) -> None:
        while broker.asking is not None:
            await asyncio.wait([broker.asking])
        if broker.session.is_open:
            await asyncio.wait([self._begin(broker, self._acknowledge(broker, closes=True))])

    # ------------------------------------------------------------------ requests

    async def _act(self) -> None:
        """Begin what is to be asked, whenever that may have changed."""
        while True:
            await is_set_within(self._wake, self._retry_s)
            self._wake.clear()
            try:
                self._begin_all(await self._shares())
            except PylogError as error:
                self._fail(error)
                await asyncio.sleep(RETRY_MAX_S)

    @property
    def _retry_s(self) -> float | None:
        """After so long there may be something to do by itself; None: not before something changes."""
        now = asyncio.get_running_loop().time()
        is_put_off = any(each.not_before_s > now for each in self._brokers.values())
        return RETRY_S if self._wants and (is_put_off or self._not_before) else None

    async def _shares(self) -> dict[int, dict[SharePartition, TopicPartition]]:
        """The partitions to acquire records of, by their leaders. Raises: as `Cluster.leader`."""
        shares: dict[int, dict[SharePartition, TopicPartition]] = {}
        now = asyncio.get_running_loop().time()
        for tp in sorted(self.assigned):
            if self._not_before.get(tp, 0.0) > now:
                continue
            self._not_before.pop(tp, None)
            try:
                leader, topic_id = (await self._cluster.leader(tp)).broker, (await self._cluster.topic(tp.topic)).id
            except (UnknownTopicError, UnknownPartitionError) as error:
                logger.info("tp=%s is not there: %s", tp, error)
                self._later(tp, RETRY_MAX_S)
                continue
            if leader == NO_LEADER:
                self._later(tp)
                continue
            shares.setdefault(leader, {})[SharePartition(topic_id, tp.partition)] = tp
            self._brokers.setdefault(leader, _Broker(leader))
        return shares

    def _begin_all(self, shares: Mapping[int, Share]) -> None:
        now = asyncio.get_running_loop().time()
        for broker in sorted(self._brokers.values(), key=lambda each: each.asked_s):
            share = shares.get(broker.id, {})
            if broker.asking is not None:
                continue
            if self._may_fetch(broker, share, now):
                self._begin(broker, self._fetch(broker, share, max(0.0, self._until_s - now)))
                self._has_begun = True
            elif broker.due:
                self._begin(broker, self._acknowledge(broker))
            elif (
                not share and broker.session.is_open and broker.lease not in self._ahead.leases | self.deliveries.leases
            ):
                self._begin(broker, self._acknowledge(broker, closes=True))
        self._wants = self._wants and not (self._has_begun and now >= self._until_s)

    def _may_fetch(self, broker: _Broker, share: Share, now: float) -> bool:
        if not share or not self._wants or self._ahead or broker.not_before_s > now:
            return False
        if self._requests.is_record_limited and any(each.asking for each in self._brokers.values()):
            return False
        # A renewal comes alone, and a partition that is named in a fetch would belong to the session again.
        named_in_it = share.keys() | broker.session.told
        return not any(each.renews or each.partition not in named_in_it for each in broker.due)

    def _begin(self, broker: _Broker, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        broker.asked_s = asyncio.get_running_loop().time()
        broker.asking = task = asyncio.get_running_loop().create_task(what)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The next `take` raises what went wrong here."""
        if (error := failure_of(task, "the share consumer")) is not None:
            self._fail(error)

    async def _fetch(self, broker: _Broker, share: Share, wait_s: float) -> None:
        asked = fetch_of(broker.session, frozenset(share))
        answer = await self._ask(broker, asked, share.values(), wait_s)
        if answer is None:
            return
        hosts = {row.node_id: BrokerAddress(row.node_id, row.host, row.port) for row in answer.node_endpoints}
        lock_s = answer.acquisition_lock_timeout.total_seconds()
        self.lock_timeout_ms = round(1000 * lock_s)
        for topic in answer.responses:
            for row in topic.partitions:
                tp = share.get(SharePartition(topic_id_of(topic.topic_id), row.partition_index))
                if tp is not None and row.error_code:
                    self._refused(tp, row, hosts)
                elif tp is not None and row.acquired_records:
                    until_s = broker.asked_s + lock_s
                    self._ahead.add(row, tp, topic_id_of(topic.topic_id), lease=broker.lease, until_s=until_s)
                    self._changed.set()

    async def _acknowledge(self, broker: _Broker, *, closes: bool = False) -> None:
        asked = closing_of(broker.session) if closes else acknowledgement_of(broker.session)
        await self._ask(broker, asked, [each.tp for each in broker.due], None)

    async def _ask(
        self, broker: _Broker, asked: Asked, tps: Collection[TopicPartition], wait_s: float | None
    ) -> Any | None:
        """Send one request of the session with all that is due; None: it was refused, or not answered."""
        broker.told, broker.due = broker.due, []
        topics = {tp.topic for tp in tps} | {each.tp.topic for each in broker.told}
        answer: Any | None = None
        failure: PylogError | None = _NO_ANSWER
        try:
            answer = await self._requests.ask(broker.id, topics, asked, broker.told, wait_s)
            failure = error_of(answer.error_code, answer.error_message or "") if answer.error_code else None
        except LOST as error:
            logger.info("broker %d did not answer: %s", broker.id, reason_of(error))
        except PylogError as error:
            failure = error
        finally:
            broker.asking = None
            self._wake.set()
            self._heard(broker, asked, answer, failure)
        if failure is None:
            broker.failures = 0
            return answer
        if wait_s is not None and failure is not _NO_ANSWER and not may_pass(failure):
            self._fail(failure)
        broker.failures += 1
        broker.not_before_s = asyncio.get_running_loop().time() + min(RETRY_S * 2**broker.failures, RETRY_MAX_S)
        self._cluster.forget(topics)
        return None

    def _heard(self, broker: _Broker, asked: Asked, answer: Any | None, failure: PylogError | None) -> None:
        """Note the outcomes, and what became of the session."""
        told, broker.told = broker.told, []
        errors = {} if failure else self._requests.errors_in(answer)
        now = asyncio.get_running_loop().time()
        for each in told:
            error = failure or errors.get(each.partition, _NOT_ANSWERED)
            if error is None and each.renews and self.lock_timeout_ms is not None:
                self.deliveries.renewed(each, broker.asked_s + self.lock_timeout_ms / 1000)
            self._told(each, _LATE if error is None and each.until_s < now else error)
        if isinstance(failure, UnsupportedVersionError):  # it was not sent
            return
        before = broker.lease
        broker.session = step(broker.session, Lost() if answer is None else Answered(asked, code_in(answer)))
        if broker.lease != before:
            due, broker.due = broker.due, []
            for each in due:
                self._told(each, _ENDED)
            self._ahead.drop(before)

    def _refused(self, tp: TopicPartition, row: Any, hosts: Mapping[int, BrokerAddress]) -> None:
        error = error_of(row.error_code, f"{tp}: {row.error_message or 'no records can be acquired'}")
        if error.code in _MOVED:
            leader = PartitionLeader(row.current_leader.leader_id, row.current_leader.leader_epoch)
            self._cluster.learn(tp, leader, hosts.get(leader.broker))
            return
        if not may_pass(error):
            self._fail(error)
        self._later(tp, RETRY_S if may_pass(error) else RETRY_MAX_S)

    def _fail(self, error: PylogError) -> None:
        self._error = error
        self._changed.set()

    def _later(self, tp: TopicPartition, wait_s: float = RETRY_S) -> None:
        self._cluster.forget([tp.topic])
        self._not_before[tp] = asyncio.get_running_loop().time() + wait_s
