"""Members of share groups for programs (KIP-932): records as Arrow, each handed to one member until it is accepted.

Heartbeats go on between polls. Laws: a record that was accepted, with a good outcome, is handed to no member again; one
that was not is handed out again, by a count of deliveries that the brokers bound. No refused acknowledgement is silent:
`commit` raises it, and others are told to `on_acknowledged`, or logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from logstore.errors import InvalidRequestError, PylogError
from replication.client import membership
from replication.client.attempts import reason_of
from replication.client.blocking import Blocking, done, waiting
from replication.client.cluster import Cluster
from replication.client.consumer import apart
from replication.client.deliveries import AcknowledgeType, Kind, kind_of
from replication.client.members import ShareMember
from replication.client.membership import Tps
from replication.client.security import PLAINTEXT, Security
from replication.client.settings import settings_of
from replication.client.share_reading import Outcome, ShareReader
from replication.client.share_requests import ShareRequests
from replication.client.share_settings import SHARE_HINTS, ShareConsumerSettings, share_subscription
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import TopicPartition
from replication.network.loops import is_set_within

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

CLOSE_S, LEAVE_S = 5.0, 3.0  # for the last acknowledgements, and for the last word to the group
SHOWN = 3  # outcomes in a message
Listener = Callable[[tuple[Outcome, ...]], Awaitable[None]]


class AcknowledgeError(KafkaError):
    """Acknowledgements that were refused, or of which nobody knows; `refused` has each with its error."""

    refused: tuple[Outcome, ...]

    def __init__(self, refused: tuple[Outcome, ...]) -> None:
        first = refused[0].error
        code = first.code if isinstance(first, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        shown = "; ".join(f"{due}: {error}" for due, error in refused[:SHOWN])
        super().__init__(code, shown + (f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""))
        self.refused = refused


class AsyncShareConsumer:
    """See the module. Belongs to one event loop and one task; ends with `close` or `async with`.

    `on_acknowledged` is called, within `poll`, `commit` and `close`, with what became of acknowledgements.
    """

    def __init__(
        self,
        bootstrap: str,
        topics: Iterable[str],
        settings: ShareConsumerSettings,
        *,
        on_acknowledged: Listener | None = None,
        security: Security = PLAINTEXT,
    ) -> None:
        self._settings, self._on_acknowledged = settings, on_acknowledged
        # Connections of its own: a session lasts as long as its connection.
        self._cluster = Cluster(
            bootstrap, metadata_max_age_ms=settings.metadata_max_age_ms, rack=settings.rack, security=security
        )
        self._changed = asyncio.Event()
        self.member = ShareMember(self._cluster, settings, share_subscription(topics), self._changed)
        requests = ShareRequests(self._cluster, settings, self.member.looks_as.id)
        self._reader = ShareReader(self._cluster, requests, self._changed)

    def __repr__(self) -> str:
        assigned = sorted(map(str, self.assignment))
        return f"AsyncShareConsumer(group_id={self._settings.group_id!r}, assignment={assigned})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None:
            self.release()
        await self.close()

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        """Batches without end, as `poll` gives them."""
        while True:
            if (rows := await self.poll()) is not None:
                yield rows

    @property
    def assignment(self) -> Tps:
        """The partitions that it acquires records of; others may acquire other records of them."""
        return self._reader.assigned

    @property
    def lock_timeout_ms(self) -> int | None:
        """For how long records are locked, as the brokers said last; None: none has yet."""
        return self._reader.lock_timeout_ms

    async def poll(self, timeout_ms: int = 1000) -> pa.RecordBatch | None:
        """The next records of one partition, locked for this member; None: there were none in time.

        Columns: topic, partition, those of `RECORD_SCHEMA`, and delivery_count, from 1 on. With implicit
        acknowledgement the records of the poll before are accepted.

        Raises: InvalidRequestError: it is closed; with explicit acknowledgement, a record of the poll before is not
        acknowledged. CorruptLogError: records cannot be read, and are released. KafkaError: it cannot be a member, or
        a partition may not be read.
        """
        loop = asyncio.get_running_loop()
        if self.member.error is not None:
            raise self.member.error
        self._decide()
        self._reader.settle()
        self.member.begin()
        self.member.polled_s = float("inf")  # while it polls, it is not late
        until_s = loop.time() + timeout_ms / 1000
        self._reader.want(until_s)
        try:
            return await self._poll(until_s)
        finally:
            self._reader.unwant()
            self.member.polled_s = loop.time()

    async def _poll(self, until_s: float) -> pa.RecordBatch | None:
        while True:
            self._changed.clear()
            if self.member.error is not None:
                raise self.member.error
            await self._act()
            await self._tell(self._outcomes())
            if (rows := self._reader.take()) is not None:
                return rows
            if not await is_set_within(self._changed, until_s - asyncio.get_running_loop().time()):
                return None

    def acknowledge(self, rows: pa.RecordBatch | Mapping[str, Any], kind: AcknowledgeType = "accept") -> None:
        """Decide about polled records: a batch, some rows of one, or one row as a mapping.

        accept: they are done. release: any member may get them again. reject: none may. renew: they stay locked for
        another lock_timeout_ms, and are to be acknowledged later. The next `poll` or `commit` sends it.

        Raises: InvalidRequestError: acknowledgement is implicit, no such kind, or a record is not held.
        """
        if self._settings.share_acknowledgement_mode != "explicit":
            raise InvalidRequestError("acknowledge needs share_acknowledgement_mode='explicit'")
        said = kind_of(kind)
        for tp, offsets in _offsets_of(rows):
            self._reader.deliveries.decide(tp, offsets, said)

    async def commit(self) -> None:
        """Acknowledge now what is decided (with implicit acknowledgement: all that was polled).

        Raises: AcknowledgeError: some of it was refused, or of what earlier polls sent; the rest is done.
        InvalidRequestError: it is closed.
        """
        if isinstance(self.member.error, InvalidRequestError):
            raise self.member.error
        if self._settings.share_acknowledgement_mode == "implicit":
            self._reader.deliveries.decide_all(Kind.ACCEPT)
        self._reader.settle()
        await self._reader.flush()
        outcomes = self._outcomes()
        if self._on_acknowledged is not None and outcomes:
            await self._on_acknowledged(outcomes)
        if refused := tuple(each for each in outcomes if each.error is not None):
            raise AcknowledgeError(refused)

    def release(self) -> None:
        """Release all polled records that are not decided about, when the next call sends it."""
        self._reader.deliveries.decide_all(Kind.RELEASE)

    async def close(self) -> None:
        """Acknowledge what is decided (with implicit acknowledgement: all that was polled), and release the rest.

        It leaves the group and ends the connections, within some seconds, also if brokers do not answer.
        """
        if self.member.error is None:
            self.member.error = InvalidRequestError("the share consumer is closed")
            self.member.closed()
        if self._settings.share_acknowledgement_mode == "implicit":
            self._reader.deliveries.decide_all(Kind.ACCEPT)
        self._reader.settle()
        await self._reader.close(CLOSE_S)
        await self._tell(self._outcomes())
        await self.member.stop()
        try:
            async with asyncio.timeout(LEAVE_S):
                while self.member.due:
                    effect = self.member.due.popleft()
                    if isinstance(effect, membership.Leave):
                        await self.member.perform(effect)
        except (PylogError, TimeoutError) as error:
            logger.warning("group=%s a member left without a word: %s", self._settings.group_id, reason_of(error))
        self._cluster.close()
        await asyncio.sleep(0)

    # ------------------------------------------------------------------ within a poll

    def _decide(self) -> None:
        deliveries = self._reader.deliveries
        if self._settings.share_acknowledgement_mode == "implicit":
            deliveries.decide_all(Kind.ACCEPT)
        elif undecided := deliveries.undecided:
            raise InvalidRequestError(f"{undecided} polled records are not acknowledged: call acknowledge for each")

    async def _act(self) -> None:
        due = self.member.due
        while True:
            while due:
                await self._perform(due[0])
                due.popleft()
            self.member.polled()
            if not due:
                return

    async def _perform(self, effect: membership.Effect) -> None:
        match effect:
            case membership.Revoke(tps) | membership.Lose(tps):
                self._reader.assign(self._reader.assigned - tps)
            case membership.Assign(tps):
                self._reader.assign(self._reader.assigned | tps)
            case _:
                await self.member.perform(effect)

    def _outcomes(self) -> tuple[Outcome, ...]:
        outcomes, self._reader.outcomes = tuple(self._reader.outcomes), []
        return outcomes

    async def _tell(self, outcomes: tuple[Outcome, ...]) -> None:
        if self._on_acknowledged is not None:
            if outcomes:
                await self._on_acknowledged(outcomes)
            return
        for due, error in outcomes:
            if error is not None:
                logger.warning("group=%s not acknowledged: %s: %s", self._settings.group_id, due, error)


def _offsets_of(rows: pa.RecordBatch | Mapping[str, Any]) -> Iterator[tuple[TopicPartition, Any]]:
    names = rows.keys() if isinstance(rows, Mapping) else rows.schema.names
    if missing := {"topic", "partition", "offset"}.difference(names):
        raise InvalidRequestError(f"polled rows are needed: these lack {', '.join(sorted(missing))}")
    if isinstance(rows, Mapping):
        yield TopicPartition(rows["topic"], rows["partition"]), np.array([rows["offset"]], np.int64)
        return
    partitions, offsets = rows.column("partition").to_numpy(), rows.column("offset").to_numpy()
    topics = rows.column("topic")
    for topic in topics.unique().to_pylist():
        import pyarrow.compute as pc

        of_topic = pc.equal(topics, topic).to_numpy(zero_copy_only=False)
        for partition in np.unique(partitions[of_topic]).tolist():
            yield TopicPartition(topic, partition), offsets[of_topic & (partitions == partition)]


async def share_member(
    bootstrap: str,
    topics: Iterable[str],
    given: Mapping[str, Any],
    on_acknowledged: Callable[[tuple[Outcome, ...]], None] | None,
    security: Security,
) -> AsyncShareConsumer:
    """Return a member with these settings; its listener runs in a thread of its own. Raises: InvalidConfigError."""
    settings = settings_of(ShareConsumerSettings, given, "a share consumer", SHARE_HINTS)
    listener = None if on_acknowledged is None else apart(on_acknowledged)
    return AsyncShareConsumer(bootstrap, topics, settings, on_acknowledged=listener, security=security)


class ShareConsumer(Blocking[AsyncShareConsumer]):
    """`AsyncShareConsumer` for code without an event loop, for one thread at a time; `KafkaClient.share_consumer`.

    `on_acknowledged` is called in a thread of its own while a call waits. A `with` block that raises releases the
    records that were polled last.
    """

    def __exit__(self, *error: object) -> None:
        if any(error):
            self._run(done(self._wrapped.release))
        self.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Batches without end, as `poll` gives them."""
        while True:
            if (rows := self.poll()) is not None:
                yield rows

    poll = waiting(AsyncShareConsumer.poll)
    commit = waiting(AsyncShareConsumer.commit)

    @property
    def assignment(self) -> Tps:
        """Forward to `AsyncShareConsumer.assignment`."""
        return self._wrapped.assignment

    @property
    def lock_timeout_ms(self) -> int | None:
        """Forward to `AsyncShareConsumer.lock_timeout_ms`."""
        return self._wrapped.lock_timeout_ms

    def acknowledge(self, rows: pa.RecordBatch | Mapping[str, Any], kind: AcknowledgeType = "accept") -> None:
        """Forward to `AsyncShareConsumer.acknowledge`."""
        self._run(done(lambda: self._wrapped.acknowledge(rows, kind)))

    def release(self) -> None:
        """Forward to `AsyncShareConsumer.release`."""
        self._run(done(self._wrapped.release))
