"""Fetch sessions: how consumers and followers read many partitions, and wait until there is enough.

A fetch is answered at once if it may not wait, asks for nothing, finds `min_bytes`, or an error. Otherwise it waits:
its partitions wake it when they have more, and it looks once at all that changed in a turn of the loop. At the end of
its time it is answered with what there is. It needs a task only while it reads from the disk, or goes in steps.

Most sessions are of one request. Those of followers go on: a request names the partitions that are new in its session,
or whose position has changed, and repeats all others, noted once for all (`asked_ms`). An answer has the partitions
that were named, those with records, an error or another log start, and those whose high watermark has moved. A
partition that was answered with records or an error leaves the session, until the follower is ready for more. So a
partition without news costs nothing. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

from logstore.env import Clock
from replication.errors import ErrorCode, KafkaError
from replication.model.cluster import NO_EPOCH, BrokerId, TopicPartition
from replication.network.steps import STEP_ITEMS, begin, step
from replication.protocol.messages import (
    FIRST_REQUEST,
    FULL_SESSIONS,
    FetchPartition,
    PartitionFetched,
    next_session_epoch,
)
from replication.replica.leader.readable import Readable
from replication.replica.leader.results import FetchTerms
from replication.replica.leader.rows import Row, look_at_stable_ends, read

Response = TypeVar("Response")
Found: TypeAlias = dict[TopicPartition, PartitionFetched]
UNUSED_MS = 60_000  # a session that long without a request is of a connection that has ended


class FetchSession:
    """`number` 0: of one request only."""

    def __init__(
        self,
        number: int,
        replica: tuple[BrokerId, int],
        leader_of: Callable[[TopicPartition], Readable],
        clock: Clock,
    ) -> None:
        self.number = number
        self.replica_id, self.replica_epoch = replica
        self.next_epoch = 1
        self.asked_ms = clock.monotonic_ms()
        self.is_asking = self.is_closed = False  # a request is not answered yet; there will be none
        self.topics: dict[str, tuple[str | None, uuid.UUID | None]] = {}  # by their names, as requests name them
        self.rows: dict[TopicPartition, Row] = {}
        self.changed: dict[TopicPartition, Row] = {}  # to be looked at
        self.has_news = False  # of what changed, something did since the last look
        self.wake: Callable[[], None] | None = None  # while a request waits
        self._again: dict[TopicPartition, Row] = {}  # to be admitted again, until they are in sync
        self._unanswered: dict[TopicPartition, Row] = {}  # which the next answer has
        self._found: Found = {}  # of the next answer
        self._leader_of, self._clock = leader_of, clock

    def close(self) -> None:
        self.is_asking, self.is_closed = False, True
        for tp in tuple(self.rows):
            self._drop(tp)

    def fetch(
        self,
        wanted: Mapping[TopicPartition, FetchPartition],
        forgotten: Iterable[TopicPartition],
        terms: FetchTerms,
        respond: Callable[[Found], Awaitable[Response]],
    ) -> Response | asyncio.Future[Response]:
        """Return what `respond` makes of the answer, now or later. One request at a time."""
        self.is_asking = True
        return _Request(self, terms, respond).begin(self._take(wanted, forgotten, terms))

    # ------------------------------------------------------------------- as the rows' `Reader`

    def woken(self, row: Row) -> None:
        if self.rows.get(row.tp) is row:
            self.changed[row.tp] = row
            self.has_news = True
            if self.wake is not None:
                self.wake()

    def renew(self, row: Row) -> None:
        self._again[row.tp] = row

    def tell(self, row: Row) -> None:
        self._unanswered[row.tp] = row

    # ------------------------------------------------------------------- what a request asks for

    async def _take(
        self, wanted: Mapping[TopicPartition, FetchPartition], forgotten: Iterable[TopicPartition], terms: FetchTerms
    ) -> None:
        self.asked_ms = self._clock.monotonic_ms()
        for tp in forgotten:
            self._drop(tp)
        known = (*self._again.values(), *self.changed.values())
        for number, (tp, asked) in enumerate(wanted.items(), 1):
            if number % STEP_ITEMS == 0:
                await step()
            self._drop(tp)
            try:
                leader = self._leader_of(tp)
            except KafkaError as error:
                self._found[tp] = PartitionFetched(tp.partition, error.code)
            else:
                if terms.is_follower and asked.current_leader_epoch == NO_EPOCH:
                    # It asks in this epoch: in the next its leader knows no followers yet.
                    asked = asked._replace(current_leader_epoch=leader.leader_epoch)  # noqa: PLW2901
                row = self.rows[tp] = self.changed[tp] = self._unanswered[tp] = Row(tp, asked, leader, self)
                self._admit(row, terms)
        for number, row in enumerate(known, 1):
            if number % STEP_ITEMS == 0:
                await step()
            if self.rows.get(row.tp) is row:
                self._admit(row, terms)

    def _admit(self, row: Row, terms: FetchTerms) -> None:
        leader, tp = row.leader, row.tp
        refused = leader.admit(row.asked, terms)
        if refused is not None:
            self._drop(tp)
            self._found[tp] = refused
        elif terms.is_follower:
            if leader.follow(self.replica_id, row.asked.fetch_offset, row):
                self._again.pop(tp, None)
            else:
                self._again[tp] = row

    def _drop(self, tp: TopicPartition) -> None:
        row = self.rows.pop(tp, None)
        if row is not None:
            for rows in (self._again, self._unanswered, self.changed):
                rows.pop(tp, None)
            row.leave()

    # ------------------------------------------------------------------- what is answered

    def is_due(self, terms: FetchTerms) -> bool:
        return terms.max_wait_ms <= 0 or bool(self._found) or not self.rows

    async def is_enough(self, terms: FetchTerms) -> bool:
        size_bytes = 0
        for number, row in enumerate(tuple(self.changed.values()), 1):
            if number % STEP_ITEMS == 0:
                await step()
            size_bytes += row.size_bytes
            if size_bytes >= terms.min_bytes or row.must_answer(terms):
                return True
        return size_bytes >= terms.min_bytes

    async def wait(self, terms: FetchTerms) -> None:
        """Have the rows that were looked at wake the session."""
        for number, row in enumerate(tuple(self.changed.values()), 1):
            if number % STEP_ITEMS == 0:
                await step()
            self.has_news |= self._settle(row, terms)

    def _settle(self, row: Row, terms: FetchTerms) -> bool:
        """Look at the row no more until it wakes the session, unless it has something. Return whether it has more."""
        row.wait()
        has_more = row.has_more(terms)
        if row.asked.fetch_offset >= row.upper and not has_more:
            row.result = None
            self.changed.pop(row.tp, None)
        return has_more

    async def answer(self, terms: FetchTerms) -> Found:
        """Return the answer, with which the request is over."""
        rows = {**self.changed, **self._unanswered}
        if not terms.is_follower:
            await look_at_stable_ends(rows.values())
        for number, row in enumerate(rows.values(), 1):
            if number % STEP_ITEMS == 0:
                await step()
            self._answer(row, terms)
        found, self._found = self._found, {}
        self.is_asking = False
        if not self.number:
            self.is_closed = True
            for known in (self.rows, self.changed, self._unanswered, self._again):
                known.clear()  # rows and their session hold each other: else records stay until garbage is collected
        return found

    def _answer(self, row: Row, terms: FetchTerms) -> None:
        tp = row.tp
        if not self.number:  # it has no other request
            self._found[tp] = row.answer(terms)
            row.leave()
            return
        if tp in self._unanswered or row.size_bytes or row.must_answer(terms):
            self._found[tp] = answer = row.answer(terms)
            self._unanswered.pop(tp, None)
            if answer.records or answer.error_code:
                self._drop(tp)
        row.result = None
        if tp in self.changed:
            self._settle(row, terms)


class _Request(Generic[Response]):
    """One request of a session, until it is answered."""

    def __init__(
        self, session: FetchSession, terms: FetchTerms, respond: Callable[[Found], Awaitable[Response]]
    ) -> None:
        self._session, self._terms, self._respond = session, terms, respond
        self._response: Response
        self._is_late = False
        self._task: asyncio.Task[bool] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def begin(self, taking: Awaitable[None]) -> Response | asyncio.Future[Response]:
        try:
            look = begin(self._look(taking))
        except Exception:
            self._session.close()
            raise
        if look is True:
            return self._response
        self._loop = loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[Response] = loop.create_future()
        self._answer.add_done_callback(self._over)
        self._timers.append(loop.call_later(self._terms.max_wait_ms / 1000, self._late))
        self._looked(look)
        return self._answer

    async def _look(self, taking: Awaitable[None] | None = None) -> bool:
        """Answer, if it is time; otherwise wait, which returns False."""
        session, terms = self._session, self._terms
        if taking is not None:
            await taking
        while True:
            session.has_news = False
            quota = await read(tuple(session.changed.values()), terms) if session.changed else None
            if self._is_late or session.is_due(terms) or await session.is_enough(terms):
                found = await session.answer(terms)
                self._response = await self._respond(found)
                return True
            await session.wait(terms)
            if not session.has_news and not self._is_late:
                session.wake = self._wake
                if quota is not None:
                    loop = asyncio.get_running_loop()
                    self._timers.append(loop.call_later(quota.wait_ms() / 1000, self._wake))
                return False

    def _looked(self, look: bool | Awaitable[bool]) -> None:
        if look is True:
            self._answer.set_result(self._response)
        elif look is not False:
            self._task = asyncio.ensure_future(look)
            self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[bool]) -> None:
        self._task = None
        if self._answer.done():
            return
        if task.cancelled():
            self._answer.cancel()
        elif (error := task.exception()) is not None:
            self._answer.set_exception(error)
        else:
            self._looked(task.result())

    def _wake(self) -> None:
        """Look at the end of this turn, once for all that comes in it."""
        if self._session.wake is not None:
            self._session.wake = None
            self._loop.call_soon(self._look_again)

    def _late(self) -> None:
        self._is_late = True
        self._wake()

    def _look_again(self) -> None:
        if self._answer.done():
            return
        try:
            self._looked(begin(self._look()))
        except Exception as error:  # noqa: BLE001  the server closes the connection, and logs it
            self._answer.set_exception(error)

    def _over(self, _: asyncio.Future[Response]) -> None:
        """The request is answered, or its connection has ended: then nothing of the session is repeated, either."""
        for timer in self._timers:
            timer.cancel()
        self._session.wake = None
        if self._task is not None:
            self._task.cancel()
        if self._session.is_asking:
            self._session.close()


class FetchSessions:
    """The fetch sessions of all followers, by their ids."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sessions: dict[int, FetchSession] = {}
        self._numbers = itertools.count(1)

    def of(
        self,
        number: int,
        epoch: int,
        replica: tuple[BrokerId, int],
        leader_of: Callable[[TopicPartition], Readable],
    ) -> FetchSession:
        """Return the session of a request, its epoch noted; a consumer's is of one request.

        Raises: KafkaError: there is none, or it is not its turn.
        """
        found = self._sessions.get(number)
        if found is not None and (found.replica_id, found.replica_epoch) != replica:
            found = None
        if epoch in FULL_SESSIONS:
            if found is not None:
                found.close()
                del self._sessions[number]
            session = FetchSession(0, replica, leader_of, self._clock)
            if epoch == FIRST_REQUEST and session.replica_id >= 0:
                session.number = next(self._numbers)
                self._sessions[session.number] = session
            return session
        if found is None or found.is_closed:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"there is no fetch session {number}")
        if found.is_asking or epoch != found.next_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH, f"{epoch}: {found.next_epoch} is next")
        found.next_epoch = next_session_epoch(epoch)
        return found

    def sweep(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for number, session in tuple(self._sessions.items()):
            if session.is_closed or (now_ms - session.asked_ms > UNUSED_MS and not session.is_asking):
                session.close()
                del self._sessions[number]

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
